"""The CPUs of other nodes: the map of one by its NodePinning, and a sign for each CPU of many.

A NodePinning names no SMT siblings, and of a VM's threads the vCPUs alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from vmpin.cpuset import CpuSet, union
from vmpin.domain.terminal import number_of
from vmpin.domain.topology import Topology
from vmpin.features.cluster.fleet.fleet_views import STYLES
from vmpin.features.cluster.fleet.node_record import Fleet, FleetNode, NodeRecord
from vmpin.features.cluster.kube.pod_pinning import backed_cpus, cpus, exclusive_cpus, timestamp

#: Texts, each with the name of a style.
Line = list[tuple[str, str]]
#: CPUs of a node from which on it is drawn by itself alone.
MANY = 1024
SIGNS = (("#", "exclusive to a pod in a VM, with a vCPU pinned to it"), ("o", "the same, without one"),
         ("+", "exclusive to another container"), ("·", "shared pool"), ("-", "free"),
         ("!", "collision"))
_STYLES = {"#": "green", "o": "yellow", "!": "bold white on red", "·": "dim", "-": "dim"}


def map_parts(record: NodeRecord) -> tuple[dict[str, Any], Topology]:
    """A node for `vmpin map`: (its part of a status document, its topology). Texts that are no CPU lists count as
    empty; groups that contradict each other are left out."""
    online = cpus(record.cpus.get("online", ""))
    layout = record.layout
    try:
        topology = Topology.build(online, caches=(cpus(text) & online for text in layout.caches),
                                  nodes={node: cpus(text) & online for node, text in layout.nodes.items()},
                                  isolated=cpus(layout.isolated) & online)
    except ValueError:
        topology = Topology.build(online)
    exclusive = cpus(record.cpus.get("exclusive", "")) & online
    sandboxes, owners = [], []
    for pod in record.pods:
        details = pod.details
        named = {"namespace": pod.namespace or "?", "name": pod.pod or pod.sandbox[:12]}
        masks = {} if details is None else {vcpu: cpus(text) & online for vcpu, text in details.vcpus.items()}
        sandboxes.append({"id": pod.sandbox, "pod": named, "vmm": {}, "verdict": pod.state, "mask": pod.mask,
                          "containers": [], "threads": [{"vcpu": vcpu, "role": "vcpu", "actual": str(mask)}
                                                        for vcpu, mask in masks.items() if mask]})
        for container in () if details is None else details.containers:
            own = cpus(container.cpus) & online if container.exclusive else cpus("")
            exclusive -= own
            owners.append({"sandbox": pod.sandbox, "container": container.name, "name": container.name, "kind": "vm",
                           "cpus": str(own), "pod": named})
    if exclusive:
        owners.append({"sandbox": "", "container": "", "name": "containers that are in no VM shown here",
                       "kind": "other", "cpus": str(exclusive), "pod": {"namespace": record.name, "name": ""}})
    node: dict[str, Any] = {key: str(cpus(record.cpus.get(source, "")) & online) for key, source in (
        ("online", "online"), ("shared_pool", "shared"), ("exclusive", "exclusive"),
        ("housekeeping", "housekeeping"))}
    return {"node": {**node, "owners": owners, "collisions": [
        {"cpu": collision.cpu, "what": collision.message} for collision in record.collisions]}, "sandboxes": sandboxes,
        "time": f"{record.name}, {timestamp(record.observed)}"}, topology


def strips(fleet: Fleet, width: int) -> Iterator[Line]:
    """A line for each NUMA node of each node, wrapped to `width` columns."""
    yield [("; ".join(f"{sign} {meaning}" for sign, meaning in SIGNS), "dim")]
    longest = max((len(node.record.name) for node in fleet.nodes), default=0)
    for node in fleet.nodes:
        head = f"{node.record.name.ljust(longest)}  {node.health.value:10}"
        style = STYLES[node.health]
        for text, line in _strips(node, max(8, width - len(head) - 6)):
            yield [(head, style), (f"{text:>4}  ", "dim"), *line]
            head, style = " " * len(head), ""


def _strips(node: FleetNode, width: int) -> Iterator[tuple[str, Line]]:
    """(the NUMA node or "", the signs of its CPUs), a line each."""
    record = node.record
    online = cpus(record.cpus.get("online", ""))
    if not online or len(online) > MANY:
        many = f"{number_of(len(online), 'CPU')}: --node draws them"
        yield "", [(many if online else "nothing is known of its CPUs", "")]
        return
    signs = _signs(record, online)
    caches = sorted((cpus(text) & online for text in record.layout.caches), key=lambda group: list(group)[:1])
    rest = online
    for name, text in [*((str(number), text) for number, text in sorted(record.layout.nodes.items())),
                       ("none" if record.layout.nodes else "", str(online))]:
        members = cpus(text) & rest
        rest -= members
        left = " ".join("".join(signs[cpu] for cpu in group) for group in _groups(members, caches))
        while left:
            yield name, [("".join(run), _STYLES.get(sign, "")) for sign, run in groupby(left[:width])]
            name, left = "", left[width:]


def _signs(record: NodeRecord, online: CpuSet) -> dict[int, str]:
    """Return the sign of each CPU; a later part overrides an earlier one."""
    details = [pod.details for pod in record.pods if pod.details is not None]
    own = union(exclusive_cpus(pod.containers) for pod in details)
    backed = union(backed_cpus(pod.vcpus.values(), pod.containers) for pod in details)
    parts = ((online, "-"), (cpus(record.cpus["shared"]), "·"), (cpus(record.cpus["exclusive"]), "+"), (own, "o"),
             (backed, "#"))
    signs = {cpu: sign for part, sign in parts for cpu in part & online}
    return signs | {collision.cpu: "!" for collision in record.collisions}


def _groups(members: CpuSet, caches: Iterable[CpuSet]) -> Iterator[CpuSet]:
    """A NUMA node's CPUs by last-level cache, as far as these are known."""
    for cache in caches:
        if cache & members:
            yield cache & members
            members -= cache
    if members:
        yield members
