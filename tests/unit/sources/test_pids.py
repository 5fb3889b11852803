"""The process behind a pid that a runtime gave: real ones."""

from __future__ import annotations

import os
import subprocess

from nri_events import PROC

from vmpin.domain.model import ThreadId
from vmpin.sources.pids import PidOwner, owner_of


def test_a_process_that_has_just_begun_is_the_containers() -> None:
    """In its exec it has no arguments for a moment: of a hundred some are met there."""
    for _ in range(100):
        with subprocess.Popen(["sleep", "600"]) as made:
            found = owner_of(made.pid, PROC)
            stat = PROC.stat(made.pid)
            made.kill()
        assert stat is not None
        assert found == PidOwner(init=ThreadId(made.pid, stat.starttime))


def test_what_has_ended_and_a_kernel_thread_are_none() -> None:
    made = subprocess.Popen(["true"])
    os.waitid(os.P_PID, made.pid, os.WEXITED | os.WNOWAIT)
    assert owner_of(made.pid, PROC) == PidOwner()
    made.wait()
    assert owner_of(made.pid, PROC) == owner_of(0, PROC) == PidOwner()
    if (second := PROC.stat(2)) is not None and second.kernel_thread:  # not so in a container
        assert owner_of(2, PROC) == PidOwner()
