"""NRI's calls as values, from their bytes. Whatever cannot be used is left out and counted.

Source: containerd/nri pkg/api/api.proto.
"""

from __future__ import annotations

import logging
import time
from typing import Any, NamedTuple

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.domain.model import ContainerId, ContainerState, SandboxId, valid_id
from vmpin.domain.runtime_call import RequestedContainer
from vmpin.errors import WireError
from vmpin.host import boottime
from vmpin.runtime.dialect import plain
from vmpin.sources.nri.container_devices import DeviceNode, container_devices
from vmpin.sources.nri.nri_events import NriContainer, NriCounters, NriPod
from vmpin.wire import nri_enums
from vmpin.wire.nri_enums import Verb
from vmpin.wire.nri_messages import MESSAGES

logger = logging.getLogger(__name__)

#: A node has some hundred containers of some kB each; what is far beyond that is no list of containers.
MAX_LISTED = 65536
MAX_LISTED_BYTES = 64 << 20

#: The calls about a pod; all others are about a container.
POD_VERBS = frozenset((Verb.RUN_POD, Verb.STOP_POD, Verb.REMOVE_POD))
_VERBS = frozenset(Verb)
_STATES = {nri_enums.CREATED: ContainerState.CREATED, nri_enums.STOPPED: ContainerState.STOPPED}


class NriCall(NamedTuple):
    """A call about a pod or a container, either None where the call has none that can be used. `time_ns` is
    CLOCK_BOOTTIME of the reception, `requested` the cpuset that an UPDATE is to give the container. `request` is the
    container with its resources (at UPDATE those it is to have); None where nothing is to be decided."""

    verb: Verb
    pod: NriPod | None
    container: NriContainer | None
    time_ns: int
    requested: CpuSet | None = None
    request: RequestedContainer | None = None

    def __str__(self) -> str:
        """Pod and container, as log lines name them."""
        pod, container = self.pod, self.container
        return (("" if pod is None else f"sandbox={pod.id} pod={pod.namespace}/{pod.name} ")
                + ("" if container is None else f"container={container.id} name={container.name} ")).rstrip()


class NriList(NamedTuple):
    """All pods and containers, and of each container its request where something may be decided."""

    pods: tuple[NriPod, ...]
    containers: tuple[NriContainer, ...]
    requests: tuple[RequestedContainer, ...]
    time_ns: int


class CallDecoder:
    """Decodes the calls of one connection. A call that decides nothing gets no request: reading that costs time.
    :param logged: kinds of odd data that were logged already; added to, so that a reconnect does not log them again.
    """

    def __init__(self, counters: NriCounters, logged: set[str]) -> None:
        self._counters, self._logged = counters, logged
        self._parts: list[Any] = []
        self._listed = self._listed_bytes = 0

    def runtime(self, payload: bytes) -> str:
        """The runtime's name and version, from Configure."""
        message = MESSAGES.decode("ConfigureRequest", payload)
        return plain(f"{message.runtime_name} {message.runtime_version}".strip(), 120) or "a runtime"

    def list_part(self, payload: bytes, requests: bool) -> NriList | None:
        """Take a part of a list. :param requests: whether something decides on the list.
        :returns: the whole list with its last part, else None.
        :raises WireError: when it lists more than a node can have."""
        now, part = boottime.now(), MESSAGES.decode("SynchronizeRequest", payload)
        self._listed += len(part.pods) + len(part.containers)
        self._listed_bytes += len(payload)
        if self._listed > MAX_LISTED or self._listed_bytes > MAX_LISTED_BYTES:
            raise WireError("NRI Synchronize", f"lists {self._listed} pods and containers, {self._listed_bytes} bytes")
        self._parts.append(part)
        if part.more:
            return None
        parts, self._parts, self._listed, self._listed_bytes = self._parts, [], 0, 0
        pods = tuple(pod for part in parts for message in part.pods if (pod := self._pod(message)) is not None)
        pairs = [(container, message) for part in parts for message in part.containers
                 if (container := self._container(message)) is not None]
        by_id = {pod.id: pod for pod in pods} if requests else {}
        return NriList(pods, tuple(container for container, _ in pairs), tuple(
            _request(container, message, by_id.get(container.pod), message.linux.resources, container.cpus)
            for container, message in pairs) if requests else (), now)

    def state_change(self, payload: bytes) -> NriCall | int:
        """The call that a StateChange is about, without a request: its answer can carry nothing.
        :returns: the event's number where it is none of `Verb`."""
        message = MESSAGES.decode("StateChangeEvent", payload)
        return self._call(Verb(message.event), message) if message.event in _VERBS else int(message.event)

    def call(self, verb: Verb, payload: bytes, request: bool) -> NriCall:
        """A call that has a method of its own. :param request: whether something decides on it."""
        name = "UpdateContainerRequest" if verb is Verb.UPDATE else "EventRequest"
        return self._call(verb, MESSAGES.decode(name, payload), request, update=verb is Verb.UPDATE)

    def _call(self, verb: Verb, message: Any, request: bool = False, update: bool = False) -> NriCall:
        """A message's call. :param update: whether the message is an UpdateContainerRequest."""
        now, subject = boottime.now(), "pod" if verb in POD_VERBS else "container"
        pod = self._pod(message.pod) if message.HasField("pod") else None
        if not message.HasField(subject):
            self._drop(f"{verb.name} has no {subject}")
        container = self._container(message.container, pod) if subject == "container" and message.HasField(
            subject) else None
        if container is None:
            return NriCall(verb, pod, None, now)
        resources = message.linux_resources if update else message.container.linux.resources
        requested = self._cpus(resources, container.id) if update else None
        return NriCall(verb, pod, container, now, requested, _request(
            container, message.container, pod, resources, requested if update else container.cpus)
            if request else None)

    def _pod(self, message: Any) -> NriPod | None:
        if not valid_id(message.id):
            self._drop(f"a pod has the id {message.id[:80]!r}")
            return None
        return NriPod(SandboxId(message.id), plain(message.name, 253), plain(message.namespace, 253),
                      plain(message.uid, 64), plain(message.runtime_handler, 253), _pid(message.pid),
                      dict(message.annotations), plain(message.linux.cgroup_parent, 4096),
                      _whole_cpus(message.linux.pod_overhead))

    def _container(self, message: Any, pod: NriPod | None = None) -> NriContainer | None:
        sandbox = message.pod_sandbox_id or (pod.id if pod is not None else "")
        if not valid_id(message.id) or not valid_id(sandbox):
            self._drop(f"a container has the id {message.id[:80]!r}, and its pod {sandbox[:80]!r}")
            return None
        return NriContainer(ContainerId(message.id), SandboxId(sandbox), plain(message.name, 253), message.state,
                            self._cpus(message.linux.resources, message.id), dict(message.annotations),
                            _pid(message.pid), plain(message.linux.cgroups_path, 4096))

    def _cpus(self, resources: Any, container: str) -> CpuSet | None:
        """The CPUs of a LinuxResources; None where there are none, or their text is no list: the container exists all
        the same, with the CPUs reported before."""
        try:
            return CpuSet.parse(resources.cpu.cpus) or None
        except CpuSetError as err:
            self._drop(f"the CPUs of container {container}: {err}", "cpus")
            return None

    def _drop(self, what: str, kind: str = "id") -> None:
        """Count data that cannot be used, and log it once a kind: a runtime that sends one sends a thousand."""
        self._counters.dropped += 1
        logger.log(logging.DEBUG if kind in self._logged else logging.WARNING, "NRI: left out: %s", what)
        self._logged.add(kind)


def _request(container: NriContainer, message: Any, pod: NriPod | None, resources: Any,
             cpuset: CpuSet | None) -> RequestedContainer:
    """A container as the decider gets it. :param message: NRI's Container.
    :param resources: its own LinuxResources, or those that it is to have."""
    cpu = resources.cpu
    request = RequestedContainer(
        container.id, container.pod, container.name, annotations=container.annotations, shares=_value(cpu, "shares"),
        quota=_value(cpu, "quota"), period=_value(cpu, "period"), cpuset=cpuset, mems=_memory_nodes(cpu),
        devices=container_devices([DeviceNode(_text(device.path), _text(device.type), device.major, device.minor)
                                   for device in message.linux.devices], [_text(entry) for entry in message.env]),
        state=_STATES.get(container.state, ContainerState.RUNNING), time_ns=time.time_ns())
    if pod is None:
        return request
    return request._replace(namespace=pod.namespace, pod=pod.name, pod_uid=pod.uid, pod_annotations=pod.annotations,
                            vm_overhead=pod.overhead,
                            guaranteed=not any(qos in pod.cgroup_parent for qos in ("burstable", "besteffort")))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _pid(number: int) -> int:
    return number if number < 1 << 22 else 0  # PID_MAX_LIMIT


def _value(cpu: Any, name: str) -> int | None:
    """CRI's 0 means that it is not set."""
    return int(getattr(cpu, name).value) or None if cpu.HasField(name) else None


def _memory_nodes(cpu: Any) -> CpuSet | None:
    try:
        return CpuSet.parse(cpu.mems) or None
    except CpuSetError:
        return None


def _whole_cpus(resources: Any) -> int:
    """The whole CPUs of a LinuxResources: of its quota, else of its shares."""
    quota, period = _value(resources.cpu, "quota") or 0, _value(resources.cpu, "period") or 0
    if quota > 0 and period:
        return quota // period
    return (_value(resources.cpu, "shares") or 0) // 1024
