"""Threads that another program moved are put back, counted and explained, or left alone: on real processes."""

from __future__ import annotations

import logging
import os
import subprocess
import time

import drift_steps
import pytest
from drift_steps import contend, log, mask
from strayed import Spinners, thread_of

from vmpin.cpuset import CpuSet
from vmpin.domain.contention import ContentionRules, OnContention
from vmpin.domain.model import SandboxId, VmThread
from vmpin.domain.sandbox_placement import Placement
from vmpin.host.sysfs import Sysfs
from vmpin.pinning.apply import Outcome
from vmpin.pinning.pinner import SHOWN, shown_masks
from vmpin.pinning.plan import SetAffinity

node = drift_steps.node


def test_a_thread_that_another_program_moved_is_repaired_counted_and_explained(
        node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    vm = node.vm()
    assert node.repair(vm) == 0
    node.move(vm, node.there)
    assert node.repair(vm) == 1
    assert mask(vm) == node.here
    assert node.repair(vm) == 0
    assert node.node_state.counters.drift == {"unknown program": 1}
    (record,) = log(caplog, "repaired")
    assert record.levelno == logging.INFO
    assert (f"sandbox={vm.sandbox} threads=1 cause=unknown program: nothing known of sets such masks here"
            in record.message)
    history = node.node_state.drift_evidence.histories[vm.sandbox]
    assert (history.repairs, history.why) == ({"unknown program": 1}, "nothing known of sets such masks here")
    assert abs(history.last - time.time()) < 60


def test_the_log_has_the_masks_that_were_set(node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    """Not the sandbox's mask, which perhaps no thread has."""
    vm = node.vm()
    node.place(vm.sandbox, node.there)
    placements = node.node_state.placement_cache.placements
    placements[vm.sandbox] = placements[vm.sandbox]._replace(mask=node.here | node.there)
    assert node.repair(vm) == 1
    (record,) = log(caplog, "pinned")
    assert record.message == f"pinned sandbox={vm.sandbox} threads=1 mask={node.there} verdict=floating"
    assert shown_masks([CpuSet.parse(text) for text in ("0-1,4-7", "3", "2", "3")]) == "2|3|0-1,4-7"
    assert shown_masks([CpuSet([cpu]) for cpu in range(20)]).count("|") == SHOWN


def test_a_new_placement_is_no_drift(node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    vm = node.vm()
    node.move(vm, node.there)
    assert node.repair(vm) == 1  # met as it was, and placed for the first time
    node.place(vm.sandbox, node.there)
    assert node.repair(vm) == 1
    node.place(vm.sandbox, node.here)
    node.move(vm, node.here | node.there)  # and moved as well: there is a new place to go to all the same
    assert node.repair(vm) == 1
    assert mask(vm) == node.here
    assert node.node_state.counters.drift == {}
    assert log(caplog, "repaired") == []


def test_a_mask_waits_for_a_cgroup_that_the_kubelet_has_yet_to_rewrite(
        node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    """The kernel refuses a mask without any CPU that the cgroup has (EINVAL): here one that the machine has not."""
    vm = node.vm()
    assert node.repair(vm) == 0
    absent = CpuSet([Sysfs().topology().all_cpus.bits.bit_length()])
    node.place(vm.sandbox, absent)
    wanted = node.node_state.placements[vm.sandbox]
    waiting = wanted._replace(waiting="waits for the kubelet to rewrite it")
    node.node_state.placement_cache.placements[vm.sandbox] = waiting
    pinner = node.node_state.pinner
    for _ in range(5):
        (result,) = pinner.set_masks(pinner.operations(vm, waiting), node.node_state.placements)
        assert (result.outcome, result.got) == (Outcome.WAITING, node.here)
    node.move(vm, node.here | node.there)  # the cgroup is rewritten, and widens it
    (result,) = pinner.set_masks(pinner.operations(vm, waiting), node.node_state.placements)
    assert result.outcome is Outcome.WAITING
    newborn = pinner.set_mask_ahead(SetAffinity(vm.sandbox, next(iter(vm.threads())), absent, node.here))
    assert newborn.outcome is Outcome.WAITING, "nor is a new thread's a refusal"
    assert node.reconciler.view.refusals(vm.sandbox) == []
    assert [record.message for record in caplog.records if record.levelno > logging.INFO] == []
    assert len(log(caplog, f"waits for the kubelet to rewrite it sandbox={vm.sandbox}")) == 1
    assert node.node_state.counters.drift == {}
    node.place(vm.sandbox, node.there)
    assert node.repair(vm) == 1
    assert mask(vm) == node.there
    assert node.node_state.counters.drift == {}
    # As soon as nothing is waited for, a refusal is an error again.
    node.place(vm.sandbox, absent)
    assert node.repair(vm) == 1
    assert [record.levelno for record in caplog.records if record.levelno > logging.INFO] == [logging.ERROR]


def test_threads_that_come_and_go_do_not_fill_the_log(node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    """Each of them is refused its mask, or gets a part of it: guests have their VMMs create such threads."""
    vm = node.vm()
    absent = CpuSet([Sysfs().topology().all_cpus.bits.bit_length()])
    for turn in range(60):
        with subprocess.Popen(["sleep", "600"]) as thread:
            try:
                vm.vmm.threads = {thread.pid: thread_of(thread.pid)}
                node.place(vm.sandbox, absent if turn % 2 else absent | node.there)
                assert node.repair(vm) == 1
            finally:
                thread.kill()
    lines = [record for record in caplog.records if record.levelno > logging.INFO]
    assert 16 <= len(lines) < 60
    assert {record.levelno for record in lines} == {logging.WARNING, logging.ERROR}


def test_after_a_quiet_time_a_vm_has_its_lines_again(node: Spinners, caplog: pytest.LogCaptureFixture,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    vm, monotonic = node.vm(), time.monotonic
    absent = CpuSet([Sysfs().topology().all_cpus.bits.bit_length()])
    for hours in range(3):
        monkeypatch.setattr(time, "monotonic", lambda hours=hours: monotonic() + 3600 * hours)
        caplog.clear()
        for _ in range(16):
            with subprocess.Popen(["sleep", "600"]) as thread:
                vm.vmm.threads = {thread.pid: thread_of(thread.pid)}
                node.place(vm.sandbox, absent)
                assert node.repair(vm) == 1
                thread.kill()
        assert [record.levelno for record in caplog.records].count(logging.ERROR) == 16


def test_an_equal_new_placement_hides_no_drift(node: Spinners) -> None:
    vm = node.vm()
    assert node.repair(vm) == 0
    node.move(vm, node.there)
    node.place(vm.sandbox, node.here)  # another object, and the same place
    assert node.repair(vm) == 1
    assert node.node_state.counters.drift == {"unknown program": 1}


def test_drift_that_an_unread_report_may_explain_is_judged_once_it_is_read(node: Spinners) -> None:
    """A runtime writes a VM's cgroup as soon as its call is answered, maybe amid a pass that began before."""
    vm = node.vm()
    assert node.repair(vm) == 0
    waiting = {SandboxId("another"), vm.sandbox}
    node.node_state.judge_drift_after(lambda: waiting)
    node.move(vm, node.there)
    assert (node.repair(vm), mask(vm)) == (0, node.there)
    waiting.remove(vm.sandbox)
    placed = node.node_state.placements[vm.sandbox]
    # Read: a container is being created.
    node.node_state.placement_cache.placements[vm.sandbox] = placed._replace(pending=True)
    assert (node.repair(vm), mask(vm)) == (1, node.here)
    assert node.node_state.counters.drift == {}
    node.node_state.placement_cache.placements[vm.sandbox] = placed
    assert node.repair(vm) == 0
    node.move(vm, node.there)
    waiting.add(vm.sandbox)
    assert node.repair(vm) == 0
    waiting.remove(vm.sandbox)  # read, and it explains nothing
    assert node.repair(vm) == 1
    assert node.node_state.counters.drift == {"unknown program": 1}


def test_an_unread_report_delays_no_new_placement(node: Spinners) -> None:
    vm = node.vm()
    assert node.repair(vm) == 0
    node.node_state.judge_drift_after(lambda: {vm.sandbox})
    node.place(vm.sandbox, node.there)
    assert (node.repair(vm), mask(vm)) == (1, node.there)


def test_drift_seen_by_a_plan_is_counted_when_it_is_repaired(node: Spinners) -> None:
    vm = node.vm()
    assert node.repair(vm) == 0
    node.move(vm, node.there)
    pinner, placement = node.node_state.pinner, node.node_state.placements[vm.sandbox]
    for _ in range(3):
        assert len(pinner.operations(vm, placement)) == 1
        pinner.recheck(vm.sandbox)
    assert node.node_state.counters.drift == {}
    assert node.repair(vm) == 1
    assert node.node_state.counters.drift == {"unknown program": 1}


def test_drift_that_went_away_by_itself_is_not_counted(node: Spinners) -> None:
    vm = node.vm()
    assert node.repair(vm) == 0
    node.move(vm, node.there)
    pinner, placement = node.node_state.pinner, node.node_state.placements[vm.sandbox]
    assert len(pinner.operations(vm, placement)) == 1
    pinner.recheck(vm.sandbox)
    node.move(vm, node.here)
    assert node.repair(vm) == 0
    node.place(vm.sandbox, node.there)
    assert node.repair(vm) == 1
    assert node.node_state.counters.drift == {}


def test_a_drifted_thread_is_reported_before_it_is_put_back(node: Spinners) -> None:
    seen: list[tuple[int, CpuSet, CpuSet]] = []

    def strayed(sandbox: str, thread: VmThread, place: CpuSet) -> None:
        seen.append((thread.id.tid, CpuSet(os.sched_getaffinity(thread.id.tid)), place))

    vm = node.vm()
    assert node.repair(vm) == 0
    node.node_state.pinner.drift_tracker.strayed = strayed
    node.move(vm, node.there)
    assert node.repair(vm) == 1
    assert seen == [(vm.vmm.pid, node.there, node.here)]
    node.move(vm, node.here | node.there)
    node.move(vm, node.here)  # it is back before it is looked at
    assert node.repair(vm) == 0
    assert len(seen) == 1


def test_a_mask_that_is_refused_is_counted_once(node: Spinners) -> None:
    vm = node.vm()
    assert node.repair(vm) == 0
    nowhere = CpuSet((8191,))
    pinner = node.node_state.pinner
    pinner.of(vm.sandbox).expected = {vm.vmm.pid: nowhere.frozen()}  # as if it had been there, and went off
    node.place(vm.sandbox, nowhere)
    placement: Placement = node.node_state.placements[vm.sandbox]
    # No public way in: the tracker takes a placement from a pass that has set its masks, which no kernel does here.
    pinner.drift_tracker._of[vm.sandbox].placement = placement
    for _ in range(3):
        node.repair(vm)
    assert node.node_state.counters.drift == {"cpuset": 1}


def test_a_refusal_is_over_when_another_placement_wants_the_mask_that_the_thread_has(node: Spinners) -> None:
    """A first pass aims a VM at the pool, its cgroup refuses, and the runtime's list says that it is in place."""
    vm = node.vm()
    node.place(vm.sandbox, CpuSet((8191,)))
    node.repair(vm)
    (refusal,) = node.reconciler.view.refusals(vm.sandbox)
    assert "8191" in refusal
    node.repair(vm)
    assert node.reconciler.view.refusals(vm.sandbox) == [refusal]  # as long as it lasts
    node.place(vm.sandbox, node.here)
    assert node.repair(vm) == 0
    assert node.reconciler.view.refusals(vm.sandbox) == []


def test_a_refusal_is_over_when_the_vm_is_left_alone(node: Spinners) -> None:
    vm = node.vm()
    node.place(vm.sandbox, CpuSet((8191,)))
    node.repair(vm)
    assert node.reconciler.view.refusals(vm.sandbox)
    node.node_state.pinner.leave_alone(vm.sandbox)
    assert node.reconciler.view.refusals(vm.sandbox) == []


def test_a_thread_moved_before_its_mask_is_read_back_is_repaired_by_the_next_pass(
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


def test_contention_is_logged_as_one_error_and_the_thread_is_left_alone(
        node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    vm, other = node.vm(), node.vm("b")
    for moved_vm in (vm, other):
        assert node.repair(moved_vm) == 0
    assert contend(node, vm, 10) == 3
    assert mask(vm) == node.there
    (record,) = log(caplog, "contention")
    assert record.levelno == logging.ERROR
    assert f"sandbox={vm.sandbox} threads=1: put back 3 times within 60 s" in record.message
    assert "left alone for 300 s" in record.message
    (note,) = node.reconciler.view.refusals(vm.sandbox)
    assert note == ("1 thread is moved by another program again and again (the last time: nothing known of sets "
                    "such masks here) and is left alone (drift.on_contention=rest)")
    assert node.node_state.counters.contentions == 1
    assert node.node_state.counters.contentions_by == {vm.sandbox: 1}
    assert contend(node, other, 1) == 1  # no other program moves that one
    assert node.reconciler.view.refusals(other.sandbox) == []


def test_no_contention_begins_while_reports_are_unread(
        node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    """What moved the thread once more may have been the runtime."""
    vm = node.vm()
    waiting = set[SandboxId]()
    node.node_state.judge_drift_after(lambda: waiting)
    assert node.repair(vm) == 0
    assert contend(node, vm, 3) == 3
    waiting.add(vm.sandbox)
    node.move(vm, node.there)
    assert node.repair(vm) == 0
    assert log(caplog, "contention") == []
    assert node.node_state.counters.contentions == 0
    waiting.clear()
    assert node.repair(vm) == 0
    assert len(log(caplog, "contention")) == 1, "the reports explained nothing"


def test_a_thread_that_is_left_alone_follows_a_new_placement(node: Spinners) -> None:
    vm = node.vm()
    assert node.repair(vm) == 0
    assert contend(node, vm, 5) == 3
    both = node.here | node.there
    node.place(vm.sandbox, both)
    assert node.repair(vm) == 1
    assert mask(vm) == both
    assert node.reconciler.view.refusals(vm.sandbox) == []


def test_after_its_rest_a_thread_is_retried_and_contention_goes_on_without_an_error(
        node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    vm = node.vm()
    drifts = node.node_state.pinner.drift_tracker
    drifts.now = lambda: now
    drifts.contention.rules = ContentionRules(rest=1.0)
    assert node.repair(vm) == 0
    assert contend(node, vm, 4) == 3
    assert node.repair(vm) == 0
    now += 1.1
    assert node.repair(vm) == 1  # nothing else happened: its time has come
    assert node.repair(vm) == 0
    assert contend(node, vm, 2) == 0
    assert mask(vm) == node.there
    assert [record.levelno for record in log(caplog, "contention")] == [logging.ERROR, logging.INFO]
    now += 1.1
    assert node.repair(vm) == 0  # it rests twice as long now
    now += 1.1
    assert node.repair(vm) == 1
    assert node.node_state.counters.contentions == 1


def test_a_retry_by_hand_repairs_a_thread_that_was_left_alone(node: Spinners) -> None:
    vm = node.vm()
    node.node_state.pinner.drift_tracker.contention.rules = ContentionRules(OnContention.LEAVE)
    assert node.repair(vm) == 0
    assert contend(node, vm, 5) == 3
    node.node_state.pinner.retry_now()
    assert node.repair(vm) == 1
    assert mask(vm) == node.here
    assert node.reconciler.view.refusals(vm.sandbox) == []


def test_a_persistent_writer_is_logged_once_and_repaired(node: Spinners, caplog: pytest.LogCaptureFixture) -> None:
    vm = node.vm()
    node.node_state.pinner.drift_tracker.contention.rules = ContentionRules(OnContention.PERSIST)
    assert node.repair(vm) == 0
    assert contend(node, vm, 12) == 12
    assert mask(vm) == node.here
    first, *later = [record.levelno for record in log(caplog, "contention")]
    assert first == logging.ERROR
    assert set(later) == {logging.INFO}
    pinner = node.node_state.pinner
    assert node.reconciler.view.refusals(vm.sandbox) == [
        "1 thread is moved by another program again and again (the last time: nothing known of sets such masks "
        "here) "
        "and is put back each time (drift.on_contention=persist)"]
    pinner.retry_now()
    assert node.reconciler.view.refusals(vm.sandbox) == []


def test_a_thread_that_ended_in_contention_is_forgotten(node: Spinners) -> None:
    vm = node.vm()
    assert node.repair(vm) == 0
    assert contend(node, vm, 5) == 3
    node.end(vm)
    node.node_state.pinner.keep_only([])
    assert not node.node_state.pinner.drift_tracker.contention
    assert node.reconciler.view.refusals(vm.sandbox) == []
