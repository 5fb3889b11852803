"""The pods of a node, their exclusive CPUs and threads, from the status document.

Pure. Made once for each document; what is costly is looked up once and kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.pod_names import names_of, with_names
from vmpin.domain.terminal import pod_name, short_id
from vmpin.feature import notes_on_cpus
from vmpin.features.common.cpu_owner import CpuOwner
from vmpin.features.isolation.others import changed_cpus, owned_by_cpu, owners_of, owns, sandboxes_of
from vmpin.features.isolation.process_pods import ProcessPods
from vmpin.features.isolation.top.thread_intervals import ProcessInterval
from vmpin.features.isolation.usage import container_of
from vmpin.named_tuple import NamedTuple

#: Of a container in its guest, the most urgent first; then whatever else there is.
_GUEST = ("error", "left alone", "no agent", "pending", "sent", "applied")
#: Verdicts with nothing to look at.
_CALM = ("pinned", "floating")


class DescribedPod(NamedTuple):
    """A pod with a VM, or one with exclusive CPUs. `verdict` is "" without a VM. `exclusive` are the CPUs of its
    containers that are theirs alone, `shared` the rest of its mask; `drift` how many threads were put back, and `why`
    the last time; `guest` the most urgent state of its containers in the guest, "" for none."""

    id: str
    title: str
    kind: str
    exclusive: CpuSet = EMPTY
    shared: CpuSet = EMPTY
    verdict: str = ""
    reasons: tuple[str, ...] = ()
    drift: int = 0
    why: str = ""
    guest: str = ""
    in_place: tuple[int, int] = (0, 0)
    threads: tuple[Mapping[str, Any], ...] = ()
    namespace: str = ""
    name: str = ""

    @property
    def calm(self) -> bool:
        return not self.verdict or self.verdict in _CALM


@dataclass(frozen=True)
class NodeDescription:
    """`owned`: the owners of each exclusive CPU. `changed`: CPUs that changed owners since the description before;
    what ran there does not count for the new owners. `document` is what all of it was made from, `notes`
    are those of features on its exclusive CPUs."""

    document: Mapping[str, Any]
    pods: tuple[DescribedPod, ...]
    owners: tuple[CpuOwner, ...]
    owned: Mapping[int, Sequence[CpuOwner]]
    by_tid: Mapping[int, str]
    names: ProcessPods
    by_container: Mapping[str, str]
    collisions: tuple[str, ...]
    titles: Mapping[str, str]
    changed: CpuSet = EMPTY
    notes: Mapping[int, Sequence[str]] = field(default_factory=dict)
    #: What was looked up for a process outside VMs, by pid and cgroup.
    _pods: dict[tuple[int, str], str | None] = field(default_factory=dict, compare=False)
    _cpus: dict[tuple[int, str, str | None], frozenset[int]] = field(default_factory=dict, compare=False)

    def sandbox_of(self, process: ProcessInterval) -> str | None:
        """The VM sandbox of a process; None for none."""
        sandbox = self.by_tid.get(process.pid)
        if sandbox is not None:
            return sandbox
        return next((self.by_tid[thread.tid] for thread in process.threads if thread.tid in self.by_tid), None)

    def pod_of(self, process: ProcessInterval) -> str | None:
        """The pod, as `DescribedPod.id`, of a process outside VMs."""
        if process.kernel:
            return None
        key = process.pid, process.cgroup
        if key not in self._pods:
            self._pods[key] = self.by_container.get(container_of(process.cgroup) or "") or next(
                (owner.sandbox for owner in self.owners if not owner.vm and owns(owner, process, None)), None)
        return self._pods[key]

    def cpus_of(self, process: ProcessInterval, sandbox: str | None) -> frozenset[int]:
        """The exclusive CPUs that are the process's own."""
        key = (process.pid if sandbox is None else 0), process.cgroup, sandbox
        if key not in self._cpus:
            self._cpus[key] = union(owner.cpus for owner in self.owners if owns(owner, process, sandbox)).frozen()
        return self._cpus[key]

    def label_of(self, process: ProcessInterval, sandbox: str | None) -> str:
        """Its pod or container; else the unit or cgroup, "kernel", or "host"."""
        if process.kernel and sandbox is None:
            return "kernel"
        if sandbox is not None:
            return self.titles.get(sandbox) or short_id(sandbox)
        name = self.names.name(None, container_of(process.cgroup), process.cgroup)
        if name:
            return name
        return short_id(process.cgroup.rpartition("/")[2]) or "host"


def describe(document: Mapping[str, Any], before: NodeDescription | None = None) -> NodeDescription:
    """Derive from a status document what the view shows of a node. :param document: with the part `pods`."""
    owners = owners_of(document)
    owned = owned_by_cpu(owners)
    pods = document.get("pods", ())
    names, labels = ProcessPods.of(pods), names_of(document)
    by_container = {container["id"]: entry["sandbox"] for entry in pods for container in entry["containers"]}
    collisions = tuple(f"CPU {collision['cpu']}: {with_names(collision['what'], labels)}"
                       for collision in document["node"].get("collisions", ()))
    described = _pods(document, owners)
    return NodeDescription(document, described, owners, owned, sandboxes_of(document), names, by_container,
                           collisions, {pod.id: pod.title for pod in described},
                           EMPTY if before is None else changed_cpus(before.owned, owned), notes_on_cpus(document))


def _pods(document: Mapping[str, Any], owners: tuple[CpuOwner, ...]) -> tuple[DescribedPod, ...]:
    exclusive: dict[str, CpuSet] = {}
    for owner in owners:
        exclusive[owner.sandbox] = exclusive.get(owner.sandbox, EMPTY) | owner.cpus
    pods = {sandbox["id"]: _vm(sandbox, exclusive.get(sandbox["id"], EMPTY)) for sandbox in document["sandboxes"]}
    for entry in document["node"]["owners"]:
        id = entry["sandbox"]
        if id not in pods:
            kind = {"unseen": "kubelet"}.get(entry.get("kind") or "runc", entry.get("kind") or "runc")
            pod = entry.get("pod")
            pods[id] = _named(DescribedPod(id, pod_name(pod, short_id(id)), kind, exclusive[id]), pod)
    titles = Counter(pod.title for pod in pods.values())
    return tuple(pod if titles[pod.title] == 1 else pod._replace(title=f"{pod.title} ({short_id(pod.id)})")
                 for pod in pods.values())


def _vm(sandbox: Mapping[str, Any], exclusive: CpuSet) -> DescribedPod:
    drift, threads = sandbox["drift"], sandbox["threads"]
    return _named(DescribedPod(
        sandbox["id"], pod_name(sandbox["pod"], short_id(sandbox["id"])), "vm", exclusive,
        CpuSet.parse(sandbox["mask"] or "") - exclusive, sandbox["verdict"], tuple(sandbox["reasons"]),
        0 if drift is None else sum(drift["repairs"].values()), "" if drift is None else drift["why"],
        _guest(sandbox), (sum(thread["ok"] for thread in threads), len(threads)), tuple(threads)),
        sandbox["pod"])


def _named(described: DescribedPod, pod: Mapping[str, Any] | None) -> DescribedPod:
    return described if pod is None else described._replace(namespace=pod["namespace"], name=pod["name"])


def _guest(sandbox: Mapping[str, Any]) -> str:
    states = {container["guest"]["state"] for container in sandbox["containers"]
              if container["guest"] is not None and not container["pause"]}
    return next((state for state in (*_GUEST, *sorted(states)) if state in states), "")

