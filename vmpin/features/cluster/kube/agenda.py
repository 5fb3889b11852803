"""The reporter's writes to the API server, and when each is due: nothing twice, each kind at its own pace.

Pure state: `observe` takes in the node and its pods, `due` yields the writes, `done` takes in the result of each.
`now` is a steady clock's time, `clock` CLOCK_REALTIME, both in seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vmpin.features.cluster.kube.api_request import FIRST, LONGEST, ApiRequest, Refusals
from vmpin.features.cluster.kube.cluster_node import ClusterNode, label_update, taint_removal
from vmpin.features.cluster.kube.node_pinning import REFRESH, node_pinning, pinning_update
from vmpin.features.cluster.kube.node_topology import TopologyAgenda
from vmpin.features.cluster.kube.pod_events import (
    DriftReports,
    EventLimits,
    EventReason,
    PodNotice,
    RecordedEvent,
    TokenBucket,
    event_request,
    transition,
)
from vmpin.features.cluster.kube.pod_pinning import (
    AWAY,
    PinState,
    PodPinning,
    condition_update,
    pinning_of,
)
from vmpin.features.cluster.kube.pod_record import PodRecord
from vmpin.features.cluster.kube.reported_node import NOTHING, RefusedChange, ReportedNode, SandboxPinning
from vmpin.named_tuple import NamedTuple

#: Seconds without a watcher's report until that is shown: a watcher that is updated is back by then.
AWAY_AFTER = 60.0
#: Seconds that a passing state (waiting, without a VM) has to last until it is shown.
PASSING_AFTER = 10.0
#: Seconds between two writes of NodePinning, and of the node's labels.
NODE_PAUSE = 10.0
#: Seconds until what was written may be written again because the API server does not show it.
SETTLING = 30.0
#: Conditions and Events: their number at once, and then the seconds for each.
WRITE_BURST, WRITE_SECONDS = 20, 0.1
MAX_EVENTS = 500

NO_SANDBOX = PodPinning(PinState.NOT_RUNNING, "no VM sandbox of it is known to the watcher on this node")


class WriteChoice(NamedTuple):
    """Which kinds are written at all. `startup_taint` is the key of the taint that is removed, "" for none."""

    events: bool = True
    conditions: bool = True
    labels: bool = True
    startup_taint: str = ""
    topology: bool = False


class Write(NamedTuple):
    """`kind` is taint, labels, condition, event, topology (which is read, too) or pinning. `content` is what the
    object shows afterwards: a PodPinning, a RecordedEvent, or a NodePinning."""

    kind: str
    request: ApiRequest
    pod: PodRecord | None = None
    content: Any = None


class Agenda:
    """The agenda of one node, in one process. :param prefix: makes names of Events those of this process."""

    def __init__(self, wanted: WriteChoice, prefix: str, now: float) -> None:
        self._wanted = wanted
        self._limits = EventLimits(prefix, now)
        self._drift = DriftReports()
        self._pace = TokenBucket(WRITE_BURST, WRITE_SECONDS, now)
        self._reported, self._reporting = NOTHING, False
        self._report_time, self._late = now, False  #: When the watcher reported last; whether that is too long ago.
        self._pods: Sequence[PodRecord] = ()
        self._by_runtime_uid: dict[str, PodRecord] = {}
        self._states: dict[str, tuple[PodPinning, float]] = {}  #: By uid: the state, and since when.
        self._lasting: dict[str, PodPinning] = {}  #: By uid: the last state that may last.
        self._sandboxes: dict[str, SandboxPinning] = {}  #: By uid.
        self._refused_changes: tuple[RefusedChange, ...] | None = None  #: Of the last report; None before the first.
        self._topology = TopologyAgenda(wanted.topology)
        #: By uid: the condition that was written, and when; the pod as it was at a refusal, and until when the write
        #: is not tried again unless the pod changes.
        self._written: dict[str, tuple[PodPinning, float]] = {}
        self._refused: dict[str, tuple[PodRecord, float]] = {}
        self._events: deque[tuple[PodRecord, RecordedEvent, bool]] = deque(maxlen=MAX_EVENTS)
        self._event = 0  #: The place of the Event that is being written.
        self._leftovers = frozenset[str]()  #: Sandboxes that NodePinning leaves out.
        self._pinning: Mapping[str, Any] | None = None  #: The NodePinning that was written last.
        #: The NodePinning that was built last, and of what.
        self._built: tuple[tuple[object, ...], dict[str, Any]] = (), {}
        #: By kind of write and namespace, "" for the node's: a quota, a namespace that ends or an admission plugin
        #: forbids in one namespace what is permitted in others. `_paused` is until when there is no such write.
        self._refusals: dict[tuple[str, str], Refusals] = {}
        self._paused: dict[tuple[str, str], float] = {}

    @property
    def away(self) -> bool:
        """Whether there has been no report for so long that it is shown."""
        return not self._reporting and self._late

    def observe(self, reported: ReportedNode, reporting: bool, pods: Sequence[PodRecord], now: float,
                clock: float) -> None:
        """Take in the present state. :param reporting: whether the watcher's connection is up."""
        self._report_time = now if reporting else self._report_time
        self._late = now - self._report_time >= AWAY_AFTER
        self._reported, self._reporting, self._pods = reported, reporting, pods
        self._by_runtime_uid = {pod.runtime_uid: pod for pod in pods}
        self._sandboxes = sandboxes_of(pods, reported.sandboxes.values())
        present = set()
        for pod in pods:
            sandbox = self._sandboxes.get(pod.uid)
            if pod.ending or (sandbox is None and pod.condition is None):
                continue
            present.add(pod.uid)
            state = (AWAY if self.away else NO_SANDBOX if sandbox is None else
                     pinning_of(sandbox, reported.node.collisions))
            before = self._states.get(pod.uid)
            self._states[pod.uid] = state, before[1] if before is not None and before[0].state is state.state else now
            if reporting and sandbox is not None and self._wanted.events:
                self._note(pod, transition(self._before(pod), state), now, clock)
                self._note(pod, self._drift.event(pod.uid, sandbox.repairs, now), now, clock)
            if reporting and state.state.lasting:
                self._lasting[pod.uid] = state
        if reporting:
            self._note_refused_changes(reported, now, clock)
        for table in (self._states, self._lasting):
            for uid in table.keys() - present:
                del table[uid]
        self._written = {uid: entry for uid, entry in self._written.items() if uid in present}
        self._refused = {uid: entry for uid, entry in self._refused.items() if uid in present}
        namespaces = {"", *(pod.namespace for pod in pods)}
        self._refusals = {key: refusals for key, refusals in self._refusals.items() if key[1] in namespaces}
        self._paused = {key: until for key, until in self._paused.items() if until > now}
        self._drift.keep_only(present)
        leftovers = _leftovers(reported, self._by_runtime_uid)
        self._leftovers = leftovers if leftovers != self._leftovers else self._leftovers

    def _before(self, pod: PodRecord) -> PodPinning | None:
        """The pod's last state that may last. For a pod that is new here that of its condition, so that a reporter
        that is started again repeats no Event."""
        if pod.uid in self._lasting or pod.condition is None:
            return self._lasting.get(pod.uid)
        try:
            shown = PodPinning(PinState(str(pod.condition.get("reason"))), str(pod.condition.get("message")))
        except ValueError:
            return None
        return shown if shown.state.lasting else None

    def _note_refused_changes(self, reported: ReportedNode, now: float, clock: float) -> None:
        """Note each changed annotation that was refused since the last report; those of the first are old, as it is
        this reporter that hands annotations over."""
        changes = () if reported.node.allocator is None else reported.node.allocator.refused
        if self._refused_changes is not None and self._wanted.events:
            for change in changes:
                pod = self._by_runtime_uid.get(change.uid)
                if pod is not None and not pod.ending and change not in self._refused_changes:
                    text = f"container {change.container}: {change.why}"
                    self._note(pod, PodNotice(EventReason.REFUSED, text), now, clock)
        self._refused_changes = changes

    def _note(self, pod: PodRecord, notice: PodNotice | None, now: float, clock: float) -> None:
        recorded = None if notice is None else self._limits.admit(pod.uid, pod.name, notice, now, clock)
        if recorded is not None:
            self._events.append((pod, recorded, recorded.times == 1))

    def due(self, node: ClusterNode, now: float, clock: float) -> Iterator[Write]:
        """Yield the writes that are due. The caller reports each with `done` before it takes the next one."""
        wanted, reported = self._wanted, self._reported
        shown = self._reporting or self.away
        if (self._reporting and reported.node.ready and self._free("taint", now)
                and (request := taint_removal(node, wanted.startup_taint)) is not None):
            yield Write("taint", request)
        if (wanted.labels and reported.time and shown and self._free("labels", now)
                and (request := label_update(node, reported.node, self._reporting)) is not None):
            yield Write("labels", request)
        if wanted.conditions:
            yield from self._conditions(now, clock)
        while (place := self._next_event(now)) is not None and self._pace.take(now):
            self._event = place
            pod, recorded, create = self._events[place]
            yield Write("event", event_request(pod, recorded, node.name, clock, create), pod, recorded)
        while self._reporting and reported.time and (
                request := self._topology.due(node, reported.node, now)) is not None:
            yield Write("topology", request)
        if reported.time and shown and self._free("pinning", now):
            pinning = self._node_pinning(node)
            if pinning != self._pinning or self._free("refresh", now):
                yield Write("pinning", pinning_update(pinning, reported.time), None, pinning)

    def _node_pinning(self, node: ClusterNode) -> dict[str, Any]:
        """The NodePinning, built again where a part of it is another object."""
        reported = self._reported
        parts = node, reported.node, reported.sandboxes, self._reporting, self._topology.note, self._leftovers
        if not self._built[0] or any(part is not former for part, former in zip(parts, self._built[0], strict=True)):
            if self._leftovers:
                reported = reported._replace(sandboxes={name: sandbox for name, sandbox in reported.sandboxes.items()
                                                        if name not in self._leftovers})
            self._built = parts, node_pinning(node, reported, self._reporting, topology=self._topology.note)
        return self._built[1]

    def _next_event(self, now: float) -> int | None:
        """The place of the first Event of a namespace that is not paused."""
        return next((place for place, (pod, _, _) in enumerate(self._events)
                     if self._free("event", now, pod.namespace)), None)

    def _conditions(self, now: float, clock: float) -> Iterator[Write]:
        """Yield the due writes of pods' conditions."""
        for pod in self._pods:
            refused, until = self._refused.get(pod.uid, (None, 0.0))
            held = pod.ending or (refused == pod and now < until) or not self._free("condition", now, pod.namespace)
            state = None if held else self._shown(pod, now)
            written, when = self._written.get(pod.uid, (None, 0.0))
            if state is None or (written == state and now - when < SETTLING):
                continue
            request = condition_update(pod, state, clock)
            if request is None:
                continue
            if not self._pace.take(now):
                return
            yield Write("condition", request, pod, state)

    def _shown(self, pod: PodRecord, now: float) -> PodPinning | None:
        """Return what a pod's condition is to show; None to leave it as it is."""
        state, since = self._states.get(pod.uid, (None, 0.0))
        if state is None or (not state.state.lasting and state is not AWAY and now - since < PASSING_AFTER):
            return None
        return None if state is NO_SANDBOX and pod.condition is None else state

    def done(self, write: Write, status: int, now: float, answer: Mapping[str, Any] | None = None) -> str:
        """Take in the result of a write. :param status: of HTTP. :param answer: the object, of a read.
        :returns: a sentence for the log about a refusal; "" where there is none, or the log has it already."""
        succeeded = 200 <= status < 300
        if succeeded:
            self._refusals.pop(_scope(write), None)
        if write.kind == "event":
            return self._event_done(write, status, now)
        if write.kind == "topology":
            return self._topology.done(write.request, status, answer or {}, now)
        if status in (401, 403) or (status == 404 and write.kind == "pinning"):
            return self._pause(write, status, now)
        if write.pod is None:
            return self._node_done(write, status, succeeded, now)
        if succeeded:
            self._written[write.pod.uid] = write.content, now
            return ""
        self._refused[write.pod.uid] = write.pod, now + LONGEST
        # 404, 409: the pod is gone, or another pod has its name, as the watch will show.
        return "" if status in (404, 409) else f"{write.request}: refused ({status})"

    def _node_done(self, write: Write, status: int, succeeded: bool, now: float) -> str:
        """Take in the result of a write of taint, labels or pinning."""
        if write.kind == "pinning":
            self._pinning = write.content if succeeded else None
            self._paused["refresh", ""] = now + REFRESH
        if succeeded:
            self._paused[_scope(write)] = now + NODE_PAUSE
            return ""
        refusals = self._refusals.setdefault(_scope(write), Refusals())
        self._paused[_scope(write)] = now + max(NODE_PAUSE, refusals.pause())
        # The taints may have changed since the node was read: only a second refusal, after a new read, is logged.
        first = 2 if write.kind == "taint" else 1
        return f"{write.request}: refused ({status})" if refusals.count == first else ""

    def _event_done(self, write: Write, status: int, now: float) -> str:
        pod, recorded, create = self._events[self._event]
        if status == 404 and not create:  # the object has expired
            self._events[self._event] = pod, recorded, True
            return ""
        if status in (401, 403):
            text = self._pause(write, status, now)
            if self._refusals[_scope(write)].lasting:
                self._events = deque((event for event in self._events if event[0].namespace != pod.namespace),
                                     MAX_EVENTS)
            return text
        del self._events[self._event]
        if not 200 <= status < 300:
            self._limits.refused(pod.uid, recorded)
            return "" if status in (404, 409) else f"{write.request}: refused ({status})"
        return ""

    def put_off(self, write: Write, now: float) -> None:
        """Try a write again only after the others: the API server failed at it (500), as it does where an admission
        webhook of that object fails."""
        if write.kind == "topology":
            self._topology.done(write.request, 500, {}, now)
        elif write.pod is None or write.kind == "event":
            self._paused[_scope(write)] = now + SETTLING
        else:
            self._refused[write.pod.uid] = write.pod, now + SETTLING

    def _pause(self, write: Write, status: int, now: float) -> str:
        refusals = self._refusals.setdefault(_scope(write), Refusals())
        self._paused[_scope(write)] = now + refusals.pause()
        if refusals.count > 1:
            return ""
        why = {401: "the token is not accepted", 403: "it is not permitted (RBAC, or the policy for the node)",
               404: "there is no such resource: is the CRD installed?"}[status]
        return f"{write.request}: {why}; tried again after {FIRST:.0f} s, later after up to {LONGEST:.0f} s"

    def _free(self, kind: str, now: float, namespace: str = "") -> bool:
        """False in a pause of this kind of write."""
        return now >= self._paused.get((kind, namespace), float("-inf"))

    def next_due(self, now: float) -> float:
        """Seconds until something may be due without anything new: REFRESH at the most."""
        ends = [until - now for until in self._paused.values() if until > now]
        ends += [until - now for _, until in self._refused.values() if until > now]
        ends.append(self._topology.next_due(now))
        ends += [since + PASSING_AFTER - now for state, since in self._states.values()
                 if not state.state.lasting and since + PASSING_AFTER > now]
        if not self._reporting and not self._late:
            ends.append(self._report_time + AWAY_AFTER - now)
        if (drift := self._drift.due(now)) is not None:
            ends.append(drift - now)
        waits = self._next_event(now) is not None or self._pace.wait(now)
        ends.append(max(self._pace.wait(now), WRITE_SECONDS) if waits else REFRESH)
        return max(0.0, min([*ends, float(REFRESH)]))


def sandboxes_of(pods: Iterable[PodRecord], sandboxes: Iterable[SandboxPinning]) -> dict[str, SandboxPinning]:
    """Return the sandbox of each pod by the pod's uid; of several of one pod that with a VM."""
    by_uid = {sandbox.uid: sandbox for sandbox in sorted(sandboxes, key=lambda sandbox: sandbox.runs) if sandbox.uid}
    return {pod.uid: sandbox for pod in pods
            if (sandbox := by_uid.get(pod.runtime_uid)) is not None and pod.owns(sandbox)}


def _leftovers(reported: ReportedNode, pods: Mapping[str, PodRecord]) -> frozenset[str]:
    """The sandboxes without a VM whose pod is deleted or has ended, or has another sandbox with a VM: the kubelet
    removes them some time later, and under the name of a pod that was created again they would look like its own."""
    running = {sandbox.uid for sandbox in reported.sandboxes.values() if sandbox.runs}
    return frozenset(name for name, sandbox in reported.sandboxes.items() if sandbox.uid and not sandbox.runs and (
        sandbox.uid in running or (pod := pods.get(sandbox.uid)) is None or pod.ending))


def _scope(write: Write) -> tuple[str, str]:
    """The key of a write's pauses and refusals."""
    return write.kind, "" if write.pod is None else write.pod.namespace
