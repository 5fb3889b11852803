"""The causes of drift: a daemon, another program, a cgroup or a replugged CPU; on real processes."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import drift_steps
from drift_steps import contend, mask
from strayed import Spinners
from trees import make_tree

from vmpin.cpuset import CpuSet
from vmpin.domain.drift import Cause, MaskRepair
from vmpin.domain.model import ThreadRole
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import Sysfs
from vmpin.status.collector import threads_of
from vmpin.vmm.virtual_machine import Vm

node = drift_steps.node


def test_a_daemon_that_sets_masks_is_named(node: Spinners, tmp_path: Path) -> None:
    daemon = tmp_path / "numad"
    shutil.copy("/bin/sleep", daemon)
    with subprocess.Popen([daemon, "60"]) as rival:
        try:
            vm = node.vm()
            assert node.repair(vm) == 0
            while Path(f"/proc/{rival.pid}/comm").read_text() != "numad\n":
                time.sleep(0.01)
            node.move(vm, node.there)
            assert node.repair(vm) == 1
        finally:
            rival.kill()
    assert node.node_state.counters.drift == {"numad": 1}
    assert node.node_state.drift_evidence.histories[vm.sandbox].why == f"numad (pid {rival.pid}) runs"


class OutOfDescriptors(Procfs):
    def pids(self) -> list[str]:
        raise OSError(24, "Too many open files")


def test_a_mask_is_repaired_even_if_rivals_cannot_be_read(node: Spinners) -> None:
    vm = node.vm()
    assert node.repair(vm) == 0
    node.node_state.drift_evidence.proc = OutOfDescriptors()
    assert contend(node, vm, 1) == 1
    assert node.node_state.counters.drift == {"unknown program": 1}


def test_each_thread_has_its_own_cause(node: Spinners) -> None:
    vm = node.vm()
    here, there = node.here, node.there
    changes = {MaskRepair(ThreadRole.VCPU, here, here, there, here): 3,
               MaskRepair(ThreadRole.IOTHREAD, here, here, there, here): 1}
    found = node.node_state.drift_evidence.explain(vm, changes, kata_pins=True)
    assert [explanation.cause for explanation in found] == [Cause.KATA, Cause.UNKNOWN]
    assert node.node_state.counters.drift == {"kata": 3, "unknown program": 1}
    assert node.node_state.drift_evidence.histories[vm.sandbox].data()["repairs"] == {"kata": 3, "unknown program": 1}


def in_cgroups(root: Path, vm: Vm, **cpus: CpuSet) -> Cgroups:
    """Cpuset cgroups with these CPUs, of which the VMM is in the first."""
    files = "".join(f"cgroup/cpuset/{name}/cpuset.cpus = {cpuset}\n" for name, cpuset in cpus.items())
    tree = make_tree(root / "tree", f"{files}cgroup/cpuset/cpuset.cpus = 0\n"
                     f"proc/{vm.vmm.pid}/task/{vm.vmm.pid}/cgroup = 4:cpuset:/{next(iter(cpus))}\n")
    return Cgroups(tree / "cgroup", Procfs(tree / "proc"))


def test_a_mask_that_another_program_narrowed_is_repaired_and_no_cgroup_is_the_cause(node: Spinners,
                                                                               tmp_path: Path) -> None:
    """The cgroup was written, too, but has all the CPUs: it is not the cause."""
    vm = node.vm()
    both = node.here | node.there
    node.place(vm.sandbox, both)
    assert (node.repair(vm), node.repair(vm)) == (1, 0)
    evidence = node.node_state.drift_evidence
    evidence.cgroups = in_cgroups(tmp_path, vm, a=both)
    for remembers in (True, False):
        evidence.remembers = remembers
        evidence.record_write(vm.sandbox)
        node.move(vm, node.here)
        (seen,) = threads_of(node.reconciler.view, vm)
        assert (seen.ok, seen.less) == (False, False)
        node.node_state.pinner.recheck(vm.sandbox)
        assert node.repair(vm) == 1
        assert mask(vm) == both
    assert node.node_state.counters.drift == {"unknown program": 2}


def test_a_cgroup_that_was_written_explains_what_an_old_kernel_forgot(node: Spinners, tmp_path: Path) -> None:
    vm = node.vm()
    evidence = node.node_state.drift_evidence
    everywhere = node.here | node.there
    change = {MaskRepair(ThreadRole.EMULATOR, node.here, node.here, everywhere, node.here): 1}
    evidence.remembers = False
    evidence.cgroups = in_cgroups(tmp_path, vm, a=everywhere)
    evidence.record_write(vm.sandbox)
    assert [explanation.cause for explanation in evidence.explain(vm, change)] == [Cause.CPUSET]
    evidence.forget_evidence(node.here | node.there, [vm])
    assert [explanation.cause for explanation in evidence.explain(vm, change)] == [Cause.UNKNOWN]


def test_another_cgroup_explains_what_an_old_kernel_forgot(node: Spinners, tmp_path: Path) -> None:
    vm = node.vm()
    evidence, tree = node.node_state.drift_evidence, tmp_path / "tree"
    evidence.cgroups = in_cgroups(tmp_path, vm, a=node.here, b=node.here | node.there)
    evidence.remembers = False
    change = {MaskRepair(ThreadRole.EMULATOR, node.here, node.here, node.here | node.there, node.here): 1}
    evidence.forget_evidence(node.here, [vm])
    assert [explanation.cause for explanation in evidence.explain(vm, change)] == [Cause.UNKNOWN]
    make_tree(tree, f"proc/{vm.vmm.pid}/task/{vm.vmm.pid}/cgroup = 4:cpuset:/b\n")
    (found,) = evidence.explain(vm, change)
    assert found == (Cause.CPUSET, f"the VMM was moved from cgroup {tree}/cgroup/cpuset/a to {tree}/cgroup/cpuset/b")
    assert [explanation.cause for explanation in evidence.explain(vm, change)] == [Cause.UNKNOWN]  # that was reported


def test_a_replugged_cpu_is_the_cause_until_the_evidence_is_discarded(node: Spinners, tmp_path: Path) -> None:
    sys = make_tree(tmp_path / "sys", "devices/system/cpu/cpu0/topology/core_id = 0\n"
                    "devices/system/cpu/cpu1/topology/core_id = 1\ndevices/system/cpu/cpu2/ =\n")
    evidence = node.node_state.drift_evidence
    evidence.sysfs = Sysfs(sys)
    cpus = CpuSet(range(4))
    evidence.forget_evidence(cpus, [])
    assert evidence.replugged() == CpuSet()
    topology = sys / "devices/system/cpu/cpu1/topology"
    topology.rename(sys / "gone")
    assert evidence.replugged() == CpuSet((1,))  # it is off
    make_tree(sys, "devices/system/cpu/cpu1/topology/core_id = 1\ndevices/system/cpu/cpu2/topology/core_id = 1\n")
    assert evidence.replugged() == CpuSet((1, 2))  # it is back, and another one came
    evidence.forget_evidence(cpus, [])
    assert evidence.replugged() == CpuSet()
