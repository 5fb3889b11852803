"""Other programs that set masks, on trees of /proc and of tuned's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import make_tree

from vmpin.domain.drift import Cause
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole
from vmpin.host.procfs import Procfs
from vmpin.pinning.drift_evidence import remembers_masks
from vmpin.pinning.rival_writers import of_vm, rivals, scheduler_profile
from vmpin.vmm.cloud_hypervisor import CLOUD_HYPERVISOR
from vmpin.vmm.firecracker import FIRECRACKER
from vmpin.vmm.qemu import QEMU
from vmpin.vmm.virtual_machine import Process, Vm
from vmpin.vmm.vmm_type import VmmType

LIBVIRT = ["/usr/bin/qemu-kvm", "-name", "guest=shop_vm,debug-threads=on", "-smp", "2"]
KATA = ["/opt/kata/bin/qemu-system-x86_64", "-name", "sandbox-a", "-smp", "2"]
STAT = "({name}) S {ppid} 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0"


def process(proc: Path, pid: int, name: str, ppid: int = 1) -> None:
    make_tree(proc, f"{pid}/comm = {name}\n{pid}/stat = {pid} {STAT.format(name=name, ppid=ppid)}\n")


def tuned(root: Path, profile: str, text: str, place: str = "usr/lib/tuned") -> None:
    made = root / place / profile
    made.mkdir(parents=True)
    (made / "tuned.conf").write_text(text)


def vm(argv: list[str], type: VmmType = QEMU) -> Vm:
    return Vm(SandboxId("a"), type, Process(99, ThreadId(99, 5), ThreadRole.EMULATOR, argv))


def causes(proc: Path, root: Path, argv: list[str] = KATA, type: VmmType = QEMU) -> list[Cause]:
    procfs = Procfs(proc)
    return [rival.cause for rival in of_vm(procfs, vm(argv, type), rivals(procfs, root))]


def test_daemons_are_known_by_their_names(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    for pid, name in enumerate(("systemd", "numad", "irqbalance", "numad", "my-numad", "tuned"), 10):
        process(proc, pid, name)
    daemons = rivals(Procfs(proc), tmp_path)
    assert [rival.evidence for rival in daemons if rival.cause is Cause.NUMAD] in (
        ["numad (pid 11) runs"], ["numad (pid 13) runs"])
    assert {rival.cause for rival in daemons} == {Cause.NUMAD, Cause.IRQBALANCE}  # tuned has no such profile
    assert not any(rival.sets(role) for rival in daemons if rival.cause is Cause.IRQBALANCE for role in ThreadRole)


@pytest.mark.parametrize(("name", "cause"), [(".tuned-wrapped", Cause.TUNED), (".libvirtd-wrapp", Cause.LIBVIRT)])
def test_nixos_wraps_daemons_in_scripts(tmp_path: Path, name: str, cause: Cause) -> None:
    process(tmp_path / "proc", 10, name)
    tuned(tmp_path, "p", "[scheduler]\nisolated_cores=2-3\n")
    make_tree(tmp_path, "etc/tuned/active_profile = p")
    assert [rival.cause for rival in rivals(Procfs(tmp_path / "proc"), tmp_path)] == [cause]


def test_a_containers_process_with_a_daemons_name_is_no_rival(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    for pid, inside in ((10, "\t1"), (11, "")):
        process(proc, pid, "numad")
        make_tree(proc, f"{pid}/status = NSpid:\t{pid}{inside}\n")
    assert [rival.evidence for rival in rivals(Procfs(proc), tmp_path)] == ["numad (pid 11) runs"]


def test_a_users_process_with_a_daemons_name_is_no_rival(tmp_path: Path) -> None:
    """It may not set a VM's masks."""
    proc = tmp_path / "proc"
    for pid, uid in ((10, 1000), (11, 0)):
        process(proc, pid, "numad")
        make_tree(proc, f"{pid}/status = Uid:\t{uid}\t0\t0\t0\n")
    assert [rival.evidence for rival in rivals(Procfs(proc), tmp_path)] == ["numad (pid 11) runs"]


def test_tuned_counts_only_with_a_profile_that_sets_masks(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    process(proc, 10, "tuned")
    tuned(tmp_path, "throughput", "[main]\nsummary=x\n[sysctl]\nscheduler=1\n")
    tuned(tmp_path, "partitioning", "[main]\ninclude=throughput\n[scheduler]\nisolated_cores=2-3\n")
    make_tree(tmp_path, "etc/tuned/active_profile = throughput")
    assert causes(proc, tmp_path) == []
    make_tree(tmp_path, "etc/tuned/active_profile = partitioning")
    assert causes(proc, tmp_path) == [Cause.TUNED]
    (found,) = rivals(Procfs(proc), tmp_path)
    assert found.evidence == "tuned (pid 10) has profile partitioning, whose scheduler plugin sets masks"


def test_tuned_in_a_container_has_its_own_profile(tmp_path: Path) -> None:
    """It has the node's processes before it, and files of its own (OpenShift's Node Tuning Operator)."""
    proc = tmp_path / "proc"
    process(proc, 10, "tuned")
    make_tree(proc, "1/mountinfo = 21 1 8:1 / / rw - ext4 a rw\n10/mountinfo = 41 1 0:5 / / rw - overlay o rw\n")
    make_tree(proc, "10/root/etc/tuned/active_profile = partitioning\n")
    tuned(proc / "10/root", "partitioning", "[scheduler]\nisolated_cores=2-3\n")
    assert causes(proc, tmp_path) == [Cause.TUNED]


@pytest.mark.parametrize(("files", "active", "found"), [
    ({}, "", None),
    ({"a": "[scheduler]\nisolated_cores=1\n"}, "a", "a"),
    ({"a": "[scheduler]\ngroup.rt=0:f:1:2:.*\n"}, "a", "a"),
    ({"a": "[scheduler]\nps_blacklist=.*qemu.*\n"}, "a", None),  # no masks
    ({"a": "[main]\ninclude = b, c\n", "b": "[vm]\n", "c": "[cores]\ntype=scheduler\nisolated_cores=1\n"}, "a", "a"),
    ({"a": "[vm]\n", "b": "[scheduler]\nisolated_cores=1\n"}, "a b", "a b"),
    ({"a": "[scheduler]\nisolated_cores=1\n"}, "../a", None),
])
def test_a_tuned_profile_is_read_with_what_it_includes(tmp_path: Path, files: dict[str, str], active: str,
                                                       found: str | None) -> None:
    for name, text in files.items():
        tuned(tmp_path, name, text, "usr/lib/tuned/profiles")
    make_tree(tmp_path, f"etc/tuned/active_profile = {active}")
    assert scheduler_profile(tmp_path) == found


def test_an_administrators_profile_comes_before_the_distributions(tmp_path: Path) -> None:
    tuned(tmp_path, "a", "[vm]\n", "etc/tuned")
    tuned(tmp_path, "a", "[scheduler]\nisolated_cores=1\n", "usr/lib/tuned")
    make_tree(tmp_path, "etc/tuned/active_profile = a")
    assert scheduler_profile(tmp_path) is None
    (tmp_path / "etc/tuned/a/tuned.conf").unlink()
    assert scheduler_profile(tmp_path) == "a"


def test_libvirt_is_a_rival_for_its_own_guests_alone(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    process(proc, 10, "virtqemud")
    process(proc, 11, "numad")
    process(proc, 99, "qemu-kvm", ppid=1)
    assert causes(proc, tmp_path, KATA) == [Cause.NUMAD]
    assert causes(proc, tmp_path, LIBVIRT) == [Cause.LIBVIRT, Cause.NUMAD]


def test_kubevirt_is_known_by_the_launcher_above_the_vmm(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    process(proc, 10, "virt-launcher")
    process(proc, 11, "virtqemud", ppid=10)
    process(proc, 99, "qemu-kvm", ppid=11)
    of_libvirt = of_vm(Procfs(proc), vm(LIBVIRT), ())
    assert [rival.evidence for rival in of_libvirt] == ["the VMM belongs to virt-launcher (pid 10)"]
    assert causes(proc, tmp_path, LIBVIRT) == [Cause.KUBEVIRT, Cause.LIBVIRT]


@pytest.mark.parametrize(("vmm", "argument"), [
    (QEMU, "thread-context,id=t,cpu-affinity=0-1"), (QEMU, "thread-context,id=t,node-affinity=0"),
    (CLOUD_HYPERVISOR, "boot=2,affinity=[0@[1-2]]")])
def test_a_vmm_configured_to_set_masks_is_its_own_rival(tmp_path: Path, vmm: VmmType, argument: str) -> None:
    (tmp_path / "proc").mkdir()
    assert causes(tmp_path / "proc", tmp_path, [*KATA, "-object", argument], vmm) == [Cause.VMM]
    assert causes(tmp_path / "proc", tmp_path, KATA, vmm) == []
    assert causes(tmp_path / "proc", tmp_path, [*KATA, "-object", argument], FIRECRACKER) == []


@pytest.mark.parametrize(("release", "remembers"), [
    ("6.1.0-25-amd64", False), ("5.14.0-427.el9", False), ("6.2.0", True), ("6.18.44", True), ("10.0", True),
    ("", True), ("unknown", True)])
def test_linux_remembers_masks_since_6_2(release: str, remembers: bool) -> None:
    assert remembers_masks(release) is remembers
