"""`watch.only` is narrowed: what it excludes has its original masks, and what it leaves stays."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest
from newcomers import PREFIX, Machine, by_name, mask, sandbox, shared_dir, tids

from vmpin.config import loading as settings
from vmpin.config.settings import Config
from vmpin.reconcile.reconciler import Reconciler
from vmpin.wire.proc_events import Fork

pytest_plugins = ["given_unit"]


def narrowed(machine: Machine, only: str) -> Config:
    had = machine.node_state.config
    flags = {key: str(had.values[key]) for key, origin in had.origin.items() if origin == "flag"}
    return settings.load(None, {}, {**flags, "watch.only": only})


@pytest.mark.parametrize("restarted", [False, True])
def test_masks_from_before_come_back_with_the_next_pass(machine: Machine, restarted: bool,
                                                        caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    vmm, shim, other = machine.vmm("a"), machine.shim("a"), machine.vmm("b")
    machine.resync()
    assert mask(vmm) == mask(shim) == mask(other) == machine.pool
    machine.node_state.save()
    only = narrowed(machine, f"{PREFIX}b*")
    reconciler = Reconciler(only) if restarted else machine.reconciler
    reconciler.node_state.reconfigure(only)
    reconciler.resync(full=restarted)
    assert (mask(vmm), mask(shim), mask(other)) == (machine.both, machine.both, machine.pool)
    assert [f"sandbox={sandbox('a')}" in record.message for record in caplog.records
            if "excluded" in record.message] == [True]
    assert sandbox("a") not in reconciler.node_state.original_masks.masks
    assert sandbox("a") not in reconciler.node_state.placements
    reconciler.node_state.save()
    # A mask that is set by hand from now on is nothing to vmpin.
    os.sched_setaffinity(vmm.pid, machine.other.frozen())
    reconciler.resync(full=True)
    assert mask(vmm) == machine.other
    assert sandbox("a") not in Reconciler(only).node_state.original_masks.masks


def test_every_thread_comes_back_and_one_that_is_included_again_is_placed(machine: Machine, crowd: Path) -> None:
    vmm = machine.running(crowd)
    before = {tid: mask(tid) for tid in (vmm.pid, by_name(vmm, "CPU 0/KVM"))}
    assert set(before.values()) == {machine.pool}
    reconciler = machine.reconciler
    all_of_them = reconciler.node_state.config
    reconciler.node_state.reconfigure(narrowed(machine, "nothing-is-called-so"))
    reconciler.resync()
    assert {tid: mask(tid) for tid in before} == dict.fromkeys(before, machine.both)
    assert reconciler.node_state.inventory.vms == {}
    reconciler.node_state.reconfigure(all_of_them)
    reconciler.resync()
    assert {tid: mask(tid) for tid in before} == before
    assert reconciler.node_state.original_masks.masks.keys() == {sandbox("a")}


def test_a_look_that_changes_nothing_gives_nothing_back(machine: Machine) -> None:
    vmm = machine.vmm("a")
    machine.resync()
    machine.node_state.save()
    reconciler = Reconciler(narrowed(machine, "nothing-is-called-so"), acts=False)
    reconciler.resync(act=False, full=True)
    assert mask(vmm) == machine.pool
    assert reconciler.node_state.original_masks.masks.keys() == {sandbox("a")}


def test_what_is_not_given_back_is_tried_again_and_logged_once(machine: Machine, monkeypatch: pytest.MonkeyPatch,
                                                               caplog: pytest.LogCaptureFixture) -> None:
    vmm = machine.vmm("a")
    machine.resync()
    reconciler = machine.reconciler
    reconciler.node_state.reconfigure(narrowed(machine, "nothing-is-called-so"))
    with monkeypatch.context() as broken:
        # Whatever goes wrong with one sandbox.
        broken.setattr(reconciler.node_state.inventory, "helpers", lambda sandbox: 1 / 0)
        for _ in range(3):
            reconciler.resync()
        assert mask(vmm) == machine.pool
        assert reconciler.node_state.original_masks.masks.keys() == {sandbox("a")}
    reconciler.resync()
    assert mask(vmm) == machine.both
    assert sum("not all original masks restored" in record.message for record in caplog.records) == 1


def test_a_helper_that_came_before_its_vm_is_left_alone_too(machine: Machine, crowd: Path) -> None:
    helper = machine.crowd(crowd, "virtiofsd", shared_dir("a"))
    machine.executed(helper)
    assert mask(helper) == machine.pool
    machine.node_state.reconfigure(narrowed(machine, "nothing-is-called-so"))
    machine.resync()
    newest = max(tids(helper))
    assert {mask(tid) for tid in tids(helper)} == {machine.both}
    machine.take(Fork(time.monotonic_ns(), helper.pid, helper.pid, newest, helper.pid))
    assert mask(newest) == machine.both
