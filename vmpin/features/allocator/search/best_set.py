"""The best CPUs for a request: the true optimum, not the outcome of a greedy walk.

docs/allocation.md defines the cost of a set, part by part, and which sets are legal. All parts but the distance add up
over cores, caches and nodes (search_space); for the distance, numbers of touched nodes of each package are tried by
rising distance (node_choices). (Nodes and packages as cpu_groups defines them.)

Where that takes more steps than EFFORT, the answer is the best set that was found, with a distance that no set as good
in the parts before it is below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import comb
from typing import Generic

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
from vmpin.features.allocator.search.node_choices import PACKAGE_BITS, Effort, NodeChoices, touched
from vmpin.features.allocator.search.search_space import NodeBounds, SearchSpace, usable, whole_cores
from vmpin.features.allocator.search.shortage import nothing_aligned, too_few
from vmpin.named_tuple import NamedTuple

#: Steps (`Effort`) until the answer need not be the best set any more.
EFFORT = 800_000


def best_cpus(topology: Topology, free: CpuSet, query: CpuQuery, effort: int = EFFORT) -> FoundCpus | Refusal:
    """The best set of `query.size` CPUs: `query.keep`, and the rest of `free`. :returns: it, or why there is none."""
    return _best(topology, free, free, query, effort)


def best_part(topology: Topology, free: CpuSet, held: CpuSet, query: CpuQuery) -> FoundCpus | Refusal:
    """The best `query.size` of the CPUs that are held, as if the others of them were given back."""
    return _best(topology, free | held, held, query, EFFORT)


def runner_up(topology: Topology, free: CpuSet, query: CpuQuery, best: FoundCpus,
              effort: int = 10 * EFFORT) -> FoundCpus | None:
    """The best set whose cost differs from that of `best`; where all cost the same, the one of the lowest numbers
    besides. None where there is no other. Slower than `best_cpus`: for `vmpin status --explain`."""
    if too_few(topology, (free & topology.online) - query.keep, query):
        return None
    problem = _problem(topology, free, free, query)
    for distinct in (problem.code.parts, lambda code: code):
        sets = [_answer(problem, ranked) for ranked in _Search(problem, TwoLeastCosts(distinct), Effort(effort)).sets()
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


class _RankedSet(NamedTuple):
    """A set, in the order in which sets are compared."""

    before: int  #: The parts before the distance.
    distance: int
    code: int  #: Without the distance.
    least: int  #: No set that is as good in the parts before has a smaller distance.
    proven: bool  #: It is the best one.


def _problem(topology: Topology, free: CpuSet, choice: CpuSet, query: CpuQuery) -> _Problem:
    groups = cpu_groups(topology, query.align is Alignment.SOCKET)
    choice = (choice & topology.online) - query.keep
    some = usable(choice, query, groups)
    choice &= some
    code = CostCode(query.align, choice, query.present)
    return _Problem(groups, (free & topology.online) - query.keep, choice, some, query, code)


def _best(topology: Topology, free: CpuSet, choice: CpuSet, query: CpuQuery, effort: int) -> FoundCpus | Refusal:
    problem = _problem(topology, free, choice, query)
    if shortage := too_few(topology, (choice & topology.online) - query.keep, query):
        return shortage
    tables = LeastCosts(problem.code.never)
    best = _in_one_node(problem, tables) or next(iter(_Search(problem, tables, Effort(effort)).sets()), None)
    if best is None or not _as_required(problem.code.cost(best.code), query):
        return nothing_aligned(problem.groups, problem.usable, query)
    return _answer(problem, best)


def _answer(problem: _Problem, ranked: _RankedSet) -> FoundCpus:
    cost = problem.code.cost(ranked.code)._replace(distance=ranked.distance)
    return FoundCpus(problem.query.keep | problem.code.cpus(ranked.code), cost,
                     None if ranked.proven else ranked.least)


def _as_required(cost: CpuCost, query: CpuQuery) -> bool:
    if not query.align_required or query.align is Alignment.CORE:
        return True  # whole cores are required of every table
    return (cost.caches if query.align is Alignment.CACHE else cost.nodes) <= 1


def _in_one_node(problem: _Problem, tables: LeastCosts) -> _RankedSet | None:
    """The best set within one node, where nodes are compared first: no other can be better. None if there is none."""
    if problem.query.align in (Alignment.CACHE, Alignment.CORE):
        return None
    sets = []
    for node in problem.groups.nodes:
        within = problem._replace(choice=problem.choice & node)
        if problem.query.keep <= node and len(within.choice | problem.query.keep) >= problem.query.size:
            sets += _Search(within, tables, Effort(0)).sets_without_distance()
    return min(sets, default=None)


class _Search(Generic[Entry]):
    """Finds as many of the best sets as a table keeps in an entry."""

    def __init__(self, problem: _Problem, tables: CostTables[Entry], effort: Effort) -> None:
        self._problem, self._tables, self._effort = problem, tables, effort
        self._space = SearchSpace(problem.groups, problem.free, problem.choice, problem.query, problem.code, tables)
        self._size = problem.query.size - len(problem.query.keep)  #: CPUs to take besides the kept ones.

    def sets(self) -> list[_RankedSet]:
        """The best legal sets, ascending."""
        return (self._even_sets() if self._problem.query.spread_nodes else []) or self.sets_within(NodeBounds())

    def sets_within(self, bounds: NodeBounds, others: Sequence[_RankedSet] = ()) -> list[_RankedSet]:
        """The best of the sets within these bounds, ascending. Their number of nodes does not matter.
        :param others: where these are better by the parts before the distance, there need be none."""
        code, groups = self._problem.code, self._problem.groups
        one_package, most = len(groups.between) < 2, len(groups.nodes)
        if not one_package and self._nodes_first:
            return self._by_distance(bounds, range(self._space.fewest_nodes(), most + 1), None)
        if not one_package and self._tables.breadth > 1:
            return self._by_distance(bounds, range(most + 1), None)
        codes = self._without_distance(bounds)
        if one_package:  # the distance depends on the number of touched nodes alone
            apart = next(iter(groups.between.values()), 0)
            return [self._ranked(cost, apart * comb(code.cost(cost).nodes, 2)) for cost in codes]
        before = [code.before_distance(cost) for cost in codes]
        if not before or any(other.before < before[0] for other in others):
            return []
        nodes = code.cost(codes[0]).nodes
        return self._by_distance(bounds, range(nodes, nodes + 1), before[0])

    def sets_without_distance(self) -> list[_RankedSet]:
        """The best sets, ascending, where their CPUs can be in one node alone."""
        return [self._ranked(code, 0) for code in self._without_distance(NodeBounds())]

    def _without_distance(self, bounds: NodeBounds) -> tuple[int, ...]:
        """The least costs of the sets within these bounds, without the distance."""
        tables = [die[0] for die in self._space.die_tables(bounds._replace(nodes=None))]
        return self._tables.costs(self._tables.sum_at(tables, self._size))

    def _ranked(self, code: int, distance: int, least: int | None = None) -> _RankedSet:
        """A set in the order of comparison. :param least: where it need not be the best one."""
        return _RankedSet(self._problem.code.before_distance(code), distance, code,
                          distance if least is None else min(distance, least), least is None)

    def _even_sets(self) -> list[_RankedSet]:
        """The best of the sets with the same number of CPUs in each touched node, or nearly so."""
        query, code, groups = self._problem.query, self._problem.code, self._problem.groups
        step = 1
        if whole_cores(query):
            step = max(len(core.cpus) for cache in groups.caches for cores in cache.cores.values() for core in cores)
        sets: list[_RankedSet] = []
        tried: set[int] = set()  # the sets within the same bounds are the same, whatever their number of nodes
        for nodes in range(max(1, self._space.fewest_nodes()), len(groups.nodes) + 1):
            even = query.size // nodes
            for fewest in sorted({*range(max(1, even - step + 1), even + 1)} - tried):
                tried.add(fewest)
                sets += [ranked for ranked in self.sets_within(NodeBounds(fewest, fewest + step), sets)
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
            dies, choices = self._choices(bounds, number)
            sums: dict[tuple[int, ...], Sequence[Entry]] = {(): [self._tables.entry((0,))]}
            for distance, keys in choices.ascending(self._effort):
                if self._best_found(sets, before, distance):
                    return sets
                sets = self._best_of([*sets, *(self._ranked(code, distance) for code in self._tables.costs(
                    self._entry(dies, choices.capacities, keys, sums)))])
            if self._best_found(sets, before, choices.least):
                return sets
            if choices.least is not None:  # no effort is left
                return self._best_of([*sets, *self._unproven(bounds, number, dies, choices)])
        return sets

    def _best_found(self, sets: Sequence[_RankedSet], before: int | None, distance: int | None) -> bool:
        """True where no set of that distance, or of a greater one or more nodes, is among the best. None: those left
        have more nodes."""
        if not sets or (distance is not None and distance <= sets[-1].distance):
            return False
        if self._nodes_first and len(sets) == self._tables.breadth:
            return True
        return before is not None and sets[0].before == before

    def _choices(self, bounds: NodeBounds, number: int) -> tuple[Sequence[_DieTables[Entry]], NodeChoices]:
        dies = self._space.die_tables(bounds._replace(nodes=number))
        most = [{key: len(table) - 1 for key, table in die.items()} for die in dies]
        return dies, NodeChoices(self._problem.groups, most, number, self._size)

    def _unproven(self, bounds: NodeBounds, number: int, dies: Sequence[_DieTables[Entry]],
                  choices: NodeChoices) -> list[_RankedSet]:
        """Some good sets, where not all can be tried: the best without regard to the distance, which is as good as the
        best in the parts before it; and the best of some near nodes. :param choices: those that were not tried."""
        codes = self._without_distance(bounds)
        if codes and (fewest := self._problem.code.cost(codes[0]).nodes) > number:
            dies, choices = self._choices(bounds, fewest)
        least = choices.least or 0
        sets = [self._ranked(code, self._distance(code, choices), least) for code in codes]
        sums: dict[tuple[int, ...], Sequence[Entry]] = {(): [self._tables.entry((0,))]}
        for distance, keys in choices.near():
            sets += [self._ranked(code, distance, least) for code in self._tables.costs(
                self._entry(dies, choices.capacities, keys, sums))]
        return sets

    def _distance(self, code: int, choices: NodeChoices) -> int:
        groups, held = self._problem.groups, self._problem.query.keep | self._problem.code.cpus(code)
        return choices.distance(sum(1 << PACKAGE_BITS * package for package, cpus in zip(
            groups.packages, groups.nodes, strict=True) if not cpus.isdisjoint(held)))

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
                rest, table = sums[keys[first + 1:]], dies[first][keys[first]]
                self._effort.left -= len(rest) * len(table)
                sums[keys[first:]] = self._tables.added(rest, table, least, self._size)
        return self._tables.at(sums[keys[1:]], dies[0][keys[0]], self._size)

    def _best_of(self, sets: Iterable[_RankedSet]) -> list[_RankedSet]:
        """Return the best sets, as many as an entry of a table keeps, whose costs differ as its costs do; unproven
        where a search that has ended could have found a better one."""
        kept: dict[tuple[int, int], _RankedSet] = {}
        ordered = sorted(sets)
        for ranked in ordered:
            kept.setdefault((ranked.distance, self._tables.mark(ranked.code)), ranked)
        best = list(kept.values())[:self._tables.breadth]
        if not best:
            return []
        open_ = [ranked.least for ranked in ordered if not ranked.proven and ranked.before == best[0].before]
        if not open_ or min(open_) > best[0].distance:
            return best
        return [ranked._replace(least=min(*open_, ranked.distance), proven=False) for ranked in best]
