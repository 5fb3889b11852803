"""The topology of a node: the cores, caches, dies, sockets and NUMA nodes of its CPUs; online and isolated CPUs, and
their kinds; the NUMA nodes of memory and devices.

Plain data with cheap look-ups, the same for a real node (host.sysfs) and for one described in a scenario.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.named_tuple import NamedTuple


class Topology(NamedTuple):
    """The topology of one node. Created by `build`, which normalises: equal machines are then equal values. A field is
    empty if the kernel does not show it. Groups may contain offline CPUs: the kernel removes an offline CPU from its
    core and its NUMA node, but not always from its cache, and a scenario may have it anywhere."""

    online: CpuSet
    #: Sets of SMT siblings, ascending by first CPU; every CPU that any field names is in exactly one.
    cores: tuple[CpuSet, ...]
    #: Sets of CPUs that share a last-level cache, ascending.
    caches: tuple[CpuSet, ...]
    #: NUMA nodes by the kernel's number, ascending, without those that have only memory.
    nodes: Mapping[int, CpuSet]
    #: isolcpus= on the kernel's command line, and isolated cpuset partitions.
    isolated: CpuSet = EMPTY
    nohz_full: CpuSet = EMPTY
    present: CpuSet = EMPTY  #: Plugged in, online or not.
    #: Between NUMA nodes, in the firmware's unit (10: to itself).
    distances: Mapping[int, Mapping[int, int]] = MappingProxyType({})
    # The following fields are read only for the allocator, and are empty elsewhere.
    sockets: tuple[CpuSet, ...] = ()  #: Sets of CPUs of one package, ascending.
    dies: tuple[CpuSet, ...] = ()  #: Sets of CPUs of one die, ascending.
    #: "performance" and "efficient", on a machine with both.
    kinds: Mapping[str, CpuSet] = MappingProxyType({})
    memory_nodes: CpuSet = EMPTY  #: The numbers of all NUMA nodes with memory, with or without CPUs.
    devices: Mapping[str, int] = MappingProxyType({})  #: NUMA nodes by a device's PCI address, name or number.

    @classmethod
    def build(cls, online: CpuSet, cores: Iterable[CpuSet] = (), caches: Iterable[CpuSet] = (),
              nodes: Mapping[int, CpuSet] | None = None, isolated: CpuSet = EMPTY, nohz_full: CpuSet = EMPTY,
              present: CpuSet = EMPTY, distances: Mapping[int, Mapping[int, int]] | None = None,
              sockets: Iterable[CpuSet] = (), dies: Iterable[CpuSet] = (),
              kinds: Mapping[str, CpuSet] | None = None, memory_nodes: CpuSet = EMPTY,
              devices: Mapping[str, int] | None = None) -> Topology:
        """Sort the groups, drop empty and repeated ones, and add a core for every CPU without one.
        :raises ValueError: for a CPU in two cores, caches, nodes, dies, sockets or kinds."""
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
        """Every CPU that any field names: each is in a core."""
        return union(self.cores)

    def core_of(self, cpu: int) -> CpuSet:
        """The CPU and its SMT siblings; only the CPU if it is in no core."""
        return self._core_of.get(cpu) or CpuSet((cpu,))

    def cache_of(self, cpu: int) -> CpuSet:
        """The CPUs that share a CPU's last-level cache; its core if the cache is unknown (siblings share every
        cache)."""
        return self._cache_of.get(cpu) or self.core_of(cpu)

    def node_of(self, cpu: int) -> int | None:
        """A CPU's NUMA node; None if unknown: the kernel does not show the node of an offline CPU."""
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
    """The groups, sorted, without empty and repeated ones (each CPU of a core lists the same core)."""
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
