"""The CPUs that shared containers are on: the pool without its headroom, free CPUs that shared containers are kept
off, so that the next exclusive container need not wait for updates of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.allocation_options import AllocationOptions
from vmpin.features.allocator.grants.cpu_request import Alignment, CpuQuery, FoundCpus, SmtUse
from vmpin.features.allocator.grants.ledger import Ledger
from vmpin.features.allocator.grants.pool_cpus import pool
from vmpin.features.allocator.search.best_set import best_cpus

#: Shared containers that one answer may update: at some 20 ms each (runc) a container waits at most 150 ms for that.
FEW = 6


def with_shared_cpus(machine: Topology, ledger: Ledger, options: AllocationOptions) -> Ledger:
    """The ledger with `shared` as the pool without its headroom. Shared containers are updated to it in the
    background: an answer takes away only what is to be a container's own (`pool_cpus.shrinking`)."""
    whole = pool(machine, ledger, options)
    taken = whole - ledger.shared if ledger.shared else EMPTY
    free = whole - options.reserved - ledger.version.holdings.taken
    if options.pool_headroom is None:
        headroom = _worked_out(machine, ledger, whole, taken, free, options)
    else:
        headroom = _of_size(machine, min(options.pool_headroom, len(free), len(whole) - 1), taken, free, options)
    return ledger if whole - headroom == ledger.shared else ledger._replace(shared=whole - headroom)


def _of_size(machine: Topology, size: int, taken: CpuSet, free: CpuSet, options: AllocationOptions) -> CpuSet:
    """The best CPUs, as many as configured. :param taken: the present headroom, which stays while it has that size."""
    if size <= 0:
        return EMPTY
    if len(taken) == size and taken <= free:
        return taken
    best = best_cpus(machine, free, CpuQuery(size, options.align, False, options.smt))
    return best.cpus if isinstance(best, FoundCpus) else EMPTY


def _worked_out(machine: Topology, ledger: Ledger, whole: CpuSet, taken: CpuSet, free: CpuSet,
                options: AllocationOptions) -> CpuSet:
    """`pool_headroom: auto`: one core of each node while there are more than FEW shared containers, at most an eighth
    of the online CPUs and a quarter of the pool, and no CPU that the pool's containers request. So that containers
    that come and go at a bound do not update all others each time, headroom begins a bit above the bounds and ends a
    bit below them. :param taken: the present headroom, CPUs that came back to the pool among them."""
    updated, requested = ledger.version.pool_load
    if updated <= (FEW // 2 if taken else FEW):
        return EMPTY
    idle = max(0, len(whole) - -(-requested // 1000))
    most = min(len(machine.online) // 8, len(whole) // 4)
    headroom = EMPTY
    for cpus in _best_cores(machine, free, options.align, options.smt):
        size = len(headroom | cpus)
        if size > min(most, idle if size <= len(taken) else 2 * idle // 3):
            break
        headroom = headroom | cpus
    return headroom


@lru_cache(maxsize=8)
def _best_cores(machine: Topology, free: CpuSet, align: Alignment, smt: SmtUse) -> tuple[CpuSet, ...]:
    """The CPUs that a container of a whole core would get in each node, those of the best node first; then likewise
    those of a container of a single CPU. Kept, as a shared container that comes or goes changes none."""
    nodes = [*machine.nodes.values(), machine.online - union(machine.nodes.values())]

    def best(single: bool) -> Iterator[FoundCpus]:
        for node in nodes:
            width = 1 if single else max((len(core & machine.online) for core in machine.cores
                                          if not core.isdisjoint(node)), default=0)
            if 0 < width <= len(free & node):
                cpus = best_cpus(machine, free & node, CpuQuery(width, align, False, smt))
                if isinstance(cpus, FoundCpus):
                    yield cpus

    return tuple(each.cpus for single in (False, True)
                 for each in sorted(best(single), key=lambda each: (each.cost, list(each.cpus))))
