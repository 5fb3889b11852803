"""Classes given back: by a watcher with scheduling off, by an unpin, and the dry run of both."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import scheduled_vm
from own_threads import OTHER, SHOP, OwnThread, rt
from scheduled_vm import Vm

from vmpin.daemon.watcher import Watcher
from vmpin.domain.model import SandboxId
from vmpin.feature import WatcherPart
from vmpin.features.scheduling import FEATURE, class_setter

pytestmark = pytest.mark.root
thread = scheduled_vm.thread


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
