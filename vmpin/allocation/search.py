"""The best CPUs for a request: the true optimum, not the outcome of a greedy walk.

The parts of a cost are compared in the order of `CpuCost` (docs/allocation.md defines each); with alignment `cache`
the caches come first, with `core` the cores held in part. Among equal costs the lowest numbers win: the set that has
the lowest CPU in which two sets differ. All parts but the distance add up over cores, caches and units (search_space);
for the distance, sets of units are tried by rising distance. What stays out: which CPUs are free (ledger). Called by
decisions, `vmpin plan` and `vmpin explain`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, groupby
from typing import NamedTuple

from vmpin.allocation.cpu_request import Alignment, CpuQuery, FoundCpus, SmtUse
from vmpin.allocation.search_space import SearchSpace, units
from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.topology import Topology


def best_cpus(topology: Topology, free: CpuSet, query: CpuQuery) -> FoundCpus | str:
    """The best set of `query.size` CPUs: `query.keep`, and the rest of `free`. :returns: it, or why there is none.
    With `query.spread_nodes`, where more than one unit is needed: the best of those sets whose units have the same
    number of CPUs, or one more; where there is none, as without it."""
    return _best(topology, free, free, query)


def best_part(topology: Topology, free: CpuSet, held: CpuSet, query: CpuQuery) -> FoundCpus | str:
    """The best `query.size` of the CPUs that are held, as if the others of them were given back."""
    return _best(topology, free | held, held, query)


def runner_up(topology: Topology, free: CpuSet, query: CpuQuery, best: FoundCpus) -> FoundCpus | None:
    """The best set but one. None where there is no other."""
    others = (_best(topology, free, free - CpuSet((cpu,)), query) for cpu in best.cpus - query.keep)
    found = [other for other in others if isinstance(other, FoundCpus)]
    space = SearchSpace(topology, free, free, query)
    return min(found, key=lambda other: (space.code.rank(other.cost), list(other.cpus)), default=None)


def largest(topology: Topology, free: CpuSet, query: CpuQuery) -> int:
    """The size of the largest set that such a query could get; its own size does not matter."""
    whole = query.smt is SmtUse.REQUIRE or (query.align is Alignment.CORE and query.align_required)
    cores = {topology.core_of(cpu) & topology.online for cpu in free & topology.online}
    open_ = union(core for core in cores if core <= free) if whole else free & topology.online
    if not query.align_required or query.align is Alignment.CORE:
        return len(open_)
    groups = ({topology.cache_of(cpu) for cpu in topology.online} if query.align is Alignment.CACHE
              else set(units(topology, query.align)))
    return max((len(group & open_) for group in groups), default=0)


class _Candidate(NamedTuple):
    code: int
    distance: int


def _best(topology: Topology, free: CpuSet, choice: CpuSet, query: CpuQuery) -> FoundCpus | str:
    size = query.size - len(query.keep)
    open_ = (choice & topology.online) - query.keep
    if size < 0:
        return f"{query.size} CPUs are fewer than the {len(query.keep)} that are kept"
    if not query.keep <= topology.online:
        return f"CPUs {query.keep - topology.online} are kept, and offline"
    if size > len(open_):
        more = f", {size} more than are held" if query.keep else ""
        return f"{query.size} CPUs are asked for{more}: {len(open_)} are free"
    if query.align is Alignment.CORE and query.align_required and query.smt is not SmtUse.REQUIRE:
        query = query._replace(smt=SmtUse.REQUIRE)
    if not query.size:
        return FoundCpus(EMPTY, SearchSpace(topology, free, choice, query).code.cost(0))
    space = SearchSpace(topology, free, choice, query)
    search = _Search(topology, space, size)
    best = search.nearest(None)
    if best is None:
        return _no_whole_cores(topology, open_, query)
    if query.spread_nodes and space.code.cost(best.code).nodes > 1:
        even = [found for base in _bases(query.size, len(space.units)) if (found := search.nearest(base)) is not None]
        best = min(even, default=best)
    cost = space.code.cost(best.code)
    if query.align_required and (cost.caches if query.align is Alignment.CACHE else
                                 cost.nodes if query.align is not Alignment.CORE else 1) > 1:
        return _no_alignment(topology, open_, query)
    return FoundCpus(query.keep | space.code.cpus(best.code), cost)


def _bases(size: int, most: int) -> list[int]:
    """How many CPUs each unit has at the least, when up to `most` of them share `size` evenly."""
    return sorted({size // number for number in range(1, min(size, most) + 1)}, reverse=True)


class _Search:
    """Sets of units, by rising distance between them."""

    def __init__(self, topology: Topology, space: SearchSpace, size: int) -> None:
        self._space = space
        self._size = size
        self._everything = CpuSet(range(len(space.units)))
        self._kept = CpuSet(unit for unit, kept in enumerate(space.kept) if kept)
        self._distances = _unit_distances(topology, space.units)

    def nearest(self, even: int | None) -> _Candidate | None:
        """The best set, its distance counted. None where there is none."""
        space, code = self._space, self._space.code
        without = space.best(self._everything, self._size, even)
        if without >= code.never // 2:
            return None
        number = code.cost(without).nodes
        if len(self._values) < 2:  # all units are equally far from each other, or there is one
            distance = number * (number - 1) // 2 * next(iter(self._values), 0)
            return _Candidate(without + distance * code.one.distance, distance)
        first = code.before_distance(without)
        for distance, chosen in self._sets(number):
            found = [cost for each in chosen
                     if (cost := space.best(each, self._size, even)) < code.never // 2
                     and code.before_distance(cost) == first]
            if found:
                return _Candidate(min(found) + distance * code.one.distance, distance)
        return None

    @property
    def _values(self) -> set[int]:
        return set(self._distances.values())

    def _sets(self, number: int) -> Iterator[tuple[int, list[CpuSet]]]:
        """The sets of so many units that have room, and all that is kept, by distance."""
        units_ = [unit for unit in self._everything - self._kept if self._space.capacity(unit)]
        sets = []
        for others in combinations(units_, number - len(self._kept)):
            chosen = self._kept | CpuSet(others)
            if sum(map(self._space.capacity, chosen)) >= self._size:
                sets.append((sum(self._distances[pair] for pair in combinations(chosen, 2)), chosen))
        sets.sort(key=lambda each: (each[0], list(each[1])))
        for distance, group in groupby(sets, key=lambda each: each[0]):
            yield distance, [chosen for _, chosen in group]


def _unit_distances(topology: Topology, groups: tuple[CpuSet, ...]) -> dict[tuple[int, int], int]:
    """Between each two units, by their numbers: the smallest between a node of the one and a node of the other, in
    the worse direction; 0 where the kernel shows none."""
    nodes = [[node for node, cpus in topology.nodes.items() if not cpus.isdisjoint(group)] for group in groups]

    def distance(one: int, other: int) -> int:
        rows = topology.distances
        return max(rows.get(one, {}).get(other, 0), rows.get(other, {}).get(one, 0))

    return {(one, other): min((distance(a, b) for a in nodes[one] for b in nodes[other]), default=0)
            for one, other in combinations(range(len(groups)), 2)}


def _no_whole_cores(topology: Topology, open_: CpuSet, query: CpuQuery) -> str:
    cores = {topology.core_of(cpu) & topology.online for cpu in open_ | query.keep}
    whole = sorted(len(core) for core in cores if core <= open_ | query.keep)
    have = sum(whole)
    return (f"{query.size} CPUs as whole cores are asked for: {len(whole)} cores with {have} CPUs are free as a whole"
            + (f", of {whole[0]} CPUs each" if whole and whole[0] == whole[-1] else ""))


def _no_alignment(topology: Topology, open_: CpuSet, query: CpuQuery) -> str:
    usable = open_ | query.keep
    if query.align is Alignment.CACHE:
        groups = list(dict.fromkeys(topology.cache_of(cpu) & topology.online for cpu in topology.online))
    else:
        groups = list(units(topology, query.align))
    rooms = sorted((len(group & usable) for group in groups), reverse=True)
    name = {Alignment.CACHE: "cache", Alignment.SOCKET: "socket"}.get(query.align, "NUMA node")
    return (f"{query.size} CPUs within one {name} are asked for: the most that one has free is {rooms[0]} "
            f"(by {name}: {', '.join(map(str, rooms[:16]))}{', …' if len(rooms) > 16 else ''})")
