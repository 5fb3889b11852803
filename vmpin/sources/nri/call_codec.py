"""NRI's calls decoded from bytes into values, and its answers encoded. Unusable data is left out and counted.

Sources: containerd/nri pkg/api/api.proto; pkg/adaptation/result.go (an empty CPU list means no change);
k8snetworkplumbingwg/sriov-network-device-plugin pkg/resources/server.go (getEnvs).
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

from vmpin.bounded import MAX_PID
from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.domain.model import ContainerId, ContainerState, SandboxId, valid_id
from vmpin.domain.runtime_call import Adjustment, RequestedContainer, SideUpdate
from vmpin.errors import WireError
from vmpin.host import boottime
from vmpin.named_tuple import NamedTuple
from vmpin.runtime.dialect import plain
from vmpin.sources.nri.nri_events import ContainerEvent, CpuAnswer, NriContainer, NriCounters, NriPod, PodEvent
from vmpin.wire import nri_enums
from vmpin.wire.nri_enums import Verb
from vmpin.wire.nri_messages import MESSAGES

logger = logging.getLogger(__name__)

#: Limits of a list: a node has some hundred containers of some kB each.
MAX_LISTED = 65536
MAX_LISTED_BYTES = 64 << 20

#: Pods that are remembered, far more than a node has; removed ones, more than end while a call waits to be decoded.
MAX_KNOWN, MAX_REMOVED = 4096, 256

#: The calls about a pod; all others are about a container.
POD_VERBS = frozenset((Verb.RUN_POD, Verb.STOP_POD, Verb.REMOVE_POD))
_VERBS = frozenset(Verb)
_STATES = {nri_enums.CREATED: ContainerState.CREATED, nri_enums.STOPPED: ContainerState.STOPPED}


class ReceivedCall(NamedTuple):
    """A call of which only NRI's message is parsed. `time_ns` is CLOCK_BOOTTIME of the reception, `requested` the
    LinuxResources that an UPDATE requests, None for other calls."""

    verb: Verb
    message: Any
    time_ns: int
    requested: Any


class NriList(NamedTuple):
    """All pods and containers; `requests` of the containers only if there is a decider. `size`: of its parts (bytes).
    """

    pods: tuple[NriPod, ...]
    containers: tuple[NriContainer, ...]
    requests: tuple[RequestedContainer, ...]
    time_ns: int
    size: int


class CallDecoder:
    """Decodes the calls of one connection. Requests are decoded only for the decider, as that takes time.
    :param logged: the kinds of unusable data that were logged; extended, so that a reconnect does not log them again.
    """

    def __init__(self, counters: NriCounters, logged: set[str]) -> None:
        self._counters, self._logged = counters, logged
        self._parts: list[Any] = []
        #: The pods of earlier calls, until their removal. Nothing of a pod changes but its pid, and most of a call's
        #: time went into them.
        self._pods: dict[str, NriPod] = {}
        #: The pods removed last: earlier calls about them may be decoded after their removal.
        self._removed: deque[SandboxId] = deque(maxlen=MAX_REMOVED)
        self._listed = self._listed_bytes = 0

    def runtime(self, payload: bytes) -> str:
        """The runtime's name and version, from Configure."""
        message = MESSAGES.decode("ConfigureRequest", payload)
        return plain(f"{message.runtime_name} {message.runtime_version}".strip(), 120) or "a runtime"

    def list_part(self, payload: bytes, requests: bool) -> NriList | None:
        """Decode a part of a list. :param requests: whether to decode the containers' requests.
        :returns: the whole list after its last part, else None. :raises WireError: if it exceeds the limits."""
        now, part = boottime.now(), MESSAGES.decode("SynchronizeRequest", payload)
        self._listed += len(part.pods) + len(part.containers)
        self._listed_bytes += len(payload)
        if self._listed > MAX_LISTED or self._listed_bytes > MAX_LISTED_BYTES:
            raise WireError("NRI Synchronize", f"lists {self._listed} pods and containers, {self._listed_bytes} bytes")
        self._parts.append(part)
        if part.more:
            return None
        parts, size = self._parts, self._listed_bytes
        self._parts, self._listed, self._listed_bytes = [], 0, 0
        pods = tuple(pod for part in parts for message in part.pods if (pod := self._pod(message)) is not None)
        self._pods = {pod.id: pod for pod in pods}  # the ends of others may not have been reported
        pairs = [(container, message) for part in parts for message in part.containers
                 if (container := self._container(message)) is not None]
        by_id = {pod.id: pod for pod in pods} if requests else {}
        return NriList(pods, tuple(container for container, _ in pairs), tuple(
            _request(container, message, by_id.get(container.pod), message.linux.resources, container.cpus)
            for container, message in pairs) if requests else (), now, size)

    def state_change(self, payload: bytes) -> ReceivedCall | int:
        """Parse a StateChange. :returns: the event's number if `Verb` does not have it."""
        message = MESSAGES.decode("StateChangeEvent", payload)
        number: int = message.event
        return ReceivedCall(Verb(number), message, boottime.now(), None) if number in _VERBS else number

    def received(self, verb: Verb, payload: bytes) -> ReceivedCall:
        """Parse a call with a method of its own."""
        if verb is Verb.UPDATE:
            message = MESSAGES.decode("UpdateContainerRequest", payload)
            return ReceivedCall(verb, message, boottime.now(), message.linux_resources)
        return ReceivedCall(verb, MESSAGES.decode("EventRequest", payload), boottime.now(), None)

    def event(self, received: ReceivedCall, again: bool = False) -> PodEvent | ContainerEvent | None:
        """Decode a call; None if it has no usable pod or container. :param again: also decode a pod that is known."""
        verb, message, now, requested = received
        subject = "pod" if verb in POD_VERBS else "container"
        pod = self._pod(message.pod, again) if message.HasField("pod") else None
        if verb is Verb.REMOVE_POD and pod is not None:
            self._removed.append(pod.id)
            self._pods.pop(pod.id, None)
        if not message.HasField(subject):
            self._drop(f"{verb.name} has no {subject}")
            return None
        if subject == "pod":
            return None if pod is None else PodEvent(verb, pod, now)
        container = self._container(message.container, pod)
        if container is None:
            return None
        return ContainerEvent(verb, pod, container, now,
                              None if requested is None else self._cpus(requested, container.id))

    def _pod(self, message: Any, again: bool = False) -> NriPod | None:
        """A pod; None for one without a usable id. :param again: as of `event`."""
        identity: str = message.id
        known = self._pods.get(identity)
        if known is not None and known.pid == message.pid and not again:
            return known
        if not valid_id(identity):
            self._drop(f"a pod has the id {identity[:80]!r}")
            return None
        if len(self._pods) >= MAX_KNOWN:
            self._pods.clear()
        pod = NriPod(
            SandboxId(identity), plain(message.name, 253), plain(message.namespace, 253), plain(message.uid, 64),
            plain(message.runtime_handler, 253), _pid(message.pid), _texts(message.annotations),
            plain(message.linux.cgroup_parent, 4096), _whole_cpus(message.linux.pod_overhead))
        if pod.id not in self._removed:
            self._pods[pod.id] = pod
        return pod

    def _container(self, message: Any, pod: NriPod | None = None) -> NriContainer | None:
        sandbox = message.pod_sandbox_id or (pod.id if pod is not None else "")
        if not valid_id(message.id) or not valid_id(sandbox):
            self._drop(f"a container has the id {message.id[:80]!r}, and its pod {sandbox[:80]!r}")
            return None
        return NriContainer(ContainerId(message.id), SandboxId(sandbox), plain(message.name, 253), message.state,
                            self._cpus(message.linux.resources, message.id), _texts(message.annotations),
                            _pid(message.pid))

    def _cpus(self, resources: Any, container: str) -> CpuSet | None:
        """The CPUs of a LinuxResources; None without any, and for an invalid list: the container then keeps the CPUs
        that were reported before."""
        text: str = resources.cpu.cpus
        try:
            return CpuSet.parse(text) or None if text else None
        except CpuSetError as err:
            self._drop(f"the CPUs of container {container}: {err}", "cpus")
            return None

    def _drop(self, defect: str, kind: str = "id") -> None:
        """Count unusable data, and warn once for each kind: a runtime that sends one sends a thousand."""
        self._counters.dropped += 1
        logger.log(logging.DEBUG if kind in self._logged else logging.WARNING, "NRI: left out: %s", defect)
        self._logged.add(kind)


def request_of(received: ReceivedCall, event: ContainerEvent) -> RequestedContainer:
    """The request of a call, for the decider. :param event: the decoded call."""
    message, requested = received.message.container, received.requested
    if requested is None:
        return _request(event.container, message, event.pod, message.linux.resources, event.container.cpus)
    return _request(event.container, message, event.pod, requested, event.requested)


def _request(container: NriContainer, message: Any, pod: NriPod | None, resources: Any,
             cpuset: CpuSet | None) -> RequestedContainer:
    """The request of a container, for the decider. :param message: NRI's Container.
    :param resources: its LinuxResources, or the requested ones."""
    cpu = resources.cpu
    request = RequestedContainer(
        container.id, container.pod, container.name, annotations=container.annotations, shares=_value(cpu, "shares"),
        quota=_value(cpu, "quota"), period=_value(cpu, "period"), cpuset=cpuset, mems=_memory_nodes(cpu),
        devices=container_devices(message.linux.devices, map(_text, message.env)),
        state=_STATES.get(container.state, ContainerState.RUNNING), time_ns=time.time_ns())
    if pod is None:
        return request
    return request._replace(namespace=pod.namespace, pod=pod.name, pod_uid=pod.uid, pod_annotations=pod.annotations,
                            vm_overhead=pod.overhead,
                            guaranteed=not any(qos in pod.cgroup_parent for qos in ("burstable", "besteffort")))


def _texts(message: Any) -> dict[str, str]:
    """The entries of a map: dict(message) takes three times as long."""
    return {key: message[key] for key in message}


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _pid(number: int) -> int:
    return number if number <= MAX_PID else 0


def _value(cpu: Any, name: str) -> int | None:
    """A field of LinuxCPU; None for CRI's 0, which means "not set"."""
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


_RESPONSES: Final = {Verb.CREATE: "CreateContainerResponse", Verb.UPDATE: "UpdateContainerResponse",
                     Verb.STOP: "StopContainerResponse"}


def encode_list_answer(updates: Iterable[SideUpdate], more: bool) -> bytes:
    """The answer to a part of a list. :param more: as in the part: without it the runtime drops the plugin, as one
    that does not support parts."""
    return bytes(MESSAGES["SynchronizeResponse"](more=more, update=_updates(updates)).SerializeToString())


def encode_answer(verb: Verb, answer: CpuAnswer) -> bytes:
    """The answer to CREATE, UPDATE or STOP; b"" if it changes nothing."""
    if answer.adjustment is None and not answer.updates:
        return b""
    message = MESSAGES[_RESPONSES[verb]](update=_updates(answer.updates))
    if verb is Verb.CREATE and answer.adjustment is not None:
        message.adjust.CopyFrom(_adjustment(answer.adjustment))
    return bytes(message.SerializeToString())


def _adjustment(adjustment: Adjustment) -> Any:
    message = MESSAGES["ContainerAdjustment"](
        annotations=dict(adjustment.annotations),
        env=[{"key": key, "value": value} for key, value in adjustment.env.items()])
    if adjustment.cpus:
        message.linux.resources.cpu.cpus = str(adjustment.cpus)
    if adjustment.mems:
        message.linux.resources.cpu.mems = str(adjustment.mems)
    return message


def _updates(updates: Iterable[SideUpdate]) -> Iterator[Any]:
    """Updates of other containers. Their failure may be ignored: CRI-O would fail the whole call otherwise
    (internal/nri/nri.go), containerd only logs it. An update without CPUs is left out: it would mean "no change"."""
    for container, cpus in updates:
        if cpus:
            message = MESSAGES["ContainerUpdate"](container_id=container, ignore_failure=True)
            message.linux.resources.cpu.cpus = str(cpus)
            yield message


#: Limits for one container; a privileged one has every device of the host.
MOST_NODES = 256
MOST_ADDRESSES = 64
_LONGEST = 16_384  #: How much of a variable is searched.

_VARIABLE = re.compile(r"(PCIDEVICE_[A-Za-z0-9_]{1,200})=(.*)", re.DOTALL)
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_LETTERS = {b"b": "b", b"c": "c", b"u": "c"}  # "u": a character device without buffer, as mknod(1) has it


def container_devices(nodes: Iterable[Any], env: Iterable[str]) -> dict[str, str]:
    """Map each device that may have a NUMA node, by number or PCI address ("c226:128", "0000:3b:00.0"), to its origin:
    a path, or an environment variable. Device plugins and CDI add device nodes; the SR-IOV network device plugin sets
    PCIDEVICE_<RESOURCE> to PCI addresses. The environment is also the image's and the pod author's, which is harmless:
    an address only decides which of the allowed CPUs are preferred, as the annotation cpu-near does.
    :param nodes: NRI's LinuxDevices; their paths are those in the container."""
    numbers: dict[str, str] = {}
    for node in nodes:
        if len(numbers) == MOST_NODES:
            break
        letter = _LETTERS.get(node.type)
        if letter is not None and node.major >= 0 <= node.minor:
            numbers.setdefault(f"{letter}{node.major}:{node.minor}", _text(node.path))
    addresses: dict[str, str] = {}
    for entry in env:
        if (match := _VARIABLE.fullmatch(entry[:_LONGEST])) is None:
            continue
        for address in match[2].split(",", MOST_ADDRESSES):
            if _ADDRESS.fullmatch(address.strip()) and len(addresses) < MOST_ADDRESSES:
                addresses.setdefault(address.strip(), match[1])
    return {**addresses, **numbers}

