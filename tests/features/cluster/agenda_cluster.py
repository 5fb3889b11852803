"""An API server for the agenda's tests, which keeps what the agenda writes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kube_given import NODE, as_written, reported

from vmpin.features.cluster.kube.agenda import Agenda, Write, WriteChoice
from vmpin.features.cluster.kube.cluster_node import ClusterNode
from vmpin.features.cluster.kube.pod_record import PodRecord
from vmpin.features.cluster.kube.reported_node import NOTHING

TAINTED = NODE._replace(taints=({"key": "vmpin.io/starting", "effect": "NoSchedule"},))


class Cluster:
    """An API server that keeps what the agenda writes; and the agenda, with both clocks."""

    def __init__(self, wanted: WriteChoice | None = None, node: ClusterNode = NODE) -> None:
        self.node, self.now = node, 0.0
        self.wanted = wanted or WriteChoice()
        self.agenda = Agenda(self.wanted, "x", 0.0)
        self.pods: dict[str, PodRecord] = {}
        self.reported, self.reports = NOTHING, False
        self.status = 200

    def report(self, *entries: dict[str, Any], **node: Any) -> None:
        self.reported, self.reports = reported(*entries, time=1000.0 + self.now, **node), True

    def put(self, *pods: PodRecord) -> None:
        self.pods |= {pod.uid: pod for pod in pods}

    def step(self, seconds: float = 0.0) -> list[Write]:
        """What is written now."""
        self.now += seconds
        self.agenda.observe(self.reported, self.reports, tuple(self.pods.values()), self.now, 1000.0 + self.now)
        writes = []
        for write in self.agenda.due(self.node, self.now, 1000.0 + self.now):
            writes.append(write)
            if self.status == 200:
                self.take(write)
            reads = write.request.method == "GET"  # of a topology: there is none
            self.agenda.done(write, 404 if reads else self.status, self.now)
        return writes

    def take(self, write: Write) -> None:
        body: Any = write.request.body
        if write.pod is not None and write.kind == "condition":
            self.put(as_written(self.pods[write.pod.uid], write.request))
        elif write.kind == "labels":
            self.node = self.node._replace(labels={**self.node.labels, **body["metadata"]["labels"]})
        elif write.kind == "taint":
            self.node = self.node._replace(taints=())

    def kinds(self, seconds: float = 0.0) -> Counter[str]:
        return Counter(write.kind for write in self.step(seconds))
