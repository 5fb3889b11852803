"""The owners of exclusive CPUs, and which other processes may run there, or ran there while they were sampled
(thread_usage), for `vmpin verify --others`. Pure."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.terminal import pod_name, short_id
from vmpin.features.common.cpu_owner import CpuOwner
from vmpin.features.isolation.process_pods import ProcessPods, pod_uid
from vmpin.features.isolation.top.thread_intervals import ProcessInterval
from vmpin.features.isolation.usage import SampledProcess, SampledThread, container_of


def owns(owner: CpuOwner, process: SampledProcess | ProcessInterval, sandbox: str | None) -> bool:
    """True if a process is the owner's: a process of the owning VM sandbox, else one in the container's cgroup
    (also probes and `kubectl exec`). A VMM's cgroup does not count: Kata may keep all VMMs of a node in one."""
    if (owner.vm and sandbox == owner.sandbox) or sandbox in owner.members:
        return True
    if owner.members:
        return container_of(process.cgroup) in owner.members
    if owner.uid:
        return pod_uid(process.cgroup) == owner.uid
    if not owner.vm and (owner.init == process.pid or (
            owner.cgroup and f"{process.cgroup}/".startswith(f"{owner.cgroup}/"))):
        return True
    return bool(owner.container) and container_of(process.cgroup) == owner.container


def owners_of(document: Mapping[str, Any]) -> tuple[CpuOwner, ...]:
    """The owners in a status document. An owner without a kind is a VM if it is among the sandboxes."""
    sandboxes = {sandbox["id"]: sandbox for sandbox in document["sandboxes"]}
    owners = []
    for entry in document["node"]["owners"]:
        sandbox = sandboxes.get(entry["sandbox"])
        kind = entry.get("kind") or ("runc" if sandbox is None else "vm")
        owners.append(CpuOwner(entry["sandbox"], entry["container"], CpuSet.parse(entry["cpus"]), kind == "vm",
                              entry.get("init"), entry.get("cgroup") or "", _label(entry, sandbox),
                              entry["sandbox"] if kind == "unseen" else ""))
    return tuple(owners)


def sandboxes_of(document: Mapping[str, Any]) -> dict[int, str]:
    """The sandbox of every thread, and of every VMM's process, that a status document lists."""
    sandboxes: dict[int, str] = {}
    for sandbox in document["sandboxes"]:
        sandboxes |= {thread["tid"]: sandbox["id"] for thread in sandbox["threads"]}
        if sandbox["vmm"] is not None:
            sandboxes[sandbox["vmm"]["pid"]] = sandbox["id"]
    return sandboxes


def lasting(before: Sequence[CpuOwner], after: Sequence[CpuOwner]) -> tuple[tuple[CpuOwner, ...], CpuSet]:
    """(the owners with the CPUs that were theirs all the time, the CPUs that changed owners).

    A thread may have run on such a CPU before the new owner got it.
    """
    changed = changed_cpus(owned_by_cpu(before), owned_by_cpu(after))
    kept = (replace(owner, cpus=owner.cpus - changed) for owner in after)
    return tuple(owner for owner in kept if owner.cpus), changed


def owned_by_cpu(owners: Iterable[CpuOwner]) -> dict[int, list[CpuOwner]]:
    by_cpu: dict[int, list[CpuOwner]] = {}
    for owner in owners:
        for cpu in owner.cpus:
            by_cpu.setdefault(cpu, []).append(owner)
    return by_cpu


def changed_cpus(before: Mapping[int, Iterable[CpuOwner]], after: Mapping[int, Iterable[CpuOwner]]) -> CpuSet:
    """The CPUs whose owning containers are not the same ones."""
    then, now = ({cpu: {(owner.sandbox, owner.container) for owner in owners} for cpu, owners in by_cpu.items()}
                 for by_cpu in (before, after))
    return CpuSet(cpu for cpu in then.keys() | now.keys() if then.get(cpu) != now.get(cpu))


def _label(entry: Mapping[str, Any], sandbox: Mapping[str, Any] | None) -> str:
    """`namespace/pod/container` if the names are known, else ids."""
    source = sandbox or entry
    names = {container["id"]: container["name"] for container in source.get("containers", ())}
    container = names.get(entry["container"]) or entry.get("name") or short_id(entry["container"])
    pod = entry.get("pod") or source.get("pod")
    if pod:
        return pod_name(pod) + (f"/{container}" if container else "")
    return f"{container} of {short_id(entry['sandbox'])}" if container else f"pod {short_id(entry['sandbox'])}"


#: Of the JSON document.
VERSION = 1


class Kind(enum.StrEnum):
    """The class of a process, the most serious first: the order of those that did not run."""

    VM = "vm"
    CONTAINER = "container"
    HOST = "host"
    KERNEL = "kernel"
    #: A pod's pause process, which holds the pod's namespaces and sleeps. One that ran counts as a container's.
    PAUSE = "pause"


#: The classes that the kubelet's static policy keeps apart, unlike daemons and kernel threads.
PODS = frozenset({Kind.VM, Kind.CONTAINER})


@dataclass(frozen=True)
class OtherProcess:
    """A process with threads that may run, or ran, on CPUs exclusive to others. `sandbox` or `container` is its
    owner, if it has one, and `label` names its pod (and container), "" if unknown; `threads` are only those with such
    CPUs, reduced to these."""

    process: SampledProcess
    kind: Kind
    sandbox: str | None
    container: str | None
    threads: tuple[SampledThread, ...]
    owners: tuple[CpuOwner, ...]
    label: str = ""

    @property
    def may(self) -> CpuSet:
        return union(task.cpus for task in self.threads)

    @property
    def ran(self) -> dict[int, int]:
        ran: Counter[int] = Counter()
        for task in self.threads:
            ran.update(task.ran)
        return dict(sorted(ran.items()))

    @property
    def spent(self) -> int:
        return sum(sum(task.ran.values()) for task in self.threads)

    def data(self) -> dict[str, object]:
        return {
            "pid": self.process.pid, "comm": self.process.comm, "class": str(self.kind), "sandbox": self.sandbox,
            "container": self.container, "name": self.label, "cgroup": self.process.cgroup,
            "may": str(self.may), "seconds": _seconds(self.spent), "ran": _ran(self.ran),
            "owners": [owner.label for owner in self.owners],
            "threads": [{"tid": task.tid, "comm": task.comm, "may": str(task.cpus), "ran": _ran(task.ran)}
                        for task in self.threads]}


@dataclass
class Use:
    """The use of an exclusive CPU, in nanoseconds. `busy` is the kernel's own count, None if it was not read; it
    exceeds the others by interrupts and threads between samples."""

    cpu: int
    owners: tuple[CpuOwner, ...]
    busy: int | None = None
    owner: int = 0
    bound: int = 0
    others: int = 0

    @property
    def unseen(self) -> int | None:
        return None if self.busy is None else max(0, self.busy - self.owner - self.bound - self.others)

    def data(self) -> dict[str, object]:
        return {"cpu": self.cpu, "owners": [owner.label for owner in self.owners], "busy": _seconds(self.busy),
                "owner": _seconds(self.owner), "kernel_bound": _seconds(self.bound), "others": _seconds(self.others),
                "unseen": _seconds(self.unseen)}


@dataclass
class Judgement:
    """The findings on exclusive CPUs. `contested` are CPUs with owners of more than one pod: none is alone there."""

    exclusive: CpuSet
    contested: CpuSet
    uses: list[Use] = field(default_factory=list)
    findings: list[OtherProcess] = field(default_factory=list)
    #: Numbers of processes left out by option, by class.
    ignored: Counter[Kind] = field(default_factory=Counter)

    @property
    def alone(self) -> bool:
        return not self.findings and not self.contested

    @property
    def apart(self) -> bool:
        """True if no other pod may run, or ran, on a pod's exclusive CPUs; the node's own processes may."""
        return not self.contested and not any(finding.kind in PODS for finding in self.findings)

    @property
    def ran(self) -> list[OtherProcess]:
        return [finding for finding in self.findings if finding.spent]

    def data(self) -> dict[str, object]:
        return {"alone": self.alone, "exclusive": str(self.exclusive), "contested": str(self.contested),
                "findings": [finding.data() for finding in self.findings], "cpus": [use.data() for use in self.uses],
                "ignored": {str(kind): count for kind, count in sorted(self.ignored.items())}}


def judge(owners: Sequence[CpuOwner], sandboxes: Mapping[int, str], processes: Iterable[SampledProcess],
          busy: Mapping[int, int] | None = None, ignore: Collection[Kind] = (),
          names: ProcessPods | None = None) -> Judgement:
    """Find the processes that may run, or ran, on exclusive CPUs of others.

    A kernel thread bound to one CPU (ksoftirqd/3, migration/3, kworker/3:1, an interrupt's thread) belongs to that
    CPU and is no finding. PF_NO_SETAFFINITY does not identify it: kworker/u8:1 has that flag, and runs anywhere.

    :param sandboxes: a VM's sandbox by thread id.
    :param busy: nanoseconds each CPU was not idle; None when nothing was measured.
    :param names: of the known pods of the node.
    """
    names = names or ProcessPods.of(())
    processes = list(processes)
    # The current cgroup of each container's init: "" if that is the topmost, or if init has ended.
    cgroups = {process.pid: process.cgroup for process in processes}
    owners = [owner if owner.init is None else replace(owner, cgroup=cgroups.get(owner.init, "")) for owner in owners]
    exclusive = union(owner.cpus for owner in owners)
    uses = {cpu: Use(cpu, tuple(owner for owner in owners if cpu in owner.cpus),
                     None if busy is None else busy.get(cpu)) for cpu in exclusive}
    judgement = Judgement(exclusive, CpuSet(
        use.cpu for use in uses.values() if len({owner.sandbox for owner in use.owners}) > 1), list(uses.values()))
    for process in processes:
        sandbox = next((sandboxes[task.tid] for task in process.tasks if task.tid in sandboxes), None)
        mine = union(owner.cpus for owner in owners if owns(owner, process, sandbox))
        threads = []
        for task in process.tasks:
            bound = process.kernel and sandbox is None and len(task.cpus) == 1
            for cpu, spent in task.ran.items():
                if cpu not in uses:
                    continue
                if cpu in mine:
                    uses[cpu].owner += spent
                elif bound:
                    uses[cpu].bound += spent
                else:
                    uses[cpu].others += spent
            if not bound and (concerned := _concerned(task, exclusive - mine)) is not None:
                threads.append(concerned)
        if threads:
            finding = _finding(process, sandbox, threads, owners, names)
            if finding.kind in ignore:
                judgement.ignored[finding.kind] += 1
            else:
                judgement.findings.append(finding)
    # The longest run time first, then processes that may run, by class and by CPU.
    judgement.findings.sort(key=lambda finding: (
        -finding.spent, list(Kind).index(finding.kind), finding.may.first if finding.may else 0, finding.process.pid))
    return judgement


def _concerned(task: SampledThread, foreign: CpuSet) -> SampledThread | None:
    """The thread reduced to CPUs of others, None if it has none of them."""
    may = task.cpus & foreign if task.alive else EMPTY
    ran = {cpu: spent for cpu, spent in task.ran.items() if cpu in foreign}
    return task._replace(cpus=may, ran=ran) if may or ran else None


def _finding(process: SampledProcess, sandbox: str | None, threads: Sequence[SampledThread],
             owners: Sequence[CpuOwner], names: ProcessPods) -> OtherProcess:
    container = None
    if sandbox is not None:
        kind = Kind.VM
    elif process.kernel:
        kind = Kind.KERNEL
    else:
        known = container_of(process.cgroup)
        pauses = names.pauses_only(known, process.comm, len(process.tasks)) and not any(task.ran for task in threads)
        container = process.cgroup.rpartition("/")[2] if known is None and process.contained else known
        kind = Kind.PAUSE if pauses else Kind.HOST if container is None else Kind.CONTAINER
    concerned = union([*(task.cpus for task in threads), CpuSet(cpu for task in threads for cpu in task.ran)])
    return OtherProcess(process, kind, sandbox, container, tuple(threads),
                        tuple(owner for owner in owners if not owner.cpus.isdisjoint(concerned)),
                        names.name(sandbox, container, process.cgroup))


def _ran(ran: Mapping[int, int]) -> list[dict[str, object]]:
    return [{"cpu": cpu, "seconds": _seconds(spent)} for cpu, spent in sorted(ran.items())]


def _seconds(spent: int | None) -> float | None:
    return None if spent is None else round(spent / 1e9, 6)
