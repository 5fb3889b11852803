"""Classes that are not as they should be: in the status, and in `vmpin verify` without a watcher."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import scheduled_vm
from own_threads import CPU, OTHER, SHOP, OwnThread, rt
from scheduled_vm import POOL, Vm, run_pod

from vmpin.features.scheduling import class_setter, scheduling_watcher_part
from vmpin.features.scheduling.sched_class import SchedClass
from vmpin.features.scheduling.scheduling_text import compared_lines, misplaced, sentences

pytestmark = pytest.mark.root
thread = scheduled_vm.thread


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
