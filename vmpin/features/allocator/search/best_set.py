"""The best CPUs for a request: the true optimum, not the outcome of a greedy walk.

docs/allocation.md defines the cost of a set, part by part, and which sets are legal. All parts but the distance add up
over cores, caches and nodes (search_space); for the distance, numbers of touched nodes of each package are tried by
rising distance. (Nodes and packages as cpu_groups defines them.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, groupby
from math import comb
from operator import add
from typing import Generic, NamedTuple

from vmpin.cpuset import CpuSet
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.cpu_request import Alignment, CpuCost, CpuQuery, FoundCpus, Refusal
from vmpin.features.allocator.search.cost_tables import (
    CostCode,
    CostTables,
    Entry,
    LeastCosts,
    TwoLeastCosts,
    cost_order,
)
from vmpin.features.allocator.search.cpu_groups import CpuGroups, cpu_groups
from vmpin.features.allocator.search.search_space import (
    PACKAGE_BITS,
    NodeBounds,
    SearchSpace,
    touched,
    usable,
    whole_cores,
)
from vmpin.features.allocator.search.shortage import nothing_aligned, too_few


def best_cpus(topology: Topology, free: CpuSet, query: CpuQuery) -> FoundCpus | Refusal:
    """The best set of `query.size` CPUs: `query.keep`, and the rest of `free`. :returns: it, or why there is none."""
    return _best(topology, free, free, query)


def best_part(topology: Topology, free: CpuSet, held: CpuSet, query: CpuQuery) -> FoundCpus | Refusal:
    """The best `query.size` of the CPUs that are held, as if the others of them were given back."""
    return _best(topology, free | held, held, query)


def runner_up(topology: Topology, free: CpuSet, query: CpuQuery, best: FoundCpus) -> FoundCpus | None:
    """The best set whose cost differs from that of `best`; where all cost the same, the one of the lowest numbers
    besides. None where there is no other. Slower than `best_cpus`: for `vmpin explain`."""
    if too_few(topology, (free & topology.online) - query.keep, query):
        return None
    problem = _problem(topology, free, free, query)
    for distinct in (problem.code.parts, lambda code: code):
        sets = [_answer(problem, ranked) for ranked in _Search(problem, TwoLeastCosts(distinct)).sets()
                if _as_required(problem.code.cost(ranked.code), query)]
        others = [other for other in sets if other.cost != best.cost]
        if others:
            return others[0]
    return next((other for other in sets if other.cpus != best.cpus), None)


def largest(topology: Topology, free: CpuSet, query: CpuQuery) -> int:
    """The size of the largest set that such a query could get; its own size and what it keeps do not matter."""
    groups = cpu_groups(topology, query.align is Alignment.SOCKET)
    left = usable(free & topology.online, query._replace(keep=CpuSet()), groups)
    if not query.align_required or query.align is Alignment.CORE:
        return len(left)
    within = [cache.cpus for cache in groups.caches] if query.align is Alignment.CACHE else groups.nodes
    return max((len(cpus & left) for cpus in within), default=0)


#: A die's tables by the number of touched nodes of each package (search_space).
_DieTables = Mapping[int, Sequence[Entry]]


class _Problem(NamedTuple):
    """A query with the groups of its machine."""

    groups: CpuGroups
    free: CpuSet
    choice: CpuSet  #: Those of them that may be taken.
    usable: CpuSet  #: And the kept ones, as far as they can be part of a legal set.
    query: CpuQuery
    code: CostCode


class _TouchedNodes(NamedTuple):
    """The touched nodes of a die: the distance between them, and their number by package; and by package, how far one
    more node of it is from all of them."""

    distance: int
    by_package: tuple[tuple[int, int], ...]
    to_package: list[int]


class _RankedSet(NamedTuple):
    """A set, in the order in which sets are compared."""

    before: int  #: The parts before the distance.
    distance: int
    code: int  #: Without the distance.


def _problem(topology: Topology, free: CpuSet, choice: CpuSet, query: CpuQuery) -> _Problem:
    groups = cpu_groups(topology, query.align is Alignment.SOCKET)
    choice = (choice & topology.online) - query.keep
    some = usable(choice, query, groups)
    choice &= some
    code = CostCode(query.align, choice, query.present)
    return _Problem(groups, (free & topology.online) - query.keep, choice, some, query, code)


def _best(topology: Topology, free: CpuSet, choice: CpuSet, query: CpuQuery) -> FoundCpus | Refusal:
    problem = _problem(topology, free, choice, query)
    if shortage := too_few(topology, (choice & topology.online) - query.keep, query):
        return shortage
    best = _in_one_node(problem) or next(iter(_Search(problem, LeastCosts(problem.code.never)).sets()), None)
    if best is None or not _as_required(problem.code.cost(best.code), query):
        return nothing_aligned(problem.groups, problem.usable, query)
    return _answer(problem, best)


def _answer(problem: _Problem, ranked: _RankedSet) -> FoundCpus:
    cost = problem.code.cost(ranked.code)._replace(distance=ranked.distance)
    return FoundCpus(problem.query.keep | problem.code.cpus(ranked.code), cost)


def _as_required(cost: CpuCost, query: CpuQuery) -> bool:
    if not query.align_required or query.align is Alignment.CORE:
        return True  # whole cores are required of every table
    return (cost.caches if query.align is Alignment.CACHE else cost.nodes) <= 1


def _in_one_node(problem: _Problem) -> _RankedSet | None:
    """The best set within one node, where nodes are compared first: no other can be better. None if there is none."""
    if problem.query.align in (Alignment.CACHE, Alignment.CORE):
        return None
    sets = []
    for node in problem.groups.nodes:
        within = problem._replace(choice=problem.choice & node)
        if problem.query.keep <= node and len(within.choice | problem.query.keep) >= problem.query.size:
            sets += _Search(within, LeastCosts(problem.code.never)).sets_within(NodeBounds())
    return min(sets, default=None)


class _Search(Generic[Entry]):
    """Finds as many of the best sets as a table keeps in an entry."""

    def __init__(self, problem: _Problem, tables: CostTables[Entry]) -> None:
        self._problem, self._tables = problem, tables
        self._space = SearchSpace(problem.groups, problem.free, problem.choice, problem.query, problem.code, tables)
        self._size = problem.query.size - len(problem.query.keep)  #: CPUs to take besides the kept ones.

    def sets(self) -> list[_RankedSet]:
        """The best legal sets, ascending."""
        return (self._even_sets() if self._problem.query.spread_nodes else []) or self.sets_within(NodeBounds())

    def sets_within(self, bounds: NodeBounds) -> list[_RankedSet]:
        """The best of the sets within these bounds, ascending. Their number of nodes does not matter."""
        code, groups = self._problem.code, self._problem.groups
        one_package, most = len(groups.between) < 2, len(groups.nodes)
        if not one_package and self._nodes_first:
            return self._by_distance(bounds, range(self._space.fewest_nodes(), most + 1), None)
        if not one_package and self._tables.breadth > 1:
            return self._by_distance(bounds, range(most + 1), None)
        tables = [die[0] for die in self._space.die_tables(bounds._replace(nodes=None))]
        codes = self._tables.costs(self._tables.sum_at(tables, self._size))
        if one_package:  # the distance depends on the number of touched nodes alone
            apart = next(iter(groups.between.values()), 0)
            return [_RankedSet(code.before_distance(cost), apart * comb(code.cost(cost).nodes, 2), cost)
                    for cost in codes]
        if not codes:
            return []
        nodes = code.cost(codes[0]).nodes
        return self._by_distance(bounds, range(nodes, nodes + 1), code.before_distance(codes[0]))

    def _even_sets(self) -> list[_RankedSet]:
        """The best of the sets with the same number of CPUs in each touched node, or nearly so."""
        query, code, groups = self._problem.query, self._problem.code, self._problem.groups
        step = 1
        if whole_cores(query):
            step = max(len(core.cpus) for cache in groups.caches for cores in cache.cores.values() for core in cores)
        sets: list[_RankedSet] = []
        for nodes in range(1, len(groups.nodes) + 1):
            even = query.size // nodes
            for fewest in range(max(1, even - step + 1), even + 1):
                sets += [ranked for ranked in self.sets_within(NodeBounds(fewest, fewest + step))
                         if _as_required(code.cost(ranked.code), query)]
            sets = self._best_of(sets)
            if (self._nodes_first and len(sets) == self._tables.breadth
                    and code.cost(sets[-1].code).nodes <= nodes):
                break  # other sets have more nodes
        return sets

    @property
    def _nodes_first(self) -> bool:
        return cost_order(self._problem.query.align)[0] == "nodes"

    def _by_distance(self, bounds: NodeBounds, numbers: range, before: int | None) -> list[_RankedSet]:
        """The best sets that touch so many nodes, by rising number and distance.
        :param before: the least parts before the distance, where they are known."""
        sets: list[_RankedSet] = []
        for number in numbers:
            dies = self._space.die_tables(bounds._replace(nodes=number))
            sums: dict[tuple[int, ...], Sequence[Entry]] = {(): [self._tables.entry((0,))]}
            capacities = _capacities(dies)
            choices = sorted(self._choices(dies, capacities, number))
            for distance, group in groupby(choices, key=lambda choice: choice[0]):
                for _, keys in group:
                    sets += [_RankedSet(self._problem.code.before_distance(code), distance, code)
                             for code in self._tables.costs(self._entry(dies, capacities, keys, sums))]
                sets = self._best_of(sets)
                if self._nodes_first and len(sets) == self._tables.breadth:
                    return sets  # whatever comes later is farther, or has more nodes
                if before is not None and sets and sets[0].before == before:
                    return sets
        return sets

    def _entry(self, dies: Sequence[_DieTables[Entry]], capacities: Sequence[Mapping[int, int]],
               keys: tuple[int, ...], sums: dict[tuple[int, ...], Sequence[Entry]]) -> Entry:
        """The entry of these keys, one for each die. `sums` keeps the sums over the last dies, without those entries
        for which the first dies have too few CPUs."""
        if not keys:
            return sums[()][0]
        before = sum(map(touched, keys))
        for first in range(len(keys) - 1, 0, -1):
            before -= touched(keys[first])
            if keys[first:] not in sums:
                least = max(0, self._size - capacities[first][before])
                sums[keys[first:]] = self._tables.added(sums[keys[first + 1:]], dies[first][keys[first]], least,
                                                        self._size)
        return self._tables.at(sums[keys[1:]], dies[0][keys[0]], self._size)

    def _choices(self, dies: Sequence[_DieTables[Entry]], capacities: Sequence[Mapping[int, int]],
                 number: int) -> list[tuple[int, tuple[int, ...]]]:
        """A key for each die, so that they touch that number of nodes and have CPUs enough; before the keys the
        distance between the touched nodes. It is added up die by die, as there may be thousands of choices."""
        choices: list[tuple[int, tuple[int, ...]]] = []
        touched_nodes = {key: self._touched_nodes(key) for die in dies for key in die}

        def choose(length: int, number: int, size: int, distance: int, to_package: list[int],
                   chosen: tuple[int, ...]) -> None:
            """Choose the keys of the first dies. :param to_package: of the touched nodes of the others."""
            if not length:
                choices.append((distance, chosen))
                return
            for key, table in dies[length - 1].items():
                nodes, rest = number - touched(key), size - len(table) + 1
                if nodes in capacities[length - 1] and capacities[length - 1][nodes] >= rest:
                    own = touched_nodes[key]
                    choose(length - 1, nodes, rest, distance + own.distance + sum(
                               count * to_package[package] for package, count in own.by_package),
                           [*map(add, to_package, own.to_package)] if key else to_package, (key, *chosen))

        if capacities[-1].get(number, -1) >= self._size:
            choose(len(dies), number, self._size, 0, [0] * (max(self._problem.groups.packages) + 1), ())
        return choices

    def _touched_nodes(self, key: int) -> _TouchedNodes:
        """Return the distances of the touched nodes that a key counts."""
        between, packages = self._problem.groups.between, range(max(self._problem.groups.packages) + 1)
        counts = [(package, count) for package in packages
                  if (count := key >> PACKAGE_BITS * package & (1 << PACKAGE_BITS) - 1)]
        distance = sum(comb(count, 2) * between.get((package, package), 0) for package, count in counts)
        distance += sum(count * others * between[package, other]
                        for (package, count), (other, others) in combinations(counts, 2))
        to_package = [sum(count * between.get((min(package, other), max(package, other)), 0)
                          for other, count in counts) for package in packages]
        return _TouchedNodes(distance, tuple(counts), to_package)

    def _best_of(self, sets: Iterable[_RankedSet]) -> list[_RankedSet]:
        """Return the best sets, as many as an entry of a table keeps, whose costs differ as its costs do."""
        kept: dict[tuple[int, int], _RankedSet] = {}
        for ranked in sorted(sets):
            kept.setdefault((ranked.distance, self._tables.mark(ranked.code)), ranked)
        return list(kept.values())[:self._tables.breadth]


def _capacities(dies: Sequence[_DieTables[Entry]]) -> list[dict[int, int]]:
    """The most CPUs of the first dies (of none, one, two …), by the number of touched nodes."""
    capacities: list[dict[int, int]] = [{0: 0}]
    for die in dies:
        most: dict[int, int] = {}
        for before, capacity in capacities[-1].items():
            for key, table in die.items():
                nodes = before + touched(key)
                most[nodes] = max(most.get(nodes, 0), capacity + len(table) - 1)
        capacities.append(most)
    return capacities
