"""One connection to a container runtime's NRI, from a plugin's registration to its end: bytes in, bytes and facts out.

The runtime waits for each answer and its containers wait with it, so an answer comes before anything is made of what
was told. What stays out: sockets and threads (nri), and what the facts
mean (nri_facts).

Sources: containerd/nri pkg/api/api.proto, pkg/stub, pkg/adaptation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from vmpin.cpuset import EMPTY, CpuSet, CpuSetError
from vmpin.domain.model import ContainerId, SandboxId, valid_id
from vmpin.errors import WireError
from vmpin.host import boottime
from vmpin.runtime.dialect import plain
from vmpin.sources.nri.translation import (
    ContainerEvent,
    Kind,
    NriContainer,
    NriCounters,
    NriEvent,
    NriPod,
    NriUpdate,
    PodEvent,
    Synced,
)
from vmpin.wire import mux, nri_messages, ttrpc
from vmpin.wire.nri_messages import MESSAGES

logger = logging.getLogger(__name__)

#: Valid for every version of NRI: one bit too many, and the runtime closes the connection without a word (0.9 and
#: older know no bit above 0x400). What a container is to have is asked for before the runtime acts (CREATE, UPDATE):
#: Kata plugs in vCPUs and writes the sandbox's cgroup long before the event that says so. The answers to those, and to
#: STOP, could change something; an empty one changes nothing.
EVENTS = nri_messages.mask(
    nri_messages.RUN_POD, nri_messages.STOP_POD, nri_messages.REMOVE_POD, nri_messages.CREATE,
    nri_messages.POST_CREATE, nri_messages.START, nri_messages.POST_START, nri_messages.UPDATE,
    nri_messages.POST_UPDATE, nri_messages.STOP, nri_messages.REMOVE)

#: A node has some hundred containers of some kB each; what is far beyond that is no list of containers.
MAX_LISTED = 65536
MAX_LISTED_BYTES = 64 << 20

#: Calls about one event each, all with the pod as field 1 and the container as field 2. Until 0.11 most came as
#: StateChange; 0.12 tries a call of its own first. An empty answer is a yes to every one of them.
_CALLS = {
    "RunPodSandbox": nri_messages.RUN_POD, "StopPodSandbox": nri_messages.STOP_POD,
    "RemovePodSandbox": nri_messages.REMOVE_POD, "CreateContainer": nri_messages.CREATE,
    "PostCreateContainer": nri_messages.POST_CREATE, "StartContainer": nri_messages.START,
    "PostStartContainer": nri_messages.POST_START, "UpdateContainer": nri_messages.UPDATE,
    "PostUpdateContainer": nri_messages.POST_UPDATE, "StopContainer": nri_messages.STOP,
    "RemoveContainer": nri_messages.REMOVE, "UpdatePodSandbox": 12, "PostUpdatePodSandbox": 13,
    "ValidateContainerAdjustment": 14,
}
_POD: dict[int, Literal["run", "stop", "remove"]] = {
    nri_messages.RUN_POD: "run", nri_messages.STOP_POD: "stop", nri_messages.REMOVE_POD: "remove"}
_CONTAINER: dict[int, Kind] = {
    nri_messages.CREATE: "creating", nri_messages.POST_CREATE: "create", nri_messages.START: "starting",
    nri_messages.POST_START: "start", nri_messages.UPDATE: "updating", nri_messages.POST_UPDATE: "update",
    nri_messages.STOP: "stop", nri_messages.REMOVE: "remove"}
#: Runtimes whose lists have every update, also after their own restart: containerd writes it into the container's spec
#: in its store (internal/cri/server/container_update_resources.go). CRI-O keeps it in memory.
STORES = ("containerd ",)
#: The stream of the one call to the runtime: a client's are odd (containerd/ttrpc PROTOCOL.md).
_REGISTRATION = 1
_NOTHING = frozenset((12, 13, 14))


class NriSession:
    """A connection's state. Nothing is ever waited for: Configure may come before the reply to RegisterPlugin."""

    def __init__(self, name: str, index: str, counters: NriCounters, told: set[str] | None = None,
                 clock: Callable[[], int] = boottime.now,
                 updates: Mapping[ContainerId, NriUpdate] | None = None, peer: int = 0) -> None:
        """
        :param told: what was logged already, so that a reconnect does not say it again.
        :param updates: for the answer to Synchronize.
        :param peer: the pid of the runtime's process, 0 when not known.
        """
        self.name = name
        self.index = index
        self.counters = counters
        #: "containerd v2.1.9", once it said so.
        self.runtime = ""
        self.configured = False
        self.synced = False
        #: Why the runtime does not want this plugin, in its words.
        self.refusal = ""
        #: Nothing more comes: it was refused, or the runtime goes down.
        self.closing = False
        self._told = set() if told is None else told
        self._clock = clock
        self._updates = updates or {}
        self._peer = peer
        self._demux = mux.Demux()
        self._decoders = {mux.PLUGIN: ttrpc.TtrpcDecoder(), mux.RUNTIME: ttrpc.TtrpcDecoder()}
        self._parts: list[Any] = []
        self._listed = 0
        self._listed_bytes = 0

    def register(self) -> bytes:
        """What to send first, and the only call that is ever made of the runtime: NRI's UpdateContainers, beside CRI
        calls, hangs every containerd with an NRI older than 0.12.1 for good (containerd#13733: two locks, taken in
        either order)."""
        asked = MESSAGES["RegisterPluginRequest"](plugin_name=self.name, plugin_idx=self.index)
        return mux.frames(mux.RUNTIME, ttrpc.encode(ttrpc.Call(
            _REGISTRATION, nri_messages.RUNTIME_SERVICE, "RegisterPlugin", asked.SerializeToString())))

    def feed(self, data: bytes) -> Iterator[bytes | NriEvent]:
        """What to send and what was told, in this order, with what came next.

        :raises WireError: when it is no NRI; the connection is of no more use.
        """
        for connection, payload in self._demux.feed(data):
            decoder = self._decoders.get(connection)
            if decoder is None:
                self._unknown(f"connection {connection}")
                continue
            for message in decoder.feed(payload):
                if connection == mux.PLUGIN and isinstance(message, ttrpc.Call):
                    yield from self._asked(message)
                elif connection == mux.RUNTIME and isinstance(message, ttrpc.Reply):
                    self._answered(message)
                else:
                    self._unknown(f"a {type(message).__name__.lower()} on connection {connection}")

    def ending(self) -> str:
        """What it means, and what to do, that the connection ends now."""
        if self.refusal:
            return f"the runtime refused the plugin: {self.refusal}"
        if self.closing:
            return f"{self.runtime or 'the runtime'} shuts its plugins down"
        if self.synced:
            return f"{self.runtime} closed the connection"
        if self.configured:
            return (f"{self.runtime} closed the connection before it listed anything: it does not want the events "
                    f"asked for ({EVENTS:#x}), or has failed; see its log")
        return ("the runtime closed the connection at once: it takes no plugins from outside (NRI's "
                "disable_connections), or none of this name and index; see its log")

    def _asked(self, request: ttrpc.Call) -> Iterator[bytes | NriEvent]:
        now = self._clock()
        if request.service != nri_messages.PLUGIN_SERVICE:
            self._unknown(f"service {plain(request.service, 80)}")
            yield _answer(request, code=ttrpc.UNIMPLEMENTED, text=f"no service {plain(request.service, 80)}")
        elif request.method == "Configure":
            yield _answer(request, MESSAGES["ConfigureResponse"](events=EVENTS))
            told = MESSAGES.decode("ConfigureRequest", request.payload)
            self.runtime = plain(f"{told.runtime_name} {told.runtime_version}".strip(), 120) or "a runtime"
            self.configured = True
        elif request.method == "Synchronize":
            yield from self._synchronize(request, now)
        elif request.method == "Shutdown":
            self.closing = True
            yield _answer(request)
        elif request.method == "StateChange":
            yield _answer(request)
            told = MESSAGES.decode("StateChangeEvent", request.payload)
            yield from self._event(told.event, told, now)
        elif request.method == "UpdateContainer":
            yield _answer(request)
            told = MESSAGES.decode("UpdateContainerRequest", request.payload)
            yield from self._event(nri_messages.UPDATE, told, now, told.linux_resources.cpu.cpus)
        elif request.method in _CALLS:
            yield _answer(request)
            yield from self._event(_CALLS[request.method], MESSAGES.decode("EventRequest", request.payload), now)
        else:
            # 0.12 falls back to StateChange upon this very code, for what it has a call for and we do not.
            self._unknown(f"method {plain(request.method, 80)}")
            yield _answer(request, code=ttrpc.UNIMPLEMENTED, text=f"no method {plain(request.method, 80)}")

    def _answered(self, response: ttrpc.Reply) -> None:
        if response.stream == _REGISTRATION and response.code:
            self.refusal, self.closing = f"code {response.code}: {plain(response.message, 300)}", True

    def _synchronize(self, request: ttrpc.Call, now: int) -> Iterator[bytes | NriEvent]:
        part = MESSAGES.decode("SynchronizeRequest", request.payload)
        self._listed += len(part.pods) + len(part.containers)
        self._listed_bytes += len(request.payload)
        if self._listed > MAX_LISTED or self._listed_bytes > MAX_LISTED_BYTES:
            raise WireError("NRI Synchronize", f"lists {self._listed} pods and containers, {self._listed_bytes} bytes")
        self._parts.append(part)
        # Updates count in the answer to the last part only (containerd/nri pkg/adaptation/plugin.go, synchronize).
        updates = {} if part.more else dict(self._updates_for(
            item for part in self._parts for item in part.containers))
        # `more` is echoed: a plugin that does not is taken for one that cannot do parts, and dropped.
        yield _answer(request, MESSAGES["SynchronizeResponse"](more=part.more, update=updates.values()))
        if not part.more:
            parts, self._parts, self._listed, self._listed_bytes = self._parts, [], 0, 0
            self.synced = True
            self.counters.syncs += 1
            self.counters.events += 1
            yield Synced(tuple(self._pods(pod for part in parts for pod in part.pods)),
                         tuple(self._containers(item for part in parts for item in part.containers)), now,
                         tuple(updates), self._peer, stored=self.runtime.startswith(STORES))

    def _updates_for(self, listed: Iterable[Any]) -> Iterator[tuple[ContainerId, Any]]:
        for container in listed:
            update = self._updates.get(container.id)
            if update is None or (update.listed is not None and update.listed != _cpus(container)):
                continue
            # CRI-O fails the whole Synchronize for one update that fails, unless that may be ignored.
            made = MESSAGES["ContainerUpdate"](container_id=container.id, ignore_failure=True)
            made.linux.resources.cpu.cpus = str(update.cpus)
            yield ContainerId(container.id), made

    def _event(self, number: int, told: Any, now: int, asked: str = "") -> Iterator[NriEvent]:
        """
        :param told: a message with a pod and a container.
        :param asked: the CPU list that an update is to give the container, "" for none.
        """
        pod = next(self._pods([told.pod]), None) if told.HasField("pod") else None
        if number in _POD:
            if pod is not None:
                self.counters.events += 1
                yield PodEvent(_POD[number], pod, now)
            elif not told.HasField("pod"):
                self._drop(f"a pod's event {number} has no pod")
        elif number in _CONTAINER:
            if not told.HasField("container"):
                self._drop(f"a container's event {number} has no container")
                return
            for container in self._containers([told.container], pod):
                self.counters.events += 1
                yield ContainerEvent(_CONTAINER[number], pod, container, now,
                                     self._cpu_list(asked, container.id) or None)
        elif number not in _NOTHING:
            self._unknown(f"event {number}")

    def _pods(self, told: Iterable[Any]) -> Iterator[NriPod]:
        for pod in told:
            if not valid_id(pod.id):
                self._drop(f"a pod has the id {pod.id[:80]!r}")
                continue
            yield NriPod(SandboxId(pod.id), plain(pod.name, 253), plain(pod.namespace, 253), plain(pod.uid, 64),
                         plain(pod.runtime_handler, 253), _pid(pod.pid), dict(pod.annotations),
                         plain(pod.linux.cgroup_parent, 4096))

    def _containers(self, told: Iterable[Any], pod: NriPod | None = None) -> Iterator[NriContainer]:
        for container in told:
            sandbox = container.pod_sandbox_id or (pod.id if pod is not None else "")
            if not valid_id(container.id) or not valid_id(sandbox):
                self._drop(f"a container has the id {container.id[:80]!r}, and its pod {sandbox[:80]!r}")
                continue
            cpus = self._cpu_list(container.linux.resources.cpu.cpus, container.id)
            yield NriContainer(ContainerId(container.id), SandboxId(sandbox), plain(container.name, 253),
                               container.state, cpus or None, dict(container.annotations), _pid(container.pid),
                               plain(container.linux.cgroups_path, 4096))

    def _cpu_list(self, text: str, container: str) -> CpuSet:
        """Empty for what is no CPU list: the container is there all the same, with the CPUs reported before."""
        try:
            return CpuSet.parse(text)
        except CpuSetError as err:
            self._drop(f"the CPUs of container {container}: {err}", "cpus")
            return EMPTY

    def _drop(self, what: str, kind: str = "id") -> None:
        self.counters.dropped += 1
        self._tell(f"dropped {kind}", f"NRI: left out: {what}")

    def _unknown(self, what: str) -> None:
        self.counters.unknown += 1
        logger.debug("NRI: unknown: %s", what)

    def _tell(self, kind: str, text: str) -> None:
        """Once a kind: a runtime that says one odd thing says a thousand."""
        logger.log(logging.DEBUG if kind in self._told else logging.WARNING, "%s", text)
        self._told.add(kind)


def _answer(request: ttrpc.Call, message: Any = None, code: int = ttrpc.OK, text: str = "") -> bytes:
    payload = b"" if message is None else message.SerializeToString()
    return mux.frames(mux.PLUGIN, ttrpc.encode(ttrpc.Reply(request.stream, code, text, payload)))


def _cpus(container: Any) -> CpuSet | None:
    try:
        return CpuSet.parse(container.linux.resources.cpu.cpus)
    except CpuSetError:
        return None


def _pid(told: int) -> int:
    return told if told < 1 << 22 else 0  # PID_MAX_LIMIT
