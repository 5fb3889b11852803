"""What a set of CPUs can be made of, each with the least cost of taking so many of its free CPUs: tables of cores,
added up over a cache; those of caches, over a unit (a NUMA node, or a socket); those of units, over what is *linked*:
units that have a cache in common, most often one unit alone.

Entry n of a table is for n CPUs more than those that are kept. All parts of a cost add up so, but for the distance: it
depends on how many units of each sort are touched, and therefore a linked group has a table for each such count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import accumulate, combinations, islice
from typing import Generic, NamedTuple, TypeVar

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.features.allocator.grants.cpu_request import Alignment, CpuQuery, SmtUse
from vmpin.features.allocator.search.cost_tables import CostCode, CostTables, Entry
from vmpin.features.allocator.search.cpu_groups import CacheGroup, CoreGroup, CpuGroups

#: Bits in which the touched units of one sort are counted.
SORT_BITS = 12
#: Of a cache that several units share: some of its CPUs are not held, some are.
_SOME_LEFT, _SOME_HELD = 1, 2
_Key = TypeVar("_Key")


class UnitBounds(NamedTuple):
    """What the sets have in common that are searched at a time: how many CPUs each touched unit holds, and how many
    units are touched; None: as many as one likes."""

    fewest: int = 1
    most: int | None = None
    units: int | None = None


class _Shared(NamedTuple):
    """A cache that several units share; its state is these two bits of the key of a table."""

    cache: CacheGroup
    at: int


def whole_cores(query: CpuQuery) -> bool:
    return query.smt is SmtUse.REQUIRE or (query.align is Alignment.CORE and query.align_required)


class SearchSpace(Generic[Entry]):
    """Of one query.
    :param free: CPUs that are free: a node is wholly free while all of its online CPUs are.
    :param choice: those of them that may be taken."""

    def __init__(self, groups: CpuGroups, free: CpuSet, choice: CpuSet, query: CpuQuery, code: CostCode,
                 tables: CostTables[Entry]) -> None:
        self._groups, self._free, self._choice, self._query = groups, free, choice, query
        self._code, self._tables = code, tables
        self._most = query.size - len(query.keep)
        self._some = choice | query.keep
        rooms = sorted((len(cpus & choice) for cpus in groups.units), reverse=True)
        #: The most CPUs that may be taken of so many units.
        self._room = [0, *accumulate(rooms)]
        self._own_tables: dict[int, Sequence[Entry]] = {}
        self._prices: dict[tuple[int, int, bool, bool], Sequence[int | None]] = {}
        self._linked = self._links()

    def linked(self, bounds: UnitBounds) -> list[dict[int, Sequence[Entry]]]:
        """Return for each linked group of units, then for all of one sort together, the tables by the number of
        touched units (`SORT_BITS` for each sort). With a bound of the units, all have the key 0 otherwise."""
        by_sorts: dict[frozenset[int], list[dict[int, Sequence[Entry]]]] = {}
        for units in self._linked:
            sorts = frozenset(self._groups.sorts[unit] for unit in units)
            by_sorts.setdefault(sorts, []).append(self._link_tables(units, bounds))
        found: list[dict[int, Sequence[Entry]]] = []
        for sorts, each in by_sorts.items():
            together = bounds.units is not None and len(sorts) == 1
            found += [reduce(lambda one, other: self._joined(one, other, bounds), each)] if together else each
        return found

    def fewest_units(self) -> int:
        """No set touches fewer."""
        return next((number for number, room in enumerate(self._room) if room >= self._most), len(self._room))

    def _links(self) -> list[tuple[int, ...]]:
        """The units with CPUs that are held or may be taken, those together that share a cache with such CPUs."""
        links = [{unit} for unit, cpus in enumerate(self._groups.units) if not cpus.isdisjoint(self._some)]
        for cache in self._groups.caches:
            if len(cache.cores) > 1 and not cache.cpus.isdisjoint(self._some):
                joined = [link for link in links if link & set(cache.cores)]
                links = [link for link in links if link not in joined] + [set().union(*joined)]
        return sorted(tuple(sorted(link)) for link in links)

    def _joined(self, one: dict[int, Sequence[Entry]], other: dict[int, Sequence[Entry]],
                bounds: UnitBounds) -> dict[int, Sequence[Entry]]:
        """Join two sets of tables, by the sum of their keys."""
        found: dict[int, Sequence[Entry]] = {}
        for key, table in one.items():
            for more, added in other.items():
                if (useful := self._useful(key + more, table, added, bounds)) is not None:
                    self._put(found, key + more, useful)
        return found

    def _put(self, found: dict[_Key, Sequence[Entry]], key: _Key, table: Sequence[Entry]) -> None:
        found[key] = self._tables.least(found[key], table) if key in found else table

    def _useful(self, key: int, one: Sequence[Entry], other: Sequence[Entry],
                bounds: UnitBounds) -> Sequence[Entry] | None:
        """Both tables added, without those entries that the units still to be touched cannot make up for."""
        if bounds.units is None:
            return self._tables.added(one, other, 0, self._most)
        left = bounds.units - touched(key)
        if left < 0:
            return None
        least = self._most - self._room[min(left, len(self._room) - 1)]
        return self._tables.added(one, other, least, self._most) if least < len(one) + len(other) - 1 else None

    def _link_tables(self, units: tuple[int, ...], bounds: UnitBounds) -> dict[int, Sequence[Entry]]:
        """Return the tables of linked units, by the number of those touched."""
        caches = [cache for cache in self._groups.caches if not cache.cpus.isdisjoint(self._some)]
        shared = [_Shared(cache, 2 * at) for at, cache in enumerate(
            cache for cache in caches if len(cache.cores) > 1 and not set(cache.cores).isdisjoint(units))]
        left = sum(_SOME_LEFT << each.at for each in shared if not set(each.cache.cores) <= set(units))
        found: dict[tuple[int, int], Sequence[Entry]] = {(0, left): [self._tables.entry((0,))]}
        for unit in units:
            together: dict[tuple[int, int], Sequence[Entry]] = {}
            for (key, state), table in found.items():
                for (more, held), added in self._unit_tables(unit, caches, shared, bounds).items():
                    if (useful := self._useful(key + more, table, added, bounds)) is not None:
                        self._put(together, (key + more, state | held), useful)
            found = together
        ended: dict[int, Sequence[Entry]] = {}
        for (key, state), table in found.items():
            price = sum(self._shared_price(each, state >> each.at & 3) for each in shared)
            self._put(ended, key, self._tables.priced(table, [price] * len(table)))
        return ended

    def _unit_tables(self, unit: int, caches: Iterable[CacheGroup], shared: Sequence[_Shared],
                     bounds: UnitBounds) -> dict[tuple[int, int], Sequence[Entry]]:
        """Return the tables of one unit, by its key and the states of the caches that it shares."""
        if unit not in self._own_tables:
            self._own_tables[unit] = self._tables.sum([self._cache_table(cache, unit) for cache in caches
                                                       if len(cache.cores) == 1 and unit in cache.cores], self._most)
        kept = len(self._groups.units[unit] & self._query.keep)
        own = self._own_tables[unit]
        found: dict[int, Sequence[Entry]] = {0: own if bounds.most is None else own[:max(0, bounds.most - kept) + 1]}
        for each in shared:
            if unit in each.cache.cores:
                states = self._shared_tables(each, unit)
                found = {state | each_state << each.at: self._tables.added(table, added, 0, self._most)
                         for state, table in found.items() for each_state, added in states.items()}
        counted = bounds.units is not None
        weight = 1 << SORT_BITS * self._groups.sorts[unit] if counted else 0
        ended: dict[tuple[int, int], Sequence[Entry]] = {}
        for state, table in found.items():
            held = self._tables.priced(table, self._unit_prices(unit, kept, len(table), bounds))
            if kept or not counted:
                ended[weight, state] = held
                continue
            ended[0, state] = held[:1]
            if len(held) > bounds.fewest:
                ended[weight, state] = [self._tables.never, *held[1:]]
        return ended

    def _unit_prices(self, unit: int, kept: int, length: int, bounds: UnitBounds) -> list[int | None]:
        one, cpus = self._code.one, self._groups.units[unit]
        free = len(cpus & self._free)
        broken = one.broken_nodes if free == len(cpus) else 0
        most = len(cpus) if bounds.most is None else bounds.most
        return [0 if not held else one.nodes + (free + kept - held) * one.node_left + (
                broken if held < len(cpus) else 0) if bounds.fewest <= held <= most
                else None for held in range(kept, kept + length)]

    def _cache_table(self, cache: CacheGroup, unit: int) -> Sequence[Entry]:
        """Return the table of a cache that lies in one unit."""
        one, table = self._code.one, self._cores_table(cache, unit)
        free = len(cache.cpus & self._free)
        kept = not cache.cpus.isdisjoint(self._query.keep)
        broken = one.broken_caches if cache.cpus <= self._free else 0
        prices = [one.caches + (free - taken) * one.leftover + (broken if taken < free else 0)
                  if taken or kept else 0 for taken in range(len(table))]
        return self._tables.priced(table, prices)

    def _shared_tables(self, shared: _Shared, unit: int) -> Mapping[int, Sequence[Entry]]:
        """Return the tables of one unit's part of a cache that it shares with other units, by what becomes of that
        part."""
        table = self._cores_table(shared.cache, unit)
        width = sum(len(core.cpus) for core in shared.cache.cores[unit])
        kept = sum(len(core.cpus & self._query.keep) for core in shared.cache.cores[unit])
        table = self._tables.priced(table, [-taken * self._code.one.leftover for taken in range(len(table))])
        found: dict[int, list[Entry]] = {}
        for taken, entry in enumerate(table):
            held = taken + kept
            state = (_SOME_HELD if held else 0) | (_SOME_LEFT if held < width else 0)
            found.setdefault(state, [self._tables.never] * len(table))[taken] = entry
        return found

    def _shared_price(self, shared: _Shared, state: int) -> int:
        one = self._code.one
        if not state & _SOME_HELD:
            return 0
        broken = one.broken_caches if shared.cache.cpus <= self._free and state & _SOME_LEFT else 0
        return one.caches + broken + len(shared.cache.cpus & self._free) * one.leftover

    def _cores_table(self, cache: CacheGroup, unit: int) -> Sequence[Entry]:
        return self._tables.sum([self._core_table(core) for core in cache.cores[unit]
                                 if not core.cpus.isdisjoint(self._some)], self._most)

    def _core_table(self, core: CoreGroup) -> Sequence[Entry]:
        """Return the table of one core: its best CPUs first, the lowest of those that differ in nothing else."""
        numbers = sorted(map(self._code.cpu, core.cpus & self._choice))
        away = bool(self._query.near) and core.node not in self._query.near
        prices = self._core_prices(len(core.cpus & self._query.keep), len(core.cpus), core.cpus <= self._free, away)
        table = []
        for taken in range(min(len(numbers), self._most) + 1):
            price = prices[taken]
            if price is None:
                table.append(self._tables.never)
                continue
            lowest = islice(combinations(numbers, taken), self._tables.breadth)
            table.append(self._tables.entry(price + sum(each) for each in lowest))
        return table

    def _core_prices(self, kept: int, width: int, whole: bool, away: bool) -> Sequence[int | None]:
        """The prices of a core by the number of CPUs taken of it. Kept, as most cores of a machine are alike.
        :param whole: it is wholly free."""
        key = kept, width, whole, away
        if key not in self._prices:
            self._prices[key] = [self._core_price(held, width, whole, away) for held in range(kept, width + 1)]
        return self._prices[key]

    def _core_price(self, held: int, width: int, whole: bool, away: bool) -> int | None:
        one, part = self._code.one, 0 < held < width
        price = held * one.away if away else 0
        if whole_cores(self._query):
            return None if part else price
        if part and whole:
            price += one.broken_cores
        if self._query.smt is SmtUse.SPREAD:
            return price + max(0, held - 1) * one.partial_cores
        return price + one.partial_cores if part else price


@lru_cache(maxsize=4096)
def touched(key: int) -> int:
    """The number of units that a key counts. Kept: a search asks for the same few some ten thousand times."""
    number = 0
    while key:
        number += key & (1 << SORT_BITS) - 1
        key >>= SORT_BITS
    return number


def usable(free: CpuSet, query: CpuQuery, groups: CpuGroups) -> CpuSet:
    """The CPUs that can be part of a legal set: kept or free, and where whole cores are required, of such cores."""
    some = free | query.keep
    if not whole_cores(query):
        return some
    left = EMPTY
    for cache in groups.caches:
        for cores in cache.cores.values():
            for core in cores:
                left = left | core.cpus if core.cpus <= some else left
    return left
