"""The scheduling class of a KVM guest's vCPU, and what a busy one does to the host's own threads on its CPU.

The vCPU spins on CPU 5, its own; all other threads of the VM are on CPUs 0-1. Figures are printed: the share of CPU 5
that the vCPU and a thread of the class other have beside each other, and how long a kernel worker of each CPU
(vm.stat_refresh: mm/vmstat.c, schedule_on_each_cpu) and a grace period of RCU (membarrier(2), MEMBARRIER_CMD_GLOBAL)
take.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.node_tests.conftest import StartsVms
from lab.node_tests.guest import Guest
from lab.node_tests.machines import Kata, NestedVm, Vmpin, Watcher, mask, until
from lab.variant import Kernel, Variant
from vmpin.cpuset import CpuSet
from vmpin.features.scheduling.sched_class import SchedClass
from vmpin.features.scheduling.thread_class import class_of
from vmpin.host.procfs import linux

CPU, OTHERS = 5, {0, 1}
FIFO, OTHER = SchedClass(1, 1, reset=True), SchedClass(0)
LIMIT = Path("/proc/sys/kernel/sched_rt_runtime_us")
#: Seconds that a share is measured for, and that a kernel worker and a grace period have at most.
INTERVAL, LONGEST = 5.0, 20.0
_SPIN = "while True: pass"
_WORKER = "open('/proc/sys/vm/stat_refresh', 'w').write('1')"
#: x86-64's number of membarrier; its command 1 waits for a grace period (kernel/sched/membarrier.c).
_GRACE = "import ctypes; assert ctypes.CDLL(None).syscall(324, 1, 0, 0) == 0"
#: Runs a piece of code ten times and prints the seconds of each.
_TIMED = """
import time
for _ in range(10):
    began = time.monotonic()
    {code}
    print(time.monotonic() - began, flush=True)
"""


def run_time(tid: int) -> float:
    """The seconds that a thread has run (Documentation/scheduler/sched-stats.rst)."""
    return int(Path(f"/proc/{tid}/schedstat").read_text().split()[0]) / 1e9


def shares(*tids: int) -> list[float]:
    """The share of a CPU that each thread has within the interval."""
    began, before = time.monotonic(), [run_time(tid) for tid in tids]
    time.sleep(INTERVAL)
    seconds = time.monotonic() - began
    return [round((run_time(tid) - start) / seconds, 3) for tid, start in zip(tids, before, strict=True)]


@contextlib.contextmanager
def spinner(cpu: int) -> Iterator[int]:
    """A busy process of the class other on one CPU."""
    process = subprocess.Popen([sys.executable, "-c", _SPIN])
    try:
        os.sched_setaffinity(process.pid, {cpu})
        yield process.pid
    finally:
        os.sched_setaffinity(process.pid, OTHERS)  # where it runs, and so ends
        process.kill()
        process.wait()


def seconds_of(code: str) -> list[float]:
    """The times of ten runs in milliseconds, sorted; fewer where they took longer than LONGEST together. One that is
    not through ends when the vCPU has its former class."""
    with tempfile.TemporaryFile("w+") as file:
        process = subprocess.Popen([sys.executable, "-c", _TIMED.format(code=code)], stdout=file)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LONGEST)
        process.kill()
        UNFINISHED.append(process)
        file.seek(0)
        return sorted(round(1000 * float(line), 1) for line in file)


#: Processes that may still wait in the kernel.
UNFINISHED: list[subprocess.Popen[bytes]] = []


def measured(tid: int) -> dict[str, Any]:
    """The figures with the vCPU as it is."""
    (alone,) = shares(tid)
    with spinner(CPU) as other:
        beside = shares(tid, other)
    worker, grace = seconds_of(_WORKER), seconds_of(_GRACE)
    return {"vcpu_alone": alone, "vcpu": beside[0], "other": beside[1],
            "worker_ms": _summary(worker), "grace_ms": _summary(grace)}


def _summary(times: list[float]) -> list[float]:
    """How many of ten were through, the median and the longest."""
    return [len(times), times[len(times) // 2], times[-1]] if times else [0]


@pytest.fixture
def vm(nested_vm: StartsVms, kata: Kata, vmpin: Vmpin) -> Iterator[NestedVm]:
    """:returns: one whose vCPU spins and is to be placed on its own CPU."""
    limit = LIMIT.read_text()
    vmpin.configure(node__shared_pool="0-1", watch__resync_seconds=1)
    vm = nested_vm(vcpus=1, vhost_net=1, iothreads=["io1"], guest=Guest.SPINS)
    kata.write(vm, {"pinned": str(CPU), "side": "0-1"})
    try:
        yield vm
    finally:
        vmpin("unpin", "--all")
        LIMIT.write_text(limit)
        while UNFINISHED:
            UNFINISHED.pop().wait()


@pytest.mark.release
def test_a_busy_real_time_vcpu_and_the_hosts_own_threads(vm: NestedVm, vmpin: Vmpin, watcher: Watcher,
                                                        variant: Variant) -> None:
    (tid,) = vm.vcpu_tids().values()
    figures = {}

    def status() -> Any:
        return vmpin.json("status")["features"].get("scheduling")

    with watcher:
        until(lambda: mask(tid) == CpuSet((CPU,)), "the vCPU to be pinned")
        figures["other"] = measured(tid)
    vmpin.configure(scheduling__vcpu_class="fifo")
    with watcher:
        until(lambda: class_of(tid) == FIFO, lambda: (class_of(tid), status()))
        assert {class_of(other) for other in vm.all_threads() if other != tid} == {OTHER}
        assert vmpin("doctor", "vcpu-class").startswith("ok ")
        figures["fifo"] = measured(tid)
        os.sched_setscheduler(tid, os.SCHED_OTHER, os.sched_param(0))
        until(lambda: class_of(tid) == FIFO, "drift to be repaired")
        LIMIT.write_text("-1")
        if (linux(os.uname().release) or (0, 0)) < (6, 12):
            until(lambda: class_of(tid) == OTHER, lambda: status())
            assert "sched_rt_runtime_us is -1" in status()["trouble"]
            assert "sched_rt_runtime_us is -1" in vmpin("doctor", "vcpu-class")
    vmpin.configure(scheduling__without_throttling=True)
    with watcher:
        until(lambda: class_of(tid) == FIFO, lambda: (class_of(tid), status()))
        figures["fifo without limit"] = measured(tid)
        watcher.kill()
    assert class_of(tid) == FIFO
    vmpin("unpin", vm.sandbox)
    assert class_of(tid) == OTHER
    while UNFINISHED:
        UNFINISHED.pop().wait()
    for name, values in figures.items():
        print(variant.kernel, name, json.dumps(values))
    assert figures["other"]["other"] > 2 * figures["fifo"]["other"]
    assert figures["fifo"]["worker_ms"][0] > 0, "the limit lets a kernel worker run"
    assert 0 < figures["fifo"]["other"] < 0.2
    if variant.kernel is Kernel.V6_1:
        assert figures["fifo without limit"]["other"] == 0
        assert figures["fifo without limit"]["worker_ms"] == [0]
    else:  # since Linux 6.12 the fair server, and not that limit, leaves other threads a part
        assert figures["fifo without limit"]["worker_ms"][0] > 0
