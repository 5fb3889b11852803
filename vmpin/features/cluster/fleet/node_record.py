"""The NodePinnings of a cluster as they were read from the API server, and the state of each node by its own.

The schema holds for what is in one (config/helm/vmpin/crds), not that it makes sense: an object that cannot be read,
or is larger than a reporter writes it, is a record that shows that."""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from vmpin.bounded import checked_parse, checked_whole
from vmpin.cpuset import MAX_CPU
from vmpin.domain.pod_names import with_names
from vmpin.domain.terminal import number_of
from vmpin.features.cluster.kube.identifiers import POOLS, REGION, ZONE
from vmpin.features.cluster.kube.node_pinning import MAX_SIZE, REFRESH, size_of
from vmpin.features.cluster.kube.pod_pinning import PinState
from vmpin.features.cluster.kube.reported_node import CPUS, LONG, ContainerPinning, CpuCollision, text_of
from vmpin.named_tuple import NamedTuple

#: Bytes of a status as JSON beyond which it is not shown: no reporter writes half as much.
LARGEST = 2 * MAX_SIZE
#: The longest refresh (seconds) that is believed: with a longer one an object would never be stale.
LONGEST_REFRESH = 3600
_MOST = {"reasons": 16, "containers": 64, "collisions": 64, "vcpus": 1024, "sandboxes": 4096, "nodes": 128,
         "caches": 256}
_GOOD = frozenset(state.value for state in PinState if state.good)


class NodeHealth(enum.StrEnum):
    """What a node's object shows of it, the most urgent first."""

    MISSING = "missing"  #: No object, on a node that should have one.
    UNREADABLE = "unreadable"
    STALE = "stale"  #: Older than twice its refresh.
    NOT_READY = "not ready"  #: The watcher does not report, or a source that it needs is away.
    COLLISION = "collision"
    MISPLACED = "misplaced"  #: Threads are not where they belong.
    DEGRADED = "degraded"
    GOOD = "ok"

    @property
    def current(self) -> bool:
        """Whether the object shows its node's present state."""
        return self not in (self.MISSING, self.UNREADABLE, self.STALE, self.NOT_READY)


class PodLine(NamedTuple):
    """A pod in a VM. `state` is a PinState's value, or what a later version writes. `vcpus` are masks in the kernel by
    vCPU; `misplaced` counts threads, `put_back` repairs. With `cut` all from `handler` on was cut from the object."""

    namespace: str
    pod: str
    uid: str
    sandbox: str
    state: str
    verdict: str
    mask: str
    handler: str = ""
    reasons: tuple[str, ...] = ()
    misplaced: int = 0
    vcpus: Mapping[int, str] = MappingProxyType({})
    agent: str = ""
    guest: str = ""
    containers: tuple[ContainerPinning, ...] = ()
    put_back: int = 0
    cut: bool = False

    @property
    def title(self) -> str:
        """The pod's name; the sandbox's id where no source named it."""
        return f"{self.namespace}/{self.pod}" if self.pod else self.sandbox[:12]

    @property
    def good(self) -> bool:
        return self.state in _GOOD and not self.misplaced

    @property
    def reason(self) -> str:
        reasons = "its details were cut" if self.cut else "; ".join(self.reasons)
        wrong = [number_of(self.misplaced, "thread is misplaced")] * bool(self.misplaced)
        return "; ".join([*wrong, *([reasons] if reasons else [])])


class CpuLayout(NamedTuple):
    """CPU lists of NUMA nodes by number, of last-level caches, and of isolated CPUs."""

    nodes: Mapping[int, str] = MappingProxyType({})
    caches: tuple[str, ...] = ()
    isolated: str = ""


class NodeRecord(NamedTuple):
    """`observed` is the watcher's time (seconds, UTC), `labels` the node's zone, region and pool; `lost` counts pods
    that are not in place and were cut. An object that cannot be read has `name` and `unreadable` alone."""

    name: str
    labels: Mapping[str, str] = MappingProxyType({})
    observed: float = 0.0
    refresh: int = REFRESH
    ready: bool = False
    message: str = ""
    version: str = ""
    trouble: str = ""
    cpus: Mapping[str, str] = MappingProxyType({})
    layout: CpuLayout = CpuLayout()
    pinned: int = 0
    total: int = 0
    degraded: int = 0
    lost: int = 0
    pods: tuple[PodLine, ...] = ()
    collisions: tuple[CpuCollision, ...] = ()
    collision_count: int = 0
    cut: Mapping[str, int] = MappingProxyType({})
    unreadable: str = ""

    @property
    def hidden(self) -> int:
        """The number of pods that are not in place and whose misplaced threads are unknown."""
        return self.lost + sum(not pod.good and pod.cut for pod in self.pods)

    @property
    def compared(self) -> bool:
        """False where each of its pods in VMs is unmanaged: no thread was compared with a placement."""
        return len(self.pods) < self.total or not self.pods or any(
            pod.state != PinState.UNMANAGED for pod in self.pods)

    def age(self, now: float) -> float:
        """Seconds since it was observed; negative where its clock is ahead."""
        return now - self.observed

    def health(self, now: float) -> NodeHealth:
        """Return the health of a node that has an object."""
        if self.unreadable:
            return NodeHealth.UNREADABLE
        # As far ahead, the two clocks differ too much for an age.
        if abs(self.age(now)) > 2 * self.refresh:
            return NodeHealth.STALE
        if not self.ready:
            return NodeHealth.NOT_READY
        if self.collision_count:
            return NodeHealth.COLLISION
        if any(pod.misplaced for pod in self.pods):
            return NodeHealth.MISPLACED
        return NodeHealth.DEGRADED if self.degraded else NodeHealth.GOOD

    def within(self, namespace: str) -> NodeRecord:
        """Return the record with the pods of one namespace alone; "" for all. What was cut from the object still
        counts."""
        if not namespace:
            return self
        pods = tuple(pod for pod in self.pods if pod.namespace == namespace)
        ids = {key for pod in pods for key in (pod.sandbox, pod.uid) if key}
        collisions = tuple(collision for collision in self.collisions if ids.intersection(collision.sandboxes))
        return self._replace(pods=pods, collisions=collisions, collision_count=len(collisions), total=len(pods),
                             pinned=sum(pod.good for pod in pods),
                             degraded=sum(pod.state == PinState.DEGRADED for pod in pods))

    def attention(self) -> NodeRecord:
        """Return the record with as much as a table shows: without pods in place, and without their containers."""
        return self._replace(layout=CpuLayout(), pods=tuple(
            pod._replace(containers=(), vcpus=MappingProxyType({})) for pod in self.pods if not pod.good))


def record_of_pinning(item: Any) -> NodeRecord:
    """Read a NodePinning from its JSON. Raises nothing: an object that cannot be read is a record that shows that."""
    try:
        name = text_of(item["metadata"]["name"])
    except (KeyError, TypeError):
        return NodeRecord("?", unreadable="it has no name")
    try:
        size = size_of(item["status"])
        if size > LARGEST:
            return NodeRecord(name, unreadable=f"it is larger than any reporter writes it ({size >> 10} KiB)")
        return _record(name, item["metadata"].get("labels") or {}, item["status"])
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        return NodeRecord(name, unreadable=f"this version cannot read it: {text_of(repr(err))}")


def _record(name: str, labels: Mapping[str, object], status: Mapping[str, Any]) -> NodeRecord:
    pods = tuple(_pod(entry) for entry in status["sandboxes"][:_MOST["sandboxes"]])
    titles = {pod.sandbox: pod.title for pod in pods}
    collisions = tuple(_collision(entry, titles) for entry in (status.get("collisions") or ())[:_MOST["collisions"]])
    total, pinned = _count(status.get("total", len(pods))), _count(status.get("pinned", 0))
    cpus, cut = status.get("cpus") or {}, status.get("cut") or {}
    return NodeRecord(
        name, {key: text_of(labels[key]) for key in (ZONE, REGION, *POOLS) if labels.get(key)},
        _time(status["observedAt"]), min(max(1, _count(status["refreshSeconds"])), LONGEST_REFRESH),
        status["ready"] is True, text_of(status.get("message"), LONG), text_of(status.get("version")),
        text_of(status.get("trouble"), LONG),
        {key: text_of(cpus.get(key), CPUS) for key in ("online", "shared", "exclusive", "housekeeping")},
        _layout(status.get("topology") or {}), pinned, total, _count(status.get("degraded", 0)),
        max(0, total - pinned - sum(pod.state not in _GOOD for pod in pods)), pods, collisions,
        max(_count(status.get("collisionCount", 0)), len(collisions)),
        {key: _count(cut.get(key, 0)) for key in ("sandboxes", "details", "collisions")})


def _collision(entry: Mapping[str, Any], titles: Mapping[str, str]) -> CpuCollision:
    """A collision, with pods' titles in place of ids. :param titles: by sandbox id."""
    return CpuCollision(_count(entry["cpu"]), tuple(map(text_of, (entry.get("sandboxes") or ())[:4])),
                        with_names(text_of(entry["message"], LONG), titles))


def _pod(entry: Mapping[str, Any]) -> PodLine:
    line = PodLine(text_of(entry.get("namespace")), text_of(entry.get("pod")), text_of(entry.get("uid")),
                   text_of(entry["sandbox"]), text_of(entry["state"], 64), text_of(entry["verdict"], 64),
                   text_of(entry.get("mask"), CPUS), cut="reasons" not in entry)
    if line.cut:
        return line
    guest = entry.get("guest") or {}
    containers = tuple(ContainerPinning(
        text_of(container.get("name")), text_of(container.get("cpus"), CPUS), container.get("exclusive") is True,
        text_of(container.get("vcpus"), CPUS), text_of(container.get("guest")))
        for container in (entry.get("containers") or ())[:_MOST["containers"]])
    vcpus = {checked_parse(key, MAX_CPU): text_of(mask, CPUS) for key, mask in _pairs(entry.get("vcpus"), "vcpus")}
    return line._replace(
        handler=text_of(entry.get("handler")), reasons=_texts(entry["reasons"], "reasons", LONG),
        misplaced=_count(entry.get("misplaced", 0)), vcpus=vcpus, agent=text_of(guest.get("agent")),
        guest=text_of(guest.get("state")), containers=containers, put_back=_count(entry.get("putBack", 0)))


def _layout(topology: Mapping[str, Any]) -> CpuLayout:
    nodes = {checked_parse(key, MAX_CPU): text_of(cpus, CPUS) for key, cpus in _pairs(topology.get("nodes"), "nodes")}
    return CpuLayout(nodes, _texts(topology.get("caches") or (), "caches", CPUS),
                     text_of(topology.get("isolated"), CPUS))


def _pairs(entries: Any, key: str) -> list[tuple[str, object]]:
    return [(text[:9], value) for text, value in list((entries or {}).items())[:_MOST[key]]]


def _time(text: str) -> float:
    """Parse a time with its offset from UTC. :raises ValueError: it is no such time from 1970 to 9998."""
    time = datetime.fromisoformat(text)
    if time.tzinfo is None or not 1970 < time.year < 9999:
        raise ValueError(f"{text!r} is no time with a time zone")
    return time.timestamp()


def _count(value: object) -> int:
    """A whole number from 0, below 2^32. :raises ValueError: for anything else."""
    return checked_whole(value, (1 << 32) - 1)


def _texts(values: Sequence[object], key: str, most: int) -> tuple[str, ...]:
    return tuple(text_of(value, most) for value in values[:_MOST[key]])


_ORDER = {health: place for place, health in enumerate(NodeHealth)}
_DIGITS = re.compile(r"([0-9]+)")


class FleetNode(NamedTuple):
    """`record` has the name alone where the object is missing."""

    record: NodeRecord
    health: NodeHealth

    @property
    def judged(self) -> bool:
        """Whether the object shows of each thread whether it is on its CPUs."""
        return self.health.current and not self.record.hidden and self.record.compared


class Fleet(NamedTuple):
    """As of `time` (seconds, UTC). `unknown` is the refusal that hides which nodes should have an object; `unchecked`
    the reason where nothing was refused and the cluster does not show it. "" for none."""

    time: float
    nodes: tuple[FleetNode, ...]
    unknown: str = ""
    unchecked: str = ""

    @property
    def counts(self) -> Mapping[NodeHealth, int]:
        counts = Counter(node.health for node in self.nodes)
        return {health: counts[health] for health in NodeHealth if counts[health]}

    @property
    def verdict(self) -> int:
        """The exit code of `vmpin verify`: 3 where the check was impossible for any node, 1 where threads are
        misplaced or CPUs collide, else 0."""
        if self.unknown or not all(node.judged for node in self.nodes):
            return 3
        return int(any(node.record.collision_count or any(pod.misplaced for pod in node.record.pods)
                       for node in self.nodes))


def fleet_of(records: Iterable[NodeRecord], expected: Iterable[str], time: float, unknown: str = "",
             unchecked: str = "") -> Fleet:
    """Judge the records, and add the expected nodes that have none; the nodes that need attention first.
    :param expected: names of nodes that should have an object. :param time: now, in seconds."""
    nodes = [FleetNode(record, record.health(time)) for record in records]
    missing = set(expected) - {node.record.name for node in nodes}
    nodes += [FleetNode(NodeRecord(name), NodeHealth.MISSING) for name in missing]
    nodes.sort(key=lambda node: (_ORDER[node.health], natural_order(node.record.name)))
    return Fleet(time, tuple(nodes), unknown, unchecked)


def natural_order(name: str) -> list[tuple[int, str]]:
    """A key that sorts node-2 before node-10."""
    return [(len(part) * (place % 2), part) for place, part in enumerate(_DIGITS.split(name))]
