"""The topology of a node's CPUs: SMT siblings, shared caches, dies, sockets, NUMA nodes; which are online, which
isolated, which of which kind; nodes of memory alone, and the nodes of devices.

Plain data with cheap look-ups, the same for a real node (host.sysfs) and for one described in a scenario.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet, union


class _Groups(NamedTuple):
    """What a topology is made of."""

    online: CpuSet
    #: SMT siblings, ascending by first CPU; every CPU that is named anywhere is in exactly one.
    cores: tuple[CpuSet, ...]
    #: CPUs that share a last-level cache, ascending; empty where the kernel does not show it.
    caches: tuple[CpuSet, ...]
    #: NUMA nodes by the kernel's number, ascending. A node of memory alone has no CPU and is left out.
    nodes: Mapping[int, CpuSet]
    #: isolcpus= on the kernel's command line, and isolated cpuset partitions.
    isolated: CpuSet = EMPTY
    nohz_full: CpuSet = EMPTY
    present: CpuSet = EMPTY  #: Plugged in, online or not; empty where the kernel does not show it.
    #: From each NUMA node to each, in the firmware's unit (10: to itself); empty where the kernel does not show it.
    distances: Mapping[int, Mapping[int, int]] = MappingProxyType({})
    # What follows is read where CPUs are given out alone, and empty elsewhere.
    #: CPUs of one package, ascending; empty where the kernel does not show it.
    sockets: tuple[CpuSet, ...] = ()
    dies: tuple[CpuSet, ...] = ()  #: Likewise, of one die.
    #: "performance" and "efficient" on a machine with both; empty elsewhere.
    kinds: Mapping[str, CpuSet] = MappingProxyType({})
    memory_nodes: CpuSet = EMPTY  #: The numbers of the NUMA nodes with memory, those without CPUs among them.
    devices: Mapping[str, int] = MappingProxyType({})  #: NUMA nodes by a device's PCI address, name or number.


class Topology(_Groups):
    """The CPUs of one node. Made by `build`, which normalises; equal machines are then equal values. Groups may name
    CPUs that are offline: the kernel takes an offline CPU out of its core and its memory node, but not always out of
    its cache, and a scenario may name it anywhere."""

    @classmethod
    def build(cls, online: CpuSet, cores: Iterable[CpuSet] = (), caches: Iterable[CpuSet] = (),
              nodes: Mapping[int, CpuSet] | None = None, isolated: CpuSet = EMPTY, nohz_full: CpuSet = EMPTY,
              present: CpuSet = EMPTY, distances: Mapping[int, Mapping[int, int]] | None = None,
              sockets: Iterable[CpuSet] = (), dies: Iterable[CpuSet] = (),
              kinds: Mapping[str, CpuSet] | None = None, memory_nodes: CpuSet = EMPTY,
              devices: Mapping[str, int] | None = None) -> Topology:
        """Sort the groups, drop empty and repeated ones, and make every CPU without a core a core of its own.
        :raises ValueError: naming the CPU that is in two groups of one sort: cores, caches, nodes, dies, sockets,
            kinds."""
        cores = list(cores)
        by_node = {node: cpus for node, cpus in sorted((nodes or {}).items()) if cpus}
        _refuse_overlap("node", [(f"node {node} ({cpus})", cpus) for node, cpus in by_node.items()])
        caches, dies, sockets = _normal("cache", caches), _normal("die", dies), _normal("socket", sockets)
        by_kind = {kind: cpus for kind, cpus in sorted((kinds or {}).items()) if cpus}
        _refuse_overlap("kind", [(f"{kind} ({cpus})", cpus) for kind, cpus in by_kind.items()])
        named = union((online, present, isolated, nohz_full, *cores, *caches, *dies, *sockets, *by_node.values(),
                       *by_kind.values()))
        cores = _normal("core", [*cores, *(CpuSet((cpu,)) for cpu in named - union(cores))])
        return cls(online, cores, caches, by_node, isolated, nohz_full, present, distances or {}, sockets, dies,
                   by_kind, memory_nodes, dict(sorted((devices or {}).items())))

    def __hash__(self) -> int:
        return hash((self.online, self.cores, self.caches, self.isolated, self.nohz_full, self.present))

    @cached_property
    def all_cpus(self) -> CpuSet:
        """Return every CPU that is online, plugged in, or named anywhere."""
        return union((self.online, self.present, self.isolated, self.nohz_full,
                      *self.cores, *self.caches, *self.nodes.values(), *self.sockets))

    def core_of(self, cpu: int) -> CpuSet:
        """The CPU and its SMT siblings; a CPU that is in no core is alone."""
        return self._core_of.get(cpu) or CpuSet((cpu,))

    def cache_of(self, cpu: int) -> CpuSet:
        """The CPUs that share its last-level cache; in no such group, its core (siblings share every cache)."""
        return self._cache_of.get(cpu) or self.core_of(cpu)

    def node_of(self, cpu: int) -> int | None:
        """Return a CPU's NUMA node, None where it is in none: the kernel forgets the node of a CPU that is offline."""
        return self._node_of.get(cpu)

    @cached_property
    def _core_of(self) -> dict[int, CpuSet]:
        return {cpu: core for core in self.cores for cpu in core}

    @cached_property
    def _cache_of(self) -> dict[int, CpuSet]:
        return {cpu: cache for cache in self.caches for cpu in cache}

    @cached_property
    def _node_of(self) -> dict[int, int]:
        return {cpu: node for node, cpus in self.nodes.items() for cpu in cpus}


def _normal(kind: str, groups: Iterable[CpuSet]) -> tuple[CpuSet, ...]:
    """The groups sorted, without empty and repeated ones (each CPU of a core names the same core)."""
    distinct = tuple(sorted({group for group in groups if group}, key=list))
    _refuse_overlap(kind, [(f"{kind} {group}", group) for group in distinct])
    return distinct


def _refuse_overlap(kind: str, groups: Iterable[tuple[str, CpuSet]]) -> None:
    seen: dict[int, str] = {}
    for name, group in groups:
        for cpu in group:
            if cpu in seen:
                raise ValueError(f"CPU {cpu} is in two {kind}s: {seen[cpu]} and {name}")
            seen[cpu] = name
