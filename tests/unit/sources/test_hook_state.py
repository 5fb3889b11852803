"""A hook's state with what is there now: messages that lay in the spool may speak of what has ended since."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from vmpin.domain.desired_state import DesiredState
from vmpin.domain.events import ContainerSeen, SandboxSeen
from vmpin.host import boottime
from vmpin.host.procfs import Procfs
from vmpin.runtime.oci import bundle_gone, parse_hook
from vmpin.sources.hook_state import events_of

PROC = Procfs()


def events(pid: int, bundle: Path, age: float = 0.0, stage: str = "createRuntime",
           name: str = "c1") -> tuple[SandboxSeen, ContainerSeen]:
    """What a message says that was written so many seconds ago."""
    state = {"ociVersion": "1.0.2", "id": name, "status": "created", "pid": pid, "bundle": str(bundle)}
    message = f"vmpin-hook/1 stage={stage} boot={max(0, boottime.now() - int(age * 1e9))}\n{json.dumps(state)}"
    sandbox, container = events_of(parse_hook(message.encode()), DesiredState(), PROC, "")
    assert isinstance(sandbox, SandboxSeen)
    assert isinstance(container, ContainerSeen)
    return sandbox, container


def seen(pid: int, bundle: Path, age: float = 0.0) -> ContainerSeen:
    return events(pid, bundle, age)[1]


def ended() -> int:
    """The pid of a process that was."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_process_that_was_there_when_the_message_was_written_is_the_containers_own(tmp_path: Path) -> None:
    found = seen(os.getpid(), tmp_path)
    assert found.init is not None
    assert found.init.tid == os.getpid()


def test_the_pid_of_a_hook_within_the_container_is_no_process_of_the_host(tmp_path: Path) -> None:
    """runc 1.1.5: 1, or in the pid namespace of a pod any number."""
    for pid in 1, os.getpid():
        sandbox, container = events(pid, tmp_path, stage="createContainer")
        assert (sandbox.vmm, container.init) == (None, None)
    assert events(ended(), tmp_path / "elsewhere" / "c1", stage="createContainer")[1].bundle == ""


def test_a_vmm_that_a_hook_within_names_is_its_sandboxs_own_alone(tmp_path: Path) -> None:
    """runtime-rs' createContainer has the VMM's pid. The number is another process in a pod's namespace."""
    sid, other = "a" * 64, "b" * 64
    argv = ["/opt/kata/bin/qemu-system-x86_64", "-c", "read x", "-name", f"sandbox-{sid}"]
    with subprocess.Popen(argv, executable="/bin/sh", stdin=subprocess.PIPE) as vmm:
        assert events(vmm.pid, tmp_path, stage="createContainer", name=other)[0].vmm is None
        own = events(vmm.pid, tmp_path, stage="createContainer", name=sid)[0].vmm
        assert own is not None
        assert own.tid == vmm.pid


def test_a_process_that_was_born_after_the_message_only_has_the_containers_pid(tmp_path: Path) -> None:
    assert seen(os.getpid(), tmp_path, age=10 * 365 * 86400).init is None


def test_a_bundle_out_of_sight_ends_no_container_whose_process_runs(tmp_path: Path) -> None:
    assert seen(os.getpid(), tmp_path / "elsewhere").bundle == ""


def test_a_bundle_that_is_gone_from_where_it_was_ends_a_container_without_a_process(tmp_path: Path) -> None:
    """With Kata the pid is the VMM's, which goes on; so it is for a message without one."""
    there, out_of_sight = tmp_path / "gone", tmp_path / "elsewhere" / "gone"
    assert seen(0, there).bundle == str(there)
    assert seen(0, out_of_sight).bundle == ""
    assert seen(0, there / "userdata").bundle == str(there / "userdata")  # CRI-O's, which removes both
    assert seen(0, out_of_sight / "userdata").bundle == ""
    vmm = subprocess.Popen(["qemu-system-x86_64", "-c", "read line", "-name", "sandbox-c1"], executable="/bin/sh",
                           stdin=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 120
        while PROC.cmdline(vmm.pid)[:1] != ["qemu-system-x86_64"]:  # exec(2) is not done yet
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert (seen(vmm.pid, there).bundle, seen(vmm.pid, out_of_sight).bundle) == (str(there), "")
    finally:
        vmm.communicate()
    there.mkdir()  # with nothing in it that can be read
    assert seen(0, there).bundle == ""


def test_a_container_that_ended_while_its_message_was_spooled_is_followed_by_its_bundle(tmp_path: Path) -> None:
    """Which is gone: the next look at it ends the container (tests/unit/sources/test_disk.py)."""
    bundle = str(tmp_path / "gone")
    assert seen(ended(), tmp_path / "gone").bundle == bundle
    assert seen(os.getpid(), tmp_path / "gone", age=10 * 365 * 86400).bundle == bundle


@pytest.mark.parametrize(("why", "gone"), [
    (errno.ENOENT, True), (errno.ENOTDIR, True), (errno.ENAMETOOLONG, True), (errno.EACCES, False),
    (errno.EMFILE, False), (errno.EIO, False)])
def test_a_bundle_that_cannot_be_looked_at_is_not_taken_for_gone(monkeypatch: pytest.MonkeyPatch, why: int,
                                                                 gone: bool) -> None:
    def refused(path: str) -> None:
        raise OSError(why, os.strerror(why), path)

    monkeypatch.setattr("os.stat", refused)
    assert bundle_gone("/bundle") is gone


def test_a_bundle_whose_path_is_none_is_gone(tmp_path: Path) -> None:
    assert bundle_gone(str(tmp_path / ("x" * 300)))
    assert bundle_gone("/a\0b")
    assert not bundle_gone(str(tmp_path))
