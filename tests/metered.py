"""A node with one VM, made of threads of this process, on a real reconciler: what an exporter shows of it is read from
the kernel.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from need import lacking
from prometheus_client.parser import text_string_to_metric_families
from trees import make_tree

from vmpin.config import loading as settings
from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import DesiredState, SandboxState
from vmpin.domain.events import SandboxSeen
from vmpin.domain.guest_report import ContainerReport, GuestReport
from vmpin.domain.model import ContainerId, Pod, SandboxId, ThreadId, ThreadRole, VcpuId, VcpuState, VmThread
from vmpin.domain.sandbox_placement import Placement, VcpuPlacement, Verdict
from vmpin.feature import WatcherPart, features
from vmpin.features.metrics.exporter import Exporter
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.placement.ownership import CpuClaims, ownership
from vmpin.reconcile.node_state import NodeState
from vmpin.reconcile.reconciler import Reconciler
from vmpin.status.health import SourceHealth
from vmpin.vmm.qemu import QEMU
from vmpin.vmm.virtual_machine import Process, Vm

WEB = ContainerId("web")


@dataclass
class Node:
    """One VM, made of threads of this process, on a real reconciler."""

    root: Path
    first: CpuSet
    second: CpuSet
    flags: dict[str, str] = field(default_factory=dict)
    restarts: Counter[str] = field(default_factory=Counter)
    resynced: float = field(default_factory=time.monotonic)
    parts: Mapping[str, WatcherPart] = field(default_factory=dict)
    sources: list[SourceHealth] = field(default_factory=lambda: [SourceHealth("hook", True, True)])
    report: GuestReport | None = None
    asked: int = 0

    def __post_init__(self) -> None:
        self.id = SandboxId(f"t{secrets.token_hex(5)}")
        paths = {f"paths.{name}": str(self.root / name) for name in ("run", "kata_go", "kata_rs", "kubelet", "nri")}
        self.config = settings.load(None, {}, {**paths, "watch.only": f"{self.id}*", **self.flags})
        self.reconciler = Reconciler(self.config, acts=False)
        self.view, self.counters = self.reconciler.view, self.node_state.counters
        self.node_state.apply_events([SandboxSeen(self.id, "vmm")])
        self._end = threading.Event()
        self._threads: list[threading.Thread] = []
        both = self.first | self.second
        wanted = {ThreadRole.VCPU: self.first, ThreadRole.EMULATOR: both, ThreadRole.IOTHREAD: None}
        found = [self._thread(ThreadRole.VCPU, self.first, 0), self._thread(ThreadRole.VCPU, self.second, 1),
                 self._thread(ThreadRole.EMULATOR, self.first), self._thread(ThreadRole.EMULATOR, both),
                 self._thread(ThreadRole.IOTHREAD, self.second)]
        process = Process(os.getpid(), ThreadId(os.getpid(), 1), ThreadRole.EMULATOR, ["qemu"])
        process.threads = {thread.id.tid: thread for thread in found}
        # What the smaller of the two emulator threads' cgroup has, it has; the others' has all.
        self.small = found[2].id.tid
        for thread in found:
            self.cgroup(thread.id.tid, self.first if thread.id.tid == self.small else both)
        vars(self.view)["cgroups"] = Cgroups(self.root / "cgroup", Procfs(self.root / "proc"))
        vm = self.node_state.inventory.vms[self.id] = Vm(self.id, QEMU, process)
        vm.vcpu_state = VcpuState.IDENTIFIED
        self.node_state.placement_cache.placements[self.id] = Placement(
            self.id, both, Verdict.PINNED, (), (VcpuPlacement(VcpuId(0), self.first),
                                                VcpuPlacement(VcpuId(1), self.first)),
            {role: wanted.get(role) for role in ThreadRole if role is not ThreadRole.VCPU}, {WEB: (VcpuId(0),)})

    @property
    def node_state(self) -> NodeState:
        return self.reconciler.node_state

    def _thread(self, role: ThreadRole, cpus: CpuSet, vcpu: int | None = None) -> VmThread:
        ready = threading.Event()

        def run() -> None:
            ready.set()
            self._end.wait()

        thread = threading.Thread(target=run)
        thread.start()
        ready.wait()
        self._threads.append(thread)
        assert thread.native_id is not None
        os.sched_setaffinity(thread.native_id, cpus)
        return VmThread(ThreadId(thread.native_id, 1), role, "t", os.getpid(), None if vcpu is None else VcpuId(vcpu))

    def cgroup(self, tid: int, cpus: CpuSet) -> None:
        """Put a thread into a cpuset cgroup of its own."""
        make_tree(self.root, f"cgroup/cpuset/{tid}/cpuset.cpus = {cpus}\n"
                  f"proc/{os.getpid()}/task/{tid}/cgroup = 4:cpuset:/{tid}\ncgroup/cpuset/cpuset.cpus = 0\n")

    def pod(self, name: str) -> None:
        state = self.node_state.state.sandboxes[self.id]
        self.node_state.state = DesiredState({self.id: SandboxState(state.id, pod=Pod("tests", name))})

    def fill(self) -> None:
        """Let something have happened of everything that can."""
        self.pod("shop")
        counters = self.node_state.counters
        for counter, key in ((counters.passes, "hook"), (self.restarts, "nri")):
            counter[key] += 1
        counters.new_thread_latency.observe(0.0003)
        counters.pin_latency.observe(0.003)
        counters.dispute(self.id)
        counters.refused_by[self.id] = 1
        counters.contentions_by[self.id] = 1
        self.node_state.source_disagreements.lasting = {(self.id, WEB): "two"}
        self.report = GuestReport("vmpin-agent", "up", {WEB: ContainerReport("error")})
        self.node_state.placement_cache.own = ownership(
            {self.id: CpuClaims(((WEB, self.first),), ()), SandboxId("other"): CpuClaims(((WEB, self.second),), ())},
            self.view.node)
        both = self.first | self.second
        # A feature that has metrics has a module NAME_metered among its tests.
        self.parts = {feature.name: import_module(f"{feature.name}_metered").filled(both) for feature in features()
                      if find_spec(f"{feature.name}_metered")}

    def close(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    # As an exporter wants it

    def source_health(self) -> Iterable[SourceHealth]:
        return self.sources

    def guest(self, sandbox: SandboxId) -> GuestReport | None:
        assert sandbox == self.id
        return self.report

    def scrape(self) -> str:
        return asyncio.run(Exporter(self).metrics()).decode()

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """By label values, in the order of the labels' names."""
        return {tuple(value for _, value in sorted(sample.labels.items())): sample.value
                for family in text_string_to_metric_families(self.scrape()) for sample in family.samples
                if sample.name == name}


@contextmanager
def metered(root: Path, **flags: str) -> Iterator[Node]:
    """:param flags: keys of the configuration, with an underscore for the dot."""
    cpus = [CpuSet((cpu,)) for cpu in sorted(os.sched_getaffinity(0))]
    if len(cpus) < 2:
        lacking("needs two CPUs")
    made = Node(root, cpus[0], cpus[1], {key.replace("_", ".", 1): value for key, value in flags.items()})
    try:
        yield made
    finally:
        made.close()
