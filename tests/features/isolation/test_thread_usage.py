"""Threads of the test's own on the real /proc, and recorded ones where the kernel would have to be another."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from need import lacking
from trees import make_tree

from vmpin.cpuset import CpuSet
from vmpin.features.isolation.thread_usage import ThreadUsageSampler
from vmpin.features.isolation.top.interval_sampler import idle_times
from vmpin.features.isolation.usage import SampledProcess, SampledThread
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs


def of(census: ThreadUsageSampler, pid: int) -> SampledProcess:
    (found,) = [process for process in census.processes() if process.pid == pid]
    return found


def own_task(census: ThreadUsageSampler, tid: int) -> SampledThread:
    (found,) = [task for task in of(census, os.getpid()).tasks if task.tid == tid]
    return found


@contextmanager
def running(code: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as made:
        try:
            assert made.stdout is not None
            assert made.stdout.readline() == b"here\n"
            yield made
        finally:
            made.kill()


def until(true: Callable[[], object]) -> None:
    """The machine is shared: what wants a CPU gets one sooner or later."""
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ran_on(census: ThreadUsageSampler, pid: int, cpu: int) -> bool:
    """Whether it did, after another sweep."""
    census.sweep()
    return cpu in of(census, pid).tasks[0].ran


def asleep(pid: int) -> None:
    """Until it has gone to sleep, for good as far as it is up to it."""
    until(lambda: (found := Procfs().stat(pid)) is not None and found.state == "S")
    time.sleep(0.05)  # it may have been the sleep before the last
    until(lambda: (found := Procfs().stat(pid)) is not None and found.state == "S")


_SPIN = "import os\nos.sched_setaffinity(0, {%d})\nprint('here', flush=True)\nwhile True: pass"
_SLEEP = "import os, sys\nos.sched_setaffinity(0, {%d})\nprint('here', flush=True)\nsys.stdin.read()"


# The real /proc


def test_what_runs_is_booked_to_its_cpu_and_what_sleeps_is_not() -> None:
    cpu = min(os.sched_getaffinity(0))
    with running(_SPIN % cpu) as busy, running(_SLEEP % cpu) as idle:
        asleep(idle.pid)
        for seconds in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0):
            census = ThreadUsageSampler()
            began = time.monotonic()
            census.watch(seconds)
            took = time.monotonic() - began
            spinning, sleeping = of(census, busy.pid), of(census, idle.pid)
            # There is no time for so many samples if the machine stops for most of it, and nor may the process run.
            if census.samples >= 3 and spinning.tasks[0].ran:
                break
    (task,) = spinning.tasks
    assert task.cpus == CpuSet([cpu])
    assert set(task.ran) == {cpu}
    # Others may want the CPU too, and the kernel's count lags by a tick.
    assert 0 < task.ran[cpu] / 1e9 <= took + 0.05
    assert sleeping.tasks[0].ran == {}
    assert sleeping.tasks[0].alive
    assert seconds <= census.seconds <= took
    assert census.samples >= 3
    assert census.longest <= census.seconds
    assert census.busy is not None
    assert 0 < census.busy[cpu] / 1e9 <= took + 0.1


def test_a_thread_that_moves_is_booked_to_each_cpu() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        lacking("needs two CPUs")
    census = ThreadUsageSampler()
    with running(_SPIN % cpus[0]) as busy:
        census.sweep()
        for cpu in cpus[:2]:
            os.sched_setaffinity(busy.pid, {cpu})
            until(functools.partial(ran_on, census, busy.pid, cpu))
        (task,) = of(census, busy.pid).tasks
    assert set(task.ran) == set(cpus[:2])
    assert task.cpus == CpuSet([cpus[1]])


def test_a_process_that_lived_between_the_sweeps_is_reported_with_all_it_ran() -> None:
    cpu = min(os.sched_getaffinity(0))
    census = ThreadUsageSampler()
    census.sweep()
    with running(_SPIN % cpu) as busy:
        until(functools.partial(ran_on, census, busy.pid, cpu))
    census.sweep()
    (task,) = of(census, busy.pid).tasks
    assert not task.alive
    assert task.ran[cpu] > 0


def test_threads_are_reported_with_their_own_masks() -> None:
    ids: list[int] = []
    go = threading.Event()

    def body() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        ids.append(threading.get_native_id())
        go.wait(120)

    thread = threading.Thread(target=body)
    thread.start()
    try:
        while not ids:
            time.sleep(0.01)
        census = ThreadUsageSampler()
        census.sweep()
        assert own_task(census, ids[0]).cpus == CpuSet([min(os.sched_getaffinity(0))])
        assert own_task(census, os.getpid()).cpus == CpuSet(os.sched_getaffinity(0))
    finally:
        go.set()
        thread.join()


def test_a_zombie_is_passed_over() -> None:
    child = subprocess.Popen(["true"])
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        census = ThreadUsageSampler()
        census.sweep()
        assert child.pid not in {process.pid for process in census.processes()}
    finally:
        child.wait()


def test_kernel_threads_are_distinguished_from_processes() -> None:
    census = ThreadUsageSampler()
    census.sweep()
    assert not of(census, os.getpid()).kernel
    if not census.sees_kernel:
        lacking("needs kernel threads to be seen (not a PID namespace of its own)")
    kernel = {process.comm: process for process in census.processes() if process.kernel}
    assert kernel["kthreadd"].pid == 2
    first = min(idle_times(Procfs()))
    assert kernel[f"ksoftirqd/{first}"].tasks[0].cpus == CpuSet([first])
    assert all(len(process.tasks) == 1 for process in kernel.values())


def test_masks_alone_take_one_sweep() -> None:
    census = ThreadUsageSampler()
    census.watch(0)
    assert (census.samples, census.seconds, census.busy) == (1, 0.0, None)
    assert all(not task.ran for process in census.processes() for task in process.tasks)


def test_a_process_is_in_its_cgroup_or_in_the_topmost() -> None:
    census = ThreadUsageSampler()
    census.sweep()
    found = Cgroups().cpuset_path(os.getpid())
    assert of(census, os.getpid()).cgroup in ("", str(found))


# Recorded


def stat(tid: int, comm: str, flags: int = 0, ticks: int = 0, start: int = 100, cpu: int = 0) -> str:
    fields = ["S", *("0",) * 5, str(flags), *("0",) * 4, str(ticks), "0", *("0",) * 6, str(start), *("0",) * 16,
              str(cpu), *("0",) * 13]
    assert (fields[6], fields[11], fields[19], fields[36]) == (str(flags), str(ticks), str(start), str(cpu))
    return f"{tid} ({comm}) {' '.join(fields)}"


def recorded(tmp_path: Path, **files: str) -> ThreadUsageSampler:
    """This very process, as another kernel would show it: its mask is asked of the kernel that runs."""
    write(tmp_path, **files)
    proc = Procfs(tmp_path)
    return ThreadUsageSampler(proc, Cgroups(tmp_path / "cg", proc))


def write(tmp_path: Path, **files: str) -> None:
    me = os.getpid()
    for name, content in files.items():
        for at in (f"{me}/{name}", f"{me}/task/{me}/{name}"):
            path = tmp_path / at
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)


@pytest.mark.parametrize("files", [{}, {"schedstat": "0 0 0\n"}])
def test_without_nanoseconds_ticks_are_counted(tmp_path: Path, files: dict[str, str]) -> None:
    me = os.getpid()
    census = recorded(tmp_path, stat=stat(me, "a) b", ticks=7, cpu=1), **files)
    assert not census.host.precise
    census.sweep()
    write(tmp_path, stat=stat(me, "a) b", ticks=9, cpu=3))
    census.sweep()
    (process,) = census.processes()
    assert (process.comm, process.kernel) == ("a) b", False)
    assert process.tasks[0].ran == {3: 2 * 1_000_000_000 // os.sysconf("SC_CLK_TCK")}


def test_nanoseconds_are_believed_where_they_are(tmp_path: Path) -> None:
    me = os.getpid()
    census = recorded(tmp_path, stat=stat(me, "x", cpu=1), schedstat="1000 5 2\n")
    census.sweep()
    write(tmp_path, stat=stat(me, "x", cpu=2), schedstat="1500 5 2\n")
    census.sweep()
    write(tmp_path, stat=stat(me, "x", cpu=4))
    census.sweep()
    (process,) = census.processes()
    assert process.tasks[0].ran == {2: 500}, "on CPU 4 it did not run"


def test_another_thread_that_got_the_number_is_another(tmp_path: Path) -> None:
    me = os.getpid()
    census = recorded(tmp_path, stat=stat(me, "old", cpu=1), schedstat="1000 5 2\n")
    census.sweep()
    later = int(time.clock_gettime(time.CLOCK_BOOTTIME) + 10) * os.sysconf("SC_CLK_TCK")
    write(tmp_path, stat=stat(me, "new", start=later, cpu=2), schedstat="700 5 2\n")
    census.sweep()
    (process,) = census.processes()
    assert [(task.comm, task.ran, task.alive) for task in process.tasks] == [("new", {2: 700}, True)]


@pytest.mark.parametrize("content", ["", "1", f"1 (x {'0 ' * 60}", "1 (x) S 0"])
def test_a_stat_file_that_makes_no_sense_is_passed_over(tmp_path: Path, content: str) -> None:
    census = recorded(tmp_path, stat=content, schedstat="1 0 0\n")
    census.sweep()
    assert list(census.processes()) == []


def test_idle_times_count_waiting_for_disks_and_the_hypervisors_share(tmp_path: Path) -> None:
    make_tree(tmp_path, "stat = cpu  9 9 9 99 9 9 9 9 0 0\\ncpu0 5 6 7 100 20 1 2 3 4 5\\n"
                        "cpu12 0 0 0 7 0 0 0 0 0 0\\nintr 5 4")
    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert idle_times(Procfs(tmp_path)) == {0: 123 * tick, 12: 7 * tick}
    assert idle_times(Procfs(tmp_path / "none")) == {}
