"""What a container runtime tells over NRI, as plain data, and what it means: into events.

What stays out: the messages it came in (nri_session) and the connection (nri).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import ContainerRecord, DesiredState, SandboxState
from vmpin.domain.events import (
    ContainerMisplaced,
    ContainerSeen,
    ContainerStopped,
    CpusetRequested,
    Event,
    SandboxGone,
    SandboxSeen,
    Source,
)
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId, ThreadId
from vmpin.host.procfs import Procfs
from vmpin.runtime.dialect import declared_exclusive
from vmpin.sources.pids import behind

#: NRI's container states that mean anything here (api.proto: ContainerState). Paused counts as running.
CREATED = 1
STOPPED = 4


class NriPod(NamedTuple):
    """A pod sandbox. `pid` is its pause process, or its VMM where the runtime is Kata; 0 when not known.

    `handler` is "" for the default runtime handler.
    """

    id: SandboxId
    name: str
    namespace: str
    uid: str
    handler: str
    pid: int
    annotations: Mapping[str, str]
    cgroup_parent: str


class NriContainer(NamedTuple):
    """A container. `cpus` None: it was given none. `annotations` are those of its OCI bundle."""

    id: ContainerId
    pod: SandboxId
    name: str
    state: int
    cpus: CpuSet | None
    annotations: Mapping[str, str]
    pid: int
    cgroups_path: str


class Synced(NamedTuple):
    """All pods and containers, listed when a connection begins. Times are CLOCK_BOOTTIME ns of the reception.

    CPUs may be old (`ContainerSeen.listed`), but for the containers in `current`. `updated` are those whose CPUs the
    answer set; `runtime` is the pid of the runtime's process, 0 when not known. `stored`: the runtime keeps updates
    over its own restart, so that no list of its is old.
    """

    pods: tuple[NriPod, ...]
    containers: tuple[NriContainer, ...]
    time_ns: int
    updated: tuple[ContainerId, ...] = ()
    runtime: int = 0
    current: frozenset[ContainerId] = frozenset()
    stored: bool = False


class PodEvent(NamedTuple):
    """Something became of a pod. containerd (1.7.24, 2.1.9) does not tell the end of a pod that it was restarted
    during, only those of its containers."""

    kind: Literal["run", "stop", "remove"]
    pod: NriPod
    time_ns: int


#: "creating", "starting" and "updating": asked for, and it may yet fail; "create", "start" and "update": done.
Kind = Literal["creating", "create", "starting", "start", "updating", "update", "stop", "remove"]


class ContainerEvent(NamedTuple):
    """Something became of a container, or is to become of it. `asked` is the cpuset that an update is to give it:
    until it has been done `container` has the one from before."""

    kind: Kind
    pod: NriPod | None
    container: NriContainer
    time_ns: int
    asked: CpuSet | None = None


class NriUpdate(NamedTuple):
    """CPUs for a container, to be put into the answer to a Synchronize; left out of it when the runtime lists the
    container with other CPUs than `listed` (None: with any), as its CPUs were changed meanwhile."""

    cpus: CpuSet
    listed: CpuSet | None = None


class Disconnected(NamedTuple):
    """The connection has ended: whatever happens now, nobody tells until the next `Synced`."""


NriEvent = Synced | PodEvent | ContainerEvent | Disconnected


@dataclass
class NriCounters:
    """What a plugin has met since it was made; for the status."""

    #: Connections that were made, and of those the ones that got as far as a full list.
    connects: int = 0
    syncs: int = 0
    #: Facts handed on.
    events: int = 0
    #: Connections given up as what came was no NRI.
    refused: int = 0
    #: Pods and containers left out, without a usable id; and CPU lists that are none.
    dropped: int = 0
    #: Calls and events that are none of ours.
    unknown: int = 0
    #: Times that more had come than was taken, so that all was dropped and asked for anew.
    overflows: int = 0
    last_error: str = ""


def events_of(event: NriEvent, state: DesiredState, proc: Procfs, exclusive_annotation: str) -> list[Event]:
    """What the runtime's word says. A pid is looked up unless `state` has what is behind it."""
    facts = _EventTranslation(state, proc, exclusive_annotation)
    match event:
        case Synced():
            return list(facts.synced(event))
        case PodEvent(kind="run"):
            return [facts.sandbox(event.pod)]
        case PodEvent(kind="stop"):
            known = state.sandboxes.get(event.pod.id)
            return [] if known is None else list(_ended(known, frozenset(), event.time_ns))
        case PodEvent():
            return [SandboxGone(event.pod.id)]
        case ContainerEvent(kind="stop" | "remove"):
            return [ContainerStopped(event.container.pod, event.container.id, event.time_ns)]
        case ContainerEvent():
            return list(facts.changed(event))
        case _:
            return []


class _EventTranslation:
    """What one event says, with what is behind its pids looked up once: with Kata a pod's containers all have the
    VMM's."""

    def __init__(self, state: DesiredState, proc: Procfs, exclusive_annotation: str) -> None:
        self._state = state
        self._proc = proc
        self._exclusive_annotation = exclusive_annotation
        self._found: dict[int, tuple[ThreadId | None, ThreadId | None]] = {}

    def changed(self, event: ContainerEvent) -> Iterator[Event]:
        container, known = event.container, self._known(event.container)
        if event.kind in ("updating", "update") and (container.state == STOPPED or (
                known is not None and known.container.state is ContainerState.STOPPED)):
            return  # it ended while it was updated; no container of a pod is started twice
        yield from self._elsewhere({container.id: container.pod})
        if event.pod is not None:
            yield self.sandbox(event.pod)
        if event.kind == "updating":
            if event.asked:
                yield CpusetRequested(container.pod, container.id, event.asked)
            return
        begun = event.kind == "start" or (event.kind == "update" and container.state != CREATED)
        seen = self._container(container, ContainerState.RUNNING if begun else ContainerState.CREATED, event.time_ns)
        # containerd has Kata plug in the vCPUs between "create" and "starting", CRI-O between "creating" and "create".
        coming = event.kind in ("creating", "create")
        yield seen._replace(container=replace(seen.container, creating=coming), requested=event.kind == "creating")

    def _elsewhere(self, pods: Mapping[ContainerId, SandboxId]) -> Iterator[Event]:
        """What was taken for a container of another sandbox, by an annotation of its author's.

        :param pods: the pod that each container is in.
        """
        for sandbox in self._state.sandboxes.values():
            for container in sandbox.containers:
                if pods.get(container, sandbox.id) != sandbox.id:
                    yield ContainerMisplaced(sandbox.id, container)

    def synced(self, event: Synced) -> Iterator[Event]:
        # A pod's pause container has the pod's id.
        yield from self._elsewhere({ContainerId(pod.id): pod.id for pod in event.pods}
                                   | {container.id: container.pod for container in event.containers})
        for pod in event.pods:
            yield self.sandbox(pod)
        for container in event.containers:
            if container.state == STOPPED:
                yield ContainerStopped(container.pod, container.id, event.time_ns)
            else:
                now = ContainerState.CREATED if container.state == CREATED else ContainerState.RUNNING
                yield self._container(container, now, event.time_ns, listed=container.id not in event.current)
        listed = frozenset(container.id for container in event.containers)
        pods = {pod.id for pod in event.pods} | {container.pod for container in event.containers}
        for sandbox in self._state.sandboxes.values():
            ended = list(_ended(sandbox, listed, event.time_ns))
            yield from ended
            if sandbox.runtime == "nri" and sandbox.id not in pods and len(ended) == len(sandbox.live()):
                yield SandboxGone(sandbox.id)

    def sandbox(self, pod: NriPod) -> SandboxSeen:
        vmm, _ = self._behind(pod.pid, pod.id, None)
        return SandboxSeen(pod.id, "nri", Pod(pod.namespace, pod.name, pod.uid), vmm, pod.handler)

    def _container(self, container: NriContainer, now: ContainerState, time_ns: int,
                   listed: bool = False) -> ContainerSeen:
        known = self._known(container)
        _, init = self._behind(container.pid, container.pod, known.init if known is not None else None)
        exclusive = declared_exclusive(container.annotations, self._exclusive_annotation)
        return ContainerSeen(container.pod, Container(container.id, container.name, container.cpus, exclusive, now),
                             Source.NRI, time_ns, init=init, listed=listed)

    def _known(self, container: NriContainer) -> ContainerRecord | None:
        sandbox = self._state.sandboxes.get(container.pod)
        return None if sandbox is None else sandbox.containers.get(container.id)

    def _behind(self, pid: int, pod: SandboxId, init: ThreadId | None) -> tuple[ThreadId | None, ThreadId | None]:
        """The VMM, or the container's own process, behind a pid: as it was found before, where it still is that."""
        if pid not in self._found:
            sandbox = self._state.sandboxes.get(pod)
            vmm = None if sandbox is None else sandbox.vmm
            if _still(vmm, pid, self._proc):
                self._found[pid] = vmm, None
            elif _still(init, pid, self._proc):
                self._found[pid] = None, init
            else:
                self._found[pid] = behind(pid, self._proc)
        return self._found[pid]


def _ended(sandbox: SandboxState, listed: frozenset[ContainerId], time_ns: int) -> Iterator[Event]:
    """The ends of the containers that the runtime told of, and does not list any more."""
    for known in sandbox.containers.values():
        if (known.container.state is not ContainerState.STOPPED and known.container.id not in listed
                and known.reported_by(Source.NRI)):
            yield ContainerStopped(sandbox.id, known.container.id, max(time_ns, known.time))


def _still(known: ThreadId | None, pid: int, proc: Procfs) -> bool:
    """Whether a pid is the process that it was found to be: one file to read instead of four."""
    if known is None or known.tid != pid:
        return False
    stat = proc.stat(pid)
    return stat is not None and stat.starttime == known.starttime
