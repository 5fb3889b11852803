"""What an interval was to the pods of a node: how busy each was, how long it waited, and which threads ran on its
exclusive CPUs without being its own.

Pure. A kernel thread that is bound to one CPU belongs to that CPU, as in `vmpin verify --others`, and takes nothing
from its owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from vmpin.features.isolation.isolation_books import ProgramKind
from vmpin.features.isolation.top.node_description import DescribedPod, NodeDescription
from vmpin.features.isolation.top.thread_intervals import ProcessInterval, ThreadInterval, UsageInterval
from vmpin.features.isolation.usage import container_of
from vmpin.named_tuple import NamedTuple


class ForeignThread(NamedTuple):
    """A thread that ran on an exclusive CPU of another pod (`owner`, as DescribedPod.id). `home` is the thread's own
    pod, unit or cgroup, and `kind` of which of these. `ran` in ns; an estimate unless `exact`."""

    owner: str
    cpu: int
    ran: int
    exact: bool
    tid: int
    name: str
    pid: int
    process: str
    home: str
    kind: ProgramKind


class CpuUse(NamedTuple):
    """An exclusive CPU in the interval, in ns. `busy` is the kernel's own count, None where it was not read."""

    cpu: int
    busy: int | None
    own: int = 0
    kernel: int = 0
    foreign: int = 0
    exact: bool = True  #: No part of `foreign` is an estimate.

    @property
    def unseen(self) -> int:
        """Interrupts, and threads that began and ended between the samples."""
        return 0 if self.busy is None else max(0, self.busy - self.own - self.kernel - self.foreign)


class ThreadUsage(NamedTuple):
    """A thread of a pod. `cpu` is where it was last, None where it did not run; `mask` and `ok` (whether that is the
    decided one) are of VMs only."""

    tid: int
    role: str
    name: str
    cpu: int | None
    mask: str
    wanted: str
    ok: bool
    busy: int
    waited: int


@dataclass
class PodUsage:
    """A pod, with what its threads used (ns in the interval). `exact`: no part of `foreign` is an estimate."""

    pod: DescribedPod
    busy: int = 0
    waited: int = 0
    foreign: int = 0
    exact: bool = True
    ran: list[ThreadInterval] = field(default_factory=list)

    def threads(self) -> list[ThreadUsage]:
        """The threads of a VM, all of them; of another pod those that ran."""
        ran = {thread.tid: thread for thread in self.ran}
        usages = []
        for thread in self.pod.threads:
            now = ran.pop(thread["tid"], None)
            role = thread["role"] if thread["vcpu"] is None else f"{thread['role']} {thread['vcpu']}"
            cpu, busy, waited = (None, 0, 0) if now is None else (now.cpu, now.ran, now.waited)
            usages.append(ThreadUsage(thread["tid"], role, thread["name"], cpu, thread["actual"],
                                      thread["wanted"] or "", thread["ok"], busy, waited))
        return [*usages, *(ThreadUsage(other.tid, "", other.comm, other.cpu, "", "", True, other.ran, other.waited)
                           for other in ran.values())]


@dataclass(frozen=True)
class NodeUsage:
    """`cpus`: the use of each exclusive CPU."""

    description: NodeDescription
    seconds: float
    pods: tuple[PodUsage, ...]
    foreign_threads: tuple[ForeignThread, ...] = ()
    cpus: tuple[CpuUse, ...] = ()
    threads: int = 0
    kernel_seen: bool = True
    precise: bool = True

    @property
    def foreign(self) -> int:
        return sum(pod.foreign for pod in self.pods)

    @property
    def estimated(self) -> bool:
        return not all(pod.exact for pod in self.pods)

    def cpus_of(self, pod: DescribedPod) -> list[CpuUse]:
        return [use for use in self.cpus if use.cpu in pod.exclusive]


class _IntervalBooks:
    """What an interval adds up to."""

    def __init__(self, description: NodeDescription, interval: UsageInterval) -> None:
        self.description = description
        self.elapsed = round(interval.seconds * 1e9)
        self.pods = {pod.id: PodUsage(pod) for pod in description.pods}
        self.cpus = {cpu: CpuUse(cpu, interval.busy.get(cpu)) for cpu in sorted(description.owned)
                     if cpu not in description.changed}
        #: By CPU, what ran there and was not its owner's.
        self._foreign: dict[int, list[tuple[ProcessInterval, ThreadInterval, tuple[str, ProgramKind]]]] = {}

    def book(self, process: ProcessInterval) -> None:
        description, cpus = self.description, self.cpus
        sandbox = description.sandbox_of(process)
        pod = self.pods.get(sandbox or description.pod_of(process) or "")
        if pod is not None:
            pod.ran += process.threads
            pod.busy += sum(thread.ran for thread in process.threads)
            pod.waited += sum(thread.waited for thread in process.threads)
        on_exclusive = [thread for thread in process.threads if thread.cpu in cpus]
        if not on_exclusive:
            return
        mine = description.cpus_of(process, sandbox)
        home: tuple[str, ProgramKind] | None = None
        for thread in on_exclusive:
            use = cpus[thread.cpu]
            if thread.cpu in mine:
                cpus[thread.cpu] = use._replace(own=use.own + thread.ran)
            elif process.kernel and sandbox is None and thread.bound:
                cpus[thread.cpu] = use._replace(kernel=use.kernel + thread.ran)
            else:
                home = home or (description.label_of(process, sandbox), kind_of(process, sandbox))
                self._foreign.setdefault(thread.cpu, []).append((process, thread, home))

    def foreign_threads(self) -> list[ForeignThread]:
        """The foreign threads on all exclusive CPUs, those that ran longest first. Estimates are cut, all by the same
        share, to the time that their CPU had left: a thread that came to it at the end of the interval brought all of
        its run time."""
        threads = []
        for cpu, foreign in self._foreign.items():
            use = self.cpus[cpu]
            exact = sum(thread.ran for _, thread, _ in foreign if thread.bound)
            estimated = sum(thread.ran for _, thread, _ in foreign) - exact
            share = min(1.0, max(0, self.elapsed - use.own - use.kernel - exact) / max(estimated, 1))
            owners = {owner.sandbox for owner in self.description.owned[cpu]}
            for process, thread, home in foreign:
                ran = thread.ran if thread.bound else round(thread.ran * share)
                use = use._replace(foreign=use.foreign + ran, exact=use.exact and thread.bound)
                threads += [ForeignThread(owner, cpu, ran, thread.bound, thread.tid, thread.comm, process.pid,
                                          process.comm, *home) for owner in owners]
            self.cpus[cpu] = use
            for pod in (self.pods[owner] for owner in owners if owner in self.pods):
                pod.foreign += use.foreign
                pod.exact = pod.exact and use.exact
        return sorted(threads, key=lambda thread: (-thread.ran, thread.cpu, thread.tid))


def kind_of(process: ProcessInterval, sandbox: str | None) -> ProgramKind:
    """Classify a process. :param sandbox: the VM sandbox that it is of, None for none."""
    if sandbox is not None:
        return ProgramKind.VM
    if process.kernel:
        return ProgramKind.KERNEL
    return ProgramKind.HOST if container_of(process.cgroup) is None else ProgramKind.CONTAINER


def usage(description: NodeDescription, interval: UsageInterval) -> NodeUsage:
    """Book an interval by pod."""
    books = _IntervalBooks(description, interval)
    for process in interval.processes:
        books.book(process)
    foreign = tuple(books.foreign_threads())
    return NodeUsage(description, interval.seconds, tuple(books.pods.values()), foreign, tuple(books.cpus.values()),
                     interval.threads, interval.kernel_seen, interval.precise)


_ORDERS: dict[str, Callable[[PodUsage], tuple[object, ...]]] = {
    "foreign": lambda row: (-row.foreign, row.pod.calm), "busy": lambda row: (-row.busy,),
    "waited": lambda row: (-row.waited,), "drift": lambda row: (-row.pod.drift,), "name": lambda row: ()}


def sorted_pods(pods: Iterable[PodUsage], order: str) -> list[PodUsage]:
    """Sort pods in one of these orders, equal ones by name."""
    return sorted(pods, key=lambda row: (*_ORDERS[order](row), row.pod.title))


VERSION = 1


def usage_data(usage: NodeUsage, when: str, order: str) -> dict[str, Any]:
    """Times are seconds within the interval, of which `seconds` passed. :param order: of the pods."""
    return {"version": VERSION, "time": when, "seconds": round(usage.seconds, 3), "threads": usage.threads,
            "kernel_seen": usage.kernel_seen, "resolution": "ns" if usage.precise else "ticks",
            "pods": [_pod(row, usage) for row in sorted_pods(usage.pods, order)],
            "foreign_threads": [
                {"sandbox": thread.owner, "cpu": thread.cpu, "seconds": _seconds(thread.ran), "exact": thread.exact,
                 "tid": thread.tid, "thread": thread.name, "pid": thread.pid, "process": thread.process,
                 "of": thread.home} for thread in usage.foreign_threads],
            "collisions": list(usage.description.collisions)}


def _pod(row: PodUsage, usage: NodeUsage) -> dict[str, Any]:
    pod = row.pod
    return {"sandbox": pod.id, "namespace": pod.namespace or None, "pod": pod.name or None, "kind": pod.kind,
            "verdict": pod.verdict or None, "exclusive": str(pod.exclusive), "shared": str(pod.shared),
            "busy": _seconds(row.busy), "foreign": _seconds(row.foreign), "exact": row.exact,
            "waited": _seconds(row.waited) if usage.precise else None, "drift": pod.drift, "guest": pod.guest or None,
            "in_place": pod.in_place[0], "threads": pod.in_place[1],
            "cpus": [_cpu(use) for use in usage.cpus_of(pod)]}


def _cpu(use: CpuUse) -> dict[str, Any]:
    return {"cpu": use.cpu, "busy": None if use.busy is None else _seconds(use.busy), "own": _seconds(use.own),
            "kernel": _seconds(use.kernel), "foreign": _seconds(use.foreign),
            "unseen": None if use.busy is None else _seconds(use.unseen)}


def _seconds(spent: int) -> float:
    return round(spent / 1e9, 6)
