"""Processes of users that pose as a sandbox's, and rootless VMMs, which are a user's and a sandbox's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kata_processes import ODD, QEMU, SHIM, SID, USER, VIRTIOFSD, inventory
from vmm_trees import process

from vmpin.domain.events import VmmClaim
from vmpin.domain.model import SandboxId, ThreadId
from vmpin.host.procfs import BEGINNING, Procfs
from vmpin.vmm.process_table import MAX_IMPOSTORS
from vmpin.vmm.recognition import (
    Impostor,
)


@pytest.mark.parametrize("argv", [QEMU, ODD, VIRTIOFSD, SHIM,
                                  ["cloud-hypervisor", "--api-socket", f"/run/kata/{SID}/ch"]])
def test_a_users_process_that_poses_as_a_sandboxs_is_an_impostor(
        tmp_path: Path, argv: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """Any host user can write any command line, and hold a descriptor of KVM where all may open it."""
    process(tmp_path, 100, argv, uid=USER, fds=("/dev/kvm", "anon_inode:kvm-vm"))
    found = inventory(tmp_path, rounds=3)
    assert (found.vms, found.helpers(SandboxId(SID))) == ({}, [])
    assert found.process_table.impostors == {100: Impostor(ThreadId(100, 100), SandboxId(SID), USER)}
    assert found.inspect(100) is None
    assert caplog.text.count(f"process ignored pid=100 uid={USER} sandbox={SID}") == 1
    (tmp_path / "100" / "cmdline").write_text("sleep\0")
    found.scan({}, full=True)
    assert found.process_table.impostors == {}


def test_an_impostor_that_an_event_showed_is_forgotten_with_its_process(tmp_path: Path) -> None:
    found = inventory(tmp_path)
    process(tmp_path, 100, QEMU, uid=USER)
    assert found.inspect(100) is None
    assert set(found.process_table.impostors) == {100}
    shutil.rmtree(tmp_path / "100")
    found.scan({})
    assert found.process_table.impostors == {}


def test_a_process_with_a_users_uid_among_roots_is_the_users(tmp_path: Path) -> None:
    """One that runs a set-uid program, with any name."""
    process(tmp_path, 100, QEMU)
    status = tmp_path / "100" / "status"
    status.write_text(status.read_text().replace("Uid:\t0\t0\t0\t0", f"Uid:\t{USER}\t0\t0\t0"))
    assert set(inventory(tmp_path).process_table.impostors) == {100}


def test_a_users_vm_that_is_no_sandboxs_is_nothing(tmp_path: Path) -> None:
    process(tmp_path, 100, ["qemu-system-x86_64", "-name", "guest=debian"], uid=USER)
    found = inventory(tmp_path).process_table
    assert (found.vmms, found.impostors) == ({}, {})


@pytest.mark.parametrize(("evidence", "counts"), [
    ("shim", True), ("claim", True), ("hook", True), ("users shim", False), ("claim of another", False),
    ("hook of another", False)])
def test_a_rootless_vmm_is_its_shims_or_claimed_by_kata(tmp_path: Path, evidence: str, counts: bool) -> None:
    """Kata's rootless: the VMM has a user of its own; its shim and Kata's state are root's."""
    process(tmp_path, 50, SHIM, uid=USER if evidence == "users shim" else 0)
    process(tmp_path, 100, QEMU, parent=50 if "shim" in evidence else 1, uid=USER)
    claims = {SandboxId("other" if "of another" in evidence else SID): VmmClaim(
        100, identity=ThreadId(100, 100) if "hook" in evidence else None)} if "shim" not in evidence else {}
    found = inventory(tmp_path, claims)
    assert set(found.vms) == ({SID} if counts else set())
    assert (100 in found.process_table.impostors) is not counts


@pytest.mark.parametrize("argv", [
    [*QEMU[:1], "-append", "x" * BEGINNING, *QEMU[1:]], [*ODD[:1], "sandbox-x", "x" * BEGINNING, *ODD[1:]]])
def test_of_a_users_long_command_line_the_beginning_alone_counts(tmp_path: Path, argv: list[str]) -> None:
    """Parsing 128 KiB takes 50 ms, and a user may have a thousand such processes."""
    process(tmp_path, 100, argv, uid=USER)
    assert inventory(tmp_path).process_table.impostors == {}
    process(tmp_path, 100, argv)
    assert (inventory(tmp_path).vms.keys() == {SID}) is (argv[0] == QEMU[0])


def test_the_long_command_line_of_a_users_parent_is_not_parsed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program forks itself a thousand times: parsing its command line for each child takes 50 ms."""
    long = [*VIRTIOFSD, "x" * BEGINNING]
    process(tmp_path, 99, long, uid=USER)
    process(tmp_path, 100, long, parent=99, uid=USER)
    read: list[str] = []
    cmdline = Procfs.cmdline

    def counted(proc: Procfs, pid: int | str, beginning: bytes | None = None) -> list[str]:
        read.append(str(pid))
        return cmdline(proc, pid, beginning)

    monkeypatch.setattr(Procfs, "cmdline", counted)
    assert inventory(tmp_path).process_table.impostors.keys() == {99, 100}
    assert read == []


def test_a_rootless_vmm_with_a_long_command_line_outlives_its_shim(tmp_path: Path) -> None:
    long = [*QEMU, "-append", "x" * BEGINNING, "-smp", "2"]
    process(tmp_path, 50, SHIM)
    process(tmp_path, 100, long, parent=50, uid=USER)
    found = inventory(tmp_path)
    assert found.vms[SandboxId(SID)].vmm.argv == long
    shutil.rmtree(tmp_path / "50")
    found.scan({}, full=True)
    assert found.vms[SandboxId(SID)].vmm.argv == long


def test_a_rootless_virtiofsds_child_is_its_shims_too(tmp_path: Path) -> None:
    process(tmp_path, 50, SHIM)
    process(tmp_path, 100, VIRTIOFSD, parent=50, uid=USER)
    process(tmp_path, 101, VIRTIOFSD, parent=100, uid=USER)
    status = tmp_path / "101" / "status"
    status.write_text(status.read_text().replace("NSpid:\t101", "NSpid:\t101\t1"))
    assert {each.pid for each in inventory(tmp_path).helpers(SandboxId(SID))} == {50, 100, 101}


def test_impostors_are_bounded_and_logged_once_a_user(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for pid in range(100, 100 + MAX_IMPOSTORS + 10):
        process(tmp_path, pid, [*QEMU[:2], f"sandbox-{pid}"], uid=USER)
    found = inventory(tmp_path, rounds=2)
    assert len(found.process_table.impostors) == MAX_IMPOSTORS
    assert caplog.text.count("process ignored") == 1


def test_a_vm_keeps_its_name_from_a_user_who_was_first(tmp_path: Path) -> None:
    """runtime-rs keeps no pid, so nothing but the processes shows which is the VMM."""
    process(tmp_path, 100, QEMU, uid=USER, start=1)
    process(tmp_path, 200, QEMU, start=2)
    found = inventory(tmp_path)
    assert (found.vms[SandboxId(SID)].vmm.pid, found.contested) == (200, {})
