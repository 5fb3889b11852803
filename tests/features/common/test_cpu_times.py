"""Run times: of CPUs from texts of /proc/stat, of threads from the running kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from trees import make_tree
from waiting import wait

from vmpin.cpuset import CpuSet
from vmpin.features.common.cpu_times import (
    STEP,
    CpuLines,
    LastRun,
    Ran,
    Schedstat,
    parse_migrations,
    parse_stat,
    process_ran,
    tickless,
)
from vmpin.host.procfs import Procfs

TEXT = """\
cpu  10 20 30 40 50 60 70 80 0 0
cpu0 1 2 3 400 5 6 7 8 0 0
cpu2 1 2 3 500 0 0 0 0 0 0
cpu13 1 2 3 4
intr 0 0 0
"""


def lines(directory: Path, text: str) -> CpuLines:
    (directory / "stat").write_text(text)
    return CpuLines(Procfs(directory), 13)


def test_the_view_of_a_container_has_no_times_of_cpus(tmp_path: Path) -> None:
    """lxcfs is a file system of its own, as /dev/shm is."""
    with tempfile.NamedTemporaryFile("w", dir="/dev/shm") as view:
        view.write("cpu  1 0 1 9 0 0 0 0 0 0\ncpu0 1 0 1 9 0 0 0 0 0 0\n")
        view.flush()
        (tmp_path / "stat").symlink_to(view.name)
        assert os.stat(view.name).st_dev != os.stat(tmp_path).st_dev
        assert CpuLines(Procfs(tmp_path), 13).cpus() == []


def test_idle_interrupts_and_steal_are_read_of_the_cpus_that_are_online(tmp_path: Path) -> None:
    found = lines(tmp_path, TEXT).of([0, 1, 2, 13])
    assert found == {0: (405 * STEP, 13 * STEP, 8 * STEP), 2: (500 * STEP, 0, 0)}  # 1 is offline, 13 is cut off


def test_all_of_512_cpus_are_read(tmp_path: Path) -> None:
    text = "cpu  1 2 3 4 5 6 7 8 9 10\n" + "".join(
        f"cpu{cpu} {10**15} 1 1 {cpu} 0 {10**15} 1 1 {10**15} {10**15}\n" for cpu in range(512))
    (tmp_path / "stat").write_text(text + "intr " + "0 " * 100_000)
    found = CpuLines(Procfs(tmp_path), 511).of(range(512))
    assert {cpu: idle // STEP for cpu, (idle, _, _) in found.items()} == {cpu: cpu for cpu in range(512)}


def test_the_machine_itself_is_read() -> None:
    first = CpuLines(Procfs(), 4096).of(range(4096))
    second = CpuLines(Procfs(), 4096).of(range(4096))
    assert first
    assert all(second[cpu][0] >= idle for cpu, (idle, _, _) in first.items() if cpu in second)


@pytest.mark.parametrize(("text", "cpus"), [("2-5\n", "2-5"), ("\n", ""), ("(null)\n", ""), (None, "")])
def test_cpus_without_a_tick_are_known(tmp_path: Path, text: str | None, cpus: str) -> None:
    if text is not None:
        (tmp_path / "devices/system/cpu").mkdir(parents=True)
        (tmp_path / "devices/system/cpu/nohz_full").write_text(text)
    assert tickless(tmp_path) == (CpuSet.parse(cpus) if cpus else CpuSet())


#: Linux 6.18, shortened.
SCHED = b"""cat (31919, #threads: 1)
-------------------------------------------------------------------
se.exec_start                                :      25102445.782906
se.sum_exec_runtime                          :             0.000000
se.nr_migrations                             :                   12
nr_switches                                  :                    0
"""
STAT = (b"7 (CPU 0/KV) (M) S 1 2 3 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 1 0 2511797 "
        b"1 1 1 1 1 1 1 0 0 0 0 0 0 0 0 17 3 0 0\n")


@pytest.fixture
def spinner() -> Iterator[subprocess.Popen[bytes]]:
    """A process of one thread that never sleeps."""
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as process:
        yield process
        process.kill()


@pytest.fixture
def host() -> Schedstat:
    made = Schedstat()
    if not made.precise:
        pytest.skip("this kernel has no schedstat")
    return made


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while True:
        time.sleep(0.3)
        if true():
            return
        assert time.monotonic() < deadline


def test_the_files_are_read_as_kernels_print_them() -> None:
    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert parse_stat(STAT) == LastRun(2511797, 3, 300 * tick)
    assert parse_stat(b"7 (x) S 1") is None
    assert parse_stat(b"") is None
    assert parse_migrations(SCHED) == 12
    assert parse_migrations(SCHED.replace(b"se.nr_migrations", b"se.statistics.x")) is None
    assert parse_migrations(b"") is None


def test_a_thread_that_runs_is_seen_running_where_it_is(host: Schedstat, spinner: subprocess.Popen[bytes]) -> None:
    pid = spinner.pid
    cpu = max(os.sched_getaffinity(0))
    os.sched_setaffinity(pid, {cpu})
    began, before = time.monotonic(), host.ran(pid, pid)
    stat = Procfs().thread_stat(pid, pid)
    assert before is not None
    assert stat is not None

    def ran_or_waited() -> bool:
        """With a CPU to itself it runs all of the time; on a busy machine it runs or waits for it, and what it waited
        is counted when it runs again."""
        after, seconds = host.ran(pid, pid), time.monotonic() - began
        assert after is not None
        lived = time.clock_gettime(time.CLOCK_BOOTTIME) - stat.starttime / os.sysconf("SC_CLK_TCK")
        assert after.ran + after.waited < (lived + 0.1) * 1e9
        return after.ran > before.ran and after.ran - before.ran + after.waited - before.waited > seconds * 1e9 * 2 / 3

    _until(ran_or_waited)
    where = host.where(pid, pid)
    assert where is not None
    assert (where.cpu, where.starttime) == (cpu, stat.starttime)


def test_a_thread_that_waits_for_its_cpu_is_seen_waiting(host: Schedstat, spinner: subprocess.Popen[bytes]) -> None:
    cpu = max(os.sched_getaffinity(0))
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as other:
        for pid in (spinner.pid, other.pid):
            os.sched_setaffinity(pid, {cpu})
        before = host.ran(spinner.pid, spinner.pid)
        assert before is not None

        def waited() -> bool:
            after = host.ran(spinner.pid, spinner.pid)
            assert after is not None
            return after.waited - before.waited > 0.05e9

        try:
            _until(waited)
        finally:
            other.kill()


def runs_on(pid: int, cpu: int) -> bool:
    stat = Procfs().stat(pid)
    return stat is not None and stat.processor == cpu


def test_each_move_to_another_cpu_is_counted(host: Schedstat, spinner: subprocess.Popen[bytes]) -> None:
    if not host.counts_migrations:
        pytest.skip("this kernel does not count migrations")
    pid, cpus = spinner.pid, sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    os.sched_setaffinity(pid, {cpus[0]})
    before = host.migrations(pid, pid)
    time.sleep(0.1)
    assert host.migrations(pid, pid) == before
    assert before is not None
    for moves, cpu in enumerate((cpus[1], cpus[0], cpus[1]), before + 1):
        os.sched_setaffinity(pid, {cpu})
        wait(partial(runs_on, pid, cpu), "not moved")  # one that waits for a page moves when it goes on
        assert host.migrations(pid, pid) == moves


def test_a_processs_clock_is_all_that_its_threads_ran_those_that_ended_too(host: Schedstat) -> None:
    code = """import threading, time, sys
def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: pass
for line in sys.stdin:
    thread = threading.Thread(target=burn, args=(0.1,)); thread.start(); thread.join(); print("done", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.readline()
        before, main = process_ran(child.pid), host.ran(child.pid, child.pid)
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.readline()
        after, main_after = process_ran(child.pid), host.ran(child.pid, child.pid)
        assert None not in (before, after, main, main_after)
        assert before is not None
        assert after is not None
        assert main is not None
        assert main_after is not None
        lost = (after - before) - (main_after.ran - main.ran)
        assert 0.09e9 < lost < 0.3e9  # the thread is gone, and with it its files
        for _ in range(600):  # on a busy machine it has yet to go to sleep
            still = process_ran(child.pid)
            time.sleep(0.2)
            if process_ran(child.pid) == still:
                break
        assert process_ran(child.pid) == still  # it sleeps
        child.stdin.close()


def test_what_has_ended_is_none(host: Schedstat) -> None:
    with subprocess.Popen(["true"]) as child:
        pass
    for read in (host.ran, host.where, host.migrations):
        assert read(child.pid, child.pid) is None
    assert process_ran(child.pid) is None
    assert process_ran(1 << 22) is None


def test_a_thread_of_this_process_is_read_like_any_other(host: Schedstat) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert thread.native_id is not None
    found = host.ran(os.getpid(), thread.native_id)
    end.set()
    thread.join()
    assert found is not None
    assert 0 < found.ran < 1e9


def test_a_kernel_without_schedstat_or_with_nothing_in_it_gives_ticks_alone(tmp_path: Path) -> None:


    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    root = tmp_path
    for at, text in (("off", f"{os.getpid()}/schedstat = 0 0 0\n"), ("none", "version = x\n")):
        tree = make_tree(root / at, text)
        make_tree(tree, f"5/task/5/stat = {STAT.decode().strip()}\n")
        made = Schedstat(Procfs(tree))
        assert (made.precise, made.counts_migrations) == (False, False)
        assert made.ran(5, 5) == Ran(300 * tick, 0)
        assert made.migrations(5, 5) is None
        assert made.ran(6, 6) is None
