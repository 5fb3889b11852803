"""What ran between two samples: of recorded trees, and of threads of the test's own."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from trees import make_tree

from vmpin.features.isolation.top.interval_sampler import IntervalSampler
from vmpin.features.isolation.top.thread_intervals import ThreadInterval, UsageInterval
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs

BORN = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def stat(tid: int, comm: str, cpu: int = 1, start: int = 100, flags: int = 0) -> str:
    fields = ["0"] * 50
    fields[0], fields[6], fields[19], fields[36] = "S", str(flags), str(start), str(cpu)
    return f"{tid} ({comm}) {' '.join(fields)}"


class Tree:
    """A /proc that the test writes."""

    def __init__(self, top: Path) -> None:
        self.top = top
        make_tree(top, "stat = cpu0 1 0 1 100 5 0 0 0 0 0\\ncpu1 1 0 1 200 0 0 0 0 0 0\n"
                       f"2/stat = {stat(2, 'kthreadd', flags=0x200000)}\n"
                       f"{os.getpid()}/schedstat = 5 5 5\n")

    def thread(self, pid: int, tid: int, ran: int, waited: int = 0, comm: str = "x", cpu: int = 1,
               start: int = 100) -> None:
        make_tree(self.top, f"{pid}/stat = {stat(pid, 'main')}\n"
                            f"{pid}/task/{tid}/schedstat = {ran} {waited} 9\n"
                            f"{pid}/task/{tid}/stat = {stat(tid, comm, cpu, start)}\n")

    def sampler(self) -> IntervalSampler:
        proc = Procfs(self.top)
        return IntervalSampler(proc, Cgroups(self.top / "cgroup", proc), lambda pid: None)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def threads(interval: UsageInterval | None) -> dict[int, ThreadInterval]:
    assert interval is not None
    return {thread.tid: thread._replace(started=0) for process in interval.processes for thread in process.threads}


def test_the_first_sample_has_no_interval_and_the_second_what_ran_since(tree: Tree) -> None:
    tree.thread(50, 50, 1000)
    tree.thread(50, 51, 500, 10, "worker")
    sampler = tree.sampler()
    assert sampler.sample() is None
    tree.thread(50, 51, 800, 30, "worker", cpu=3)
    found = sampler.sample()
    assert threads(found) == {51: ThreadInterval(51, "worker", 300, 20, 3, False)}
    assert found is not None
    assert [(process.pid, process.comm, process.kernel) for process in found.processes] == [(50, "main", False)]
    assert (found.threads, found.kernel_seen, found.precise) == (2, True, True)
    assert threads(sampler.sample()) == {}


def test_idle_time_gives_how_busy_each_cpu_was(tree: Tree) -> None:
    sampler = tree.sampler()
    sampler.sample()
    make_tree(tree.top, "stat = cpu0 1 0 1 100 5 0 0 0 0 0\\ncpu1 1 0 1 100000 0 0 0 0 0 0\n")
    found = sampler.sample()
    assert found is not None
    assert found.busy[0] == round(found.seconds * 1e9)
    assert found.busy[1] == 0


def test_all_run_time_of_a_thread_that_was_created_since_counts(tree: Tree) -> None:
    tree.thread(50, 50, 1000)
    sampler = tree.sampler()
    sampler.sample()
    tree.thread(50, 52, 70, 3, "new", start=BORN + 10**6)
    assert threads(sampler.sample()) == {52: ThreadInterval(52, "new", 70, 3, 1, False)}


def test_a_thread_of_old_that_was_not_seen_before_counts_from_now_on(tree: Tree) -> None:
    sampler = tree.sampler()
    sampler.sample()
    tree.thread(50, 50, 10**15)
    assert threads(sampler.sample()) == {}
    tree.thread(50, 50, 10**15 + 5)
    assert threads(sampler.sample())[50].ran == 5


def test_a_number_that_another_thread_got_counts_as_a_new_thread(tree: Tree) -> None:
    tree.thread(50, 50, 1000)
    sampler = tree.sampler()
    sampler.sample()
    tree.thread(50, 50, 1200, start=BORN + 10**6)
    assert threads(sampler.sample())[50].ran == 1200


def test_nothing_is_kept_of_what_has_ended(tree: Tree) -> None:
    tree.thread(50, 50, 1000)
    tree.thread(60, 60, 1000)
    sampler = tree.sampler()
    sampler.sample()
    for path in (tree.top / "60/task/60").iterdir():
        path.unlink()
    (tree.top / "60").rename(tree.top / "gone")
    found = sampler.sample()
    assert found is not None
    assert found.threads == 1
    # No public way in: nothing shows which processes are remembered.
    assert sampler._processes.keys() == {"2", "50", str(os.getpid())}


def test_lines_of_no_use_and_hostile_names_do_no_harm(tree: Tree) -> None:
    tree.thread(50, 50, 1)
    tree.thread(50, 51, 1)
    sampler = tree.sampler()
    sampler.sample()
    make_tree(tree.top, "50/task/50/stat = rubbish\n50/task/50/schedstat = 9 9 9\n")
    tree.thread(50, 51, 2, comm="a) R 1 (\x1b[2J")
    assert [thread.comm for thread in threads(sampler.sample()).values()] == ["a) R 1 (\x1b[2J"]


def test_a_process_whose_clock_stands_still_is_not_read(tree: Tree) -> None:
    clock = {"50": 1}
    tree.thread(50, 50, 1000)
    proc = Procfs(tree.top)
    sampler = IntervalSampler(proc, Cgroups(tree.top / "cgroup", proc), lambda pid: clock.get(str(pid), 0))
    sampler.sample()
    tree.thread(50, 50, 2000)
    assert threads(sampler.sample()) == {}
    clock["50"] = 2
    assert threads(sampler.sample())[50].ran == 1000


@pytest.fixture
def busy() -> Iterator[int]:
    """The tid of a thread of this process that runs on the machine's last CPU alone."""
    last, stop, told = max(os.sched_getaffinity(0)), threading.Event(), []

    def burn() -> None:
        os.sched_setaffinity(0, {last})
        told.append(threading.get_native_id())
        while not stop.is_set():
            pass

    thread = threading.Thread(target=burn)
    thread.start()
    while not told:
        time.sleep(0.01)
    yield told[0]
    stop.set()
    thread.join()


def test_a_thread_that_may_run_on_one_watched_cpu_alone_is_exact(busy: int) -> None:
    last = max(os.sched_getaffinity(0))
    sampler = IntervalSampler()
    began = time.monotonic()
    sampler.sample({last})
    ended = time.monotonic()
    found: dict[int, ThreadInterval] = {}
    while busy not in found or found[busy].ran < 50_000_000:  # a tick may be late
        time.sleep(0.2)
        first_began, first_ended, began = began, ended, time.monotonic()
        interval = sampler.sample({last})
        ended = time.monotonic()
        found = threads(interval)
    assert (found[busy].cpu, found[busy].bound) == (last, True)
    assert interval is not None
    # Its time is read somewhere within each of the two samples, which take long: it hardly
    # lets go of the interpreter.
    assert found[busy].ran <= (ended - first_began) * 1e9 + 10_000_000
    assert began - first_ended <= interval.seconds <= ended - first_began
    assert interval.busy[last] > 0
    own = next(process for process in interval.processes if process.pid == os.getpid())
    assert own.comm == Path("/proc/self/comm").read_text().strip()
    assert not own.kernel
