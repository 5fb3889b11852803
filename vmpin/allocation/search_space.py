"""What a set of CPUs can be made of: the cores, caches and units (NUMA nodes, or sockets) of a machine, each with the
least cost of taking so many of its free CPUs.

A table is a list whose entry n is the least cost (`CostCode`) of n CPUs more than those that are kept. The costs of
cores add up over a cache, those of caches over a unit, those of units over the machine; so tables are combined by
min-plus convolution, and the optimum is exact. A cache that reaches over several units (one that all nodes of a socket
share) is tried as left out, touched, and taken as a whole: the units are independent then. What stays out: distances,
which do not add up (search).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, reduce
from itertools import product
from typing import NamedTuple

from vmpin.allocation.cost_code import CostCode
from vmpin.allocation.cpu_request import Alignment, CpuQuery, SmtUse
from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.topology import Topology

Table = list[int]


class _Core(NamedTuple):
    """The threads of a core that are online, in one cache, one node and one unit; how many are kept; those that may
    be taken, ascending; whether its node is a device's."""

    threads: int
    kept: int
    open: tuple[int, ...]
    near: bool


class _Cache(NamedTuple):
    """A last-level cache. `free` counts its free CPUs, also those that may not be taken. `whole`: all of its online
    CPUs are free. `cores` by unit."""

    free: int
    kept: int
    whole: bool
    cores: Mapping[int, Sequence[_Core]]


class SearchSpace:
    """Of one query.
    :param free: CPUs that are free: a node is whole while all of its online CPUs are.
    :param choice: those of them that may be taken."""

    def __init__(self, topology: Topology, free: CpuSet, choice: CpuSet, query: CpuQuery) -> None:
        self.code = CostCode(query.align, max(topology.all_cpus))
        self._query = query
        self._topology = topology
        online = topology.online
        self.units = tuple(cpus & online for cpus in units(topology, query.align))
        self._unit_of = {cpu: unit for unit, cpus in enumerate(self.units) for cpu in cpus}
        self.kept = [len(cpus & query.keep) for cpus in self.units]
        self._width = [len(cpus) for cpus in self.units]
        self._whole = [cpus <= free for cpus in self.units]
        self._caches = list(self._read_caches(free & online, choice & online & free - query.keep, query))
        self._tables: dict[tuple[CpuSet, int | None], Table] = {}

    def _read_caches(self, free: CpuSet, choice: CpuSet, query: CpuQuery) -> Iterable[_Cache]:
        topology = self._topology
        groups = {topology.cache_of(cpu) & topology.online: None for cpu in topology.online}
        near = union(topology.nodes.get(node, EMPTY) for node in query.near) if query.near else topology.online
        for cache in groups:
            cores: dict[int, list[_Core]] = defaultdict(list)
            for cpus in _pieces(topology, cache, self._unit_of):
                first = cpus.first
                cores[self._unit_of[first]].append(_Core(len(cpus), len(cpus & query.keep), tuple(cpus & choice),
                                                         first in near))
            yield _Cache(len(cache & free), len(cache & query.keep), cache <= free, cores)

    # Tables

    def best(self, chosen: CpuSet, size: int, even: int | None = None) -> int:
        """The least cost of `size` CPUs more than those kept, in the units of these numbers alone; without distances.
        :param even: each touched unit has so many CPUs, or one more."""
        tables = [self.table(part & chosen, even) for part in self._parts if not part.isdisjoint(chosen)]
        tables.sort(key=len)
        if not tables:
            return self.code.never
        *others, last = tables
        summed = reduce(lambda one, other: _sum(one, other, self.code.never, size), others, [0])
        return min((summed[taken] + last[size - taken] for taken in range(len(summed))
                    if 0 <= size - taken < len(last)), default=self.code.never)

    def capacity(self, unit: int) -> int:
        """How many CPUs of a unit may be taken."""
        return sum(len(core.open) for cache in self._caches for core in cache.cores.get(unit, ()))

    @cached_property
    def _parts(self) -> list[CpuSet]:
        """The numbers of all units, those together that share a cache."""
        parts: list[CpuSet] = []
        for part in [*(CpuSet(cache.cores) for cache in self._caches), *(CpuSet((unit,)) for unit in
                                                                         range(len(self.units)))]:
            joined = [other for other in parts if not other.isdisjoint(part)]
            parts = [other for other in parts if other.isdisjoint(part)] + [union((part, *joined))]
        return sorted(parts, key=list)

    def table(self, chosen: CpuSet, even: int | None) -> Table:
        """Of these units, which share caches with no others but those left out."""
        if (chosen, even) not in self._tables:
            self._tables[chosen, even] = self._combined(chosen, even)
        return self._tables[chosen, even]

    def _combined(self, chosen: CpuSet, even: int | None) -> Table:
        own: dict[int, list[_Cache]] = {unit: [] for unit in chosen}
        shared = []
        for cache in self._caches:
            here = [unit for unit in cache.cores if unit in chosen]
            if len(cache.cores) == 1 and here:
                own[here[0]].append(cache)
            elif here:
                shared.append(cache)
        never = self.code.never
        alone = {unit: reduce(lambda one, other: _sum(one, other, never),
                              (self._cache_table(cache, unit) for cache in caches), [0])
                 for unit, caches in own.items()}
        found: Table = []
        for modes in product(*map(_modes, shared)):
            cost, tables = 0, dict(alone)
            for cache, mode in zip(shared, modes, strict=True):
                cost += self._shared_cost(cache, mode)
                for unit in cache.cores:
                    if unit in chosen:
                        tables[unit] = _sum(tables[unit], self._shared_table(cache, unit, mode), never)
                if mode is _FULL and not all(unit in chosen for unit in cache.cores):
                    cost = never
            ended = (self._unit_table(unit, table, even) for unit, table in tables.items())
            summed = [cost + each for each in reduce(lambda one, other: _sum(one, other, never), ended, [0])]
            longer, shorter = (found, summed) if len(found) > len(summed) else (summed, found)
            found = [*map(min, longer, shorter), *longer[len(shorter):]]
        return found

    def _unit_table(self, unit: int, table: Table, even: int | None) -> Table:
        """With what the unit itself costs."""
        one, kept = self.code.one, self.kept[unit]
        ended = []
        for taken, cost in enumerate(table):
            total = taken + kept
            if total:
                cost += one.nodes
                if self._whole[unit] and total < self._width[unit]:
                    cost += one.broken_nodes
                if even is not None and not even <= total <= even + 1:
                    cost = self.code.never
            ended.append(cost)
        return ended

    def _cache_table(self, cache: _Cache, unit: int) -> Table:
        """Of a cache that lies in one unit."""
        one = self.code.one
        ended = []
        for taken, cost in enumerate(self._cores_table(cache.cores[unit])):
            if taken or cache.kept:
                cost += one.caches + (cache.free - taken) * one.leftover
                if cache.whole and taken < cache.free:
                    cost += one.broken_caches
            ended.append(cost)
        return ended

    def _shared_table(self, cache: _Cache, unit: int, mode: str) -> Table:
        """Of one unit's part of a cache that others have a part of."""
        if mode is _LEFT_OUT:
            return [0]
        table = self._cores_table(cache.cores[unit])
        if mode is _FULL:
            table = [self.code.never] * (len(table) - 1) + table[-1:]
        return [cost - taken * self.code.one.leftover for taken, cost in enumerate(table)]

    def _shared_cost(self, cache: _Cache, mode: str) -> int:
        one = self.code.one
        if mode is _LEFT_OUT:
            return 0
        return one.caches + cache.free * one.leftover + (one.broken_caches if cache.whole and mode is _TOUCHED else 0)

    def _cores_table(self, cores: Sequence[_Core]) -> Table:
        return reduce(lambda one, other: _sum(one, other, self.code.never), map(self._core_table, cores), [0])

    def _core_table(self, core: _Core) -> Table:
        """Of one core: its lowest CPUs first, as they differ in nothing else."""
        one, smt = self.code.one, self._query.smt
        table, numbers = [], 0
        for taken in range(len(core.open) + 1):
            total = core.kept + taken
            cost = numbers + (0 if core.near else total * one.away)
            part = 0 < total < core.threads
            if smt is SmtUse.REQUIRE and part:
                cost = self.code.never
            elif smt is SmtUse.SPREAD:
                cost += max(0, total - 1) * one.partial_cores
            elif part:
                cost += one.partial_cores
            table.append(cost)
            if taken < len(core.open):
                numbers += self.code.cpu(core.open[taken])
        return table


#: What becomes of a cache that several units share.
_LEFT_OUT, _TOUCHED, _FULL = "left out", "touched", "full"


def _modes(cache: _Cache) -> Sequence[str]:
    if cache.kept:
        return (_TOUCHED,)
    takes = sum(len(core.open) for cores in cache.cores.values() for core in cores)
    if not takes:
        return (_LEFT_OUT,)
    return (_LEFT_OUT, _TOUCHED, _FULL) if cache.whole and takes == cache.free else (_LEFT_OUT, _TOUCHED)


def _sum(one: Table, other: Table, never: int, most: int | None = None) -> Table:
    """The table of two parts together: the least sum for each number of CPUs, up to `most`."""
    if len(one) < len(other):
        one, other = other, one
    length = len(one) + len(other) - 1 if most is None else min(len(one) + len(other) - 1, most + 1)
    found = [never] * length
    for taken, cost in enumerate(other[:length]):
        if cost < never:
            end = min(len(one), length - taken)
            found[taken:taken + end] = map(min, found[taken:taken + end], [cost + each for each in one[:end]])
    return found


def _pieces(topology: Topology, cache: CpuSet, unit_of: Mapping[int, int]) -> Iterable[CpuSet]:
    """A cache's cores, ascending. One that a scenario has in two nodes or units counts as two."""
    left = cache
    while left:
        first = left.first
        core = topology.core_of(first) & left
        if len(core) > 1:
            place = (topology.node_of(first), unit_of[first])
            core = CpuSet(cpu for cpu in core if (topology.node_of(cpu), unit_of[cpu]) == place)
        yield core
        left -= core


def units(topology: Topology, alignment: Alignment) -> tuple[CpuSet, ...]:
    """What `CpuCost.nodes` counts: the NUMA nodes, or for `socket` the sockets. CPUs of none are one more."""
    groups = topology.sockets if alignment is Alignment.SOCKET and topology.sockets else tuple(topology.nodes.values())
    online = tuple(group & topology.online for group in groups)
    rest = topology.online - union(online)
    return tuple(group for group in (*online, rest) if group)
