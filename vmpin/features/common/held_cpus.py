"""The CPUs that an allocator has given to containers, for the map of a node."""

from __future__ import annotations

from vmpin.cpuset import CpuSet
from vmpin.named_tuple import NamedTuple


class CpuHolder(NamedTuple):
    """A container with its own CPUs, a VM with its spare CPUs, or a group. `what` is the kind, for the legend;
    `sandbox` is "" for a group."""

    title: str
    what: str
    cpus: CpuSet
    sandbox: str = ""


class HeldCpus(NamedTuple):
    """The holders of CPUs. A CPU may have two: `holders` with exclusive CPUs come before those whose CPUs stay in the
    pool. `containers`: the ids of all known containers. `notes`: sentences on free and reserved CPUs."""

    holders: tuple[CpuHolder, ...]
    containers: frozenset[str]
    shared: CpuSet
    reserved: CpuSet
    notes: tuple[str, ...]
