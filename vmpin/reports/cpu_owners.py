"""The owners of exclusive CPUs, from the status document, with the processes that belong to them.

Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vmpin.cpuset import CpuSet
from vmpin.domain.terminal import pod_name, short_id
from vmpin.residency.usage import SampledProcess, container_of


@dataclass(frozen=True)
class CpuOwner:
    """One entry of the status document's node.owners. `label` is its name for people."""

    sandbox: str
    container: str
    cpus: CpuSet
    vm: bool
    init: int | None = None
    cgroup: str = ""
    label: str = ""
    #: Uid of a pod that only the kubelet reported: its cgroup is named after it (pod1-2, with systemd pod1_2.slice).
    uid: str = ""
    #: Of a group: its containers' ids and their sandboxes.
    members: frozenset[str] = frozenset()

    def owns(self, process: SampledProcess, sandbox: str | None) -> bool:
        """True if a process is the owner's: a process of the owning VM sandbox, else one in the container's cgroup
        (also probes and `kubectl exec`). A VMM's cgroup does not count: Kata may keep all VMMs of a node in one."""
        if (self.vm and sandbox == self.sandbox) or sandbox in self.members:
            return True
        if self.members:
            return container_of(process.cgroup) in self.members
        if self.uid:
            return f"pod{self.uid}" in process.cgroup or f"pod{self.uid.replace('-', '_')}" in process.cgroup
        if not self.vm and (self.init == process.pid or (
                self.cgroup and f"{process.cgroup}/".startswith(f"{self.cgroup}/"))):
            return True
        return bool(self.container) and container_of(process.cgroup) == self.container

    def data(self) -> dict[str, str]:
        return {"sandbox": self.sandbox, "container": self.container, "cpus": str(self.cpus),
                "kind": "vm" if self.vm else "runc", "name": self.label}


def owners_of(document: Mapping[str, Any]) -> tuple[CpuOwner, ...]:
    """The owners in a status document. An owner without a kind is a VM if it is among the sandboxes."""
    sandboxes = {sandbox["id"]: sandbox for sandbox in document["sandboxes"]}
    found = []
    for entry in document["node"]["owners"]:
        sandbox = sandboxes.get(entry["sandbox"])
        kind = entry.get("kind") or ("runc" if sandbox is None else "vm")
        found.append(CpuOwner(entry["sandbox"], entry["container"], CpuSet.parse(entry["cpus"]), kind == "vm",
                              entry.get("init"), entry.get("cgroup") or "", _label(entry, sandbox),
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
    """(the owners with the CPUs that were theirs all the time, the CPUs that changed owners).

    A thread may have run on such a CPU before the new owner got it.
    """
    def by_cpu(owners: Iterable[CpuOwner]) -> dict[int, set[tuple[str, str]]]:
        found: dict[int, set[tuple[str, str]]] = {}
        for owner in owners:
            for cpu in owner.cpus:
                found.setdefault(cpu, set()).add((owner.sandbox, owner.container))
        return found

    then, now = by_cpu(before), by_cpu(after)
    changed = CpuSet(cpu for cpu in then.keys() | now.keys() if then.get(cpu) != now.get(cpu))
    kept = (replace(owner, cpus=owner.cpus - changed) for owner in after)
    return tuple(owner for owner in kept if owner.cpus), changed


def located(owners: Iterable[CpuOwner], processes: Iterable[SampledProcess]) -> list[CpuOwner]:
    """The owners with the current cgroup of each container's init: "" if that is the topmost, or if init has ended."""
    cgroups = {process.pid: process.cgroup for process in processes}
    return [owner if owner.init is None else replace(owner, cgroup=cgroups.get(owner.init, "")) for owner in owners]


def _label(entry: Mapping[str, Any], sandbox: Mapping[str, Any] | None) -> str:
    """`namespace/pod/container` if the names are known, else ids."""
    source = sandbox or entry
    name = next((each["name"] for each in source.get("containers", ()) if each["id"] == entry["container"]), "")
    container = name or entry.get("name") or short_id(entry["container"])
    pod = entry.get("pod") or source.get("pod")
    if pod:
        return pod_name(pod) + (f"/{container}" if container else "")
    return f"{container} of {short_id(entry['sandbox'])}" if container else f"pod {short_id(entry['sandbox'])}"
