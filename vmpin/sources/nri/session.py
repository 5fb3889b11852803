"""One connection to a container runtime's NRI, from the plugin's registration to its end: bytes in, answers and events
out.

The runtime holds a container until each plugin has answered, so an answer comes before anything is made of the call.

Sources: containerd/nri pkg/api/api.proto, pkg/stub, pkg/adaptation.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from vmpin.cpuset import EMPTY, CpuSet, CpuSetError
from vmpin.domain.model import ContainerId, SandboxId, valid_id
from vmpin.domain.runtime_call import SideUpdate
from vmpin.errors import WireError
from vmpin.host import boottime
from vmpin.runtime.dialect import plain
from vmpin.sources.nri.call_answers import DECIDED, CallAnswers, CpuDecisions
from vmpin.sources.nri.container_requests import cpu_list, given, updates_of, whole_cpus
from vmpin.sources.nri.nri_events import (
    ContainerEvent,
    CpusGiven,
    NriContainer,
    NriCounters,
    NriEvent,
    NriPod,
    NriUpdate,
    PodEvent,
    Synced,
)
from vmpin.wire import mux, nri_messages, ttrpc
from vmpin.wire.nri_enums import METHODS, Verb, mask
from vmpin.wire.nri_messages import MESSAGES

logger = logging.getLogger(__name__)

#: Valid for every version of NRI: one bit too many, and the runtime closes the connection without an error (0.9 and
#: older define no bit above 0x400). What a container is to have is asked for before the runtime acts (CREATE, UPDATE):
#: Kata plugs in vCPUs and writes the sandbox's cgroup long before the event that reports it. The answers to those, and
#: to STOP, may change something (`CpuDecisions`); an empty one changes nothing.
EVENTS = mask(Verb.RUN_POD, Verb.STOP_POD, Verb.REMOVE_POD, Verb.CREATE, Verb.POST_CREATE, Verb.START, Verb.POST_START,
              Verb.UPDATE, Verb.POST_UPDATE, Verb.STOP, Verb.REMOVE)

#: A node has some hundred containers of some kB each; what is far beyond that is no list of containers.
MAX_LISTED = 65536
MAX_LISTED_BYTES = 64 << 20

#: Runtimes whose lists have every update, also after their own restart: containerd writes it into the container's spec
#: in its store (internal/cri/server/container_update_resources.go). CRI-O keeps it in memory.
STORES = ("containerd ",)
_REGISTRATION = 1  #: The stream of the one call to the runtime: a client's are odd (containerd/ttrpc PROTOCOL.md).


class ConnectionState(Enum):
    """How far a connection has come; the value is why it ended, if it ended there."""

    REGISTERING = ("the runtime closed the connection at once: it takes no plugins from outside (NRI's "
                   "disable_connections), or none of this name and index; see its log")
    CONFIGURED = ("{runtime} closed the connection before it listed anything: it does not want the events "
                  "asked for ({events:#x}), or has failed; see its log")  #: The runtime has sent its name and version.
    LISTED = "{runtime} closed the connection"  #: The list of pods and containers is complete.


class NriSession:
    """The state of one connection. Configure may come before the reply to RegisterPlugin.
    :param logged: kinds of odd data that were logged already; added to, so that a reconnect does not log them again.
    :param updates: CPUs for the answer to Synchronize.
    :param peer: the pid of the runtime's process, 0 when not known.
    :param decisions: gives out CPUs, from the list on; None: every answer is empty, but for `updates`."""

    def __init__(self, name: str, index: str, counters: NriCounters, logged: set[str],
                 updates: Mapping[ContainerId, NriUpdate], peer: int, decisions: CpuDecisions | None = None) -> None:
        self.name = name
        self.index = index
        self.counters = counters
        #: "containerd v2.1.9", from Configure on.
        self.runtime = ""
        self.state = ConnectionState.REGISTERING
        #: Why nothing more comes (the plugin was refused, or the runtime shuts down); "" while something may.
        self.closing = ""
        self._logged, self._updates, self._peer = logged, updates, peer
        self._answers = None if decisions is None else CallAnswers(decisions)
        self._demux = mux.Demux()
        self._decoders = {mux.PLUGIN: ttrpc.TtrpcDecoder(), mux.RUNTIME: ttrpc.TtrpcDecoder()}
        self._parts: list[Any] = []
        self._listed = self._listed_bytes = 0

    def register(self) -> bytes:
        """The bytes to send first: the only call that is ever made to the runtime. NRI's UpdateContainers, beside CRI
        calls, hangs every containerd with an NRI older than 0.12.1 for good (containerd#13733: two locks, taken in
        either order)."""
        asked = MESSAGES["RegisterPluginRequest"](plugin_name=self.name, plugin_idx=self.index)
        return mux.frames(mux.RUNTIME, ttrpc.encode(ttrpc.Call(
            _REGISTRATION, nri_messages.RUNTIME_SERVICE, "RegisterPlugin", asked.SerializeToString())))

    @property
    def listed(self) -> bool:
        """Whether the runtime has listed everything."""
        return self.state is ConnectionState.LISTED

    def feed(self, data: bytes) -> Iterator[bytes | NriEvent]:
        """Process received bytes. Yields answers to send and events, an answer before the events of its call.
        :raises WireError: when they are not NRI; the connection is of no more use."""
        for connection, payload in self._demux.feed(data):
            decoder = self._decoders.get(connection)
            if decoder is None:
                self._unknown(f"connection {connection}")
                continue
            for message in decoder.feed(payload):
                if connection == mux.PLUGIN and isinstance(message, ttrpc.Call):
                    for item in self._called(message):
                        if self._answers is not None and self.listed and isinstance(item, PodEvent | ContainerEvent):
                            self._answers.take(item)
                        yield item
                elif connection == mux.RUNTIME and isinstance(message, ttrpc.Reply):
                    self._registered(message)
                else:
                    self._unknown(f"a {type(message).__name__.lower()} on connection {connection}")

    def ending(self) -> str:
        """Why the connection ends now, and what to do about it."""
        return self.closing or self.state.value.format(runtime=self.runtime, events=EVENTS)

    def _called(self, request: ttrpc.Call) -> Iterator[bytes | NriEvent]:
        """Answer a call of the runtime's, then yield what it reports. An empty answer agrees to everything."""
        if self._answers is not None and self.listed and METHODS.get(request.method) in DECIDED:
            yield from self._decide(request, self._answers)
            return
        now = boottime.now()
        if request.service != nri_messages.PLUGIN_SERVICE:
            yield self._unimplemented(request, f"service {plain(request.service, 80)}")
            return
        match request.method:
            case "Configure":
                yield _answer(request, MESSAGES["ConfigureResponse"](events=EVENTS))
                message = MESSAGES.decode("ConfigureRequest", request.payload)
                self.runtime = plain(f"{message.runtime_name} {message.runtime_version}".strip(), 120) or "a runtime"
                if not self.listed:
                    self.state = ConnectionState.CONFIGURED
            case "Synchronize":
                yield from self._synchronize(request, now)
            case "Shutdown":
                self.closing = self.closing or f"{self.runtime or 'the runtime'} shuts its plugins down"
                yield _answer(request)
            case "StateChange":
                yield _answer(request)
                message = MESSAGES.decode("StateChangeEvent", request.payload)
                yield from self._event(message.event, message, now)
            case "UpdateContainer":
                yield _answer(request)
                message = MESSAGES.decode("UpdateContainerRequest", request.payload)
                yield from self._event(Verb.UPDATE, message, now, message.linux_resources.cpu.cpus)
            case method if method in METHODS:
                yield _answer(request)
                yield from self._event(METHODS[method], MESSAGES.decode("EventRequest", request.payload), now)
            case method:
                # 0.12 falls back to StateChange upon this very code, for what it has a call for and we do not.
                yield self._unimplemented(request, f"method {plain(method, 80)}")

    def _decide(self, request: ttrpc.Call, answers: CallAnswers) -> Iterator[bytes | NriEvent]:
        """Answer a call that CPUs may be given with, then yield what it reports, and what the answer gave."""
        now, verb = boottime.now(), METHODS[request.method]
        try:
            message = MESSAGES.decode("UpdateContainerRequest", request.payload)  # the others' fields are the same
        except WireError:
            yield _answer(request)
            raise
        pod = next(self._pods([message.pod]), None) if message.HasField("pod") else None
        container = next(self._containers([message.container], pod), None) if message.HasField("container") else None
        answer, made = answers.answer(verb, message, pod, container)
        if answer.refusal:
            yield _answer(request, code=ttrpc.UNKNOWN, text=answer.refusal)
            return
        yield _answer(request, made)
        updates = given(answer.updates)
        if answer.adjustment is not None and answer.adjustment.cpus:
            message.container.linux.resources.cpu.cpus = str(answer.adjustment.cpus)
        asked = updates.pop(container.id, None) if container is not None else None
        yield from self._event(verb, message, now, str(asked or message.linux_resources.cpu.cpus))
        if updates:
            yield CpusGiven(updates, now)

    def _registered(self, response: ttrpc.Reply) -> None:
        if response.stream == _REGISTRATION and response.code:
            self.closing = f"the runtime refused the plugin: code {response.code}: {plain(response.message, 300)}"

    def _synchronize(self, request: ttrpc.Call, now: int) -> Iterator[bytes | NriEvent]:
        """Collect the parts of a list; the last one is answered with the updates, and yields `Synced`."""
        part = MESSAGES.decode("SynchronizeRequest", request.payload)
        self._listed += len(part.pods) + len(part.containers)
        self._listed_bytes += len(request.payload)
        if self._listed > MAX_LISTED or self._listed_bytes > MAX_LISTED_BYTES:
            raise WireError("NRI Synchronize", f"lists {self._listed} pods and containers, {self._listed_bytes} bytes")
        self._parts.append(part)
        # Updates count in the answer to the last part only (containerd/nri pkg/adaptation/plugin.go, synchronize).
        containers = [] if part.more else [item for part in self._parts for item in part.containers]
        repaired = dict(self._updates_for(containers))
        pods, listed, allocated = self._allocated(containers, part.more)
        # `more` is echoed: a plugin that does not is taken for one that cannot do parts, and dropped.
        updates = repaired | {made.container_id: made for made in updates_of(allocated)}
        yield _answer(request, MESSAGES["SynchronizeResponse"](more=part.more, update=updates.values()))
        if not part.more:
            self._parts, self._listed, self._listed_bytes = [], 0, 0
            self.state = ConnectionState.LISTED
            self.counters.syncs += 1
            self.counters.events += 1
            yield Synced(pods, listed, now, tuple(repaired), self._peer, stored=self.runtime.startswith(STORES))
            if allocated:
                yield CpusGiven(given(allocated), now)

    def _allocated(self, messages: Sequence[Any], more: bool) -> tuple[
            tuple[NriPod, ...], tuple[NriContainer, ...], Sequence[SideUpdate]]:
        """The pods and containers of a list that is complete, and what the allocator gives them."""
        if more:
            return (), (), ()
        pods = tuple(self._pods(pod for part in self._parts for pod in part.pods))
        pairs = [(container, message) for message in messages for container in self._containers([message])]
        listed = tuple(container for container, _ in pairs)
        return pods, listed, () if self._answers is None else self._answers.listed(pods, pairs)

    def _updates_for(self, listed: Iterable[Any]) -> Iterator[tuple[ContainerId, Any]]:
        for container in listed:
            update = self._updates.get(container.id)
            if update is None or (
                    update.listed is not None and update.listed != cpu_list(container.linux.resources.cpu.cpus)):
                continue
            for made in updates_of([SideUpdate(ContainerId(container.id), update.cpus)]):
                yield ContainerId(container.id), made

    def _event(self, number: int, message: Any, now: int, requested: str = "") -> Iterator[NriEvent]:
        """The event of a call, by the number of a `Verb` (or another one). The message has a pod and a container.
        :param requested: the CPU list that an update is to give the container, "" for none."""
        if number in (Verb.UPDATE_POD, Verb.POST_UPDATE_POD, Verb.VALIDATE):
            return  # changes no container's CPUs
        of_pod = number in (Verb.RUN_POD, Verb.STOP_POD, Verb.REMOVE_POD)
        if not of_pod and not Verb.CREATE <= number <= Verb.REMOVE:
            self._unknown(f"event {number}")
            return
        verb, subject = Verb(number), "pod" if of_pod else "container"
        pod = next(self._pods([message.pod]), None) if message.HasField("pod") else None
        if not message.HasField(subject):
            self._drop(f"{verb.name} has no {subject}")
        elif not of_pod:
            for container in self._containers([message.container], pod):
                self.counters.events += 1
                yield ContainerEvent(verb, pod, container, now, self._cpu_list(requested, container.id) or None)
        elif pod is not None:
            self.counters.events += 1
            yield PodEvent(verb, pod, now)

    def _pods(self, listed: Iterable[Any]) -> Iterator[NriPod]:
        for pod in listed:
            if not valid_id(pod.id):
                self._drop(f"a pod has the id {pod.id[:80]!r}")
                continue
            yield NriPod(SandboxId(pod.id), plain(pod.name, 253), plain(pod.namespace, 253), plain(pod.uid, 64),
                         plain(pod.runtime_handler, 253), _pid(pod.pid), dict(pod.annotations),
                         plain(pod.linux.cgroup_parent, 4096), whole_cpus(pod.linux.pod_overhead))

    def _containers(self, listed: Iterable[Any], pod: NriPod | None = None) -> Iterator[NriContainer]:
        for container in listed:
            sandbox = container.pod_sandbox_id or (pod.id if pod is not None else "")
            if not valid_id(container.id) or not valid_id(sandbox):
                self._drop(f"a container has the id {container.id[:80]!r}, and its pod {sandbox[:80]!r}")
                continue
            cpus = self._cpu_list(container.linux.resources.cpu.cpus, container.id)
            yield NriContainer(ContainerId(container.id), SandboxId(sandbox), plain(container.name, 253),
                               container.state, cpus or None, dict(container.annotations), _pid(container.pid),
                               plain(container.linux.cgroups_path, 4096))

    def _cpu_list(self, text: str, container: str) -> CpuSet:
        """A CPU list; empty where `text` is none: the container exists all the same, with the CPUs reported before."""
        try:
            return CpuSet.parse(text)
        except CpuSetError as err:
            self._drop(f"the CPUs of container {container}: {err}", "cpus")
            return EMPTY

    def _drop(self, what: str, kind: str = "id") -> None:
        """Count data that cannot be used, and log it once a kind: a runtime that sends one sends a thousand."""
        self.counters.dropped += 1
        logger.log(logging.DEBUG if kind in self._logged else logging.WARNING, "NRI: left out: %s", what)
        self._logged.add(kind)

    def _unknown(self, what: str) -> None:
        self.counters.unknown += 1
        logger.debug("NRI: unknown: %s", what)

    def _unimplemented(self, request: ttrpc.Call, what: str) -> bytes:
        self._unknown(what)
        return _answer(request, code=ttrpc.UNIMPLEMENTED, text=f"no {what}")


def _answer(request: ttrpc.Call, message: Any = None, code: int = ttrpc.OK, text: str = "") -> bytes:
    payload = b"" if message is None else message.SerializeToString()
    return mux.frames(mux.PLUGIN, ttrpc.encode(ttrpc.Reply(request.stream, code, text, payload)))


def _pid(given: int) -> int:
    return given if given < 1 << 22 else 0  # PID_MAX_LIMIT
