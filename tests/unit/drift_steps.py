"""Steps of the tests of drift: a thread is moved away, and what is logged and set."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine_wide import alone_with
from strayed import Spinners, spinners

from vmpin.cpuset import CpuSet
from vmpin.vmm.virtual_machine import Vm


@pytest.fixture
def node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Spinners]:
    """Alone: a numad that another test runs would be the cause of drift here, too."""
    caplog.set_level(logging.INFO, "vmpin")
    with alone_with("numad"), spinners(tmp_path) as made:
        yield made


def log(caplog: pytest.LogCaptureFixture, word: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.message.startswith(word)]


def mask(vm: Vm) -> CpuSet:
    return CpuSet(os.sched_getaffinity(vm.vmm.pid))


def contend(node: Spinners, vm: Vm, times: int) -> int:
    """Move it away again and again; how often it was put back."""
    done = 0
    for _ in range(times):
        node.move(vm, node.there)
        done += node.repair(vm)
    return done
