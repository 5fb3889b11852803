"""A placement from a few words: nodes, containers and vCPUs made by hand, and what was decided in a short form."""

from __future__ import annotations

from collections.abc import Sequence

from ruled import claims

from vmpin.cpuset import CpuSet
from vmpin.domain.model import Container, ContainerId, ContainerState, SandboxId, Vcpu, VcpuId, VcpuState
from vmpin.domain.policy import Policy
from vmpin.domain.sandbox_placement import Placement, Previous
from vmpin.domain.topology import Topology
from vmpin.placement.ownership import Node, ownership
from vmpin.placement.rules import PlacementRequest, place

POD = SandboxId("pod-a")
EIGHT = Topology.build(CpuSet.parse("0-7"))


def node(online: str = "0-15", pool: str | None = None, housekeeping: str = "", cores: Sequence[str] = (),
         nodes: Sequence[str] = ()) -> Node:
    topology = Topology.build(CpuSet.parse(online), cores=[CpuSet.parse(core) for core in cores],
                              nodes={number: CpuSet.parse(cpus) for number, cpus in enumerate(nodes)})
    return Node(topology, None if pool is None else CpuSet.parse(pool), CpuSet.parse(housekeeping))


def box(name: str, cpus: str | None, exclusive: bool | None = None,
        state: ContainerState = ContainerState.RUNNING, pause: bool = False) -> Container:
    return Container(ContainerId(name), name, None if cpus is None else CpuSet.parse(cpus), exclusive, state, pause)


def own_cpus(name: str, cpus: str) -> Container:
    return box(name, cpus, exclusive=True)


def vcpus(*ids: int) -> tuple[Vcpu, ...]:
    return tuple(Vcpu(VcpuId(number)) for number in ids)


def guest(*described: tuple[int, int | None, int | None]) -> tuple[Vcpu, ...]:
    """(id, core, node)."""
    return tuple(Vcpu(VcpuId(number), core, numa) for number, core, numa in described)


def decide(containers: Sequence[Container], cpus: Sequence[Vcpu], on: Node, policy: Policy | None = None,
           previous: Previous | None = None, others: Sequence[Sequence[Container]] = (),
           vcpu_state: VcpuState = VcpuState.IDENTIFIED, ended: bool = False) -> Placement:
    """Place POD; `others` are the containers of other sandboxes."""
    all_claims = {POD: claims(containers, on)}
    all_claims |= {SandboxId(f"other-{at}"): claims(theirs, on) for at, theirs in enumerate(others)}
    request = PlacementRequest(POD, tuple(cpus), tuple(containers), vcpu_state, ended)
    return place(request, on, ownership(all_claims, on), policy or Policy(), previous)


def shown(placement: Placement) -> dict[int, str]:
    """vCPU → CPUs."""
    return {vcpu.id: str(vcpu.cpus) for vcpu in placement.vcpus}


def guests(placement: Placement) -> dict[str, list[int]]:
    """Container → vCPUs."""
    return {str(name): list(ids) for name, ids in placement.containers.items()}


#: A container with CPUs of its own, and one on the shared pool.
MAIN, SIDE = own_cpus("main", "4-5"), box("side", "0-1")
