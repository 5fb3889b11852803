"""The cores, caches and units of a machine as the search counts them. A unit is a NUMA node or, with alignment
`socket`, a socket. Groups hold online CPUs alone; docs/allocation.md says what counts as which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from vmpin.cpuset import CpuSet, union
from vmpin.domain.topology import Topology


class CoreGroup(NamedTuple):
    """The threads of a core in one cache, node and unit. A scenario's core over several of these counts as several."""

    cpus: CpuSet
    node: int | None


class CacheGroup(NamedTuple):
    """The CPUs of a last-level cache, and its cores by unit. It may reach over several units."""

    cpus: CpuSet
    cores: Mapping[int, tuple[CoreGroup, ...]]


class CpuGroups(NamedTuple):
    """Units of one sort are equally far from each other and from every other one. `between`: the distance of two units
    of these sorts, the lower sort first."""

    units: tuple[CpuSet, ...]
    names: tuple[str, ...]
    caches: tuple[CacheGroup, ...]
    sorts: tuple[int, ...]
    between: Mapping[tuple[int, int], int]


@lru_cache(maxsize=8)
def cpu_groups(topology: Topology, by_socket: bool) -> CpuGroups:
    """Return the groups of a machine. They are cached, as all requests of a node share them."""
    online = topology.online
    if by_socket and topology.sockets:
        named = [(f"socket {cpus & online}", cpus & online) for cpus in topology.sockets]
    else:
        named = [(f"node {node}", cpus & online) for node, cpus in topology.nodes.items()]
    named.append(("no node" if not by_socket else "no socket", online - union(cpus for _, cpus in named)))
    named = [(name, cpus) for name, cpus in named if cpus]
    units = tuple(cpus for _, cpus in named)
    unit_of = {cpu: unit for unit, cpus in enumerate(units) for cpu in cpus}
    caches = tuple(CacheGroup(cpus, _cores_of(topology, cpus, unit_of)) for cpus in _caches(topology))
    distances = _distances(topology, units)
    sorts = _sorts(len(units), distances)
    between = {(min(sorts[one], sorts[other]), max(sorts[one], sorts[other])): distance
               for (one, other), distance in distances.items()}
    return CpuGroups(units, tuple(name for name, _ in named), caches, sorts, between)


def _caches(topology: Topology) -> Iterable[CpuSet]:
    """CPUs that the kernel shows in no cache: those of one node count as one cache."""
    online = topology.online
    left = online - union(topology.caches)
    found = [*topology.caches, *(cpus & left for cpus in topology.nodes.values())]
    found.append(left - union(topology.nodes.values()))
    return sorted((cpus & online for cpus in found if cpus & online), key=lambda cpus: cpus.first)


def _cores_of(topology: Topology, cache: CpuSet, unit_of: Mapping[int, int]) -> dict[int, tuple[CoreGroup, ...]]:
    """A cache's cores by unit, ascending."""
    places: dict[tuple[int, int | None, CpuSet], int] = {}
    for cpu in cache:
        place = unit_of[cpu], topology.node_of(cpu), topology.core_of(cpu)
        places[place] = places.get(place, 0) | 1 << cpu
    cores: dict[int, list[CoreGroup]] = {}
    for (unit, node, _), bits in places.items():
        cores.setdefault(unit, []).append(CoreGroup(CpuSet.from_bits(bits), node))
    return {unit: tuple(each) for unit, each in cores.items()}


def _distances(topology: Topology, units: tuple[CpuSet, ...]) -> dict[tuple[int, int], int]:
    """The smallest between a node of the one and a node of the other, the larger where the directions differ; 0 where
    the kernel shows none."""
    nodes = [[node for node, cpus in topology.nodes.items() if not cpus.isdisjoint(group)] for group in units]
    rows = topology.distances

    def distance(one: int, other: int) -> int:
        return max(rows.get(one, {}).get(other, 0), rows.get(other, {}).get(one, 0))

    return {(one, other): min((distance(a, b) for a in nodes[one] for b in nodes[other]), default=0)
            for one, other in combinations(range(len(units)), 2)}


def _sorts(number: int, distances: Mapping[tuple[int, int], int]) -> tuple[int, ...]:
    """The sort of each unit, by a number."""
    rows = [[distances.get((min(one, other), max(one, other)), 0) for other in range(number)] for one in range(number)]

    def alike(one: int, other: int) -> bool:
        return all(rows[one][each] == rows[other][each] for each in range(number) if each not in (one, other))

    firsts: list[int] = []
    sorts = []
    for unit in range(number):
        found = next((sort for sort, first in enumerate(firsts) if alike(first, unit)), len(firsts))
        if found == len(firsts):
            firsts.append(unit)
        sorts.append(found)
    return tuple(sorts)
