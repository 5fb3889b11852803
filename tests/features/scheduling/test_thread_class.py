"""The class of a real thread."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_threads import OTHER, OwnThread, need_real_time, own_threads, rt
from trees import make_tree
from waiting import wait

from vmpin.domain.model import ThreadId
from vmpin.features.scheduling import thread_class
from vmpin.features.scheduling.sched_class import SchedClass
from vmpin.features.scheduling.thread_class import class_of, run_time_limit, set_class, why_unlimited
from vmpin.host.procfs import Procfs

PROC = Procfs()


@pytest.fixture
def thread() -> Iterator[OwnThread]:
    need_real_time()
    with own_threads(1) as (one,):
        yield one


def test_a_class_is_set_and_given_back_and_the_nice_value_stays(thread: OwnThread) -> None:
    os.setpriority(os.PRIO_PROCESS, thread.tid, 7)
    for its in (rt("fifo:3"), rt("rr:4"), SchedClass(3), OTHER):
        set_class(PROC, thread.id, its)
        assert thread.shown == its
        assert os.getpriority(os.PRIO_PROCESS, thread.tid) == 7
    stat = Path(f"/proc/self/task/{thread.tid}/stat").read_text().rsplit(")", 1)[1].split()
    assert (stat[15], stat[16]) == ("27", "7"), "its priority is 20 + 7 again"


def test_threads_that_it_creates_do_not_inherit_the_class() -> None:
    need_real_time()
    classes: list[SchedClass | None] = []

    def create() -> None:
        stat = PROC.thread_stat(os.getpid(), threading.get_native_id())
        assert stat is not None
        set_class(PROC, ThreadId(threading.get_native_id(), stat.starttime), rt("fifo:1"))
        child = threading.Thread(target=lambda: classes.append(class_of(threading.get_native_id())))
        child.start()
        child.join()
        classes.append(class_of(threading.get_native_id()))

    parent = threading.Thread(target=create)
    parent.start()
    parent.join()
    assert classes == [OTHER, rt("fifo:1")]


def test_a_thread_with_another_start_time_is_not_touched(thread: OwnThread) -> None:
    with pytest.raises(ProcessLookupError):
        set_class(PROC, ThreadId(thread.tid, thread.id.starttime + 1), rt("fifo:1"))
    assert thread.shown == OTHER


def test_a_thread_that_has_ended_is_an_outcome() -> None:
    with own_threads(1) as (ended,):
        pass
    wait(lambda: ended.shown is None, "the thread does not end")
    with pytest.raises(ProcessLookupError):
        set_class(PROC, ended.id, rt("fifo:1"))


def test_a_thread_that_took_the_number_meanwhile_has_its_class_again(
        thread: OwnThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_class, "lives", lambda fd: False)
    thread.chrt(os.SCHED_BATCH)
    with pytest.raises(ProcessLookupError):
        set_class(PROC, thread.id, rt("fifo:1"))
    assert thread.shown == SchedClass(3)


def test_the_limit_of_a_process_is_found_by_each_of_its_threads() -> None:
    assert run_time_limit(PROC, os.getpid()) == ""
    limited = ("import resource; resource.setrlimit(resource.RLIMIT_RTTIME, (5000, 9000)); print('set', flush=True); "
               "input()")
    with subprocess.Popen([sys.executable, "-c", limited], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert run_time_limit(PROC, process.pid) == "5000"
        process.communicate(b"\n")
    assert run_time_limit(PROC, process.pid) == ""
    assert resource.getrlimit(resource.RLIMIT_RTTIME)[0] == resource.RLIM_INFINITY


@pytest.mark.parametrize(("runtime", "period", "limits"), [
    ("950000", "1000000", True), ("999999", "1000000", True), ("-1", "1000000", False), ("1000000", "1000000", False),
    ("0", "1000000", False), ("x", "1000000", False), ("", "", False)])
def test_real_time_threads_are_limited_where_others_keep_a_part(tmp_path: Path, runtime: str, period: str,
                                                                limits: bool) -> None:
    make_tree(tmp_path, f"sys/kernel/sched_rt_runtime_us = {runtime}\nsys/kernel/sched_rt_period_us = {period}\n")
    why = why_unlimited(Procfs(tmp_path), tmp_path, "6.11.0-1")
    assert why.startswith("" if limits else f"kernel.sched_rt_runtime_us is {runtime or 'not readable'}: ")
    assert bool(why) is not limits
    assert why_unlimited(Procfs(tmp_path / "nothing"), tmp_path, "")


@pytest.mark.parametrize(("runtimes", "off"), [(("50000000", "50000000"), ""), (("50000000", "0"), "1"),
                                               (("0", "0"), "0-1"), ((), "")])
def test_since_linux_6_12_the_fair_server_limits_real_time_threads(tmp_path: Path, runtimes: tuple[str, ...],
                                                                   off: str) -> None:
    """Whatever kernel.sched_rt_runtime_us is: tuned's profile realtime sets -1."""
    tree = "".join(f"kernel/debug/sched/fair_server/cpu{cpu}/runtime = {runtime}\n"
                   for cpu, runtime in enumerate(runtimes))
    make_tree(tmp_path, f"{tree}sys/kernel/sched_rt_runtime_us = -1\n")
    why = why_unlimited(Procfs(tmp_path), tmp_path, "6.12.0")
    assert why.startswith(f"the fair server is off on CPUs {off} " if off else "")
    assert bool(why) is bool(off)
