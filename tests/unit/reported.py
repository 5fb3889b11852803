"""A pod's containers as sources report them, and what the kubelet gives them."""

from __future__ import annotations

from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import ContainerRecord, CpusetReport, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId

POD, APP, SIDE = SandboxId("pod-a"), ContainerId("c1"), ContainerId("c2")
ONLINE = CpuSet.parse("0-7")
UID = "uid-1"


def kubelet(entries: dict[tuple[str, str], str] | None = None, policy: str = "static") -> CpuManagerState:
    return CpuManagerState(policy, CpuSet.parse("0-1"),
                           {key: CpuSet.parse(cpus) for key, cpus in (entries or {}).items()})


def container(name: str = "app", cid: ContainerId = APP, state: ContainerState = ContainerState.RUNNING,
              **words: str) -> ContainerRecord:
    """With the words of sources, by their names."""
    said = {Source[source.upper()]: CpusetReport(CpuSet.parse(cpus), 10) for source, cpus in words.items()}
    source = next(iter(said), Source.NRI)
    made = Container(cid, name, said[source].cpuset if said else None, None, state)
    return ContainerRecord(made, source, 10, reports=said)


def pod(*containers: ContainerRecord, uid: str = UID) -> SandboxState:
    return SandboxState(POD, "nri", Pod("ns", "web", uid), {each.container.id: each for each in containers})


def state_of(sandbox: SandboxState) -> DesiredState:
    return DesiredState({sandbox.id: sandbox})
