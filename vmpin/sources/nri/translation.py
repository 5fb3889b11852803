"""Translates NRI's events into events of the domain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vmpin.domain import events
from vmpin.domain.desired_state import ContainerRecord, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId
from vmpin.runtime.dialect import declared_exclusive
from vmpin.sources.nri.nri_events import ContainerEvent, CpusGiven, NriContainer, NriEvent, NriPod, PodEvent, Synced
from vmpin.sources.nri.processes import NriProcesses
from vmpin.wire.nri_enums import CREATED, STOPPED, Verb


def events_of(event: NriEvent, state: DesiredState, processes: NriProcesses,
              exclusive_annotation: str) -> list[events.Event]:
    """The domain's events for an event of NRI.
    :param processes: those of earlier events.
    :param exclusive_annotation: the key by which a container declares its CPUs exclusive, "" for none.
    :raises OSError: if a pid cannot be looked up at the moment (`errors.passing`)."""
    if isinstance(event, CpusGiven):
        return [events.CpusetSeen(sandbox.id, container, cpus, Source.NRI, event.time_ns)
                for container, cpus in event.cpus.items() for sandbox in state.sandboxes.values()
                if container in sandbox.containers]
    return list(_EventTranslation(state, processes, exclusive_annotation).translate(event))


class _EventTranslation:
    """Translates one event."""

    def __init__(self, state: DesiredState, processes: NriProcesses, exclusive_annotation: str) -> None:
        self._state, self._processes = state, processes
        self._exclusive_annotation = exclusive_annotation

    def translate(self, event: NriEvent) -> Iterator[events.Event]:
        """Translate by verb. A container counts with its CPUs from the request on, because Kata plugs in vCPUs and
        writes the sandbox's cgroup between the request and the report of its completion."""
        match event:
            case Synced():
                yield from self._listed(event)
            case PodEvent(verb=Verb.RUN_POD):
                yield self._sandbox(event.pod)
            case PodEvent(verb=Verb.STOP_POD):
                yield from _ended(self._state.sandboxes.get(event.pod.id), frozenset(), event.time_ns)
            case PodEvent():  # REMOVE_POD
                self._processes.forget(event.pod.id)
                yield events.SandboxGone(event.pod.id)
            case ContainerEvent(verb=Verb.CREATE | Verb.POST_CREATE | Verb.START):
                # Kata plugs in vCPUs before POST_CREATE under CRI-O, before START under containerd.
                yield from self._seen(event, ContainerState.CREATED, creating=event.verb is not Verb.START)
            case ContainerEvent(verb=Verb.POST_START):
                yield from self._seen(event, ContainerState.RUNNING)
            case ContainerEvent(verb=Verb.UPDATE | Verb.POST_UPDATE) if self._has_ended(event.container):
                return
            case ContainerEvent(verb=Verb.UPDATE):
                yield from self._place(event)
                if event.requested:
                    yield events.CpusetRequested(event.container.pod, event.container.id, event.requested)
            case ContainerEvent(verb=Verb.POST_UPDATE):
                yield from self._seen(event, _state(event.container))
            case ContainerEvent():  # STOP, REMOVE
                yield events.ContainerStopped(event.container.pod, event.container.id, event.time_ns)

    def _seen(self, event: ContainerEvent, state: ContainerState, creating: bool = False) -> Iterator[events.Event]:
        """A container in this state, with its pod.
        :param creating: whether its vCPUs may still be plugged in; that ends with START, `requested` with POST_CREATE.
        """
        yield from self._place(event)
        seen = self._container(event.container, event.pod, state, event.time_ns, creating)
        yield seen._replace(requested=event.verb is Verb.CREATE)

    def _has_ended(self, container: NriContainer) -> bool:
        """Whether a container ended during its update; no container is started twice."""
        record = self._record(container)
        return container.state == STOPPED or (record is not None and record.stopped)

    def _place(self, event: ContainerEvent) -> Iterator[events.Event]:
        """The container's sandbox, and its removal from others."""
        record = self._record(event.container)
        if record is None or not record.reported_by(Source.NRI):  # later no other source puts it elsewhere
            yield from self._elsewhere({event.container.id: event.container.pod})
        if event.pod is not None:
            yield self._sandbox(event.pod)

    def _elsewhere(self, pods: Mapping[ContainerId, SandboxId]) -> Iterator[events.Event]:
        """Remove containers from sandboxes other than in `pods`, where an annotation by a pod's author put them."""
        for sandbox in self._state.sandboxes.values():
            for container in sandbox.containers:
                if (own := pods.get(container, sandbox.id)) != sandbox.id:
                    yield events.ContainerMisplaced(sandbox.id, container, own)

    def _listed(self, event: Synced) -> Iterator[events.Event]:
        """All listed pods and containers, and the ends of those not listed."""
        # The id of a pod's pause container is the pod's.
        yield from self._elsewhere({ContainerId(pod.id): pod.id for pod in event.pods}
                                   | {container.id: container.pod for container in event.containers})
        for pod in event.pods:
            yield self._sandbox(pod)
        by_id = {pod.id: pod for pod in event.pods}
        for container in event.containers:
            if container.state == STOPPED:
                yield events.ContainerStopped(container.pod, container.id, event.time_ns)
            else:
                # containerd lists a container from POST_CREATE on; Kata plugs in its vCPUs between that and START.
                state = _state(container)
                seen = self._container(container, by_id.get(container.pod), state, event.time_ns,
                                       state is ContainerState.CREATED)
                yield seen._replace(from_list=container.id not in event.current)
        listed = frozenset(container.id for container in event.containers)
        pods = {pod.id for pod in event.pods} | {container.pod for container in event.containers}
        for sandbox in self._state.sandboxes.values():
            ended = list(_ended(sandbox, listed, event.time_ns))
            yield from ended
            if sandbox.runtime == "nri" and sandbox.id not in pods and len(ended) == len(sandbox.live()):
                self._processes.forget(sandbox.id)
                yield events.SandboxGone(sandbox.id)

    def _sandbox(self, pod: NriPod) -> events.SandboxSeen:
        vmm = self._processes.vmm_of(pod, self._state.sandboxes.get(pod.id))
        return events.SandboxSeen(pod.id, "nri", Pod(pod.namespace, pod.name, pod.uid), vmm, pod.handler)

    def _container(self, container: NriContainer, pod: NriPod | None, state: ContainerState, time_ns: int,
                   creating: bool) -> events.ContainerSeen:
        sandbox = self._state.sandboxes.get(container.pod)
        init = self._processes.init_of(container, sandbox, time_ns)
        exclusive = declared_exclusive(container.annotations, self._exclusive_annotation)
        if exclusive is None and pod is not None:
            # containerd copies no annotation of a pod to its containers, unless the handler's pod_annotations name it.
            exclusive = declared_exclusive(pod.annotations, self._exclusive_annotation)
        seen = Container(container.id, container.name, container.cpus, exclusive, state, creating=creating)
        return events.ContainerSeen(container.pod, seen, Source.NRI, time_ns, init=init)

    def _record(self, container: NriContainer) -> ContainerRecord | None:
        sandbox = self._state.sandboxes.get(container.pod)
        return None if sandbox is None else sandbox.containers.get(container.id)


def _state(container: NriContainer) -> ContainerState:
    return ContainerState.CREATED if container.state == CREATED else ContainerState.RUNNING


def _ended(sandbox: SandboxState | None, listed: frozenset[ContainerId], time_ns: int) -> Iterator[events.Event]:
    """The ends of containers that the runtime reported before and no longer lists."""
    if sandbox is not None:
        for record in sandbox.containers.values():
            if not record.stopped and record.container.id not in listed and record.reported_by(Source.NRI):
                yield events.ContainerStopped(sandbox.id, record.container.id, max(time_ns, record.time))
