"""Machines of regular shape, and the file in which peers get them with their requests. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

from vmpin.cpuset import CpuSet
from vmpin.domain.topology import Topology

#: Nodes of a socket.
_IN_SOCKET = 2


@dataclass(frozen=True)
class Event:
    """A container that is created with so many CPUs of its own, or, with none, one that is removed."""

    id: int
    cpus: int


@dataclass(frozen=True)
class Machine:
    """`core`, `cache` and `node` are by CPU, `distances` by node; `reserved` CPUs are given to no container.

    :ivar whole_cores: every request is for whole cores.
    :ivar purpose: "quality" or "decisions", the part that it serves.
    """

    id: int
    purpose: str
    core: Sequence[int]
    cache: Sequence[int]
    node: Sequence[int]
    distances: Sequence[Sequence[int]]
    reserved: Sequence[int]
    whole_cores: bool
    events: Sequence[Event]

    @property
    def cpus(self) -> int:
        return len(self.core)

    @property
    def threads(self) -> int:
        """Of a core."""
        return self.core.count(self.core[0])

    @property
    def usable(self) -> frozenset[int]:
        return frozenset(range(self.cpus)) - frozenset(self.reserved)

    @cached_property
    def topology(self) -> Topology:
        return Topology.build(
            CpuSet(range(self.cpus)), _groups(self.core).values(), _groups(self.cache).values(), _groups(self.node),
            distances={number: dict(enumerate(row)) for number, row in enumerate(self.distances)})


def _groups(by_cpu: Sequence[int]) -> Mapping[int, CpuSet]:
    groups: dict[int, list[int]] = {}
    for cpu, number in enumerate(by_cpu):
        groups.setdefault(number, []).append(cpu)
    return {number: CpuSet(cpus) for number, cpus in groups.items()}


def shaped(cpus: int, nodes: int, caches: int, threads: int, *, beside: bool = False) -> Machine:
    """A machine without requests, its first core reserved.

    :param caches: of the whole machine.
    :param beside: SMT siblings have neighbouring numbers; otherwise the second thread of core N is N + cores.
    """
    cores = cpus // threads
    core = [cpu // threads if beside else cpu % cores for cpu in range(cpus)]
    node = [number * nodes // cores for number in core]
    distances = [[10 if a == b else 12 if a // _IN_SOCKET == b // _IN_SOCKET else 32 for b in range(nodes)]
                 for a in range(nodes)]
    return Machine(0, "quality", core, [number * caches // cores for number in core], node, distances,
                   [cpu for cpu in range(cpus) if core[cpu] == 0], False, ())


def document(machines: Sequence[Machine]) -> dict[str, object]:
    """What a peer's program reads: the fields of each machine, its events with `cpus` 0 for a removal."""
    return {"version": 1, "machines": [{
        "cpus": machine.cpus, "socket": [node // _IN_SOCKET for node in machine.node], **asdict(machine)}
        for machine in machines]}


def random_machine(chance: random.Random, most: int) -> Machine:
    """:param most: CPUs."""
    while True:
        nodes, threads = chance.choice((1, 1, 2, 2, 4, 8)), chance.choice((1, 2, 2))
        in_node, cores = chance.choice((1, 1, 2, 3, 4)), chance.choice((2, 3, 4, 4, 6, 8, 8))
        cpus = nodes * in_node * cores * threads
        if min(16, most) <= cpus <= most or (most < 16 and 6 <= cpus <= most):
            return shaped(cpus, nodes, nodes * in_node, threads, beside=chance.random() < 0.3)
