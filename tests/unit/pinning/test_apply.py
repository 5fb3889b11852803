"""The outcome of an operation, and its line in the log, on a real thread."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator

import pytest
from strayed import thread_of

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import Sysfs
from vmpin.pinning.apply import Outcome, carry_out
from vmpin.pinning.plan import SetAffinity


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as made:
        yield made.pid
        made.kill()


def test_a_refused_mask_is_not_logged_as_set(child: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    before = CpuSet(os.sched_getaffinity(child))
    nowhere = CpuSet([max(Sysfs().topology().all_cpus) + 1])
    first = CpuSet([min(before)])
    thread = thread_of(child)
    refused, done = (SetAffinity(SandboxId("a"), thread, cpus, before) for cpus in (nowhere, first))
    assert [result.outcome for result in carry_out(Procfs(), [refused, done])] == [Outcome.REFUSED, Outcome.DONE]
    lines = [record.getMessage() for record in caplog.records if record.name == "vmpin.pinning.apply"]
    assert lines[0].startswith(f"not done: {refused.describe()}: ")
    assert lines[1:] == [f"{done.describe()} sandbox=a"]
