"""NRI's events as the plugin reads them, made by hand, and the state that follows from them."""

from __future__ import annotations

from collections.abc import Iterable

from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import DesiredState, reduce
from vmpin.domain.events import Event
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.host.procfs import Procfs
from vmpin.sources.nri.nri_events import NriContainer, NriEvent, NriPod
from vmpin.sources.nri.processes import NriProcesses
from vmpin.sources.nri.translation import events_of

PROC = Procfs()
KEY = "vmpin.io/exclusive"
POD, C1, C2 = SandboxId("pod1"), ContainerId("c1"), ContainerId("c2")


def pod(pid: int = 0, handler: str = "", id_: str = POD, annotations: dict[str, str] | None = None) -> NriPod:
    return NriPod(SandboxId(id_), "web", "default", "u-1", handler, pid, annotations or {}, "/kubepods/pod1")


def container(id_: str = C1, cpus: str | None = None, state: int = 3, pid: int = 0, pod_: str = POD,
              annotations: dict[str, str] | None = None) -> NriContainer:
    return NriContainer(ContainerId(id_), SandboxId(pod_), f"name-{id_}", state,
                        None if cpus is None else CpuSet.parse(cpus), annotations or {}, pid)


def translated(event: NriEvent, state: DesiredState | None = None) -> list[Event]:
    return events_of(event, state or DesiredState(), NriProcesses(PROC), KEY)


def after(events: Iterable[NriEvent], state: DesiredState | None = None) -> DesiredState:
    state = state or DesiredState()
    for event in events:
        for item in translated(event, state):
            state = reduce(state, item)
    return state
