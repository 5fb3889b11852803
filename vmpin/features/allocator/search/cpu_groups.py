"""The cores, caches, nodes and packages of a machine as the search counts them; docs/allocation.md says what counts as
which.

A *node* is a NUMA node or, with alignment `socket`, a socket. The nodes of one *package* are equally far from each
other and from every other node, as the nodes of a real package mostly are. Groups hold online CPUs alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import combinations

from vmpin.cpuset import CpuSet, union
from vmpin.domain.topology import Topology
from vmpin.named_tuple import NamedTuple


class CoreGroup(NamedTuple):
    """The threads of a core in one cache and node. A scenario's core over several of these counts as several."""

    cpus: CpuSet
    numa_node: int | None  #: Its number, also where a node is a socket.


class CacheGroup(NamedTuple):
    """The CPUs of a last-level cache, and its cores by node. It may reach over several nodes."""

    cpus: CpuSet
    cores: Mapping[int, tuple[CoreGroup, ...]]


class CpuGroups(NamedTuple):
    """Nodes are numbered by their place in `nodes`, packages as in `packages`. `between`: the distance of two nodes of
    these packages, the lower package first."""

    nodes: tuple[CpuSet, ...]
    names: tuple[str, ...]
    caches: tuple[CacheGroup, ...]
    packages: tuple[int, ...]  #: Of each node.
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
    nodes = tuple(cpus for _, cpus in named)
    node_of = {cpu: node for node, cpus in enumerate(nodes) for cpu in cpus}
    caches = tuple(CacheGroup(cpus, _cores_of(topology, cpus, node_of)) for cpus in _caches(topology))
    distances = _distances(topology, nodes)
    packages = _packages(len(nodes), distances)
    between = {(min(packages[node], packages[other]), max(packages[node], packages[other])): distance
               for (node, other), distance in distances.items()}
    return CpuGroups(nodes, tuple(name for name, _ in named), caches, packages, between)


def _caches(topology: Topology) -> Iterable[CpuSet]:
    """The CPUs of each cache. Those that the kernel shows in no cache count as one cache for each NUMA node."""
    online = topology.online
    left = online - union(topology.caches)
    caches = [*topology.caches, *(cpus & left for cpus in topology.nodes.values())]
    caches.append(left - union(topology.nodes.values()))
    return sorted((cpus & online for cpus in caches if cpus & online), key=lambda cpus: cpus.first)


def _cores_of(topology: Topology, cache: CpuSet, node_of: Mapping[int, int]) -> dict[int, tuple[CoreGroup, ...]]:
    """A cache's cores by node, ascending."""
    places: dict[tuple[int, int | None, CpuSet], int] = {}
    for cpu in cache:
        place = node_of[cpu], topology.node_of(cpu), topology.core_of(cpu)
        places[place] = places.get(place, 0) | 1 << cpu
    cores: dict[int, list[CoreGroup]] = {}
    for (node, numa_node, _), bits in places.items():
        cores.setdefault(node, []).append(CoreGroup(CpuSet.from_bits(bits), numa_node))
    return {node: tuple(groups) for node, groups in cores.items()}


def _distances(topology: Topology, nodes: tuple[CpuSet, ...]) -> dict[tuple[int, int], int]:
    """The distance of each two nodes: the smallest between their NUMA nodes, the larger where the directions differ; 0
    where the kernel shows none."""
    numa_nodes = [[node for node, cpus in topology.nodes.items() if not cpus.isdisjoint(group)] for group in nodes]
    rows = topology.distances

    def distance(node: int, other: int) -> int:
        return max(rows.get(node, {}).get(other, 0), rows.get(other, {}).get(node, 0))

    return {(node, other): min((distance(a, b) for a in numa_nodes[node] for b in numa_nodes[other]), default=0)
            for node, other in combinations(range(len(nodes)), 2)}


def _packages(number: int, distances: Mapping[tuple[int, int], int]) -> tuple[int, ...]:
    """The package of each of so many nodes, by a number."""
    rows = [[distances.get((min(node, other), max(node, other)), 0) for other in range(number)]
            for node in range(number)]

    def alike(first: int, second: int) -> bool:
        return all(rows[first][node] == rows[second][node] for node in range(number) if node not in (first, second))

    firsts: list[int] = []
    packages = []
    for node in range(number):
        package = next((package for package, first in enumerate(firsts) if alike(first, node)), len(firsts))
        if package == len(firsts):
            firsts.append(node)
        packages.append(package)
    return tuple(packages)
