"""NodeResourceTopology (topology.node.k8s.io/v1alpha2): a node's NUMA zones, as topology-aware schedulers read them.

NFD, nri-plugins and koordlet write it, too, and its lists of zones and attributes are atomic: one manager has them
whole, and another that writes them takes them over (manifests/crd.yaml has no list types). So vmpin reads it before
each write, and writes zones only while managedFields names no other writer of zones.
Readers take zones `node-N` of type Node, and of a resource what is `available` (scheduler-plugins
pkg/noderesourcetopology). Memory is left out: the watcher does not see how much of a zone's is free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vmpin.bounded import checked_whole, parse_whole
from vmpin.cpuset import MAX_CPU, CpuSet
from vmpin.domain.terminal import printable
from vmpin.features.cluster.kube.api_request import ApiRequest, Refusals, apply, checked
from vmpin.features.cluster.kube.cluster_node import ClusterNode
from vmpin.features.cluster.kube.identifiers import MANAGER
from vmpin.features.cluster.kube.node_pinning import REFRESH
from vmpin.features.cluster.kube.reported_node import NodePart
from vmpin.named_tuple import NamedTuple

_API = "topology.node.k8s.io/v1alpha2"
#: Between two writes (seconds).
PAUSE = 5.0
#: The attributes that readers support (nodeconfig/topologymanager.go), with the values that the kubelet has.
_ATTRIBUTES = {"topologyManagerPolicy": ("none", "best-effort", "restricted", "single-numa-node"),
               "topologyManagerScope": ("container", "pod")}


class Zone(NamedTuple):
    """A NUMA node: its online CPUs, and of these those for containers, and those that a container can still get as its
    own."""

    number: int
    online: CpuSet
    allocatable: CpuSet
    available: CpuSet
    costs: Mapping[int, int]

    @property
    def name(self) -> str:
        return f"node-{self.number}"


class TopologyRecord(NamedTuple):
    """The object as the API server has it. `writers` are the other managers that have zones; `own` is whether vmpin
    has zones, `applied` whether it has any field by an apply."""

    name: str
    uid: str
    version: str
    zones: object
    attributes: object
    writers: tuple[str, ...]
    own: bool
    applied: bool


def topology_path(node: str = "") -> str:
    path = f"/apis/{_API}/noderesourcetopologies"
    return f"{path}/{checked(node)}" if node else path


def topology_of(item: Mapping[str, Any]) -> TopologyRecord:
    """Read a NodeResourceTopology from its JSON. :raises ValueError: it is none."""
    try:
        meta = item["metadata"]
        managers = meta.get("managedFields") or ()
        zones = {str(manager["manager"]) for manager in managers if "f:zones" in (manager.get("fieldsV1") or {})}
        return TopologyRecord(
            meta["name"], meta["uid"], meta["resourceVersion"], item.get("zones"), item.get("attributes"),
            tuple(printable(manager[:128]) for manager in sorted(zones - {MANAGER})), MANAGER in zones,
            any(manager["manager"] == MANAGER and manager.get("operation") == "Apply" for manager in managers))
    except (KeyError, TypeError, AttributeError) as err:
        raise ValueError(f"is no NodeResourceTopology: {err!r}") from err


def zones_of(part: NodePart) -> tuple[Zone, ...]:
    """() where the report has no NUMA nodes, or a text that is no CPU list: nothing is guessed.

    Where the watcher gives out the CPUs, `allocatable` and `available` are those of its ledger, as under the kubelet's
    policy `none` the kubelet's PodResources lists none. `available` is what a further container could get as its own:
    no exclusive CPUs (a stopped container's until its pod ends), none of a group, and none of a fixed grant. The
    latter stay in the shared pool, but become exclusive to no other container: a scheduler that counted them would
    send here a pod that is refused. What shared containers request is not subtracted, as under the static policy."""
    try:
        online, exclusive, reserved = map(CpuSet.parse, (
            part.online, part.exclusive, part.kubelet.get("reservedSystemCPUs", "")))
        allocatable, available = (online - reserved, online - reserved - exclusive) if part.allocator is None else (
            CpuSet.parse(part.allocator.allocatable), CpuSet.parse(part.allocator.free))
        nodes = {number: CpuSet.parse(cpus) & online for text, cpus in part.topology["nodes"].items()
                 if (number := parse_whole(text, MAX_CPU)) is not None}
        rows = {number: {other: checked_whole(far, MAX_CPU) for text, far in row.items()
                         if (other := parse_whole(text, MAX_CPU)) in nodes and other is not None}
                for node, row in part.topology.get("distances", {}).items()
                if (number := parse_whole(node, MAX_CPU)) is not None}
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()
    return tuple(Zone(number, own, own & allocatable, own & allocatable & available, rows.get(number, {}))
                 for number, own in sorted(nodes.items()))


def zone_data(zone: Zone) -> dict[str, object]:
    """A zone of the object. Numbers of CPUs; `allocatable` is without those that the kubelet or the allocator reserves
    by number, `available` also without those that a container owns."""
    cpu = {"name": "cpu", "capacity": str(len(zone.online)), "allocatable": str(len(zone.allocatable)),
           "available": str(len(zone.available))}
    costs = [{"name": f"node-{other}", "value": far} for other, far in sorted(zone.costs.items())]
    return {"name": zone.name, "type": "Node", **({"costs": costs} if costs else {}), "resources": [cpu]}


def attributes_of(part: NodePart) -> list[dict[str, str]]:
    """Return the topology manager's attributes that the kubelet's configuration sets. One that is missing has the
    kubelet's default, or is unknown."""
    return [{"name": key, "value": part.kubelet[key]} for key, values in _ATTRIBUTES.items()
            if part.kubelet.get(key) in values]


def zones_update(node: ClusterNode, part: NodePart, zones: tuple[Zone, ...],
                 record: TopologyRecord | None) -> ApiRequest | None:
    """The apply that makes zones and attributes vmpin's own, not forced: the API server refuses it (409) where another
    manager has any of them. None where the object has them already."""
    attributes, data = attributes_of(part), [zone_data(zone) for zone in zones]
    if record is not None and record.own and (record.zones, record.attributes or []) == (data, attributes):
        return None
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
    return _applied(node.name, record, {"ownerReferences": [owner]}, attributes=attributes, zones=data)


def topology_withdrawal(record: TopologyRecord) -> ApiRequest | None:
    """Delete the object if its zones are vmpin's alone, and unless it has changed since it was read; of another
    program's object remove what vmpin wrote."""
    if record.own and not record.writers:
        return ApiRequest("DELETE", topology_path(record.name), {
            "apiVersion": "v1", "kind": "DeleteOptions",
            "preconditions": {"uid": record.uid, "resourceVersion": record.version}})
    return _applied(record.name, record, {}) if record.applied and record.writers else None


def _applied(name: str, record: TopologyRecord | None, meta: Mapping[str, object], **parts: object) -> ApiRequest:
    uid = {} if record is None else {"uid": record.uid}
    return apply(topology_path(name), {"apiVersion": _API, "kind": "NodeResourceTopology",
                                       "metadata": {"name": name, **uid, **meta}, **parts}, force=False)


class TopologyAgenda:
    """When the object of one node is read and written: at each change of what it shows, and at each refresh. Pure.
    :ivar note: what is written, or why nothing is; "" while that is unknown."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self.note = ""
        self._record: TopologyRecord | None = None
        self._fresh = False  #: Whether the record was read since the last write or decision.
        self._decided: tuple[object, ...] = ()  #: (node uid, zones, attributes) that need no further write.
        self._refusals = Refusals()
        self._until = self._paused = 0.0  #: Until when `_decided` holds, and until when nothing is sent.

    def due(self, node: ClusterNode, part: NodePart, now: float) -> ApiRequest | None:
        """The next request; None for none now. The caller reports its result with `done`, and calls this again."""
        if not self._wanted or now < self._paused:
            return None
        zones = zones_of(part)
        content = node.uid, zones, attributes_of(part)
        trouble = part.trouble or ("" if part.allocator is None else part.allocator.why)
        if trouble or not zones:  # which CPUs have an owner may be unknown
            self.note, self._decided = f"not written: {trouble or 'the watcher reports no NUMA nodes'}", ()
            return None
        if content == self._decided and now < self._until:
            return None
        if not self._fresh:
            return ApiRequest("GET", topology_path(node.name))
        self._fresh, self._decided, self._until = False, content, now + REFRESH
        request = None if self._writers else zones_update(node, part, zones, self._record)
        if request is None:
            self.note = self._outcome()
            self._refusals.count = 0
        return request

    def done(self, request: ApiRequest, status: int, answer: Mapping[str, Any], now: float) -> str:
        """Take in the result of a request. :returns: a sentence for the log about a new reason why zones are not
        written, else ""."""
        before, reads = self.note, request.method == "GET"
        try:
            if reads:
                self._record = topology_of(answer) if status == 200 else None
            refused = "" if 200 <= status < 300 or (reads and status == 404) else _REFUSED.get(
                status, f"not written: refused ({status})")
        except ValueError as err:
            refused = f"not written: the object at the API server {err}"
        self._fresh = reads and not refused
        if status == 403 or (reads and refused):
            self._until = self._paused = now + self._refusals.pause()
        else:
            self._paused = 0.0 if self._fresh else now + PAUSE
        blocked = bool(self._writers)
        if not refused and not reads:
            self._refusals.count = 0
        if refused or blocked or not reads:
            self.note = refused or self._outcome()
        return f"NodeResourceTopology: {self.note}" if (refused or blocked) and self.note != before else ""

    @property
    def _writers(self) -> tuple[str, ...]:
        return () if self._record is None else self._record.writers

    def _outcome(self) -> str:
        """`note` after a request that was not refused."""
        writers = self._writers
        return f"not written: zones are written by {', '.join(writers[:4])}" if writers else "own zones"

    def next_due(self, now: float) -> float:
        """Seconds until something may be due without anything new."""
        ends = [end - now for end in (self._paused, self._until) if end > now]
        return min(ends, default=float(REFRESH))


_REFUSED = {403: "not written: it is not permitted (RBAC, or the policy for the node)",
            404: "not written: there is no such object, or the cluster does not have its kind",
            409: "not written: another program has changed it"}
