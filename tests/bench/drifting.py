"""Where threads run and who moves them: sampling them all, and putting back what another hand moved away."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
from bench_node import Node, cpus
from measure import CannotMeasure, Figure, in_turn, median, timed_ms
from passes import settled
from vms import THREADS, Machine

from vmpin.config.settings import SETTINGS
from vmpin.features.common.cpu_times import process_ran
from vmpin.features.proof.residency_ledger import ResidencyLedger
from vmpin.features.proof.sampler import Sampler
from vmpin.pinning.apply import Outcome

#: Of the rounds, how many the peers take part in: they are slow.
_PEERS = 3


def sampling(made: Node, machines: Sequence[Machine], rounds: int) -> Figure:
    """A round over threads that all ran since the last one, as a share of one CPU at the interval that is the default;
    in turn with the bare reads of the same files."""
    made.forget()
    reconciler = settled(made, machines)
    ledger = ResidencyLedger(reconciler.view.counters.drift)
    ledger.begin(None, time.time())
    sampler = Sampler(reconciler.view, ledger)
    interval = float(str(next(setting.default for setting in SETTINGS if setting.key == "proof.sample_seconds")))
    tids = {machine.pid: machine.tids() for machine in machines}

    def share(seconds: float) -> float:
        return 100 * seconds / interval

    def awake(work: Callable[[], object]) -> float:
        before = _pcounts(tids)
        wake(machines)
        if any(now == then for now, then in zip(_pcounts(tids), before, strict=True)):
            raise CannotMeasure("not all threads ran")
        return _cost(work)

    def bare() -> None:
        for pid, threads in tids.items():
            process_ran(pid)
            for tid in threads:
                for name in ("schedstat", "stat", "sched"):
                    _read(f"/proc/{pid}/task/{tid}/{name}")

    def naive() -> None:
        """What a script would ask of each thread, with psutil."""
        for threads in tids.values():
            for tid in threads:
                thread = psutil.Process(tid)
                thread.cpu_times()
                thread.cpu_num()

    sampler.round()
    ran = sampler.ledger.roles()
    values, floors = in_turn(rounds, lambda: awake(sampler.round), lambda: awake(bare))
    booked = sum(account.ran for account in sampler.ledger.roles().values())
    if booked <= sum(account.ran for account in ran.values()):
        raise CannotMeasure("nothing was booked")
    peers = [awake(naive) for _ in range(_PEERS)]
    asleep = [_cost(sampler.round) for _ in range(rounds)]
    return Figure("sampling_200x16", share(median(values)), "% of a CPU", share(median(floors)), 1, "value",
                  {"sandboxes": len(machines), "threads": sum(map(len, tids.values())), "rounds": rounds,
                   "interval_seconds": interval, "round_ms": round(median(values) * 1000, 3),
                   "asleep": round(share(median(asleep)), 4), "psutil": round(share(median(peers)), 3)})


def repair(made: Node, machines: Sequence[Machine], rounds: int) -> Figure:
    """A pass that finds every thread moved by another hand and puts it back, counted and explained; in turn with the
    bare system calls: find the threads, read each mask, make sure before and after that it is that thread, set the
    mask and read it back. `blind` is without making sure."""
    made.forget()
    pool, other = cpus()
    reconciler = settled(made, machines)
    ledger = ResidencyLedger(reconciler.view.counters.drift)
    ledger.begin(None, time.time())
    sampler = Sampler(reconciler.view, ledger)
    sampler.round()
    gc.collect()
    gc.freeze()  # as the watcher does
    tids = [tid for machine in machines for tid in machine.tids()]
    home, away = frozenset((pool,)), frozenset((other,))

    def moved(work: Callable[[], object]) -> float:
        reconciler.node_state.pinner.retry_now()  # or it would be contention soon
        for tid in tids:
            os.sched_setaffinity(tid, away)
        spent = timed_ms(work)
        if any(os.sched_getaffinity(tid) != home for tid in tids):
            raise CannotMeasure("not all threads were put back")
        return spent

    def one_pass() -> None:
        report = reconciler.resync()
        if report.count(Outcome.DONE) != len(tids):
            raise CannotMeasure(f"{report.count(Outcome.DONE)} of {len(tids)} threads were put back")

    def bare() -> None:
        for machine in machines:
            for name in os.listdir(f"/proc/{machine.pid}/task"):
                tid = int(name)
                os.sched_getaffinity(tid)
                fd = os.open(f"/proc/{machine.pid}/task/{name}/stat", os.O_RDONLY | os.O_CLOEXEC)
                os.pread(fd, 2048, 0)
                os.sched_setaffinity(tid, home)
                os.sched_getaffinity(tid)
                os.pread(fd, 2048, 0)
                os.close(fd)

    def blind() -> None:
        for machine in machines:
            for name in os.listdir(f"/proc/{machine.pid}/task"):
                tid = int(name)
                os.sched_getaffinity(tid)
                os.sched_setaffinity(tid, home)
                os.sched_getaffinity(tid)

    def taskset() -> None:
        for machine in machines:
            subprocess.run(["taskset", "-acp", str(pool), str(machine.pid)], stdout=subprocess.DEVNULL, check=True)

    def naive() -> None:
        """What a script would do, with psutil."""
        for machine in machines:
            for thread in psutil.Process(machine.pid).threads():
                one = psutil.Process(thread.id)
                if one.cpu_affinity() != [pool]:
                    one.cpu_affinity([pool])

    try:
        values, floors = in_turn(rounds, lambda: moved(one_pass), lambda: moved(bare))
        if (counted := reconciler.node_state.counters.drift.total()) != (rounds + 1) * len(tids):
            raise CannotMeasure(f"{counted} repairs were counted in {rounds + 1} passes")
        blinds = [moved(blind) for _ in range(rounds)]
        tasksets, naives = ([moved(peer) for _ in range(_PEERS)] for peer in (taskset, naive))
    finally:
        gc.unfreeze()
    return Figure("repair_200x16", median(values), "ms", median(floors), 3, "ratio",
                  {"sandboxes": len(machines), "threads": len(tids), "rounds": rounds,
                   "blind": round(median(blinds), 3), "taskset": round(median(tasksets), 3),
                   "psutil": round(median(naives), 3)})


def wake(machines: Sequence[Machine]) -> None:
    """Let every thread of sleeping processes run for a moment: a stop and its end wake all of a process."""
    for machine in machines:
        os.kill(machine.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, machine.pid, os.WSTOPPED)
    for machine in machines:
        os.kill(machine.pid, signal.SIGCONT)
        os.waitid(os.P_PID, machine.pid, os.WCONTINUED)
    for machine in machines:  # and asleep again
        for tid in machine.tids():
            while _read(f"/proc/{machine.pid}/task/{tid}/stat").rpartition(b")")[2].split()[0] != b"S":
                time.sleep(0.001)


def _pcounts(tids: dict[int, list[int]]) -> list[int]:
    """How often each thread was put on a CPU."""
    assert all(len(threads) == THREADS for threads in tids.values())
    return [int(_read(f"/proc/{pid}/task/{tid}/schedstat").split()[2]) for pid, threads in tids.items()
            for tid in threads]


def _read(path: str | Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def _cost(work: Callable[[], object]) -> float:
    """CPU seconds."""
    begin = time.thread_time()
    work()
    return time.thread_time() - begin
