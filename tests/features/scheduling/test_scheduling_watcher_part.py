"""Scheduling in a watcher: which sandboxes it decides on, what a pass costs, and choices by annotation."""

from __future__ import annotations

import os
from pathlib import Path

import nri_events
import pytest
import scheduled_vm
from own_threads import CPU, OTHER, SHOP, OwnThread, rt
from scheduled_vm import POOL, Vm, run_pod
from system_calls import system_calls

from vmpin.config.loading import load
from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.model import SandboxId, ThreadId
from vmpin.features.scheduling.sched_class import SchedClass
from vmpin.sources.nri.nri_events import PodEvent, Synced
from vmpin.wire.nri_enums import Verb

pytestmark = pytest.mark.root
thread = scheduled_vm.thread


def test_the_class_is_set_at_the_start_follows_the_placement_and_is_shown(tmp_path: Path, thread: OwnThread) -> None:
    vm = Vm(tmp_path, thread, vcpu_class="fifo:1")
    assert vm.part.planned() == [f"sandbox shop: set the class of vCPU 0, thread {thread.tid}: fifo:1, was other"]
    vm.part.begin()
    assert thread.shown == rt("fifo:1")
    assert vm.part.planned() == []
    assert vm.part.status() == {"vcpu_class": "fifo:1", "trouble": "", "set": 1}
    assert vm.members() == {"class": "fifo:1", "annotated": False, "ignored": "", "vcpus": [
        {"vcpu": 0, "class": "fifo:1", "ok": True, "why": ""}]}
    vm.place(exclusive=False)
    vm.part.after_pass()
    assert thread.shown == OTHER
    assert not vm.path.exists()
    assert vm.members()["vcpus"] == [{"vcpu": 0, "class": None, "ok": True,
                                      "why": f"it may run on CPUs {CPU},{POOL}"}]
    assert vm.part.members(SandboxState(SandboxId("db")))["scheduling"]["vcpus"] == []


def test_a_pass_without_changes_makes_no_system_call_and_a_resync_three_for_each_vcpu(
        tmp_path: Path, thread: OwnThread) -> None:
    vm = Vm(tmp_path, thread, vcpu_class="fifo:1")
    vm.part.begin()
    assert system_calls(vm.part.after_pass) == {}
    calls = system_calls(vm.part.after_resync)
    files = {name: calls.pop(name) for name in ("open", "read", "close", "stat") if name in calls}
    assert calls == {"sched_getscheduler": 1, "sched_getparam": 1, "sched_getaffinity": 1}
    assert files["open"] == 2, "the limit's files"


def test_without_a_limit_of_real_time_threads_classes_are_given_back_and_set_again_with_it(
        tmp_path: Path, thread: OwnThread) -> None:
    vm = Vm(tmp_path, thread, vcpu_class="fifo:1")
    vm.part.begin()
    vm.limit(-1)
    vm.resync()
    assert thread.shown == OTHER
    assert "sched_rt_runtime_us is -1" in vm.part.status()["trouble"]
    (vcpu,) = vm.members()["vcpus"]
    assert (vcpu["ok"], vcpu["class"]) == (True, "other")
    assert "sched_rt_runtime_us is -1" in vcpu["why"]
    vm.limit(950000)
    vm.resync()
    assert thread.shown == rt("fifo:1")
    vm.limit(-1)
    explicit = Vm(tmp_path / "explicit", thread, vcpu_class="fifo:1", without_throttling=True)
    explicit.limit(-1)
    explicit.part.begin()
    assert thread.shown == rt("fifo:1")


def test_the_rules_for_other_programs_are_those_of_the_configuration_in_force(
        tmp_path: Path, thread: OwnThread) -> None:
    vm = Vm(tmp_path, thread, vcpu_class="fifo:1")
    vm.part.begin()
    vm.view.config = load(None, {}, {"drift.on_contention": "persist"})
    for _ in range(6):
        thread.chrt(os.SCHED_OTHER)
        vm.resync()
        assert thread.shown == rt("fifo:1")


def test_masks_that_are_not_as_placed_and_collisions_keep_the_class_away(tmp_path: Path, thread: OwnThread) -> None:
    vm = Vm(tmp_path, thread, vcpu_class="fifo:1")
    vm.part.begin()
    vm.view.refusals = lambda sandbox: ["not permitted"]
    vm.resync()
    assert thread.shown == OTHER
    assert vm.members()["vcpus"][0]["why"] == "masks of its VM are not as placed: not permitted"
    vm.view.refusals = lambda sandbox: []
    vm.resync()
    assert thread.shown == rt("fifo:1")
    own = vm.view.ownership
    vm.view.ownership = own._replace(claims={**own.claims, SandboxId("db"): own.claims[SHOP]})
    vm.part.after_pass()
    assert thread.shown == OTHER
    assert vm.members()["vcpus"][0]["why"] == f"another sandbox may use CPU {CPU}, too"


def test_two_threads_of_one_vcpu_number_have_no_class(tmp_path: Path, thread: OwnThread) -> None:
    vm = Vm(tmp_path, thread, vcpu_class="fifo:1")
    threads = vm.view.vms[SHOP].vmm.threads
    vm.view.vms[SHOP].vmm.threads = {**threads, 1: threads[thread.tid]._replace(id=ThreadId(1, 1))}
    vm.part.begin()
    assert thread.shown == OTHER
    assert vm.members()["vcpus"][0]["why"] == "its thread is not identified"


def test_a_sandbox_that_is_unpinned_has_its_class_back_at_once(tmp_path: Path, thread: OwnThread) -> None:
    vm = Vm(tmp_path, thread, vcpu_class="fifo:1")
    vm.part.begin()
    del vm.view.placements[SHOP]
    assert vm.part.settle([SHOP])
    assert thread.shown == OTHER
    vm.resync()
    assert thread.shown == OTHER


def test_threads_keep_their_class_until_the_runtime_has_listed_their_sandbox(
        tmp_path: Path, thread: OwnThread) -> None:
    vm = Vm(tmp_path, thread, vcpu_class="fifo:1")
    vm.part.begin()
    again = Vm(tmp_path, thread, vcpu_class="fifo:1")
    placement = again.view.placements.pop(SHOP)
    again.view.unmanaged = {SHOP: "its containers are not known yet"}
    again.part.begin()
    again.resync()
    assert thread.shown == rt("fifo:1")
    again.view.unmanaged, again.view.placements = {}, {SHOP: placement}
    again.resync()
    assert thread.shown == rt("fifo:1")


def test_a_vcpu_that_floats_at_the_start_with_a_class_but_no_record_has_its_class_back(
        tmp_path: Path, thread: OwnThread) -> None:
    Vm(tmp_path, thread, vcpu_class="fifo:1").part.begin()
    (tmp_path / "run/scheduling.json").unlink()
    again = Vm(tmp_path, thread, vcpu_class="rr:2")
    again.place(exclusive=False)
    again.part.begin()
    assert thread.shown == OTHER
    assert not again.path.exists()


def test_a_class_that_vmpin_has_not_set_stays_where_a_vcpu_floats_at_the_start(
        tmp_path: Path, thread: OwnThread) -> None:
    vm = Vm(tmp_path, thread, vcpu_class="fifo:1")
    vm.place(exclusive=False)
    thread.chrt(os.SCHED_FIFO, 1)  # new threads inherit it
    vm.part.begin()
    assert thread.shown == SchedClass(1, 1)
    thread.chrt(os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, 1)
    vm.resync()
    assert thread.shown == rt("fifo:1"), "only what is there at the start counts as vmpin's"


@pytest.mark.parametrize("because", ["unmanaged", "unlisted"])
@pytest.mark.parametrize("anew", ["floats", "another pod's CPU"])
def test_a_vcpu_of_which_little_is_known_keeps_no_class_where_other_threads_may_run(
        tmp_path: Path, thread: OwnThread, because: str, anew: str) -> None:
    vm = Vm(tmp_path, thread, vcpu_class="fifo:1")
    vm.part.begin()
    again = Vm(tmp_path, thread, vcpu_class="fifo:1", privileged_namespaces="telecom" if because == "unlisted" else "")
    placement = again.view.placements.pop(SHOP)
    again.view.unmanaged = {SHOP: "its containers are not known yet"} if because == "unmanaged" else {}
    own = again.view.ownership
    if anew == "floats":
        if len(os.sched_getaffinity(0)) == 1:
            pytest.skip("needs two CPUs")
        os.sched_setaffinity(thread.tid, os.sched_getaffinity(0))
    else:
        again.view.ownership = own._replace(claims={SandboxId("db"): own.claims[SHOP]})
    again.part.begin()
    assert thread.shown == OTHER
    assert placement.vcpus[0].cpus == CpuSet((CPU,))


def test_refused_masks_count_from_the_pass_on_in_which_the_vm_is_placed_anew(
        tmp_path: Path, thread: OwnThread) -> None:
    vm = Vm(tmp_path, thread, vcpu_class="fifo:1")
    vm.place(exclusive=False)
    vm.part.begin()
    vm.view.refusals = lambda sandbox: ["not permitted"]
    vm.place()
    vm.part.after_pass()
    assert thread.shown == OTHER


def test_two_sandboxes_of_one_pod_on_one_cpu_have_no_class(tmp_path: Path, thread: OwnThread) -> None:
    vm = Vm(tmp_path, thread, vcpu_class="fifo:1")
    vm.part.begin()
    own, before = vm.view.ownership, SandboxId("shop-before")
    vm.view.ownership = own._replace(claims={**own.claims, before: own.claims[SHOP]},
                                     pods={SHOP: "uid", before: "uid"})
    vm.resync()
    assert thread.shown == rt("fifo:1"), "the former one has ended"
    vm.view.vms[before] = vm.view.vms[SHOP]
    vm.resync()
    assert thread.shown == OTHER
    assert vm.members()["vcpus"][0]["why"] == f"another sandbox may use CPU {CPU}, too"


@pytest.mark.parametrize(("value", "namespace", "default", "shown", "ignored"), [
    ("fifo:2", "telecom", "other", rt("fifo:2"), ""),
    ("rr:3", "telecom", "fifo:1", rt("rr:3"), ""),
    ("other", "telecom", "fifo:1", OTHER, ""),
    ("fifo:2", "shop", "other", OTHER, "its annotation vcpu-class.vmpin.io=fifo:2 does not count: "
     "scheduling.privileged_namespaces lacks shop"),
    ("other", "shop", "fifo:1", rt("fifo:1"), "its annotation vcpu-class.vmpin.io=other does not count: "
     "scheduling.privileged_namespaces lacks shop"),
    ("fifo:99", "telecom", "fifo:1", rt("fifo:1"), "its annotation vcpu-class.vmpin.io=fifo:99 does not count: it "),
    ("\x1b[31m" + "9" * 100_000, "telecom", "other", OTHER, "its annotation vcpu-class.vmpin.io=\\x1b[31m9999"),
])
def test_a_pod_of_a_privileged_namespace_chooses_by_annotation(
        tmp_path: Path, thread: OwnThread, value: str, namespace: str, default: str, shown: SchedClass,
        ignored: str) -> None:
    vm = Vm(tmp_path, thread, vcpu_class=default, privileged_namespaces="telecom,radio")
    vm.part.begin()
    vm.part.after_events([run_pod(value, namespace)])
    vm.part.after_pass()
    assert thread.shown == shown
    members = vm.members()
    assert (members is None) == (shown == OTHER and not ignored)
    if members is not None:
        assert members["ignored"].startswith(ignored)
        assert len(members["ignored"]) < 300
        assert members["annotated"] is not bool(ignored)
    vm.part.after_events([PodEvent(Verb.REMOVE_POD, nri_events.pod(id_=SHOP), 0)])
    vm.resync()
    assert thread.shown == (OTHER if default == "other" else rt(default))


def test_a_restart_keeps_chosen_classes_until_the_runtime_lists_pods(tmp_path: Path, thread: OwnThread) -> None:
    vm = Vm(tmp_path, thread, privileged_namespaces="telecom")
    vm.part.begin()
    vm.part.after_events([run_pod("fifo:2", "telecom")])
    vm.part.after_pass()
    again = Vm(tmp_path, thread, privileged_namespaces="telecom")
    again.view.list_awaited = True
    again.part.begin()
    again.resync()  # as at once for messages of hooks
    assert thread.shown == rt("fifo:2")
    event = run_pod("fifo:2", "telecom")
    assert isinstance(event, PodEvent)
    again.part.after_events([Synced((event.pod,), (), 0)])
    again.resync()
    assert thread.shown == rt("fifo:2")
    again.part.after_events([Synced((), (), 0)])
    again.resync()
    assert thread.shown == OTHER
