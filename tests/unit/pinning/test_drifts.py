"""Threads that another hand moved are put back, with the cause, and left alone in a fight: on real processes."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from machine_wide import alone_with
from strayed import Spinners, spinners
from trees import make_tree

from vmpin.cpuset import CpuSet
from vmpin.domain.contention import ContentionRules, OnContention
from vmpin.domain.drift import Cause, MaskRepair
from vmpin.domain.model import ThreadRole, VmThread
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import Sysfs
from vmpin.pinning.apply import Outcome
from vmpin.pinning.pinner import SHOWN, _shown
from vmpin.pinning.plan import SetAffinity
from vmpin.placement.rules import Placement
from vmpin.status.collector import threads_of
from vmpin.vmm.virtual_machine import Vm


@pytest.fixture(autouse=True)
def _no_other_numad() -> Iterator[None]:
    """A numad that another test runs would be the cause of drift here, too."""
    with alone_with("numad"):
        yield


@pytest.fixture
def node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Spinners]:
    caplog.set_level(logging.INFO, "vmpin")
    with spinners(tmp_path) as made:
        yield made


def log(caplog: pytest.LogCaptureFixture, word: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.message.startswith(word)]


def mask(vm: Vm) -> CpuSet:
    return CpuSet(os.sched_getaffinity(vm.vmm.pid))


def fight(node: Spinners, vm: Vm, times: int) -> int:
    """Move it away again and again; how often it was put back."""
    done = 0
    for _ in range(times):
        node.move(vm, node.there)
        done += node.repair(vm)
    return done


def test_a_thread_that_another_hand_moved_is_put_back_counted_and_explained(
        node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    vm = node.vm()
    assert node.repair(vm) == 0
    node.move(vm, node.there)
    assert node.repair(vm) == 1
    assert mask(vm) == node.here
    assert node.repair(vm) == 0
    assert node.reconciler.tally.drift == node.reconciler.ledger.drift == {"other": 1}
    (record,) = log(caplog, "repaired")
    assert record.levelno == logging.INFO
    assert f"sandbox={vm.sandbox} threads=1 cause=other: nothing known of sets such masks here" in record.message
    history = node.reconciler.drift_evidence.histories[vm.sandbox]
    assert (history.repairs, history.why) == ({"other": 1}, "nothing known of sets such masks here")
    assert abs(history.last - time.time()) < 60


def test_the_log_has_the_masks_that_were_set(node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    """And not the sandbox's, which no thread of it may have."""
    vm = node.vm()
    node.place(vm.sandbox, node.there)
    placements = node.reconciler.placements
    placements[vm.sandbox] = placements[vm.sandbox]._replace(mask=node.here | node.there)
    assert node.repair(vm) == 1
    (record,) = log(caplog, "pinned")
    assert record.message == f"pinned sandbox={vm.sandbox} threads=1 mask={node.there} verdict=floating"
    assert _shown([CpuSet.parse(text) for text in ("0-1,4-7", "3", "2", "3")]) == "2|3|0-1,4-7"
    assert _shown([CpuSet([cpu]) for cpu in range(20)]).count("|") == SHOWN


def test_what_is_placed_anew_is_no_drift(node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    vm = node.vm()
    node.move(vm, node.there)
    assert node.repair(vm) == 1  # met as it was, and placed for the first time
    node.place(vm.sandbox, node.there)
    assert node.repair(vm) == 1
    node.place(vm.sandbox, node.here)
    node.move(vm, node.here | node.there)  # and moved as well: there is a new place to go to all the same
    assert node.repair(vm) == 1
    assert mask(vm) == node.here
    assert node.reconciler.tally.drift == {}
    assert log(caplog, "repaired") == []


def test_what_a_cgroup_refuses_that_the_kubelet_has_yet_to_rewrite_is_waited_for(
        node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    """The kernel refuses a mask without any CPU that the cgroup has (EINVAL): here one that the machine has not."""
    vm = node.vm()
    assert node.repair(vm) == 0
    absent = CpuSet([Sysfs().topology().all_cpus.bits.bit_length()])
    node.place(vm.sandbox, absent)
    wanted = node.reconciler.placements[vm.sandbox]
    node.reconciler.placements[vm.sandbox] = waiting = wanted._replace(waiting="waits for the kubelet to rewrite it")
    pinner = node.reconciler.pinner
    for _ in range(5):
        (result,) = pinner.carry_out(pinner.operations(vm, waiting), node.reconciler.placements)
        assert (result.outcome, result.got) == (Outcome.WAITING, node.here)
    node.move(vm, node.here | node.there)  # the cgroup is rewritten, and widens it
    (result,) = pinner.carry_out(pinner.operations(vm, waiting), node.reconciler.placements)
    assert result.outcome is Outcome.WAITING
    newborn = pinner.carry_out_ahead(SetAffinity(vm.sandbox, next(iter(vm.threads())), absent, node.here))
    assert newborn.outcome is Outcome.WAITING, "nor is a new thread's a refusal"
    assert pinner.refusals(vm.sandbox) == []
    assert [record.message for record in caplog.records if record.levelno > logging.INFO] == []
    assert len(log(caplog, f"sandbox={vm.sandbox} waits for the kubelet")) == 1
    assert node.reconciler.tally.drift == {}
    node.place(vm.sandbox, node.there)
    assert node.repair(vm) == 1
    assert mask(vm) == node.there
    assert node.reconciler.tally.drift == {}
    # As soon as nothing is waited for, a refusal is an error again.
    node.place(vm.sandbox, absent)
    assert node.repair(vm) == 1
    assert [record.levelno for record in caplog.records if record.levelno > logging.INFO] == [logging.ERROR]


def test_a_place_decided_again_hides_no_drift(node: Spinners) -> None:
    vm = node.vm()
    assert node.repair(vm) == 0
    node.move(vm, node.there)
    node.place(vm.sandbox, node.here)  # another object, and the same place
    assert node.repair(vm) == 1
    assert node.reconciler.tally.drift == {"other": 1}


def test_drift_that_a_plan_found_is_counted_when_it_is_repaired(node: Spinners) -> None:
    vm = node.vm()
    assert node.repair(vm) == 0
    node.move(vm, node.there)
    pinner, placement = node.reconciler.pinner, node.reconciler.placements[vm.sandbox]
    for _ in range(3):
        assert len(pinner.operations(vm, placement)) == 1
        pinner.recheck(vm.sandbox)
    assert node.reconciler.tally.drift == {}
    assert node.repair(vm) == 1
    assert node.reconciler.tally.drift == {"other": 1}


def test_drift_that_went_away_by_itself_is_not_counted(node: Spinners) -> None:
    vm = node.vm()
    assert node.repair(vm) == 0
    node.move(vm, node.there)
    pinner, placement = node.reconciler.pinner, node.reconciler.placements[vm.sandbox]
    assert len(pinner.operations(vm, placement)) == 1
    pinner.recheck(vm.sandbox)
    node.move(vm, node.here)
    assert node.repair(vm) == 0
    node.place(vm.sandbox, node.there)
    assert node.repair(vm) == 1
    assert node.reconciler.tally.drift == {}


def test_a_fight_is_reported_once_loudly_and_the_thread_is_left_alone(
        node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    vm, other = node.vm(), node.vm("b")
    for each in (vm, other):
        assert node.repair(each) == 0
    assert fight(node, vm, 10) == 3
    assert mask(vm) == node.there
    (record,) = log(caplog, "fight")
    assert record.levelno == logging.ERROR
    assert f"sandbox={vm.sandbox} threads=1: put back 3 times within 60 s" in record.message
    assert "left alone for 300 s" in record.message
    (note,) = node.reconciler.pinner.refusals(vm.sandbox)
    assert note == ("1 threads are moved by another program again and again (the last time: nothing known of sets "
                    "such masks here) and are left alone (drift.on_fight=rest)")
    assert node.reconciler.pinner.drift_tracker.contended == 1
    assert fight(node, other, 1) == 1  # nobody fights over that one
    assert node.reconciler.pinner.refusals(other.sandbox) == []


def test_a_thread_that_is_left_alone_follows_a_new_decision(node: Spinners) -> None:
    vm = node.vm()
    assert node.repair(vm) == 0
    assert fight(node, vm, 5) == 3
    both = node.here | node.there
    node.place(vm.sandbox, both)
    assert node.repair(vm) == 1
    assert mask(vm) == both
    assert node.reconciler.pinner.refusals(vm.sandbox) == []


def test_after_its_rest_a_thread_is_tried_again_and_the_fight_goes_on_quietly(
        node: Spinners, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    for module in ("pinning.drift_tracker", "pinning.pinner"):
        monkeypatch.setattr(f"vmpin.{module}.time", SimpleNamespace(monotonic=lambda: now))
    vm = node.vm()
    drifts = node.reconciler.pinner.drift_tracker
    drifts.contention.rules = ContentionRules(rest=1.0)
    assert node.repair(vm) == 0
    assert fight(node, vm, 4) == 3
    assert node.repair(vm) == 0
    now += 1.1
    assert node.repair(vm) == 1  # nothing else happened: its time has come
    assert node.repair(vm) == 0
    assert fight(node, vm, 2) == 0
    assert mask(vm) == node.there
    assert [record.levelno for record in log(caplog, "fight")] == [logging.ERROR, logging.INFO]
    now += 1.1
    assert node.repair(vm) == 0  # it rests twice as long now
    now += 1.1
    assert node.repair(vm) == 1
    assert drifts.contended == 1


def test_by_hand_it_is_taken_up_again(node: Spinners) -> None:
    vm = node.vm()
    node.reconciler.pinner.drift_tracker.contention.rules = ContentionRules(OnContention.LEAVE)
    assert node.repair(vm) == 0
    assert fight(node, vm, 5) == 3
    node.reconciler.pinner.retry_now()
    assert node.repair(vm) == 1
    assert mask(vm) == node.here
    assert node.reconciler.pinner.refusals(vm.sandbox) == []


def test_a_persistent_writer_is_logged_once_and_repaired(node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    vm = node.vm()
    node.reconciler.pinner.drift_tracker.contention.rules = ContentionRules(OnContention.PERSIST)
    assert node.repair(vm) == 0
    assert fight(node, vm, 12) == 12
    assert mask(vm) == node.here
    first, *later = [record.levelno for record in log(caplog, "fight")]
    assert first == logging.ERROR
    assert set(later) == {logging.INFO}
    pinner = node.reconciler.pinner
    assert pinner.refusals(vm.sandbox) == [
        "1 threads are moved by another program again and again (the last time: nothing known of sets such masks "
        "here) "
        "and are put back each time (drift.on_fight=persist)"]
    pinner.retry_now()
    assert pinner.refusals(vm.sandbox) == []


def test_a_thread_that_ended_in_a_fight_is_forgotten(node: Spinners) -> None:
    vm = node.vm()
    assert node.repair(vm) == 0
    assert fight(node, vm, 5) == 3
    node.end(vm)
    node.reconciler.pinner.keep_only([])
    assert not node.reconciler.pinner.drift_tracker.contention
    assert node.reconciler.pinner.refusals(vm.sandbox) == []


# Why


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
    assert node.reconciler.tally.drift == {"numad": 1}
    assert node.reconciler.drift_evidence.histories[vm.sandbox].why == f"numad (pid {rival.pid}) runs"


def test_where_no_rival_can_be_found_the_mask_is_put_back_all_the_same(node: Spinners,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_descriptors(proc: Procfs) -> list[str]:
        raise OSError(24, "Too many open files")

    vm = node.vm()
    assert node.repair(vm) == 0
    monkeypatch.setattr(Procfs, "pids", out_of_descriptors)
    assert fight(node, vm, 1) == 1
    assert node.reconciler.tally.drift == {"other": 1}


def test_each_threads_cause_is_its_own(node: Spinners) -> None:
    vm = node.vm()
    here, there = node.here, node.there
    changes = {MaskRepair(ThreadRole.VCPU, here, here, there, here): 3,
               MaskRepair(ThreadRole.IOTHREAD, here, here, there, here): 1}
    found = node.reconciler.drift_evidence.explain(vm, changes, kata_pins=True)
    assert [each.cause for each in found] == [Cause.KATA, Cause.OTHER]
    assert node.reconciler.tally.drift == {"kata": 3, "other": 1}
    assert node.reconciler.drift_evidence.histories[vm.sandbox].data()["repairs"] == {"kata": 3, "other": 1}


def in_cgroups(root: Path, vm: Vm, **cpus: CpuSet) -> Cgroups:
    """Cpuset cgroups with these CPUs, of which the VMM is in the first."""
    files = "".join(f"cgroup/cpuset/{name}/cpuset.cpus = {each}\n" for name, each in cpus.items())
    tree = make_tree(root / "tree", f"{files}cgroup/cpuset/cpuset.cpus = 0\n"
                     f"proc/{vm.vmm.pid}/task/{vm.vmm.pid}/cgroup = 4:cpuset:/{next(iter(cpus))}\n")
    return Cgroups(tree / "cgroup", Procfs(tree / "proc"))


def test_a_mask_that_another_hand_narrowed_is_put_back_and_no_cgroup_is_blamed(node: Spinners,
                                                                               tmp_path: Path) -> None:
    """The cgroup was written, too, and has all the CPUs: so it is not that."""
    vm = node.vm()
    both = node.here | node.there
    node.place(vm.sandbox, both)
    assert (node.repair(vm), node.repair(vm)) == (1, 0)
    evidence = node.reconciler.drift_evidence
    evidence.cgroups = in_cgroups(tmp_path, vm, a=both)
    for remembers in (True, False):
        evidence.remembers = remembers
        evidence.written(vm.sandbox)
        node.move(vm, node.here)
        (seen,) = threads_of(node.reconciler.view, vm, {})
        assert (seen.ok, seen.less) == (False, False)
        node.reconciler.pinner.recheck(vm.sandbox)
        assert node.repair(vm) == 1
        assert mask(vm) == both
    assert node.reconciler.tally.drift == {"other": 2}


def test_a_cgroup_that_was_written_explains_what_an_old_kernel_forgot(node: Spinners, tmp_path: Path) -> None:
    vm = node.vm()
    evidence = node.reconciler.drift_evidence
    everywhere = node.here | node.there
    change = {MaskRepair(ThreadRole.EMULATOR, node.here, node.here, everywhere, node.here): 1}
    evidence.remembers = False
    evidence.cgroups = in_cgroups(tmp_path, vm, a=everywhere)
    evidence.written(vm.sandbox)
    assert [each.cause for each in evidence.explain(vm, change)] == [Cause.CPUSET]
    evidence.settled(node.here | node.there, [vm])
    assert [each.cause for each in evidence.explain(vm, change)] == [Cause.OTHER]


def test_another_cgroup_explains_what_an_old_kernel_forgot(node: Spinners, tmp_path: Path) -> None:
    vm = node.vm()
    evidence, tree = node.reconciler.drift_evidence, tmp_path / "tree"
    evidence.cgroups = in_cgroups(tmp_path, vm, a=node.here, b=node.here | node.there)
    evidence.remembers = False
    change = {MaskRepair(ThreadRole.EMULATOR, node.here, node.here, node.here | node.there, node.here): 1}
    evidence.settled(node.here, [vm])
    assert [each.cause for each in evidence.explain(vm, change)] == [Cause.OTHER]
    make_tree(tree, f"proc/{vm.vmm.pid}/task/{vm.vmm.pid}/cgroup = 4:cpuset:/b\n")
    (found,) = evidence.explain(vm, change)
    assert found == (Cause.CPUSET, f"the VMM was moved from cgroup {tree}/cgroup/cpuset/a to {tree}/cgroup/cpuset/b")
    assert [each.cause for each in evidence.explain(vm, change)] == [Cause.OTHER]  # that was told


def test_a_cpu_that_was_away_explains_it_until_all_is_settled(node: Spinners, tmp_path: Path) -> None:
    sys = make_tree(tmp_path / "sys", "devices/system/cpu/cpu0/topology/core_id = 0\n"
                    "devices/system/cpu/cpu1/topology/core_id = 1\ndevices/system/cpu/cpu2/ =\n")
    evidence = node.reconciler.drift_evidence
    evidence.sysfs = Sysfs(sys)
    cpus = CpuSet(range(4))
    evidence.settled(cpus, [])
    assert evidence.replugged() == CpuSet()
    topology = sys / "devices/system/cpu/cpu1/topology"
    topology.rename(sys / "gone")
    assert evidence.replugged() == CpuSet((1,))  # it is off
    make_tree(sys, "devices/system/cpu/cpu1/topology/core_id = 1\ndevices/system/cpu/cpu2/topology/core_id = 1\n")
    assert evidence.replugged() == CpuSet((1, 2))  # it is back, and another one came
    evidence.settled(cpus, [])
    assert evidence.replugged() == CpuSet()


def test_the_strayed_threads_last_cpu_is_reported(node: Spinners) -> None:
    seen: list[tuple[int, int, CpuSet]] = []

    def strayed(sandbox: str, thread: VmThread, cpu: int, place: CpuSet) -> None:
        seen.append((thread.id.tid, cpu, place))

    vm = node.vm()
    assert node.repair(vm) == 0
    node.reconciler.pinner.drift_tracker.strayed = strayed
    node.move(vm, node.there)  # one that runs goes there at once
    assert node.repair(vm) == 1
    assert seen == [(vm.vmm.pid, node.there.first, node.here)]
    node.move(vm, node.here | node.there)
    node.move(vm, node.here)  # it is back before it is looked at
    assert node.repair(vm) == 0
    assert len(seen) == 1


def test_a_mask_that_is_refused_is_counted_once(node: Spinners) -> None:
    vm = node.vm()
    assert node.repair(vm) == 0
    nowhere = CpuSet((8191,))
    pinner = node.reconciler.pinner
    pinner.of(vm.sandbox).expected = {vm.vmm.pid: nowhere.frozen()}  # as if it had been there, and went off
    node.place(vm.sandbox, nowhere)
    placement: Placement = node.reconciler.placements[vm.sandbox]
    # No public way in: the tracker takes a placement from a pass that has set its masks, which no kernel does here.
    pinner.drift_tracker._of[vm.sandbox].placement = placement
    for _ in range(3):
        node.repair(vm)
    assert node.reconciler.tally.drift == {"cpuset": 1}


def test_whom_another_hand_moves_before_the_mask_is_read_back_is_put_back_by_the_next_pass(
        node: Spinners, monkeypatch: pytest.MonkeyPatch) -> None:
    vm = node.vm()
    node.move(vm, node.there)
    real = os.sched_setaffinity

    def outrun(tid: int, cpus: frozenset[int]) -> None:
        real(tid, cpus)
        real(tid, (node.here | node.there).frozen())

    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_setaffinity", outrun)
        assert node.repair(vm) == 1
    assert mask(vm) == node.here | node.there
    assert node.repair(vm) == 1
    assert mask(vm) == node.here
    assert node.repair(vm) == 0
