"""The best CPUs by trying every set, straight from docs/allocation.md: slow, and without anything of the search's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import NamedTuple

from vmpin.cpuset import CpuSet
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.cpu_request import Alignment, CpuCost, CpuQuery, SmtUse

Cpus = frozenset[int]
_LATER = "partial_cores", "broken_nodes", "broken_caches", "broken_cores", "leftover", "node_left"
ORDERS = {
    Alignment.NODE: ("nodes", "distance", "away", "caches", *_LATER),
    Alignment.SOCKET: ("nodes", "distance", "away", "caches", *_LATER),
    Alignment.CACHE: ("caches", "nodes", "distance", "away", *_LATER),
    Alignment.CORE: ("partial_cores", "nodes", "distance", "away", "caches", *_LATER[1:]),
}


class Ranked(NamedTuple):
    """A legal set, in the order of preference."""

    parts: tuple[int, ...]
    cpus: tuple[int, ...]
    cost: CpuCost


class Machine:
    """The groups that count, of online CPUs."""

    def __init__(self, topology: Topology, query: CpuQuery) -> None:
        online = frozenset(topology.online)
        self.query, self.distances = query, topology.distances
        self.numa = {number: frozenset(cpus) & online for number, cpus in topology.nodes.items()}
        self.node_of = {cpu: number for number, cpus in self.numa.items() for cpu in cpus}
        shown = [frozenset(cpus) & online for cpus in topology.caches]
        hidden = online.difference(*shown)
        in_no_node = online.difference(*self.numa.values())
        self.caches = [each for each in (*shown, *(cpus & hidden for cpus in self.numa.values()), in_no_node & hidden)
                       if each]
        if query.align is Alignment.SOCKET and topology.sockets:
            sockets = [frozenset(cpus) & online for cpus in topology.sockets]
            self.nodes = [each for each in (*sockets, online.difference(*sockets)) if each]
        else:
            self.nodes = [each for each in (*self.numa.values(), in_no_node) if each]
        siblings = [frozenset(cpus) & online for cpus in topology.cores]
        places = [cache & node & numa for cache in self.caches for node in self.nodes
                  for numa in (*self.numa.values(), in_no_node)]
        self.cores = [part for core in siblings for place in places if (part := core & place)]

    def cost(self, cpus: Cpus, free: Cpus) -> CpuCost:
        touched = [node for node in self.nodes if node & cpus]
        caches = [cache for cache in self.caches if cache & cpus]
        away = sum(self.node_of.get(cpu) not in self.query.near for cpu in cpus) if self.query.near else 0
        if self.whole:
            partial = 0
        elif self.query.smt is SmtUse.SPREAD:
            partial = len(cpus) - sum(1 for core in self.cores if core & cpus)
        else:
            partial = sum(1 for core in self.cores if core & cpus and core - cpus)
        distance = sum(self.far(one, other) for one, other in combinations(touched, 2))
        return CpuCost(len(touched), distance, away, len(caches), partial,
                       sum(1 for node in touched if node <= free and node - cpus),
                       sum(1 for cache in caches if cache <= free and cache - cpus),
                       sum(1 for core in self.cores if core & cpus and core <= free and core - cpus),
                       sum(len(cache & free - cpus) for cache in caches),
                       sum(len(node & free - cpus) for node in touched))

    def far(self, one: Cpus, other: Cpus) -> int:
        def known(a: int, b: int) -> int:
            return self.distances.get(a, {}).get(b, 0)

        return min((max(known(a, b), known(b, a)) for a, with_a in self.numa.items() if with_a & one
                    for b, with_b in self.numa.items() if with_b & other), default=0)

    @property
    def whole(self) -> bool:
        return self.query.smt is SmtUse.REQUIRE or (self.query.align is Alignment.CORE and self.query.align_required)

    def legal(self, cpus: Cpus) -> bool:
        if self.whole and any(core & cpus and core - cpus for core in self.cores):
            return False
        if self.query.align_required and self.query.align is Alignment.CACHE:
            return any(cpus <= cache for cache in self.caches)
        if self.query.align_required and self.query.align in (Alignment.NODE, Alignment.SOCKET):
            return any(cpus <= node for node in self.nodes)
        return True

    def even(self, cpus: Cpus) -> bool:
        held = [len(node & cpus) for node in self.nodes if node & cpus]
        return max(held) - min(held) <= (max(map(len, self.cores)) if self.whole else 1)


def legal_sets(topology: Topology, free: Iterable[int], query: CpuQuery,
               among: Iterable[int] | None = None) -> list[Ranked]:
    """All legal sets, the best one first. `among`: where not all that is free may be taken."""
    machine = Machine(topology, query)
    online = frozenset(topology.online)
    keep = frozenset(query.keep)
    free = (frozenset(free) & online) - keep
    choice = free if among is None else frozenset(among) & free
    sets = [cpus for cpus in _sets(choice, keep, query.size) if machine.legal(cpus)] if keep <= online else []
    if query.spread_nodes and any(map(machine.even, sets)):
        sets = list(filter(machine.even, sets))
    found = []
    for cpus in sets:
        cost = machine.cost(cpus, free)
        parts = tuple(getattr(cost, name) for name in ORDERS[query.align])
        found.append(Ranked(parts, tuple(sorted(cpus)), cost))
    return sorted(found)


def _sets(choice: Cpus, keep: Cpus, size: int) -> Iterator[Cpus]:
    if size >= len(keep):
        for more in combinations(sorted(choice), size - len(keep)):
            yield keep | frozenset(more)


def cpu_set(ranked: Ranked) -> CpuSet:
    return CpuSet(ranked.cpus)
