"""Masks that are given back, on real threads."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator

import pytest
from strayed import thread_of, two_places

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadId, VmThread
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import Sysfs
from vmpin.pinning.original_mask_store import LISTINGS, OriginalMaskStore, Restoration
from vmpin.pinning.original_masks import OriginalMasks

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
        self.originals = OriginalMaskStore(Procfs(), {
            A: OriginalMasks().remember(self.main.id, [(self.main, self.had)])})
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

    def restore(self, listings: int = LISTINGS) -> None:
        Restoration(Procfs(), self.originals, listings).restore(A, self.listing, Sysfs().topology())

    def masks(self) -> set[CpuSet]:
        return {worker.mask() for worker in self.workers}


@pytest.fixture
def pool() -> Iterator[Pool]:
    workers: list[Worker] = []
    yield Pool(workers)
    for worker in workers:
        worker.end()


def test_threads_that_are_made_while_others_get_their_masks_back_get_theirs(pool: Pool) -> None:
    pool.to_come = 3
    pool.restore()
    assert len(pool.workers) == 4
    assert pool.masks() == {pool.had}
    assert A not in pool.originals.masks


def test_what_they_had_is_kept_where_new_ones_come_without_end(pool: Pool) -> None:
    pool.to_come = 4
    pool.restore(listings=3)
    assert pool.masks() == {pool.here, pool.had}
    assert A in pool.originals.masks
    pool.to_come = 0
    pool.restore()
    assert pool.masks() == {pool.had}
    assert A not in pool.originals.masks


def test_a_thread_that_left_the_sandbox_gets_its_mask_all_the_same(pool: Pool) -> None:
    pool.known = False
    pool.restore()
    assert pool.masks() == {pool.had}
    assert A not in pool.originals.masks


def test_the_next_holder_of_an_ended_process_number_keeps_its_mask(pool: Pool) -> None:
    pool.known = False
    ended = pool.main._replace(id=ThreadId(pool.pid, pool.main.id.starttime - 1))
    pool.originals.masks[A] = OriginalMasks().remember(ended.id, [(ended, pool.had)])
    pool.restore()
    assert pool.masks() == {pool.here}
    assert A not in pool.originals.masks
