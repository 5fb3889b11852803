"""The best CPUs for a request: the true optimum, not the outcome of a greedy walk.

docs/allocation.md defines the cost of a set, part by part, and which sets are legal. All parts but the distance add up
over cores, caches and units (search_space); for the distance, numbers of touched units of each sort are tried by
rising distance.
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
    SORT_BITS,
    SearchSpace,
    UnitBounds,
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
    asked = _asked(topology, free, free, query)
    for distinct in (asked.code.parts, lambda code: code):
        found = [_answer(asked, each) for each in _Search(asked, TwoLeastCosts(distinct)).found()
                 if _as_required(asked.code.cost(each.code), query)]
        others = [each for each in found if each.cost != best.cost]
        if others:
            return others[0]
    return next((each for each in found if each.cpus != best.cpus), None)


def largest(topology: Topology, free: CpuSet, query: CpuQuery) -> int:
    """The size of the largest set that such a query could get; its own size and what it keeps do not matter."""
    groups = cpu_groups(topology, query.align is Alignment.SOCKET)
    left = usable(free & topology.online, query._replace(keep=CpuSet()), groups)
    if not query.align_required or query.align is Alignment.CORE:
        return len(left)
    within = [cache.cpus for cache in groups.caches] if query.align is Alignment.CACHE else groups.units
    return max((len(cpus & left) for cpus in within), default=0)


#: Tables by the number of touched units of each sort (search_space).
_Linked = Mapping[int, Sequence[Entry]]


class _Asked(NamedTuple):
    """A query with the groups of its machine."""

    groups: CpuGroups
    free: CpuSet
    choice: CpuSet  #: Those of them that may be taken.
    usable: CpuSet  #: And the kept ones, as far as they can be part of a legal set.
    query: CpuQuery
    code: CostCode


class _Far(NamedTuple):
    """Touched units: the distance between them, how many of each sort, and how far one more unit of each sort is."""

    within: int
    counts: tuple[tuple[int, int], ...]
    pulls: list[int]


class _Found(NamedTuple):
    """A set, in the order in which sets are compared."""

    before: int  #: The parts before the distance.
    distance: int
    code: int  #: Without the distance.


def _asked(topology: Topology, free: CpuSet, choice: CpuSet, query: CpuQuery) -> _Asked:
    groups = cpu_groups(topology, query.align is Alignment.SOCKET)
    choice = (choice & topology.online) - query.keep
    some = usable(choice, query, groups)
    choice &= some
    code = CostCode(query.align, choice, query.present)
    return _Asked(groups, (free & topology.online) - query.keep, choice, some, query, code)


def _best(topology: Topology, free: CpuSet, choice: CpuSet, query: CpuQuery) -> FoundCpus | Refusal:
    asked = _asked(topology, free, choice, query)
    if refused := too_few(topology, (choice & topology.online) - query.keep, query):
        return refused
    found = _in_one_unit(asked) or next(iter(_Search(asked, LeastCosts(asked.code.never)).found()), None)
    if found is None or not _as_required(asked.code.cost(found.code), query):
        return nothing_aligned(asked.groups, asked.usable, query)
    return _answer(asked, found)


def _answer(asked: _Asked, found: _Found) -> FoundCpus:
    cost = asked.code.cost(found.code)._replace(distance=found.distance)
    return FoundCpus(asked.query.keep | asked.code.cpus(found.code), cost)


def _as_required(cost: CpuCost, query: CpuQuery) -> bool:
    if not query.align_required or query.align is Alignment.CORE:
        return True  # whole cores are required of every table
    return (cost.caches if query.align is Alignment.CACHE else cost.nodes) <= 1


def _in_one_unit(asked: _Asked) -> _Found | None:
    """The best set within one unit, where units are compared first: no other can be better. None if there is none."""
    if asked.query.align in (Alignment.CACHE, Alignment.CORE):
        return None
    found = []
    for unit in asked.groups.units:
        within = asked._replace(choice=asked.choice & unit)
        if asked.query.keep <= unit and len(within.choice | asked.query.keep) >= asked.query.size:
            found += _Search(within, LeastCosts(asked.code.never)).split(UnitBounds())
    return min(found, default=None)


class _Search(Generic[Entry]):
    """Return as many of the best sets as a table keeps in an entry."""

    def __init__(self, asked: _Asked, tables: CostTables[Entry]) -> None:
        self._asked, self._tables = asked, tables
        self._space = SearchSpace(asked.groups, asked.free, asked.choice, asked.query, asked.code, tables)
        self._more = asked.query.size - len(asked.query.keep)

    def found(self) -> list[_Found]:
        """The best legal sets, ascending."""
        return (self._even() if self._asked.query.spread_nodes else []) or self.split(UnitBounds())

    def split(self, bounds: UnitBounds) -> list[_Found]:
        """The best of the sets within these bounds, ascending. What bounds say of the number of units is ignored."""
        code, groups = self._asked.code, self._asked.groups
        one_sort, most = len(groups.between) < 2, len(groups.units)
        if not one_sort and self._nodes_first:
            return self._by_distance(bounds, range(self._space.fewest_units(), most + 1), None)
        if not one_sort and self._tables.breadth > 1:
            return self._by_distance(bounds, range(most + 1), None)
        tables = [tables[0] for tables in self._space.linked(bounds._replace(units=None))]
        found = self._tables.costs(self._tables.sum_at(tables, self._more))
        if one_sort:  # the distance depends on the number of touched units alone
            far = next(iter(groups.between.values()), 0)
            return [_Found(code.before_distance(each), far * comb(code.cost(each).nodes, 2), each) for each in found]
        if not found:
            return []
        nodes = code.cost(found[0]).nodes
        return self._by_distance(bounds, range(nodes, nodes + 1), code.before_distance(found[0]))

    def _even(self) -> list[_Found]:
        """The best of the even sets."""
        query, code, groups = self._asked.query, self._asked.code, self._asked.groups
        more = 1
        if whole_cores(query):
            more = max(len(core.cpus) for cache in groups.caches for cores in cache.cores.values() for core in cores)
        found: list[_Found] = []
        for units in range(1, len(groups.units) + 1):
            even = query.size // units
            for fewest in range(max(1, even - more + 1), even + 1):
                found += [each for each in self.split(UnitBounds(fewest, fewest + more))
                          if _as_required(code.cost(each.code), query)]
            found = self._best_of(found)
            if (self._nodes_first and len(found) == self._tables.breadth
                    and code.cost(found[-1].code).nodes <= units):
                break  # other sets have more nodes
        return found

    @property
    def _nodes_first(self) -> bool:
        return cost_order(self._asked.query.align)[0] == "nodes"

    def _by_distance(self, bounds: UnitBounds, numbers: range, before: int | None) -> list[_Found]:
        """The best sets that touch so many units, by rising number and distance.
        :param before: the least parts before the distance, where they are known."""
        found: list[_Found] = []
        for number in numbers:
            linked = self._space.linked(bounds._replace(units=number))
            sums: dict[tuple[int, ...], Sequence[Entry]] = {(): [self._tables.entry((0,))]}
            rooms = _rooms(linked)
            chosen = sorted(self._counts(linked, rooms, number))
            for distance, group in groupby(chosen, key=lambda each: each[0]):
                for _, keys in group:
                    found += [_Found(self._asked.code.before_distance(code), distance, code)
                              for code in self._tables.costs(self._at(linked, rooms, keys, sums))]
                found = self._best_of(found)
                if self._nodes_first and len(found) == self._tables.breadth:
                    return found  # whatever comes later is farther, or has more nodes
                if before is not None and found and found[0].before == before:
                    return found
        return found

    def _at(self, linked: Sequence[_Linked[Entry]], rooms: Sequence[Mapping[int, int]], keys: tuple[int, ...],
            sums: dict[tuple[int, ...], Sequence[Entry]]) -> Entry:
        """The entry of these numbers of touched units. `sums` keeps what was added up of the last groups, without
        those entries that the first groups cannot make up for."""
        if not keys:
            return sums[()][0]
        before = sum(map(touched, keys))
        for first in range(len(keys) - 1, 0, -1):
            before -= touched(keys[first])
            if keys[first:] not in sums:
                least = max(0, self._more - rooms[first][before])
                sums[keys[first:]] = self._tables.added(sums[keys[first + 1:]], linked[first][keys[first]], least,
                                                        self._more)
        return self._tables.at(sums[keys[1:]], linked[0][keys[0]], self._more)

    def _counts(self, linked: Sequence[_Linked[Entry]], rooms: Sequence[Mapping[int, int]],
                number: int) -> list[tuple[int, tuple[int, ...]]]:
        """A key for each linked group, so that they touch that number of units, with room for all CPUs; before them
        the distance between the touched units. It is added up group by group, as there may be thousands."""
        found: list[tuple[int, tuple[int, ...]]] = []
        keys = {key: self._far(key) for tables in linked for key in tables}

        def choose(length: int, number: int, more: int, distance: int, pulls: list[int],
                   chosen: tuple[int, ...]) -> None:
            """The first groups. :param pulls: what one more unit of each sort adds to the distance."""
            if not length:
                found.append((distance, chosen))
                return
            for key, table in linked[length - 1].items():
                units, rest = number - touched(key), more - len(table) + 1
                if units in rooms[length - 1] and rooms[length - 1][units] >= rest:
                    far = keys[key]
                    choose(length - 1, units, rest,
                           distance + far.within + sum(count * pulls[sort] for sort, count in far.counts),
                           [*map(add, pulls, far.pulls)] if key else pulls, (key, *chosen))

        if rooms[-1].get(number, -1) >= self._more:
            choose(len(linked), number, self._more, 0, [0] * (max(self._asked.groups.sorts) + 1), ())
        return found

    def _far(self, key: int) -> _Far:
        """Return what the touched units of a key add to the distance."""
        between, most = self._asked.groups.between, max(self._asked.groups.sorts) + 1
        counts = [(sort, count) for sort in range(most) if (count := key >> SORT_BITS * sort & (1 << SORT_BITS) - 1)]
        within = sum(comb(count, 2) * between.get((sort, sort), 0) for sort, count in counts)
        within += sum(one[1] * other[1] * between[one[0], other[0]] for one, other in combinations(counts, 2))
        pulls = [sum(count * between.get((min(sort, other), max(sort, other)), 0) for other, count in counts)
                 for sort in range(most)]
        return _Far(within, tuple(counts), pulls)

    def _best_of(self, found: Iterable[_Found]) -> list[_Found]:
        """Return the best sets, as many as an entry of a table keeps, whose costs differ as its costs do."""
        kept: dict[tuple[int, int], _Found] = {}
        for each in sorted(found):
            kept.setdefault((each.distance, self._tables.mark(each.code)), each)
        return list(kept.values())[:self._tables.breadth]


def _rooms(linked: Sequence[_Linked[Entry]]) -> list[dict[int, int]]:
    """The most CPUs of none, one, two … of the first groups, by the number of touched units."""
    rooms: list[dict[int, int]] = [{0: 0}]
    for tables in linked:
        rooms.append({})
        for before, room in rooms[-2].items():
            for key, table in tables.items():
                units = before + touched(key)
                rooms[-1][units] = max(rooms[-1].get(units, 0), room + len(table) - 1)
    return rooms
