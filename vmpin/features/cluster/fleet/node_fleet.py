"""The nodes of a cluster and their state by their objects, the most urgent first; and the verdict of `vmpin
verify`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from vmpin.features.cluster.fleet.node_record import NodeHealth, NodeRecord

_ORDER = {health: place for place, health in enumerate(NodeHealth)}
_DIGITS = re.compile(r"([0-9]+)")


class FleetNode(NamedTuple):
    """`record` has no more than the name where the object is missing."""

    record: NodeRecord
    health: NodeHealth


    @property
    def judged(self) -> bool:
        """Whether it can be said that all of its threads are, or are not, on their CPUs."""
        return self.health.current and not self.record.hidden and self.record.compared


class Fleet(NamedTuple):
    """As of `time` (seconds, UTC). `unknown` is why it is not known which nodes should have an object, "" where it is;
    `unchecked` is the same for a cluster that shows none: nothing was refused."""

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
    nodes.sort(key=lambda node: (_ORDER[node.health], natural(node.record.name)))
    return Fleet(time, tuple(nodes), unknown, unchecked)


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts node-2 before node-10."""
    return [(len(part) * (place % 2), part) for place, part in enumerate(_DIGITS.split(name))]
