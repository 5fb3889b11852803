"""Scheduling in a watcher: which sandboxes it decides on, what a pass costs, choices by annotation, and the status."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import nri_events
import pytest
from own_threads import CPU, OTHER, SHOP, OwnThread, need_real_time, own_threads, rt
from ruled import claims
from system_calls import system_calls
from trees import make_tree

from vmpin.config.loading import load
from vmpin.cpuset import CpuSet
from vmpin.daemon.watcher import Watcher
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.model import Container, ContainerId, SandboxId, ThreadId, ThreadRole, Vcpu, VcpuId, VmThread
from vmpin.domain.topology import Topology
from vmpin.feature import WatcherPart
from vmpin.features.scheduling import FEATURE, class_setter, scheduling_watcher_part
from vmpin.features.scheduling.class_file import ClassFile
from vmpin.features.scheduling.class_setter import ClassSetter
from vmpin.features.scheduling.pod_choices import ANNOTATION
from vmpin.features.scheduling.sched_class import SchedClass
from vmpin.features.scheduling.scheduling_text import compared_lines, misplaced, sentences
from vmpin.features.scheduling.scheduling_watcher_part import NodeScheduling
from vmpin.host.procfs import Procfs
from vmpin.placement.ownership import Node, ownership
from vmpin.placement.rules import PlacementRequest, place
from vmpin.sources.nri.nri_events import NriEvent, PodEvent, Synced
from vmpin.wire.nri_enums import Verb

pytestmark = pytest.mark.root
POOL = 60  #: No CPU of this machine: the threads of the VM that are not vCPUs are there.
NODE = Node(Topology.build(CpuSet((CPU, POOL))), CpuSet((POOL,)))


class Vm:
    """A watcher's view of one VM whose vCPU 0 is a thread of this process, alone on its CPU while it is `placed`."""

    def __init__(self, root: Path, thread: OwnThread, **keys: object) -> None:
        self.thread, self.path = thread, root / "run/scheduling.json"
        make_tree(root, "run/\nsys/kernel/sched_rt_period_us = 1000000\n")
        self.limit_file = root / "sys/kernel/sched_rt_runtime_us"
        self.limit(950000)
        vcpu = VmThread(thread.id, ThreadRole.VCPU, "CPU 0/KVM", 1, VcpuId(0))
        self.config = load(None, {}, {"paths.run": str(root / "run"), **{
            f"scheduling.{key}": str(value) for key, value in keys.items()}})
        self.view: Any = SimpleNamespace(
            config=self.config, proc=Procfs(root), placements={}, unmanaged={}, refusals=lambda sandbox: [],
            sandboxes={SHOP: SandboxState(SHOP)}, unknown_originals=0,
            list_awaited=False,
            vms={SHOP: SimpleNamespace(vmm=SimpleNamespace(id=thread.main, threads={thread.tid: vcpu}))})
        self.place()
        self.part: Any = self.scheduling().part()

    def scheduling(self) -> NodeScheduling:
        setter = ClassSetter(Procfs(), ClassFile(self.path, "boot"), self.config.contention_rules)
        return NodeScheduling(self.view, self.config.of_features["scheduling"], setter)

    def limit(self, microseconds: int) -> None:
        self.limit_file.write_text(f"{microseconds}\n")

    def place(self, *, exclusive: bool = True) -> None:
        containers = (Container(ContainerId("web"), cpuset=CpuSet((CPU,)), exclusive=exclusive),
                      Container(ContainerId("logs"), cpuset=CpuSet((POOL,)), exclusive=False))
        self.view.ownership = own = ownership({SHOP: claims(containers, NODE)}, NODE)
        self.view.placements[SHOP] = place(PlacementRequest(SHOP, (Vcpu(VcpuId(0)),), containers), NODE, own,
                                           self.config.rules)

    def members(self) -> Any:
        return self.part.members(SandboxState(SHOP)).get("scheduling")

    def resync(self) -> None:
        self.part.after_pass()
        self.part.after_resync()


@pytest.fixture
def thread() -> Iterator[OwnThread]:
    need_real_time()
    with own_threads(1) as (its,):
        yield its


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


def run_pod(value: str, namespace: str) -> NriEvent:
    pod = nri_events.pod(id_=SHOP)._replace(namespace=namespace, annotations={ANNOTATION: value})
    return PodEvent(Verb.RUN_POD, pod, 0)


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


def watched(vm: Vm) -> WatcherPart | None:
    assert FEATURE.watch is not None
    return FEATURE.watch(cast(Watcher, SimpleNamespace(view=vm.view)))


def test_off_it_is_no_part_of_the_watcher_and_gives_back_what_an_earlier_one_set(
        tmp_path: Path, thread: OwnThread) -> None:
    off = Vm(tmp_path, thread)
    assert watched(off) is None
    on = Vm(tmp_path, thread, vcpu_class="fifo:1")
    part = watched(on)
    assert part is not None
    assert part.begin is not None
    part.begin()
    assert thread.shown == rt("fifo:1")
    left = watched(off)
    assert left is not None
    assert left.begin is not None
    left.begin()
    assert thread.shown == OTHER
    assert watched(off) is None


@pytest.mark.parametrize("later", ["after_resync", "settle"])
def test_off_it_tries_again_to_give_back_what_was_refused(
        tmp_path: Path, thread: OwnThread, monkeypatch: pytest.MonkeyPatch, later: str) -> None:
    on: Any = watched(Vm(tmp_path, thread, vcpu_class="fifo:1"))
    on.begin()
    part: Any = watched(Vm(tmp_path, thread))

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(class_setter, "set_class", refused)
        part.begin()
        part.after_resync()
        assert not part.settle([SHOP])
    assert part.settle([SandboxId("db")])
    assert thread.shown == rt("fifo:1")
    if later == "settle":
        assert part.settle([SHOP])
    else:
        part.after_resync()
    assert thread.shown == OTHER
    assert part.settle([SHOP]), "nothing is left"


def test_without_a_watcher_the_classes_of_unpinned_sandboxes_are_given_back(tmp_path: Path, thread: OwnThread) -> None:
    vm = Vm(tmp_path, thread, vcpu_class="fifo:1")
    assert FEATURE.settle is not None
    assert FEATURE.settle(vm.view, [SHOP]), "nothing was set"
    part = watched(vm)
    assert part is not None
    assert part.begin is not None
    part.begin()
    assert FEATURE.settle(vm.view, [SandboxId("db")])
    assert thread.shown == rt("fifo:1")
    assert FEATURE.settle(vm.view, [SHOP])
    assert thread.shown == OTHER


def test_a_damaged_record_keeps_no_watcher_that_is_off_from_giving_back(tmp_path: Path, thread: OwnThread) -> None:
    vm = Vm(tmp_path, thread, vcpu_class="fifo:1")
    vm.part.begin()
    vm.path.rename(vm.path.with_name("scheduling.json.bad"))
    part: Any = watched(Vm(tmp_path, thread))
    part.begin()
    assert thread.shown == OTHER
    part.after_resync()
    assert not part.settle([SHOP]), "the former class is not known for sure"
    assert not vm.path.exists()


def test_an_unpin_gives_back_the_classes_whose_record_was_lost_with_the_run_directory(
        tmp_path: Path, thread: OwnThread) -> None:
    vm = Vm(tmp_path, thread, vcpu_class="fifo:1")
    vm.part.begin()
    vm.path.unlink()
    assert FEATURE.settle is not None
    vm.view.unknown_originals = 1
    assert FEATURE.settle(vm.view, [SandboxId("db")])
    assert thread.shown == rt("fifo:1")
    assert FEATURE.settle(vm.view, [SHOP])
    assert thread.shown == OTHER
    assert not vm.path.exists()


def wrong_alone(vm: Vm) -> list[tuple[object, object]]:
    """What `vmpin verify` finds without a watcher, as wanted and actual classes."""
    shop = {"id": SHOP, "pod": None, **vm.scheduling().by_records()[SHOP]}
    return [(vcpu["wanted"], vcpu["actual"]) for vcpu in misplaced([shop])]


@pytest.mark.parametrize("record", ["kept", "lost"])
@pytest.mark.parametrize("choice", ["default", "annotation", "switched off"])
def test_without_a_watcher_classes_are_compared_by_the_records(
        tmp_path: Path, thread: OwnThread, choice: str, record: str) -> None:
    by_annotation = Vm(tmp_path, thread, privileged_namespaces="telecom")
    vm = by_annotation if choice == "annotation" else Vm(tmp_path, thread, vcpu_class="rr:3")
    assert wrong_alone(by_annotation) == [], "whether its pod chose a class is not known"
    if choice == "annotation":
        vm.part.after_events([run_pod("rr:3", "telecom")])
    vm.part.begin()
    if record == "lost":
        vm.path.unlink()
    if choice == "switched off":
        vm = Vm(tmp_path, thread)
    before = vm.path.exists()
    assert wrong_alone(vm) == [], "a class stays without a watcher, as masks do"
    vm.place(exclusive=False)
    assert wrong_alone(vm) == [("its former class", "rr:3")]
    assert vm.path.exists() == before
    vm.place()
    thread.chrt(os.SCHED_OTHER)
    assert wrong_alone(vm) == ([("rr:3", "other")] if record == "kept" or choice == "default" else [])


def test_a_class_that_cannot_be_read_is_shown_as_wrong(
        tmp_path: Path, thread: OwnThread, monkeypatch: pytest.MonkeyPatch) -> None:
    vm = Vm(tmp_path, thread, vcpu_class="fifo:1")
    vm.part.begin()

    def forbidden(tid: int) -> SchedClass:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(scheduling_watcher_part, "class_of", forbidden)
    assert vm.members()["vcpus"] == [
        {"vcpu": 0, "class": None, "ok": False, "why": "its class cannot be read: Permission denied"}]
    sandbox = {"id": SHOP, "pod": None, "scheduling": vm.members()}
    assert compared_lines([sandbox], misplaced([sandbox])) == [
        "vCPU 0 of shop has the class unknown, and not fifo:1: its class cannot be read: Permission denied"]


def test_a_class_that_is_not_given_back_is_shown_as_wrong(
        tmp_path: Path, thread: OwnThread, monkeypatch: pytest.MonkeyPatch) -> None:
    vm = Vm(tmp_path, thread, vcpu_class="fifo:1")
    vm.part.begin()

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(class_setter, "set_class", refused)
    vm.place(exclusive=False)
    vm.part.after_pass()
    assert thread.shown == rt("fifo:1")
    why = f"its former class is not given back yet, although it may run on CPUs {CPU},{POOL}"
    assert vm.members()["vcpus"] == [{"vcpu": 0, "class": "fifo:1", "ok": False, "why": why}]
    sandbox = {"id": SHOP, "pod": None, "scheduling": vm.members()}
    assert [*sentences(sandbox)] == [f"the class of vCPU 0 is fifo:1: {why}"]
    assert compared_lines([sandbox], misplaced([sandbox])) == [
        f"vCPU 0 of shop has the class fifo:1, and not its former class: {why}"]
    monkeypatch.undo()
    vm.resync()
    assert thread.shown == OTHER
    assert vm.members()["vcpus"][0]["ok"]


def test_a_dry_run_of_leaving_lists_the_classes_that_would_be_given_back(tmp_path: Path, thread: OwnThread) -> None:
    vm = Vm(tmp_path, thread, vcpu_class="fifo:1")
    assert FEATURE.giving_back is not None
    assert FEATURE.giving_back(vm.config) == []
    part = watched(vm)
    assert part is not None
    assert part.begin is not None
    part.begin()
    assert FEATURE.giving_back(vm.config) == [
        f"sandbox shop: give back the class of thread {thread.tid}: other, was fifo:1"]
    vm.path.write_text("damaged")
    assert FEATURE.giving_back(vm.config) == []
    assert vm.path.exists(), "a dry run sets no file aside"
    assert thread.shown == rt("fifo:1")
