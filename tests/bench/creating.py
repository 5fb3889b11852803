"""What giving out CPUs adds to a container's creation: the plugin's own time for CreateContainer, with the allocator.

A session of the plugin, fed with the bytes that a runtime sends: 96 CPUs, 100 containers, some with CPUs of their own.
Beside it the same calls without an allocator."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from allocating import machine
from measure import Figure

from vmpin.cpuset import CpuSet
from vmpin.features.allocator.cpu_allocator import CpuAllocator
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions
from vmpin.features.allocator.ledger_file import LedgerFile
from vmpin.features.allocator.vm_size import VmSize
from vmpin.sources.nri.nri_events import CpuDecider, NriCounters
from vmpin.sources.nri.session import NriSession
from vmpin.wire import nri_messages, ttrpc
from vmpin.wire.nri_enums import CREATED, RUNNING
from vmpin.wire.nri_messages import MESSAGES

CONTAINERS = 100
#: Of them with CPUs of their own: 2 each, so that 66 of the 96 CPUs are left.
EXCLUSIVE = 15


class _Runtime:
    """The runtime's side of one session, in the same thread."""

    def __init__(self, decider: CpuDecider | None) -> None:
        self._session = NriSession("vmpin", "90", NriCounters(), set(), {}, 0, decider)
        self._stream = -1
        self._call("Configure", MESSAGES["ConfigureRequest"](runtime_name="bench", runtime_version="1"))
        self._call("Synchronize", MESSAGES["SynchronizeRequest"](pods=[], containers=[]))
        for number in range(CONTAINERS):
            self.create(f"old-{number}", 2 if number < EXCLUSIVE else 0)

    def create(self, name: str, size: int) -> float:
        """Milliseconds of our own until its answer is there."""
        pod = MESSAGES["PodSandbox"](id=f"pod-{name}", name=name, namespace="bench", uid=name, annotations={
            "cpu-policy.vmpin.io": "exclusive"} if size else {})
        made = MESSAGES["Container"](id=name, pod_sandbox_id=pod.id, name="main", state=CREATED)
        cpu = made.linux.resources.cpu
        cpu.shares.value, cpu.quota.value, cpu.period.value = 1024 * (size or 1), 100_000 * size, 100_000
        took = self._call("CreateContainer", MESSAGES["CreateContainerRequest"](pod=pod, container=made))
        made.state = RUNNING
        self._call("PostStartContainer", MESSAGES["EventRequest"](pod=pod, container=made))
        return took

    def remove(self, name: str) -> None:
        pod = MESSAGES["PodSandbox"](id=f"pod-{name}", name=name, namespace="bench", uid=name)
        made = MESSAGES["Container"](id=name, pod_sandbox_id=pod.id, name="main", state=RUNNING)
        for method, fields in (("StopContainer", {"container": made}), ("RemoveContainer", {"container": made}),
                               ("StopPodSandbox", {}), ("RemovePodSandbox", {})):
            self._call(method, MESSAGES["EventRequest"](pod=pod, **fields))

    def _call(self, method: str, message: Any) -> float:
        self._stream += 2
        data = ttrpc.frames(ttrpc.PLUGIN, ttrpc.encode(ttrpc.Call(
            self._stream, nri_messages.PLUGIN_SERVICE, method, message.SerializeToString())))
        begin = time.thread_time()  # CPU time: what else the machine does is no part of it, and nothing is waited for
        [(answer, _, _)] = self._session.feed(data)
        took = (time.thread_time() - begin) * 1000
        assert answer
        return took


def cost(rounds: int) -> Figure:
    """The median of creations of a container with two CPUs of its own; the answer updates the 85 shared ones."""
    options = AllocationOptions(AllocationMode.ON, reserved=CpuSet((0, 48)), pool_headroom=0)
    with tempfile.TemporaryDirectory(prefix="vmpin-bench-", dir="/dev/shm") as directory:
        allocator = CpuAllocator(machine(96, 2, 8, 1), options, LedgerFile(Path(directory) / "ledger.json", "bench"),
                                 lambda pod: VmSize())
        runtimes = _Runtime(None), _Runtime(allocator)
        times: tuple[list[float], list[float]] = ([], [])
        for number in range(rounds):
            for runtime, found in zip(runtimes, times, strict=True):
                found.append(runtime.create(f"new-{number}", 2))
                runtime.remove(f"new-{number}")
        ledger = allocator.ledger()
    assert ledger is not None
    assert len(ledger.grants) == CONTAINERS
    floors, values = times
    return Figure("nri_create_cost", statistics.median(values), "ms", statistics.median(floors), 5, "difference",
                  {"rounds": rounds, "p95": statistics.quantiles(values, n=20)[-1]})
