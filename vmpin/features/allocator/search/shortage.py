"""Why there is no legal set of CPUs, with the numbers that an operator needs."""

from __future__ import annotations

from vmpin.cpuset import CpuSet
from vmpin.domain.terminal import number_of
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.cpu_request import Alignment, CpuQuery, Refusal, RefusalKind
from vmpin.features.allocator.search.cpu_groups import CpuGroups
from vmpin.features.allocator.search.search_space import whole_cores

#: Groups named in one sentence at most.
_NAMED = 16


def too_few(topology: Topology, free: CpuSet, query: CpuQuery) -> Refusal | None:
    """Why no set whatever would do; None where there may be one.
    :param free: CPUs that may be taken, without those kept."""
    more = query.size - len(query.keep)
    if more < 0:
        return Refusal(RefusalKind.REQUEST,
                       f"{number_of(query.size, 'CPU is')} fewer than the {len(query.keep)} that are kept")
    if not query.keep <= topology.online:
        return Refusal(RefusalKind.CPUS, f"of the CPUs that are kept, {query.keep - topology.online} are offline")
    if more > len(free):
        kept = len(query.keep)
        beside = f" more than the {kept} that {'is' if kept == 1 else 'are'} kept" if kept else ""
        return Refusal(RefusalKind.CPUS, f"needs {number_of(more, 'CPU')}{beside}, {len(free)} "
                       f"{'is' if len(free) == 1 else 'are'} free{_where(topology, free)}")
    return None


def _where(topology: Topology, free: CpuSet) -> str:
    """"" where no CPU is free, and on a machine of one node."""
    if not free or len(topology.nodes) < 2:
        return ""
    return f": {_listed([f'node {node} has {len(cpus & free)}' for node, cpus in topology.nodes.items() if cpus])}"


def _listed(have: list[str]) -> str:
    return ", ".join(have[:_NAMED]) + (f", and {len(have) - _NAMED} more" if len(have) > _NAMED else "")


def nothing_aligned(groups: CpuGroups, usable: CpuSet, query: CpuQuery) -> Refusal:
    """Why none of the sets of that size is legal.
    :param usable: the CPUs that can be part of a legal set, those kept among them."""
    whole = whole_cores(query)
    if whole and (why := _no_whole_cores(groups, usable, query)):
        return Refusal(RefusalKind.ALIGNMENT, why)
    if query.align is Alignment.CACHE:
        name, within = "cache", [(f"cache {cache.cpus}", cache.cpus) for cache in groups.caches]
    else:
        name = "socket" if query.align is Alignment.SOCKET else "node"
        within = list(zip(groups.names, groups.nodes, strict=True))
    if not any(query.keep <= cpus for _, cpus in within):
        return Refusal(RefusalKind.ALIGNMENT,
                       f"needs CPUs within one {name}, and those that are kept ({query.keep}) are in several")
    have = _listed([f"{group} has {len(cpus & usable)}" for group, cpus in within])
    return Refusal(RefusalKind.ALIGNMENT,
                   f"no {name} has {number_of(query.size, 'CPU', 'free')}{' in whole cores' * whole}: {have}")


def _no_whole_cores(groups: CpuGroups, usable: CpuSet, query: CpuQuery) -> str:
    """"" where it is for another reason."""
    if not query.keep <= usable:
        return f"needs whole cores, and siblings of the kept CPUs {query.keep - usable} are not free"
    cores = {core.cpus for cache in groups.caches for of_node in cache.cores.values() for core in of_node
             if core.cpus <= usable}
    if query.size > len(usable):
        return f"needs {number_of(query.size, 'CPU')} in whole cores, {len(usable)} are in cores that are wholly free"
    widths = sorted({len(core) for core in cores})
    if len(widths) == 1 and query.size % widths[0]:
        return f"needs whole cores of {widths[0]} threads: {number_of(query.size, 'CPU is')} no multiple"
    kept = {core for core in cores if not core.isdisjoint(query.keep)}
    sums = {sum(map(len, kept))}
    for core in cores - kept:
        sums |= {number + len(core) for number in sums}
    if query.size not in sums:
        return (f"needs whole cores: those that are wholly free have {', '.join(map(str, widths))} threads, which "
                f"do not add up to {number_of(query.size, 'CPU')}")
    return ""
