"""The record of the original masks is lost: what is not known is called so, and its threads get all CPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from newcomers import Machine, mask, sandbox

from vmpin.config import loading as settings
from vmpin.host.lock import Lock
from vmpin.host.sysfs import Sysfs
from vmpin.pinning.original_mask_store import FreeThread
from vmpin.reconcile.reconciler import Reconciler
from vmpin.status.collector import unpinned

pytest_plugins = ["given_unit"]


def again(machine: Machine, used: bool = True) -> Reconciler:
    """A vmpin that starts on the same node after a kill."""
    had = machine.node_state.config
    flags = {key: str(had.values[key]) for key, origin in had.origin.items() if origin == "flag"}
    return Reconciler(settings.load(None, {}, flags), used=used)


def counts(reconciler: Reconciler) -> dict[str, int]:
    found = unpinned(reconciler.unpin(reconciler.view.all_sandboxes()), reconciler.node_state.original_masks.masks)
    assert found["kept"] == []
    assert isinstance(found["counts"], dict)
    return {key: number for key, number in found["counts"].items() if number}


def damage(path: Path, how: str) -> None:
    raw = path.read_bytes()
    match how:
        case "missing":
            path.unlink()
        case "truncated":
            path.write_bytes(raw[:len(raw) // 2])
        case "empty":
            path.write_bytes(b"")
        case "garbage":
            path.write_bytes(b"\x00\xff{" * 100)
        case "of another kind":
            path.write_text("{}")


HOW = ["missing", "truncated", "empty", "garbage", "of another kind"]


@pytest.mark.parametrize("how", HOW)
def test_without_the_state_file_the_second_file_has_the_masks(machine: Machine, how: str) -> None:
    vmm = machine.vmm("a")
    os.sched_setaffinity(vmm.pid, machine.other.frozen())  # another program's, from before vmpin
    machine.resync()
    assert mask(vmm) == machine.pool
    machine.node_state.save()
    damage(machine.node_state.config.paths.state_file, how)
    second = again(machine)
    second.resync(full=True)
    assert mask(vmm) == machine.pool
    assert counts(second) == {"restored": 1}
    assert mask(vmm) == machine.other


@pytest.mark.parametrize("how", HOW)
def test_the_second_file_is_not_needed_beside_the_state_file(machine: Machine, how: str) -> None:
    vmm = machine.vmm("a")
    os.sched_setaffinity(vmm.pid, machine.other.frozen())
    machine.resync()
    machine.node_state.save()
    damage(machine.node_state.config.paths.originals_file, how)
    second = again(machine)
    second.resync(full=True)
    assert counts(second) == {"restored": 1}
    assert mask(vmm) == machine.other


@pytest.mark.parametrize("how", HOW)
def test_without_both_the_original_masks_are_not_known_and_all_cpus_are_given(machine: Machine, crowd: Path,
                                                                             how: str) -> None:
    vmm = machine.running(crowd)
    machine.node_state.save()
    for path in (machine.node_state.config.paths.state_file, machine.node_state.config.paths.originals_file):
        damage(path, how)
    second = again(machine)
    second.resync(full=True)
    second.node_state.save()
    threads = [int(name) for name in os.listdir(f"/proc/{vmm.pid}/task")]
    everywhere = Sysfs().online()
    planned = second.restoring(second.node_state.all_sandboxes())
    assert len(planned) == len(threads)
    assert all(isinstance(operation, FreeThread) for operation in planned)
    third = again(machine)  # the state that was saved since names them as not known, too
    third.resync(full=True)
    assert counts(third) == {"unknown": len(threads)}
    assert {mask(tid) for tid in threads} == {everywhere}
    assert third.restoring(third.node_state.all_sandboxes()) == []


def test_a_thread_that_was_free_already_is_counted_so(machine: Machine) -> None:
    vmm = machine.vmm("a")
    os.sched_setaffinity(vmm.pid, Sysfs().online().frozen())
    second = again(machine)
    second.resync(act=False, full=True)
    assert counts(second) == {"already_free": 1}


def test_what_starts_after_the_loss_has_its_own_mask(machine: Machine) -> None:
    second = again(machine)
    ended = machine.vmm("b")
    second.resync(full=True)
    while True:  # a process of the very tick in which vmpin started counts as older
        vmm = machine.vmm("a")
        second.resync(full=True)
        if second.node_state.original_masks.masks[sandbox("a")].processes and all(
                masks.main for masks in second.node_state.original_masks.masks[sandbox("a")].processes.values()):
            break
        vmm.kill()
        vmm.wait()
    assert mask(vmm) == machine.pool
    second.unpin([sandbox("a")])
    assert mask(vmm) == machine.both
    ended.kill()


def test_a_vmpin_that_comes_first_takes_other_masks_for_the_original_ones(machine: Machine) -> None:
    vmm = machine.vmm("a")
    os.sched_setaffinity(vmm.pid, machine.other.frozen())
    first = again(machine, used=False)
    first.resync(full=True)
    assert mask(vmm) == machine.pool
    assert counts(first) == {"restored": 1}
    assert mask(vmm) == machine.other


def test_masks_of_another_boot_are_no_loss(machine: Machine) -> None:
    vmm = machine.vmm("a")
    os.sched_setaffinity(vmm.pid, machine.other.frozen())
    paths = machine.node_state.config.paths
    machine.reconciler.resync(full=True)
    machine.node_state.save()
    os.sched_setaffinity(vmm.pid, machine.other.frozen())
    second = again(machine)
    for store in (second, machine.reconciler):
        store.node_state._store._boot_id = "another"
    second.node_state._store.save(second.node_state._store.load(set_aside=False))
    assert paths.originals_file.exists()
    third = again(machine)
    third.resync(full=True)
    assert counts(third) == {"restored": 1}
    assert mask(vmm) == machine.other


def test_what_was_given_back_once_has_a_mask_of_its_own(machine: Machine) -> None:
    vmm = machine.vmm("a")
    second = again(machine)
    second.resync(full=True)
    assert counts(second) == {"unknown": 1}
    os.sched_setaffinity(vmm.pid, machine.other.frozen())  # by hand
    assert counts(second) == {}
    assert mask(vmm) == machine.other
    second.take_back([sandbox("a")])
    second.resync()
    assert mask(vmm) == machine.pool
    assert counts(second) == {"restored": 1}
    assert mask(vmm) == machine.other


def test_a_lock_shows_whether_vmpin_was_at_work_before(tmp_path: Path) -> None:
    with Lock(tmp_path / "lock") as lock:
        assert not lock.used
    with Lock(tmp_path / "lock") as lock:
        assert lock.used
