"""Which CPUs containers hold, as what gives them out has it: for the map of a node."""

from __future__ import annotations

from typing import NamedTuple

from vmpin.cpuset import CpuSet


class CpuHolder(NamedTuple):
    """A container with CPUs of its own, a VM with its spare set, or a group. `what` is the kind, for the legend;
    `sandbox` is "" for a group."""

    title: str
    what: str
    cpus: CpuSet
    sandbox: str = ""


class HeldCpus(NamedTuple):
    """`holders`: those that keep others out come before those whose CPUs stay in the pool, as a CPU may have both.
    `containers`: all that are known, by id. `notes`: sentences on what is free and reserved."""

    holders: tuple[CpuHolder, ...]
    containers: frozenset[str]
    shared: CpuSet
    reserved: CpuSet
    notes: tuple[str, ...]
