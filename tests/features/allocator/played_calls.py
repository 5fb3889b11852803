"""Calls of a container runtime, one after the other, and what the allocator's ledger and cpusets become."""

from __future__ import annotations

from typing import Any

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.domain.runtime_call import Adjustment, Listed, RequestedContainer, SideUpdate
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions
from vmpin.features.allocator.grants.decisions import on_create
from vmpin.features.allocator.grants.ledger import Ledger

#: 8 CPUs, 4 cores, 2 nodes.
MACHINE = Topology.build(CpuSet(range(8)), cores=[CpuSet((n, n + 1)) for n in range(0, 8, 2)],
                         nodes={0: CpuSet(range(4)), 1: CpuSet(range(4, 8))}, devices={"eth1": 1})
ON = AllocationOptions(AllocationMode.ON, reserved=CpuSet((0,)))
EXCLUSIVE = {"cpu-policy.vmpin.io": "exclusive"}


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def a_container(name: str, size: int = 0, annotations: dict[str, str] | None = None,
                **other: Any) -> RequestedContainer:
    given: dict[str, Any] = {
        "pod_annotations": annotations or {}, "shares": 1024 * size or 2, "quota": 100_000 * size or None,
        "period": 100_000, "namespace": "web", "pod": "pod", "sandbox": SandboxId(f"pod-{name}"), **other}
    return RequestedContainer(ContainerId(name), name=name, **given)


class Played:
    """A ledger that calls are made on, one after another."""

    def __init__(self, options: AllocationOptions = ON, machine: Topology = MACHINE) -> None:
        self.options, self.machine, self.ledger = options, machine, Ledger()
        self.updates: tuple[SideUpdate, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.refusal = ""

    def call(self, function: Any, *given: Any) -> Adjustment | None:
        answer = function(self.machine, self.ledger, *given, self.options)
        self.ledger, self.updates = answer.ledger, answer.updates
        self.notes, self.refusal = answer.notes, answer.refusal
        found: Adjustment | None = answer.adjustment
        return found

    def create(self, name: str, size: int = 0, annotations: dict[str, str] | None = None, **other: Any) -> str | None:
        made = self.call(on_create, a_container(name, size, annotations, **other))
        return None if made is None or made.cpus is None else str(made.cpus)


def listed(*containers: RequestedContainer) -> Listed:
    return Listed(frozenset(one.sandbox for one in containers), containers)
