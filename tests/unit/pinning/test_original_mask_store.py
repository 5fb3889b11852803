"""Original masks, kept and given back, on real threads."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from newcomers import Machine, mask, sandbox
from strayed import thread_of, two_places

from vmpin.config import loading as settings
from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadId, VmThread
from vmpin.host.cgroup import Cgroups
from vmpin.host.lock import Lock, note_use, of_another
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import Sysfs
from vmpin.pinning import original_mask_store
from vmpin.pinning.original_mask_store import FreeThread, OriginalMaskStore
from vmpin.pinning.original_masks import OriginalMasks
from vmpin.reconcile.reconciler import Reconciler
from vmpin.status.collector import unpinned

A = SandboxId("a")


class Worker:
    """A thread that makes another on command, with its own mask, as those of QEMU's pool do."""

    def __init__(self) -> None:
        self._again: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._born: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._thread.native_id is not None
        self.tid = self._thread.native_id

    def _run(self) -> None:
        while self._again.get():
            self._born.put(Worker())

    def next(self) -> Worker:
        self._again.put(True)
        return self._born.get(timeout=120)

    def end(self) -> None:
        self._again.put(False)
        self._thread.join()

    def mask(self) -> CpuSet:
        return CpuSet(os.sched_getaffinity(self.tid))


class Pool:
    """Workers, the first of which is pinned, on a pinner that knows what this process had before."""

    def __init__(self, workers: list[Worker]) -> None:
        self.here, there = two_places()
        self.had = self.here | there
        self.pid = os.getpid()
        self.main = thread_of(self.pid)
        self.workers = workers
        workers.append(Worker())
        os.sched_setaffinity(workers[0].tid, self.here.frozen())
        self.originals = OriginalMaskStore(Procfs(), Cgroups(), {
            A: OriginalMasks().with_process(self.main.id, [(self.main, self.had)])})
        #: How many workers come right after a listing.
        self.to_come = 0
        #: Whether they are known to be the sandbox's.
        self.known = True

    def listing(self) -> list[tuple[VmThread, ThreadId]]:
        if not self.known:
            return []
        found = [(thread_of(self.pid, worker.tid), self.main.id) for worker in self.workers]
        if self.to_come:
            self.to_come -= 1
            self.workers.append(self.workers[-1].next())
            assert self.workers[-1].mask() == self.here
        return found

    def restore(self) -> None:
        self.originals.restore(A, self.listing, Sysfs().topology())

    def masks(self) -> set[CpuSet]:
        return {worker.mask() for worker in self.workers}


@pytest.fixture
def pool() -> Iterator[Pool]:
    workers: list[Worker] = []
    yield Pool(workers)
    for worker in workers:
        worker.end()


def test_threads_created_during_the_restoration_are_restored_too(pool: Pool) -> None:
    pool.to_come = 3
    pool.restore()
    assert len(pool.workers) == 4
    assert pool.masks() == {pool.had}
    assert A not in pool.originals.masks


def test_original_masks_are_kept_while_new_threads_appear_without_end(
        pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    pool.to_come = 4
    monkeypatch.setattr(original_mask_store, "LISTINGS", 3)
    pool.restore()
    assert pool.masks() == {pool.here, pool.had}
    assert A in pool.originals.masks
    pool.to_come = 0
    pool.restore()
    assert pool.masks() == {pool.had}
    assert A not in pool.originals.masks


def test_a_thread_that_left_the_sandbox_is_restored_too(pool: Pool) -> None:
    pool.known = False
    pool.restore()
    assert pool.masks() == {pool.had}
    assert A not in pool.originals.masks


def test_another_process_with_a_reused_pid_keeps_its_mask(pool: Pool) -> None:
    pool.known = False
    ended = pool.main._replace(id=ThreadId(pool.pid, pool.main.id.starttime - 1))
    pool.originals.masks[A] = OriginalMasks().with_process(ended.id, [(ended, pool.had)])
    pool.restore()
    assert pool.masks() == {pool.here}
    assert A not in pool.originals.masks


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
def test_without_both_files_the_original_masks_are_unknown_and_threads_get_all_cpus(machine: Machine, crowd: Path,
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
    planned = second.restoring(second.view.all_sandboxes())
    assert len(planned) == len(threads)
    assert all(isinstance(operation, FreeThread) for operation in planned)
    third = again(machine)  # the state that was saved since names them as not known, too
    third.resync(full=True)
    assert counts(third) == {"unknown": len(threads)}
    assert {mask(tid) for tid in threads} == {everywhere}
    assert third.restoring(third.view.all_sandboxes()) == []


def test_a_thread_that_was_free_already_is_counted_so(machine: Machine) -> None:
    vmm = machine.vmm("a")
    os.sched_setaffinity(vmm.pid, Sysfs().online().frozen())
    second = again(machine)
    second.resync(act=False, full=True)
    assert counts(second) == {"already_free": 1}


def test_a_process_started_after_the_loss_has_its_own_mask_as_original(machine: Machine) -> None:
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


def test_the_first_vmpin_of_a_boot_takes_the_current_masks_as_original(machine: Machine) -> None:
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
        store.node_state.store._boot_id = "another"
    second.node_state.store.save(second.node_state.store.load(set_aside=False))
    assert paths.originals_file.exists()
    third = again(machine)
    third.resync(full=True)
    assert counts(third) == {"restored": 1}
    assert mask(vmm) == machine.other


def test_a_restored_process_has_its_own_mask_as_original(machine: Machine) -> None:
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


_LOCK_WITHOUT_SPACE = """\
import pathlib, resource, sys
from vmpin.host.lock import Lock
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
Lock(pathlib.Path(sys.argv[1])).__enter__()
"""


def test_a_lock_shows_whether_masks_may_have_been_set_before(tmp_path: Path) -> None:
    """Not by a process that ended before it set one."""
    path = tmp_path / "lock"
    for _ in range(2):
        with Lock(path) as lock:
            assert not lock.used
            assert not of_another(path)
    with Lock(path):
        note_use(path)
        note_use(path)
        assert path.read_text() == f"{os.getpid()}\n"
        assert not of_another(path)
    for _ in range(2):
        with Lock(path) as lock:
            assert lock.used
    path.write_text("1\n")
    assert of_another(path)
    limited = subprocess.run([sys.executable, "-c", _LOCK_WITHOUT_SPACE, path], check=False, capture_output=True)
    assert b"WatcherError" in limited.stderr
    assert of_another(path)
    path.unlink()
    note_use(path)
    assert not path.exists()
    os.mkfifo(path)
    note_use(path)
    assert not of_another(path)
