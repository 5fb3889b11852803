"""The process behind a pid that a runtime gave: real ones."""

from __future__ import annotations

import os
import subprocess

import pytest
from need import need_root
from nri_events import PROC

from vmpin.domain.model import SandboxId, ThreadId
from vmpin.sources.pids import PidOwner, owner_of

POD = SandboxId("7f1d0c4be5a2f8c39b6d0e1a4c5f7788990011223344556677889900aabbccdd")
#: The uid of no account, and not that of the tests.
USER = 61234


def test_a_process_that_has_just_begun_is_the_containers() -> None:
    """In its exec it has no arguments for a moment: of a hundred some are met there."""
    for _ in range(100):
        with subprocess.Popen(["sleep", "600"]) as made:
            found = owner_of(made.pid, PROC, POD)
            stat = PROC.stat(made.pid)
            made.kill()
        assert stat is not None
        assert found == PidOwner(init=ThreadId(made.pid, stat.starttime))


def test_what_has_ended_and_a_kernel_thread_are_none() -> None:
    made = subprocess.Popen(["true"])
    os.waitid(os.P_PID, made.pid, os.WEXITED | os.WNOWAIT)
    assert owner_of(made.pid, PROC, POD) == PidOwner()
    made.wait()
    assert owner_of(made.pid, PROC, POD) == owner_of(0, PROC, POD) == PidOwner()
    if (second := PROC.stat(2)) is not None and second.kernel_thread:  # not so in a container
        assert owner_of(2, PROC, POD) == PidOwner()


@pytest.mark.parametrize(("named", "program", "vmm"), [
    (POD, "qemu-system-x86_64", True), (POD, "/opt/kata/bin/vmm", True), ("another", "qemu-system-x86_64", False)])
def test_a_users_vmm_is_the_vm_of_the_pod_of_which_the_runtime_named_it(named: str, program: str, vmm: bool) -> None:
    """Kata's rootless, whose QEMU has been adopted by init: no shim of its sandbox is above it any more."""
    need_root()
    argv = [program, "-c", "echo; read x", "-name", f"sandbox-{named}"]
    with subprocess.Popen(argv, executable="/bin/sh", user=USER, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as made:
        assert made.stdout is not None
        made.stdout.readline()
        found, stat = owner_of(made.pid, PROC, POD), PROC.stat(made.pid)
        made.kill()
    assert stat is not None
    identity = ThreadId(made.pid, stat.starttime)
    assert found == (PidOwner(identity, sandbox=SandboxId(named)) if vmm else PidOwner(init=identity))
