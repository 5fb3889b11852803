"""The allocators that need no peer: vmpin's search, and a greedy one as the floor. Pure but for the clock."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from peers.histories import Grant
from peers.machines import Machine
from vmpin.cpuset import EMPTY, CpuSet
from vmpin.features.allocator.grants.cpu_request import CpuQuery, FoundCpus, SmtUse
from vmpin.features.allocator.search.best_set import best_cpus


def vmpin(machine: Machine, free: frozenset[int], size: int) -> Grant:
    cpus, query = CpuSet(free), CpuQuery(size, smt=SmtUse.REQUIRE if machine.whole_cores else SmtUse.PREFER)
    best_cpus(machine.topology, EMPTY, CpuQuery(1))  # its groups are worked out once for all requests of a node
    begin = time.thread_time_ns()
    answer = best_cpus(machine.topology, cpus, query)
    spent = (time.thread_time_ns() - begin) / 1000
    return Grant(frozenset(answer.cpus) if isinstance(answer, FoundCpus) else None, spent)


def greedy(machine: Machine, free: frozenset[int], size: int) -> Grant:
    """The tightest cache that has enough, else the tightest node; else nodes, the one with the most first. In it whole
    cores before parts of them, lowest numbers first."""
    begin = time.thread_time_ns()
    cpus = _greedy(machine, free, size)
    return Grant(cpus, (time.thread_time_ns() - begin) / 1000)


def _greedy(machine: Machine, free: frozenset[int], size: int) -> frozenset[int] | None:
    cores = _groups(machine.core, free)
    if machine.whole_cores:
        free = frozenset(cpu for core in cores if len(core) == machine.threads for cpu in core)
    if len(free) < size:
        return None
    for by_cpu in (machine.cache, machine.node):
        fitting: list[list[int]] = [group for group in _groups(by_cpu, free) if len(group) >= size]
        if fitting:
            return _of(machine, min(fitting, key=len), size)
    taken: frozenset[int] = frozenset()
    for group in sorted(_groups(machine.node, free), key=len, reverse=True):
        taken |= _of(machine, group, min(len(group), size - len(taken)))
    return taken


def _of(machine: Machine, group: Sequence[int], size: int) -> frozenset[int]:
    """Whole cores as long as they fit; then what is left of a core that is broken already, if it is enough."""
    cores = sorted(_groups(machine.core, group), key=len, reverse=True)
    taken: list[int] = []
    for core in cores:
        if len(core) <= size - len(taken):
            taken += core
    rest = [cpu for core in reversed(cores) for cpu in core if cpu not in taken]
    return frozenset(taken + rest[:size - len(taken)])


def _groups(by_cpu: Sequence[int], cpus: Iterable[int]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for cpu in sorted(cpus):
        groups.setdefault(by_cpu[cpu], []).append(cpu)
    return list(groups.values())
