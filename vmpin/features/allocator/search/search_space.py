"""The parts that a set of CPUs is made of, each with the least cost of so many of its free CPUs: tables of cores,
added up over a cache; those of caches, over a node; those of nodes, over a die: nodes that have a cache in common,
most often one node alone. (Nodes and packages as cpu_groups defines them.)

Entry n of a table is for n CPUs besides those that are kept. All parts of a cost add up so, but for the distance: it
depends on how many nodes of each package are touched, and therefore a die has a table for each such count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import accumulate
from typing import Generic, TypeVar

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.features.allocator.grants.cpu_request import Alignment, CpuQuery, SmtUse
from vmpin.features.allocator.search.cost_tables import CostCode, CostTables, Entry
from vmpin.features.allocator.search.cpu_groups import CacheGroup, CoreGroup, CpuGroups
from vmpin.features.allocator.search.node_choices import PACKAGE_BITS, touched
from vmpin.named_tuple import NamedTuple

#: Of a cache that several nodes share: some of its CPUs are not held, some are.
_SOME_LEFT, _SOME_HELD = 1, 2
_Key = TypeVar("_Key")


class NodeBounds(NamedTuple):
    """The sets that are searched at a time: the fewest and the most CPUs that each touched node holds, and the number
    of touched nodes. None: no bound."""

    fewest: int = 1
    most: int | None = None
    nodes: int | None = None


class _SharedCache(NamedTuple):
    """A cache that several nodes share. Two bits of a table's key are its state, from bit `at` on."""

    cache: CacheGroup
    at: int


def whole_cores(query: CpuQuery) -> bool:
    return query.smt is SmtUse.REQUIRE or (query.align is Alignment.CORE and query.align_required)


class SearchSpace(Generic[Entry]):
    """The tables of one query.
    :param free: CPUs that are free: a node is wholly free while all of its online CPUs are.
    :param choice: those of them that may be taken."""

    def __init__(self, groups: CpuGroups, free: CpuSet, choice: CpuSet, query: CpuQuery, code: CostCode,
                 tables: CostTables[Entry]) -> None:
        self._groups, self._free, self._choice, self._query = groups, free, choice, query
        self._code, self._tables = code, tables
        self._size = query.size - len(query.keep)
        self._some = choice | query.keep
        capacities = sorted((len(cpus & choice) for cpus in groups.nodes), reverse=True)
        #: The most CPUs that may be taken of so many nodes.
        self._capacity = [0, *accumulate(capacities)]
        self._unshared: dict[int, Sequence[Entry]] = {}
        self._prices: dict[tuple[int, int, bool, bool], Sequence[int | None]] = {}
        self._dies = self._find_dies()

    def die_tables(self, bounds: NodeBounds) -> list[dict[int, Sequence[Entry]]]:
        """Return each die's tables by the number of touched nodes (PACKAGE_BITS for each package). With a bound of the
        nodes, dies within one package are joined; without one, all tables have the key 0."""
        by_packages: dict[frozenset[int], list[dict[int, Sequence[Entry]]]] = {}
        for nodes in self._dies:
            packages = frozenset(self._groups.packages[node] for node in nodes)
            by_packages.setdefault(packages, []).append(self._tables_of_die(nodes, bounds))
        tables: list[dict[int, Sequence[Entry]]] = []
        for packages, dies in by_packages.items():
            joined = bounds.nodes is not None and len(packages) == 1
            tables += [reduce(lambda left, right: self._joined(left, right, bounds), dies)] if joined else dies
        return tables

    def fewest_nodes(self) -> int:
        """Return a number of nodes; no set touches fewer."""
        return next((number for number, capacity in enumerate(self._capacity) if capacity >= self._size),
                    len(self._capacity))

    def _find_dies(self) -> list[tuple[int, ...]]:
        """The nodes with CPUs that are held or may be taken, those together that share a cache with such CPUs."""
        dies = [{node} for node, cpus in enumerate(self._groups.nodes) if not cpus.isdisjoint(self._some)]
        for cache in self._groups.caches:
            if len(cache.cores) > 1 and not cache.cpus.isdisjoint(self._some):
                sharing = [die for die in dies if die & set(cache.cores)]
                dies = [die for die in dies if die not in sharing] + [set().union(*sharing)]
        return sorted(tuple(sorted(die)) for die in dies)

    def _joined(self, left: dict[int, Sequence[Entry]], right: dict[int, Sequence[Entry]],
                bounds: NodeBounds) -> dict[int, Sequence[Entry]]:
        """The tables of two dies together, by the sums of their keys."""
        joined: dict[int, Sequence[Entry]] = {}
        for left_key, left_table in left.items():
            for right_key, right_table in right.items():
                key = left_key + right_key
                if (useful := self._useful(key, left_table, right_table, bounds)) is not None:
                    self._put(joined, key, useful)
        return joined

    def _put(self, tables: dict[_Key, Sequence[Entry]], key: _Key, table: Sequence[Entry]) -> None:
        tables[key] = self._tables.least(tables[key], table) if key in tables else table

    def _useful(self, key: int, left: Sequence[Entry], right: Sequence[Entry],
                bounds: NodeBounds) -> Sequence[Entry] | None:
        """Both tables added, without the entries of so few CPUs that the nodes yet to be touched have too few others.
        None where that leaves none."""
        if bounds.nodes is None:
            return self._tables.added(left, right, 0, self._size)
        nodes = bounds.nodes - touched(key)
        if nodes < 0:
            return None
        least = self._size - self._capacity[min(nodes, len(self._capacity) - 1)]
        return self._tables.added(left, right, least, self._size) if least < len(left) + len(right) - 1 else None

    def _tables_of_die(self, nodes: tuple[int, ...], bounds: NodeBounds) -> dict[int, Sequence[Entry]]:
        """The tables of a die, by the number of its touched nodes."""
        caches = [cache for cache in self._groups.caches if not cache.cpus.isdisjoint(self._some)]
        shared = [_SharedCache(cache, 2 * number) for number, cache in enumerate(
            cache for cache in caches if len(cache.cores) > 1 and not set(cache.cores).isdisjoint(nodes))]
        left = sum(_SOME_LEFT << cache.at for cache in shared if not set(cache.cache.cores) <= set(nodes))
        tables: dict[tuple[int, int], Sequence[Entry]] = {(0, left): [self._tables.entry((0,))]}
        for node in nodes:
            with_node: dict[tuple[int, int], Sequence[Entry]] = {}
            of_node = self._tables_of_node(node, caches, shared, bounds)
            for (key, state), table in tables.items():
                for (node_key, node_state), node_table in of_node.items():
                    if (useful := self._useful(key + node_key, table, node_table, bounds)) is not None:
                        self._put(with_node, (key + node_key, state | node_state), useful)
            tables = with_node
        priced: dict[int, Sequence[Entry]] = {}
        for (key, state), table in tables.items():
            price = sum(self._shared_price(cache.cache, state >> cache.at & 3) for cache in shared)
            self._put(priced, key, self._tables.priced(table, [price] * len(table)))
        return priced

    def _tables_of_node(self, node: int, caches: Iterable[CacheGroup], shared: Sequence[_SharedCache],
                        bounds: NodeBounds) -> dict[tuple[int, int], Sequence[Entry]]:
        """The tables of one node, by its key and the states of the caches that it shares."""
        if node not in self._unshared:
            self._unshared[node] = self._tables.sum([self._cache_table(cache, node) for cache in caches
                                                     if len(cache.cores) == 1 and node in cache.cores], self._size)
        kept = len(self._groups.nodes[node] & self._query.keep)
        unshared = self._unshared[node]
        tables: dict[int, Sequence[Entry]] = {
            0: unshared if bounds.most is None else unshared[:max(0, bounds.most - kept) + 1]}
        for cache in shared:
            if node in cache.cache.cores:
                of_cache = self._shared_tables(cache.cache, node)
                tables = {state | cache_state << cache.at: self._tables.added(table, cache_table, 0, self._size)
                          for state, table in tables.items() for cache_state, cache_table in of_cache.items()}
        counted = bounds.nodes is not None
        weight = 1 << PACKAGE_BITS * self._groups.packages[node] if counted else 0
        keyed: dict[tuple[int, int], Sequence[Entry]] = {}
        for state, table in tables.items():
            priced = self._tables.priced(table, self._node_prices(node, kept, len(table), bounds))
            if kept or not counted:
                keyed[weight, state] = priced
                continue
            keyed[0, state] = priced[:1]
            if len(priced) > bounds.fewest:
                keyed[weight, state] = [self._tables.never, *priced[1:]]
        return keyed

    def _node_prices(self, node: int, kept: int, length: int, bounds: NodeBounds) -> list[int | None]:
        unit, cpus = self._code.unit, self._groups.nodes[node]
        free = len(cpus & self._free)
        broken = unit.broken_nodes if free == len(cpus) else 0
        most = len(cpus) if bounds.most is None else bounds.most
        return [0 if not held else unit.nodes + (free + kept - held) * unit.node_left + (
                broken if held < len(cpus) else 0) if bounds.fewest <= held <= most
                else None for held in range(kept, kept + length)]

    def _cache_table(self, cache: CacheGroup, node: int) -> Sequence[Entry]:
        """The table of a cache that lies in one node."""
        unit, table = self._code.unit, self._cores_table(cache, node)
        free = len(cache.cpus & self._free)
        kept = not cache.cpus.isdisjoint(self._query.keep)
        broken = unit.broken_caches if cache.cpus <= self._free else 0
        prices = [unit.caches + (free - taken) * unit.leftover + (broken if taken < free else 0)
                  if taken or kept else 0 for taken in range(len(table))]
        return self._tables.priced(table, prices)

    def _shared_tables(self, cache: CacheGroup, node: int) -> Mapping[int, Sequence[Entry]]:
        """The tables of one node's part of a cache that it shares with other nodes, by the state of that part."""
        table = self._cores_table(cache, node)
        width = sum(len(core.cpus) for core in cache.cores[node])
        kept = sum(len(core.cpus & self._query.keep) for core in cache.cores[node])
        table = self._tables.priced(table, [-taken * self._code.unit.leftover for taken in range(len(table))])
        tables: dict[int, list[Entry]] = {}
        for taken, entry in enumerate(table):
            held = taken + kept
            state = (_SOME_HELD if held else 0) | (_SOME_LEFT if held < width else 0)
            tables.setdefault(state, [self._tables.never] * len(table))[taken] = entry
        return tables

    def _shared_price(self, cache: CacheGroup, state: int) -> int:
        unit = self._code.unit
        if not state & _SOME_HELD:
            return 0
        broken = unit.broken_caches if cache.cpus <= self._free and state & _SOME_LEFT else 0
        return unit.caches + broken + len(cache.cpus & self._free) * unit.leftover

    def _cores_table(self, cache: CacheGroup, node: int) -> Sequence[Entry]:
        return self._tables.sum([self._core_table(core) for core in cache.cores[node]
                                 if not core.cpus.isdisjoint(self._some)], self._size)

    def _core_table(self, core: CoreGroup) -> Sequence[Entry]:
        """The table of one core: its best CPUs first, the lowest of those that differ in nothing else."""
        away = bool(self._query.near) and core.numa_node not in self._query.near
        prices = self._core_prices(len(core.cpus & self._query.keep), len(core.cpus), core.cpus <= self._free, away)
        return self._tables.of_core(sorted(map(self._code.cpu, core.cpus & self._choice)), prices[:self._size + 1])

    def _core_prices(self, kept: int, width: int, whole: bool, away: bool) -> Sequence[int | None]:
        """The prices of a core by the number of CPUs taken of it. Kept, as most cores of a machine are alike.
        :param whole: it is wholly free."""
        key = kept, width, whole, away
        if key not in self._prices:
            self._prices[key] = [self._core_price(held, width, whole, away) for held in range(kept, width + 1)]
        return self._prices[key]

    def _core_price(self, held: int, width: int, whole: bool, away: bool) -> int | None:
        unit, part = self._code.unit, 0 < held < width
        price = held * unit.away if away else 0
        if whole_cores(self._query):
            return None if part else price
        if part and whole:
            price += unit.broken_cores
        if self._query.smt is SmtUse.SPREAD:
            return price + max(0, held - 1) * unit.partial_cores
        return price + unit.partial_cores if part else price


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
