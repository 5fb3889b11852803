"""One connection to a container runtime's NRI, from the plugin's registration to its end: bytes in, answers and events
out. A call is decoded (call_decoding), handled by its method (nri_calls), and answered whatever fails.

Sources: containerd/nri pkg/api/api.proto, pkg/stub, pkg/adaptation.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from vmpin.domain.model import ContainerId
from vmpin.runtime.dialect import plain
from vmpin.sources.nri.answer_encoding import encode_configured, encode_list_answer, encode_registration
from vmpin.sources.nri.call_decoding import CallDecoder
from vmpin.sources.nri.decider import CpuDecider
from vmpin.sources.nri.nri_calls import CALLS, DECIDED, CallOutcome, NriCalls
from vmpin.sources.nri.nri_events import NriCounters, NriEvent, NriUpdate
from vmpin.wire import mux, nri_messages, ttrpc
from vmpin.wire.nri_enums import METHODS, mask

logger = logging.getLogger(__name__)

#: Valid for every version of NRI: one bit too many, and the runtime closes the connection without an error (0.9 and
#: older define no bit above 0x400). What a container is to have is asked for before the runtime acts (CREATE, UPDATE):
#: Kata plugs in vCPUs and writes the sandbox's cgroup long before the event that reports it. The answers to those, and
#: to STOP, may change something (`CpuDecider`); an empty one changes nothing.
EVENTS = mask(*CALLS)

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


class CallAnswered(NamedTuple):
    """The bytes that answer a call, and its events, to be queued before these are sent: what the runtime does upon an
    answer is then never seen by a pass that could not have known of the call (`NriQueue.sandboxes`)."""

    answer: bytes
    events: Sequence[NriEvent]


class NriSession:
    """The state of one connection. Configure may come before the reply to RegisterPlugin.
    :param logged: as `CallDecoder` has it. :param updates: CPUs for the answer to Synchronize.
    :param peer: the pid of the runtime's process, 0 when not known.
    :param decider: gives out CPUs, from the list on; None: every answer is empty, but for `updates`."""

    def __init__(self, name: str, index: str, counters: NriCounters, logged: set[str],
                 updates: Mapping[ContainerId, NriUpdate], peer: int, decider: CpuDecider | None = None) -> None:
        self.name = name
        self.index = index
        self.counters = counters
        #: "containerd v2.1.9", from Configure on.
        self.runtime = ""
        #: Why nothing more comes (the plugin was refused, or the runtime shuts down); "" while something may.
        self.closing = ""
        self._decides = decider is not None
        self._calls = NriCalls(counters, updates, peer, decider)
        self._decoder = CallDecoder(counters, logged)
        self._demux = mux.Demux()
        self._streams = {mux.PLUGIN: ttrpc.TtrpcDecoder(), mux.RUNTIME: ttrpc.TtrpcDecoder()}

    def register(self) -> bytes:
        """The bytes to send first: the only call that is ever made to the runtime. NRI's UpdateContainers, beside CRI
        calls, hangs every containerd with an NRI older than 0.12.1 for good (containerd#13733: two locks, taken in
        either order)."""
        return mux.frames(mux.RUNTIME, ttrpc.encode(ttrpc.Call(
            _REGISTRATION, nri_messages.RUNTIME_SERVICE, "RegisterPlugin",
            encode_registration(self.name, self.index))))

    @property
    def listed(self) -> bool:
        """Whether the runtime has listed everything."""
        return self._calls.listed

    def feed(self, data: bytes) -> Iterator[CallAnswered]:
        """Process received bytes, call by call.
        :raises WireError: when they are not NRI; the connection is of no more use. The call is answered before."""
        for connection, payload in self._demux.feed(data):
            decoder = self._streams.get(connection)
            if decoder is None:
                self._unknown(f"connection {connection}")
                continue
            for message in decoder.feed(payload):
                if connection == mux.PLUGIN and isinstance(message, ttrpc.Call):
                    yield from self._answered(message)
                elif connection == mux.RUNTIME and isinstance(message, ttrpc.Reply):
                    self._registered(message)
                else:
                    self._unknown(f"a {type(message).__name__.lower()} on connection {connection}")

    def ending(self) -> str:
        """Why the connection ends now, and what to do about it."""
        state = (ConnectionState.LISTED if self.listed else
                 ConnectionState.CONFIGURED if self.runtime else ConnectionState.REGISTERING)
        return self.closing or state.value.format(runtime=self.runtime, events=EVENTS)

    def _answered(self, request: ttrpc.Call) -> Iterator[CallAnswered]:
        try:
            outcome = self._outcome(request)
        except Exception:  # the runtime waits for the answer all the same
            yield CallAnswered(_frames(request), ())
            raise
        if outcome is None:
            # 0.12 falls back to StateChange upon this very code, for what it has a call for and we do not.
            yield CallAnswered(_frames(request, code=ttrpc.UNIMPLEMENTED, text=self._unimplemented(request)), ())
        elif outcome.refusal:
            yield CallAnswered(_frames(request, code=ttrpc.UNKNOWN, text=outcome.refusal), outcome.events)
        else:
            yield CallAnswered(_frames(request, outcome.payload), outcome.events)

    def _outcome(self, request: ttrpc.Call) -> CallOutcome | None:
        """Decode a call, and have its method (`CALLS`) make an outcome of it. None for what is no call of NRI's."""
        if request.service != nri_messages.PLUGIN_SERVICE:
            return None
        match request.method:
            case "Configure":
                return self._configure(request.payload)
            case "Synchronize":
                return self._synchronize(request.payload)
            case "Shutdown":
                self.closing = self.closing or f"{self.runtime or 'the runtime'} shuts its plugins down"
                return CallOutcome()
            case "StateChange":
                return self._state_change(request.payload)
        verb = METHODS.get(request.method)
        if verb is None or verb not in CALLS:
            return None if verb is None else CallOutcome()
        decides = self._decides and self.listed and verb in DECIDED
        return CALLS[verb](self._calls, self._decoder.call(verb, request.payload, decides))

    def _configure(self, payload: bytes) -> CallOutcome:
        self.runtime = self._decoder.runtime(payload)
        return CallOutcome(encode_configured(EVENTS))

    def _synchronize(self, payload: bytes) -> CallOutcome:
        everything = self._decoder.list_part(payload, self._decides)
        if everything is None:
            # Updates count in the answer to the last part only (containerd/nri pkg/adaptation/plugin.go, synchronize).
            return CallOutcome(encode_list_answer((), more=True))
        return self._calls.synchronize(everything, self.runtime.startswith(STORES))

    def _state_change(self, payload: bytes) -> CallOutcome:
        call = self._decoder.state_change(payload)
        if isinstance(call, int):
            self._unknown(f"event {call}")
        elif call.verb in CALLS:
            return CALLS[call.verb](self._calls, call)
        return CallOutcome()

    def _registered(self, response: ttrpc.Reply) -> None:
        if response.stream == _REGISTRATION and response.code:
            self.closing = f"the runtime refused the plugin: code {response.code}: {plain(response.message, 300)}"

    def _unknown(self, what: str) -> None:
        self.counters.unknown += 1
        logger.debug("NRI: unknown: %s", what)

    def _unimplemented(self, request: ttrpc.Call) -> str:
        known = request.service == nri_messages.PLUGIN_SERVICE
        what = f"method {plain(request.method, 80)}" if known else f"service {plain(request.service, 80)}"
        self._unknown(what)
        return f"no {what}"


def _frames(request: ttrpc.Call, payload: bytes = b"", code: int = ttrpc.OK, text: str = "") -> bytes:
    return mux.frames(mux.PLUGIN, ttrpc.encode(ttrpc.Reply(request.stream, code, text, payload)))
