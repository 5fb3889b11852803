"""Descriptors of real processes (host/open_files)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vmpin.features.network.open_files import MAX_FDS, distinct_files
from vmpin.host.procfs import Procfs


@pytest.fixture
def fds(tmp_path: Path) -> list[int]:
    """A file, a duplicate, the file opened again, and a duplicate of that."""
    (tmp_path / "file").write_text("")
    first, again = (os.open(tmp_path / "file", os.O_RDONLY) for _ in range(2))
    return [first, os.dup(first), again, os.dup(again)]


def test_duplicates_of_a_descriptor_are_one_file_and_a_file_opened_again_is_another(fds: list[int]) -> None:
    found = distinct_files(Procfs(), os.getpid(), fds)
    if found == fds:
        pytest.skip("the kernel has no kcmp (CONFIG_KCMP)")
    assert found == [fds[0], fds[2]]


def test_descriptors_of_another_process_are_compared_there(fds: list[int]) -> None:
    if distinct_files(Procfs(), os.getpid(), fds) == fds:
        pytest.skip("the kernel has no kcmp (CONFIG_KCMP)")
    code = "import os,sys; os.dup2(0, 50); print(); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert distinct_files(Procfs(), child.pid, [0, 50, 1]) == [0, 1]
        child.communicate(b"")


def test_another_pid_namespaces_numbers_are_not_asked_for(fds: list[int], tmp_path: Path) -> None:
    assert distinct_files(Procfs(tmp_path), os.getpid(), fds) == fds
    assert distinct_files(Procfs(), 2**22 - 1, fds) == fds, "and what has ended has all of them"


def test_no_more_descriptors_are_compared_than_a_device_has_queues(fds: list[int]) -> None:
    assert len(distinct_files(Procfs(), os.getpid(), [*fds, *range(1 << 30, (1 << 30) + 2 * MAX_FDS)])) <= MAX_FDS
