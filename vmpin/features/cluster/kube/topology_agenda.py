"""When the node's NodeResourceTopology is read and written: at each change of what it shows, and at each refresh.

It is read before each write, as another program may write zones at any time. Pure state of one node: it is given what
is so and how requests ended, as the agenda is, which calls it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vmpin.features.cluster.kube.api_request import ApiRequest
from vmpin.features.cluster.kube.cluster_node import ClusterNode
from vmpin.features.cluster.kube.node_pinning import REFRESH
from vmpin.features.cluster.kube.node_topology import (
    TopologyMode,
    TopologyRecord,
    Zone,
    annotation_of,
    annotation_update,
    attributes_of,
    topology_of,
    topology_path,
    zones_of,
    zones_update,
)
from vmpin.features.cluster.kube.refusals import Refusals
from vmpin.features.cluster.kube.reported_node import NodePart

#: Between two writes (seconds).
PAUSE = 5.0


class TopologyAgenda:
    """:ivar note: what is written, or why nothing is; "" while that is unknown."""

    def __init__(self, mode: TopologyMode) -> None:
        self._mode = mode
        self.note = ""
        self._record: TopologyRecord | None = None
        self._fresh = False  #: Whether the record was read since the last write or decision.
        self._decided: tuple[object, ...] = ()  #: What is written, or was decided not to be.
        self._refusals = Refusals()
        self._until = self._paused = 0.0  #: Until when that counts, and until when nothing is sent: steady clock.

    def due(self, node: ClusterNode, found: NodePart, now: float) -> ApiRequest | None:
        """The next request. The caller reports how it ended with `done`, and asks again."""
        if self._mode is TopologyMode.OFF or now < self._paused:
            return None
        zones = zones_of(found)
        wanted = node.uid, zones, attributes_of(found)
        trouble = found.trouble or ("" if found.allocator is None else found.allocator.why)
        if trouble or not zones:  # which CPUs have an owner may be unknown
            self.note, self._decided = f"not written: {trouble or 'the watcher reports no NUMA nodes'}", ()
            return None
        if wanted == self._decided and now < self._until:
            return None
        if not self._fresh:
            return ApiRequest("GET", topology_path(node.name))
        self._fresh, self._decided, self._until = False, wanted, now + REFRESH
        request = self._change(node, found, zones)
        if request is None:
            self.note = self._judged()
            self._refusals.count = 0
        return request

    def _change(self, node: ClusterNode, found: NodePart, zones: tuple[Zone, ...]) -> ApiRequest | None:
        record, own = self._record, self._mode is TopologyMode.OWN
        others = record is not None and bool(record.writers)
        annotation = annotation_of(zones) if others and not own else None
        if record is not None and record.annotation != annotation:
            if own:  # it is of another setting; the zones come next
                self._decided = ()
            return annotation_update(record.name, annotation)
        return zones_update(node, found, zones, record) if own and not others else None

    def done(self, request: ApiRequest, status: int, answer: Mapping[str, Any], now: float) -> str:
        """Record the outcome of a request. Returns a sentence for the log where it is the first that something
        prevents the writing, else ""."""
        before, reads = self.note, request.method == "GET"
        try:
            if reads:
                self._record = topology_of(answer) if status == 200 else None
            refused = "" if 200 <= status < 300 or (reads and status == 404) else _REFUSED.get(
                status, f"not written: refused ({status})")
        except ValueError as err:
            refused = f"not written: what is there {err}"
        self._fresh = reads and not refused
        if status == 403 or (reads and refused):
            self._until = self._paused = now + self._refusals.pause()
        else:
            self._paused = 0.0 if self._fresh else now + PAUSE
        blocked = self._mode is TopologyMode.OWN and self._record is not None and bool(self._record.writers)
        if not refused and not reads:
            self._refusals.count = 0
        if refused or blocked or not reads:
            self.note = refused or self._judged()
        return f"NodeResourceTopology: {self.note}" if (refused or blocked) and self.note != before else ""

    def _judged(self) -> str:
        writers = () if self._record is None else self._record.writers
        if self._mode is TopologyMode.OWN:
            return f"not written: zones are written by {', '.join(writers[:4])}" if writers else "own zones"
        return "annotated" if writers else "not annotated: no other program writes one"

    def next_due(self, now: float) -> float:
        """Seconds until something may be due without anything new."""
        ends = [end - now for end in (self._paused, self._until) if end > now]
        return min(ends, default=float(REFRESH))


_REFUSED = {403: "not written: it is not permitted (RBAC, or the policy for the node)",
            404: "not written: the object or its kind is not there",
            409: "not written: another program has changed it"}
