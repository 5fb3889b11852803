"""One connection to a container runtime's NRI, from the plugin's registration to its end. It takes bytes, and returns
the answer to a call at once, its event for later. Every call is answered, even if handling it fails.

Sources: containerd/nri pkg/api/api.proto, pkg/stub, pkg/adaptation.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Final

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.domain.model import ContainerId
from vmpin.domain.runtime_call import Listed, SideUpdate
from vmpin.named_tuple import NamedTuple
from vmpin.runtime.dialect import plain
from vmpin.sources.nri.call_codec import (
    POD_VERBS,
    CallDecoder,
    NriList,
    ReceivedCall,
    encode_answer,
    encode_list_answer,
    request_of,
)
from vmpin.sources.nri.nri_events import (
    CallFacts,
    CanWait,
    ContainerEvent,
    CpuAnswer,
    CpuDecider,
    CpusGiven,
    NriCounters,
    NriEvent,
    NriUpdate,
    PodEvent,
    Synced,
    UndecodedCall,
    never_waits,
)
from vmpin.wire import nri_messages, ttrpc
from vmpin.wire.nri_enums import METHODS, Verb, mask
from vmpin.wire.nri_messages import MESSAGES

logger = logging.getLogger(__name__)


#: The calls that are handled; NRI's other verbs do not concern CPUs.
HANDLED: Final = POD_VERBS | {Verb.CREATE, Verb.POST_CREATE, Verb.START, Verb.POST_START, Verb.UPDATE,
                              Verb.POST_UPDATE, Verb.STOP, Verb.REMOVE}
#: Calls whose answer can set CPUs.
DECIDED: Final = frozenset((Verb.CREATE, Verb.UPDATE, Verb.STOP))

#: The events to subscribe to, valid for every version of NRI: at an unknown bit the runtime closes the connection
#: without an error (0.9 and older define no bit above 0x400). The requests CREATE and UPDATE are among them, because
#: Kata plugs in vCPUs and writes the sandbox's cgroup long before the event that reports completion.
EVENTS = mask(*HANDLED)

#: Runtimes whose lists contain every update, even after their own restart: containerd writes it into the container's
#: spec in its store (internal/cri/server/container_update_resources.go). CRI-O keeps it in memory.
STORES = ("containerd ",)
#: Runtimes that create a container on the host after POST_CREATE, before START (containerd
#: internal/cri/server/container_start.go). CRI-O does so before POST_CREATE.
CREATE_LATE = ("containerd ",)
_REGISTRATION = 1  #: The stream of the one call to the runtime: a client's are odd (containerd/ttrpc PROTOCOL.md).


class CallOutcome(NamedTuple):
    """The result of a call: the payload of its answer, or the error that is sent instead, and the events to queue.
    `waits`: they may wait for those that follow. `size`: of the data in several calls (bytes); 0: of this call's."""

    payload: bytes = b""
    refusal: str = ""
    events: tuple[NriEvent | UndecodedCall, ...] = ()
    waits: bool = False
    size: int = 0


class ConnectionState(Enum):
    """How far a connection has come; the value is why it ended, if it ended there."""

    REGISTERING = ("the runtime closed the connection at once: it takes no plugins from outside (NRI's "
                   "disable_connections), or none of this name and index; see its log")
    CONFIGURED = ("{runtime} closed the connection before it listed anything: it does not want the events "
                  "asked for ({events:#x}), or has failed; see its log")  #: The runtime has sent its name and version.
    LISTED = "{runtime} closed the connection"  #: The list of pods and containers is complete.


class NriSession:
    """The state of one connection. Configure may come before the reply to RegisterPlugin. An exception of the decider
    is logged, and the answer is then empty.
    :param logged: see `CallDecoder`. :param updates: CPUs for the answer to Synchronize.
    :param peer: the pid of the runtime's process, 0 if unknown.
    :param decider: called from the first list on; None: every answer is empty, except for `updates`.
    :param can_wait: see `CanWait`."""

    def __init__(self, name: str, index: str, counters: NriCounters, logged: set[str],
                 updates: Mapping[ContainerId, NriUpdate], peer: int, decider: CpuDecider | None = None,
                 can_wait: CanWait = never_waits) -> None:
        self.name = name
        self.index = index
        self.counters = counters
        #: "containerd v2.1.9", from Configure on.
        self.runtime = ""
        self.listed = False  #: Whether the runtime has listed everything over this connection.
        self._creates_late = False  #: Whether the runtime is one of `CREATE_LATE`.
        #: Why no more calls will come (the plugin was refused, or the runtime shuts down); "" if they may.
        self.closing = ""
        self._updates, self._peer, self._decider, self._can_wait = updates, peer, decider, can_wait
        self._decoder = CallDecoder(counters, logged)
        self._demux = ttrpc.Demux()
        self._streams = {ttrpc.PLUGIN: ttrpc.TtrpcDecoder(), ttrpc.RUNTIME: ttrpc.TtrpcDecoder()}

    def register(self) -> bytes:
        """The bytes to send first: RegisterPlugin, the only call ever made to the runtime. NRI's UpdateContainers
        deadlocks with concurrent CRI calls in every containerd with an NRI older than 0.12.1 (containerd#13733: two
        locks, taken in either order)."""
        message = MESSAGES["RegisterPluginRequest"](
            plugin_name=self.name, plugin_idx=self.index, NRI_version=nri_messages.NRI_VERSION)
        return ttrpc.frames(ttrpc.RUNTIME, ttrpc.encode(ttrpc.Call(
            _REGISTRATION, nri_messages.RUNTIME_SERVICE, "RegisterPlugin", message.SerializeToString())))

    def feed(self, data: bytes) -> Iterator[tuple[bytes, CallOutcome, int]]:
        """Process received bytes, call by call. :returns: of each the answer as bytes, its outcome, and the size of
        its data (bytes). Queue the events before sending the answer: a pass that sees the runtime's reaction then
        always finds the call in the queue (`NriQueue.sandboxes`).
        :raises WireError: if they are not NRI; the connection must then be closed. The call is answered before."""
        for connection, payload in self._demux.feed(data):
            decoder = self._streams.get(connection)
            if decoder is None:
                self._unknown(f"connection {connection}")
                continue
            for message in decoder.feed(payload):
                if connection == ttrpc.PLUGIN and isinstance(message, ttrpc.Call):
                    try:
                        answered = self._answered(message)
                    except Exception:  # the runtime waits for the answer all the same
                        yield _frames(message), CallOutcome(), 0
                        raise
                    yield answered
                elif connection == ttrpc.RUNTIME and isinstance(message, ttrpc.Reply):
                    if message.stream == _REGISTRATION and message.code:
                        self.closing = (f"the runtime refused the plugin: code {message.code}: "
                                        f"{plain(message.message, 300)}")
                else:
                    self._unknown(f"a {type(message).__name__.lower()} on connection {connection}")

    def ending(self) -> str:
        """Why the connection has ended, with advice."""
        state = (ConnectionState.LISTED if self.listed else
                 ConnectionState.CONFIGURED if self.runtime else ConnectionState.REGISTERING)
        return self.closing or state.value.format(runtime=self.runtime, events=EVENTS)

    def _answered(self, request: ttrpc.Call) -> tuple[bytes, CallOutcome, int]:
        outcome = self._outcome(request)
        if outcome is None:
            # NRI 0.12 has more calls than we handle; at this code it falls back to StateChange.
            return _frames(request, code=ttrpc.UNIMPLEMENTED, text=self._unimplemented(request)), CallOutcome(), 0
        if outcome.refusal:
            return _frames(request, code=ttrpc.UNKNOWN, text=outcome.refusal), outcome, 0
        answer = (_frames(request, outcome.payload) if outcome.payload
                  else ttrpc.success(ttrpc.PLUGIN, request.stream))
        return answer, outcome, outcome.size or len(request.payload)

    def _outcome(self, request: ttrpc.Call) -> CallOutcome | None:
        """Decode a call, and handle it. None if it is no NRI call."""
        if request.service != nri_messages.PLUGIN_SERVICE:
            return None
        match request.method:
            case "Configure":
                self.runtime = self._decoder.runtime(request.payload)
                self._creates_late = self.runtime.startswith(CREATE_LATE)
                return CallOutcome(MESSAGES["ConfigureResponse"](events=EVENTS).SerializeToString())
            case "Synchronize":
                everything = self._decoder.list_part(request.payload, self._decider is not None)
                if everything is None:
                    # Only the last answer's updates are used (containerd/nri pkg/adaptation/plugin.go, synchronize).
                    return CallOutcome(encode_list_answer((), more=True))
                return self._synchronize(everything)
            case "Shutdown":
                self.closing = self.closing or f"{self.runtime or 'the runtime'} shuts its plugins down"
                return CallOutcome()
            case "StateChange":
                received = self._decoder.state_change(request.payload)
                if isinstance(received, int):
                    self._unknown(f"event {received}")
                elif received.verb in HANDLED:
                    return self._received(received, decided=False)
                return CallOutcome()
        verb = METHODS.get(request.method)
        if verb is None:
            return None
        if verb not in HANDLED:
            return CallOutcome()  # known, but does not concern CPUs
        return self._received(self._decoder.received(verb, request.payload), self.listed and verb in DECIDED)

    def _synchronize(self, everything: NriList) -> CallOutcome:
        """The list of all pods and containers. The answer sets the CPUs of some containers."""
        restored = {container.id: update.cpus for container in everything.containers
                    if (update := self._updates.get(container.id)) is not None and update.cpus
                    and update.listed in (None, container.cpus)}
        given = {update.container: update.cpus for update in self._list_updates(everything) if update.cpus}
        updates = restored | given
        payload = encode_list_answer([SideUpdate(*update) for update in updates.items()], more=False)
        self.listed = True
        self.counters.syncs += 1
        logger.debug("nri: SYNCHRONIZE pods=%d containers=%d updates=%d", len(everything.pods),
                     len(everything.containers), len(updates))
        synced = Synced(everything.pods, everything.containers, everything.time_ns, tuple(restored), self._peer,
                        stored=self.runtime.startswith(STORES))
        return self._handled(synced, given, everything.time_ns, payload)._replace(size=everything.size)

    def _list_updates(self, everything: NriList) -> Sequence[SideUpdate]:
        if self._decider is None:
            return ()
        try:
            return self._decider.synchronize(Listed(frozenset(pod.id for pod in everything.pods), everything.requests),
                                             everything.pods).updates
        except Exception:
            logger.exception("NRI: deciding on the runtime's list failed; containers keep their CPUs")
            return ()

    def _received(self, received: ReceivedCall, decided: bool) -> CallOutcome:
        """Handle a call. :param decided: whether its answer can set CPUs."""
        decider = self._decider
        if decider is None or not (received.verb in DECIDED or received.verb in decider.records):
            return self._later(received)
        event = self._decoder.event(received, again=decided)
        if event is None:
            return CallOutcome()
        if decided and isinstance(event, ContainerEvent):
            return self._decide(decider, received, event)
        return self._report(decider, event)

    def _later(self, received: ReceivedCall) -> CallOutcome:
        """Answer a call with nothing. Its event is decoded when it is taken from the queue."""
        self.counters.events += 1
        verb, message, _, requested = received
        pod, container, text = message.pod, message.container, ""
        sandbox = pod.id
        if verb not in POD_VERBS:
            sandbox = container.pod_sandbox_id or sandbox
            text = container.linux.resources.cpu.cpus
        events = (UndecodedCall(sandbox, partial(self._event, received)),)
        try:
            cpus = CpuSet.parse(text) if text else None
        except CpuSetError:  # left out, and counted, when the call is decoded
            return CallOutcome(events=events)
        waits = (requested is None or not requested.cpu.cpus) and self._can_wait(CallFacts(
            verb, sandbox, container.id, pod.runtime_handler, cpus, self._creates_late))
        return CallOutcome(events=events, waits=waits)

    def _event(self, received: ReceivedCall) -> PodEvent | ContainerEvent | None:
        """The event of a call that was answered earlier."""
        event = self._decoder.event(received)
        if event is not None and logger.isEnabledFor(logging.DEBUG):
            logger.debug("nri: %s %s", event.verb.name, event, extra={"pod": event.pod})
        return event

    def _report(self, decider: CpuDecider, event: PodEvent | ContainerEvent) -> CallOutcome:
        """Answer a call with nothing, and report its event, to the decider too."""
        logger.debug("nri: %s %s", event.verb.name, event, extra={"pod": event.pod})
        if self.listed and event.verb in decider.records:
            try:
                decider.record(event)
            except Exception:
                logger.exception("NRI: deciding after %s failed %s; the runtime's next list corrects it",
                                 event.verb.name, event, extra={"pod": event.pod})
        return self._handled(event, {}, event.time_ns)

    def _decide(self, decider: CpuDecider, received: ReceivedCall, event: ContainerEvent) -> CallOutcome:
        """Answer a call as the decider says. CPUs that the answer gives other containers are a second event."""
        try:
            answer = decider.decide(event.verb, request_of(received, event), event.pod)
            payload = encode_answer(event.verb, answer)
        except Exception:  # whatever it is, the container is created all the same
            logger.exception("NRI: deciding on %s failed %s: its CPUs are left as they are", event.verb.name, event,
                             extra={"pod": event.pod})
            answer, payload = CpuAnswer(), b""
        logger.debug("nri: %s %s updates=%d%s", event.verb.name, event, len(answer.updates),
                     f" refused: {answer.refusal}" if answer.refusal else "", extra={"pod": event.pod})
        if answer.refusal:
            return CallOutcome(refusal=answer.refusal)
        given = {update.container: update.cpus for update in answer.updates if update.cpus}
        # The first event has the call's container, so the second has the others alone.
        event = event._replace(requested=given.pop(event.container.id, event.requested))
        if answer.adjustment is not None and answer.adjustment.cpus:
            event = event._replace(container=event.container._replace(cpus=answer.adjustment.cpus))
        return self._handled(event, given, event.time_ns, payload)

    def _handled(self, event: NriEvent, given: Mapping[ContainerId, CpuSet], time_ns: int,
                 payload: bytes = b"") -> CallOutcome:
        """Count an event. :param given: the CPUs that the answer gives other containers, the second event."""
        self.counters.events += 1
        if given:
            return CallOutcome(payload, events=(event, CpusGiven(given, time_ns)))
        return CallOutcome(payload, events=(event,), waits=self._waits(event))

    def _waits(self, event: NriEvent) -> bool:
        match event:
            case ContainerEvent(requested=None):
                handler = "" if event.pod is None else event.pod.handler
                return self._can_wait(CallFacts(event.verb, event.container.pod, event.container.id, handler,
                                                event.container.cpus, self._creates_late))
            case PodEvent():
                return self._can_wait(CallFacts(event.verb, event.pod.id, ContainerId(""), event.pod.handler, None))
        return False

    def _unknown(self, subject: str) -> None:
        self.counters.unknown += 1
        logger.debug("NRI: unknown: %s", subject)

    def _unimplemented(self, request: ttrpc.Call) -> str:
        known = request.service == nri_messages.PLUGIN_SERVICE
        subject = f"method {plain(request.method, 80)}" if known else f"service {plain(request.service, 80)}"
        self._unknown(subject)
        return f"no {subject}"


def _frames(request: ttrpc.Call, payload: bytes = b"", code: int = ttrpc.OK, text: str = "") -> bytes:
    return ttrpc.frames(ttrpc.PLUGIN, ttrpc.encode(ttrpc.Reply(request.stream, code, text, payload)))
