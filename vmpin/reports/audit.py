"""Is an owner alone on its exclusive CPUs? Who else may run there, and who did.

Pure: judges what was read of the machine (host/census) by who owns what (the status document). What stays out:
reading either, and how the answer looks on a terminal (cli/audit).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.pod_names import PodNames
from vmpin.reports.residency.usage import SampledProcess, SampledThread, container_of

VERSION = 1

class Kind(enum.StrEnum):
    """What a process is, the gravest first: the order in which those that did not run are listed."""

    VM = "vm"
    CONTAINER = "container"
    HOST = "host"
    KERNEL = "kernel"
    #: A pod's pause process, which holds the pod's namespaces and sleeps. One that ran is a container's.
    PAUSE = "pause"


#: What the kubelet's static policy keeps apart. Daemons and kernel threads it does not.
PODS = frozenset({Kind.VM, Kind.CONTAINER})
_GRAVITY = {kind: number for number, kind in enumerate(Kind)}


@dataclass(frozen=True)
class CpuOwner:
    """One entry of the status document's node.owners. `words` names it for a person."""

    sandbox: str
    container: str
    cpus: CpuSet
    vm: bool
    init: int | None = None
    cgroup: str = ""
    words: str = ""
    #: Of a pod that only the kubelet told of: its cgroup is named after it (pod1-2, and with systemd pod1_2.slice).
    uid: str = ""

    def owns(self, process: SampledProcess, sandbox: str | None) -> bool:
        """Whether a process is the owner's: every thread of the owning VM sandbox, else what is in the container's
        cgroup (probes and `kubectl exec` come in there, too). A VMM's cgroup is not asked: Kata may keep all of a
        node's in one."""
        if self.vm and sandbox == self.sandbox:
            return True
        if self.uid:
            return f"pod{self.uid}" in process.cgroup or f"pod{self.uid.replace('-', '_')}" in process.cgroup
        if not self.vm and (self.init == process.pid or _within(process.cgroup, self.cgroup)):
            return True
        return bool(self.container) and container_of(process.cgroup) == self.container


@dataclass(frozen=True)
class AuditFinding:
    """A process with threads that may run, or ran, on CPUs exclusive to others. `sandbox` or `container` says whose
    it is, as far as it belongs to one, and `words` names its pod (and container), "" where that is not known;
    `threads` are only those concerned, with those CPUs."""

    process: SampledProcess
    kind: Kind
    sandbox: str | None
    container: str | None
    threads: tuple[SampledThread, ...]
    owners: tuple[CpuOwner, ...]
    words: str = ""

    @property
    def may(self) -> CpuSet:
        return union(task.cpus for task in self.threads)

    @property
    def ran(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for task in self.threads:
            for cpu, spent in task.ran.items():
                found[cpu] = found.get(cpu, 0) + spent
        return dict(sorted(found.items()))

    @property
    def spent(self) -> int:
        return sum(sum(task.ran.values()) for task in self.threads)

    def data(self) -> dict[str, object]:
        return {
            "pid": self.process.pid, "comm": self.process.comm, "class": str(self.kind), "sandbox": self.sandbox,
            "container": self.container, "name": self.words, "cgroup": self.process.cgroup,
            "may": str(self.may),
            "seconds": _seconds(self.spent), "ran": _ran(self.ran), "owners": [owner.words for owner in self.owners],
            "threads": [{"tid": task.tid, "comm": task.comm, "may": str(task.cpus), "ran": _ran(task.ran)}
                        for task in self.threads]}


@dataclass
class Use:
    """What an exclusive CPU did, in nanoseconds by whom. `busy` is the kernel's own count, None if it was not read:
    what it holds more than the others is interrupts and what no sample met."""

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
        return {"cpu": self.cpu, "owners": [owner.words for owner in self.owners], "busy": _seconds(self.busy),
                "owner": _seconds(self.owner), "kernel_bound": _seconds(self.bound),
                "others": _seconds(self.others), "unseen": _seconds(self.unseen)}


@dataclass
class Judgement:
    """`contested` are CPUs with owners of more than one pod: there none of them is alone, though each is at home."""

    exclusive: CpuSet
    contested: CpuSet
    uses: list[Use] = field(default_factory=list)
    findings: list[AuditFinding] = field(default_factory=list)
    #: Processes left out as asked, by class.
    ignored: dict[Kind, int] = field(default_factory=dict)

    @property
    def alone(self) -> bool:
        return not self.findings and not self.contested

    @property
    def apart(self) -> bool:
        """Whether no other pod may run, or ran, on a pod's exclusive CPUs; the node's own processes may."""
        return not self.contested and not any(finding.kind in PODS for finding in self.findings)

    @property
    def ran(self) -> list[AuditFinding]:
        return [finding for finding in self.findings if finding.spent]

    def data(self) -> dict[str, object]:
        return {"alone": self.alone, "exclusive": str(self.exclusive), "contested": str(self.contested),
                "findings": [finding.data() for finding in self.findings],
                "cpus": [use.data() for use in self.uses],
                "ignored": {str(kind): count for kind, count in sorted(self.ignored.items())}}


def owners_of(document: Mapping[str, Any]) -> tuple[CpuOwner, ...]:
    """The owners in a status document. One that says not what it is is a VM when it is among the sandboxes."""
    sandboxes = {sandbox["id"]: sandbox for sandbox in document["sandboxes"]}
    found = []
    for entry in document["node"]["owners"]:
        sandbox = sandboxes.get(entry["sandbox"])
        kind = entry.get("kind") or ("runc" if sandbox is None else "vm")
        found.append(CpuOwner(entry["sandbox"], entry["container"], CpuSet.parse(entry["cpus"]), kind == "vm",
                           entry.get("init"), entry.get("cgroup") or "", _words(entry, sandbox),
                           entry["sandbox"] if kind == "unseen" else ""))
    return tuple(found)


def sandboxes_of(document: Mapping[str, Any]) -> dict[int, str]:
    """The sandbox of every thread, and of every VMM's process, that a status document lists."""
    found = {}
    for sandbox in document["sandboxes"]:
        for thread in sandbox["threads"]:
            found[thread["tid"]] = sandbox["id"]
        if sandbox["vmm"] is not None:
            found[sandbox["vmm"]["pid"]] = sandbox["id"]
    return found


def lasting(before: Sequence[CpuOwner], after: Sequence[CpuOwner]) -> tuple[tuple[CpuOwner, ...], CpuSet]:
    """The owners with those CPUs only that were theirs all the time, and the CPUs whose owners changed.

    A thread is not to blame for having run on a CPU before someone got it.
    """
    def by_cpu(owners: Iterable[CpuOwner]) -> dict[int, set[tuple[str, str]]]:
        found: dict[int, set[tuple[str, str]]] = {}
        for owner in owners:
            for cpu in owner.cpus:
                found.setdefault(cpu, set()).add((owner.sandbox, owner.container))
        return found

    then, now = by_cpu(before), by_cpu(after)
    changed = CpuSet(cpu for cpu in then.keys() | now.keys() if then.get(cpu) != now.get(cpu))
    kept = (CpuOwner(owner.sandbox, owner.container, owner.cpus - changed, owner.vm, owner.init, owner.cgroup,
                  owner.words, owner.uid) for owner in after)
    return tuple(owner for owner in kept if owner.cpus), changed


def judge(owners: Sequence[CpuOwner], sandboxes: Mapping[int, str], processes: Iterable[SampledProcess],
          busy: Mapping[int, int] | None = None, ignore: Collection[Kind] = (),
          names: PodNames | None = None) -> Judgement:
    """Who may run, and who did, on CPUs that are exclusive to others.

    A kernel thread bound to one CPU (ksoftirqd/3, migration/3, kworker/3:1, an interrupt's thread) is part of that
    CPU and no finding. PF_NO_SETAFFINITY does not tell it: kworker/u8:1 has that flag, and runs anywhere.

    :param sandboxes: a VM's sandbox by thread id.
    :param busy: nanoseconds each CPU was not idle; None when nothing was measured.
    :param names: of all pods of the node, as far as they are known.
    """
    names = names or PodNames()
    processes = list(processes)
    owners = _located(owners, processes)
    exclusive = union(owner.cpus for owner in owners)
    uses = {cpu: Use(cpu, tuple(owner for owner in owners if cpu in owner.cpus),
                     None if busy is None else busy.get(cpu)) for cpu in exclusive}
    made = Judgement(exclusive, CpuSet(
        use.cpu for use in uses.values() if len({owner.sandbox for owner in use.owners}) > 1), list(uses.values()))
    for process in processes:
        sandbox = next((sandboxes[task.tid] for task in process.tasks if task.tid in sandboxes), None)
        mine = union(owner.cpus for owner in owners if owner.owns(process, sandbox))
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
            concerned = _concerned(task, exclusive - mine)
            if concerned is not None and not bound:
                threads.append(concerned)
        if threads:
            finding = _finding(process, sandbox, threads, owners, names)
            if finding.kind in ignore:
                made.ignored[finding.kind] = made.ignored.get(finding.kind, 0) + 1
            else:
                made.findings.append(finding)
    made.findings.sort(key=_weight)
    return made


def _concerned(task: SampledThread, foreign: CpuSet) -> SampledThread | None:
    """The thread as far as others' CPUs are concerned, None when it has nothing to do with them."""
    may = task.cpus & foreign if task.alive else EMPTY
    ran = {cpu: spent for cpu, spent in task.ran.items() if cpu in foreign}
    return SampledThread(task.tid, task.comm, may, ran, task.alive) if may or ran else None


def _finding(process: SampledProcess, sandbox: str | None, threads: Sequence[SampledThread],
             owners: Sequence[CpuOwner],
             names: PodNames) -> AuditFinding:
    container = None
    if sandbox is not None:
        kind = Kind.VM
    elif process.kernel:
        kind = Kind.KERNEL
    else:
        container = container_of(process.cgroup)
        if container is None and process.contained:
            container = process.cgroup.rpartition("/")[2]
        kind = Kind.HOST if container is None else Kind.CONTAINER
        if (names.pauses_only(container_of(process.cgroup), process.comm, len(process.tasks))
                and not any(task.ran for task in threads)):
            kind = Kind.PAUSE
    there = union([*(task.cpus for task in threads), CpuSet(cpu for task in threads for cpu in task.ran)])
    return AuditFinding(process, kind, sandbox, container, tuple(threads),
                   tuple(owner for owner in owners if not owner.cpus.isdisjoint(there)),
                   names.name(sandbox, container, process.cgroup))


def _weight(finding: AuditFinding) -> tuple[int, int, int, int]:
    """What ran longest comes first, then what may run: by class and by CPU."""
    return -finding.spent, _GRAVITY[finding.kind], (finding.may.first if finding.may else 0), finding.process.pid


def _within(cgroup: str, above: str) -> bool:
    return bool(above) and (cgroup == above or cgroup.startswith(f"{above}/"))


def _located(owners: Iterable[CpuOwner], processes: Iterable[SampledProcess]) -> list[CpuOwner]:
    """Each container's cgroup is where its init is now: none of its own if that is the topmost, or it has ended."""
    cgroups = {process.pid: process.cgroup for process in processes}
    return [owner if owner.init is None else
            CpuOwner(owner.sandbox, owner.container, owner.cpus, owner.vm, owner.init, cgroups.get(owner.init, ""),
                  owner.words) for owner in owners]


def _words(entry: Mapping[str, Any], sandbox: Mapping[str, Any] | None) -> str:
    """`namespace/pod/container` when the names are known, else ids."""
    known = sandbox or entry
    name = next((each["name"] for each in known.get("containers", ()) if each["id"] == entry["container"]), "")
    container = name or entry.get("name") or brief(entry["container"])
    pod = entry.get("pod") or known.get("pod")
    if pod:
        return f"{pod['namespace']}/{pod['name']}" + (f"/{container}" if container else "")
    return f"{container} of {brief(entry['sandbox'])}" if container else f"pod {brief(entry['sandbox'])}"


def brief(name: str) -> str:
    """As much of a runtime's 64-digit id as people use; any other name whole."""
    return name[:13] if len(name) == 64 else name


def _ran(ran: Mapping[int, int]) -> list[dict[str, object]]:
    return [{"cpu": cpu, "seconds": _seconds(spent)} for cpu, spent in sorted(ran.items())]


def _seconds(spent: int | None) -> float | None:
    return None if spent is None else round(spent / 1e9, 6)
