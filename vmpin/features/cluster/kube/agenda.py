"""What is to be written to the API server, and when: nothing twice, each kind at its own pace.

Pure state: `observe` takes in the node's and the pods' state, `done` the result of a write, with both clocks: `now` is
a steady one, `clock` CLOCK_REALTIME, both in seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from vmpin.features.cluster.kube.api_request import FIRST, LONGEST, ApiRequest, Refusals
from vmpin.features.cluster.kube.cluster_node import ClusterNode, label_update, taint_removal
from vmpin.features.cluster.kube.node_pinning import REFRESH, dated, node_pinning
from vmpin.features.cluster.kube.node_topology import TopologyAgenda, TopologyMode
from vmpin.features.cluster.kube.pod_events import (
    DriftReports,
    EventLimits,
    EventReason,
    PodNotice,
    Recorded,
    TokenBucket,
    event_request,
    transition,
)
from vmpin.features.cluster.kube.pod_pinning import (
    AWAY,
    PinState,
    PodPinning,
    annotation_change,
    annotations_of,
    condition_update,
    pinning_of,
)
from vmpin.features.cluster.kube.pod_record import PodRecord, Pods
from vmpin.features.cluster.kube.reported_node import NOTHING, RefusedChange, ReportedNode, SandboxPinning

#: Seconds without a watcher's report until that is shown: a watcher that is updated is back by then.
AWAY_AFTER = 60.0
#: Seconds that a state which does not last (waiting, without a VM) has to be there until it is shown.
PASSING_AFTER = 10.0
#: Between two writes of NodePinning, and of the node's labels (seconds).
NODE_PAUSE = 10.0
#: Seconds until what was written may be written again because the API server does not show it.
SETTLING = 30.0
#: Conditions, annotations and Events: so many at once, and then one in so many seconds.
WRITE_BURST, WRITE_SECONDS = 20, 0.1
MAX_EVENTS = 500

NO_SANDBOX = PodPinning(PinState.NOT_RUNNING, "no VM sandbox of it is known to the watcher on this node")


class Wanted(NamedTuple):
    """What is written at all; `startup_taint` is the key of the taint that is removed, "" for none."""

    events: bool = True
    conditions: bool = True
    labels: bool = True
    startup_taint: str = ""
    annotations: bool = False
    topology: TopologyMode = TopologyMode.OFF


class Write(NamedTuple):
    """One write. `kind` is taint, labels, condition, annotation, event, topology (it is read, too) or pinning; `what`
    is what it is about and holds."""

    kind: str
    request: ApiRequest
    pod: PodRecord | None = None
    what: Any = None


class Agenda:
    """The agenda of one node, in one process. :param prefix: makes names of Events those of this process."""

    def __init__(self, wanted: Wanted, prefix: str, now: float) -> None:
        self._wanted = wanted
        self._limits = EventLimits(prefix, now)
        self._drift = DriftReports()
        self._pace = TokenBucket(WRITE_BURST, WRITE_SECONDS, now)
        self._reported, self._reports = NOTHING, False
        self._report_time, self._late = now, False  #: When the watcher reported last; whether that is late.
        self._pods = Pods()
        self._states: dict[str, tuple[PodPinning, float]] = {}  #: By uid, since when the state is this one.
        self._lasting: dict[str, PodPinning] = {}  #: By uid, the last that was worth an Event.
        self._sandboxes: dict[str, SandboxPinning] = {}  #: By uid, of the pods that have one.
        self._known: tuple[RefusedChange, ...] | None = None  #: Of the last report; None before the first.
        self._topology = TopologyAgenda(wanted.topology)
        #: By kind of write and uid: what was written (condition, annotation) and when; the pod as it was when that was
        #: refused, and until when it is not tried again unless the pod changes.
        self._shown: dict[tuple[str, str], tuple[Any, float]] = {}
        self._refused: dict[tuple[str, str], tuple[PodRecord, float]] = {}
        self._events: deque[tuple[PodRecord, Recorded, bool]] = deque(maxlen=MAX_EVENTS)
        self._event = 0  #: The place of the one that is being written.
        self._left = frozenset[str]()  #: Sandboxes that NodePinning leaves out.
        self._pinning: Mapping[str, Any] | None = None  #: The object that was written last.
        self._made: tuple[tuple[object, ...], dict[str, Any]] = (), {}
        #: By kind of write and namespace, "" for the node's: a quota, a namespace that ends or an admission plugin
        #: forbids in one namespace what is permitted in others. `_paused` is until when there is no such write.
        self._refusals: dict[tuple[str, str], Refusals] = {}
        self._paused: dict[tuple[str, str], float] = {}

    @property
    def away(self) -> bool:
        """Whether there has been no report for so long that it is shown."""
        return not self._reports and self._late

    def observe(self, reported: ReportedNode, reports: bool, pods: Pods, now: float, clock: float) -> None:
        """Take in the present state. :param reports: whether the watcher's connection is up."""
        self._report_time = now if reports else self._report_time
        self._late = now - self._report_time >= AWAY_AFTER
        self._reported, self._reports, self._pods = reported, reports, pods
        # The one that runs, where a pod's sandbox was made again.
        by_uid = {each.uid: each for each in sorted(reported.sandboxes.values(), key=lambda one: one.runs) if each.uid}
        present, self._sandboxes = set(), {}
        for pod in pods:
            sandbox = own_sandbox(by_uid.get(pod.runtime_uid), pod)
            if pod.ending or (sandbox is None and pod.condition is None and not pod.annotations):
                continue
            present.add(pod.uid)
            if sandbox is not None:
                self._sandboxes[pod.uid] = sandbox
            state = (AWAY if self.away else NO_SANDBOX if sandbox is None else
                     pinning_of(sandbox, reported.node.collisions))
            before = self._states.get(pod.uid)
            self._states[pod.uid] = state, before[1] if before is not None and before[0].state is state.state else now
            if reports and sandbox is not None and self._wanted.events:
                self._note(pod, transition(self._before(pod), state), now, clock)
                self._note(pod, self._drift.event(pod.uid, sandbox.repairs, now), now, clock)
            if reports and state.state.lasting:
                self._lasting[pod.uid] = state
        if reports:
            self._note_refusals(reported, now, clock)
        for table in (self._states, self._lasting):
            for gone in table.keys() - present:
                del table[gone]
        self._shown = {key: found for key, found in self._shown.items() if key[1] in present}
        self._refused = {key: found for key, found in self._refused.items() if key[1] in present}
        namespaces = {"", *(pod.namespace for pod in pods)}
        self._refusals = {key: found for key, found in self._refusals.items() if key[1] in namespaces}
        self._paused = {key: until for key, until in self._paused.items() if until > now}
        self._drift.keep_only(present)
        self._left = left if (left := _leftovers(reported, pods)) != self._left else self._left

    def _before(self, pod: PodRecord) -> PodPinning | None:
        """The pod's last state that may last; that of its condition for one that is met now, so that a reporter that
        is started again repeats nothing."""
        if pod.uid in self._lasting or pod.condition is None:
            return self._lasting.get(pod.uid)
        try:
            shown = PodPinning(PinState(str(pod.condition.get("reason"))), str(pod.condition.get("message")))
        except ValueError:
            return None
        return shown if shown.state.lasting else None

    def _note_refusals(self, reported: ReportedNode, now: float, clock: float) -> None:
        """Note each changed annotation that was refused since the last report; those of the first are known to be old,
        as it is this reporter that hands annotations over."""
        found = () if reported.node.allocator is None else reported.node.allocator.refused
        if self._known is not None and self._wanted.events:
            for each in found:
                pod = self._pods.get(each.uid)
                if pod is not None and not pod.ending and each not in self._known:
                    text = f"container {each.container}: {each.why}"
                    self._note(pod, PodNotice(EventReason.REFUSED, text), now, clock)
        self._known = found

    def _note(self, pod: PodRecord, event: PodNotice | None, now: float, clock: float) -> None:
        found = None if event is None else self._limits.admit(pod.uid, pod.name, event, now, clock)
        if found is not None:
            self._events.append((pod, found, found.times == 1))

    def due(self, node: ClusterNode, now: float, clock: float) -> Iterator[Write]:
        """Return what is to be written now. The caller reports each with `done` before it takes the next one."""
        wanted = self._wanted
        ready = self._reports and self._reported.node.ready
        if ready and self._free("taint", now) and (request := taint_removal(node, wanted.startup_taint)) is not None:
            yield Write("taint", request)
        if (wanted.labels and self._reported.time and (self._reports or self.away) and self._free("labels", now)
                and (request := label_update(node, self._reported.node, self._reports)) is not None):
            yield Write("labels", request)
        if wanted.conditions:
            yield from self._of_pods("condition", now, clock)
        if wanted.annotations:
            yield from self._of_pods("annotation", now, clock)
        while (place := self._next_event(now)) is not None and self._pace.take(now):
            self._event = place
            pod, recorded, create = self._events[place]
            yield Write("event", event_request(pod, recorded, node.name, clock, create), pod, recorded)
        while self._reports and self._reported.time and (
                request := self._topology.due(node, self._reported.node, now)) is not None:
            yield Write("topology", request)
        if self._reported.time and (self._reports or self.away) and self._free("pinning", now):
            made = self._object(node)
            if made != self._pinning or self._free("refresh", now):
                yield Write("pinning", dated(made, self._reported.time), None, made)

    def _object(self, node: ClusterNode) -> dict[str, Any]:
        """The NodePinning, made again where something that it is made of is another."""
        reported = self._reported
        parts = node, reported.node, reported.sandboxes, self._reports, self._topology.note, self._left
        if not self._made[0] or any(one is not other for one, other in zip(parts, self._made[0], strict=True)):
            if self._left:
                reported = reported._replace(sandboxes={
                    name: each for name, each in reported.sandboxes.items() if name not in self._left})
            self._made = parts, node_pinning(node, reported, self._reports, topology=self._topology.note)
        return self._made[1]

    def _next_event(self, now: float) -> int | None:
        """Its place: the first of a namespace where there is no pause."""
        return next((place for place, (pod, _, _) in enumerate(self._events)
                     if self._free("event", now, pod.namespace)), None)

    def _of_pods(self, kind: str, now: float, clock: float) -> Iterator[Write]:
        """Conditions, or annotations."""
        for pod in self._pods:
            key = kind, pod.uid
            refused, until = self._refused.get(key, (None, 0.0))
            held = pod.ending or (refused == pod and now < until) or not self._free(kind, now, pod.namespace)
            what = None if held else self._of_pod(kind, pod, now)
            written, when = self._shown.get(key, (None, 0.0))
            if what is None or (written == what and now - when < SETTLING):
                continue
            request = (condition_update(pod, what, clock) if isinstance(what, PodPinning) else
                       annotation_change(pod, what))
            if request is None:
                continue
            if not self._pace.take(now):
                return
            yield Write(kind, request, pod, what)

    def _of_pod(self, kind: str, pod: PodRecord, now: float) -> PodPinning | dict[str, str] | None:
        """Return what a pod's condition or annotations are to show; None to leave them as they are."""
        state, since = self._states.get(pod.uid, (None, 0.0))
        if state is None or (not state.state.lasting and state is not AWAY and now - since < PASSING_AFTER):
            return None
        if kind == "condition":
            return None if state is NO_SANDBOX and pod.condition is None else state
        return None if state is AWAY else annotations_of(self._sandboxes.get(pod.uid))

    def done(self, write: Write, status: int, now: float, answer: Mapping[str, Any] | None = None) -> str:
        """Take in the result of a write. :param status: of HTTP. :param answer: to what was read.
        :returns: a sentence for the log where it is refused; "" where it is done, or not worth one."""
        good = 200 <= status < 300
        if good:
            self._refusals.pop(_place(write), None)
        if write.kind == "event":
            return self._event_done(write, status, now)
        if write.kind == "topology":
            return self._topology.done(write.request, status, answer or {}, now)
        if status in (401, 403) or (status == 404 and write.kind == "pinning"):
            return self._pause(write, status, now)
        if write.pod is not None:
            if not good:  # 404, 409: it is gone, or another of its name is there, as the watch will show
                self._refused[write.kind, write.pod.uid] = write.pod, now + LONGEST
                return "" if status in (404, 409) else f"{write.request}: refused ({status})"
            self._shown[write.kind, write.pod.uid] = write.what, now
            return ""
        if write.kind == "pinning":
            self._pinning = write.what if good else None
            self._paused["refresh", ""] = now + REFRESH
        if good:
            self._paused[_place(write)] = now + NODE_PAUSE
            return ""
        refusals = self._refusals.setdefault(_place(write), Refusals())
        self._paused[_place(write)] = now + max(NODE_PAUSE, refusals.pause())
        # The taints may have changed since the node was read: that is done again.
        first = 2 if write.kind == "taint" else 1
        return f"{write.request}: refused ({status})" if refusals.count == first else ""

    def _event_done(self, write: Write, status: int, now: float) -> str:
        pod, recorded, create = self._events[self._event]
        if status == 404 and not create:  # it has expired
            self._events[self._event] = pod, recorded, True
            return ""
        if status in (401, 403):
            text = self._pause(write, status, now)
            if self._refusals[_place(write)].lasting:
                self._events = deque((each for each in self._events if each[0].namespace != pod.namespace), MAX_EVENTS)
            return text
        del self._events[self._event]
        if not 200 <= status < 300:
            self._limits.refused(pod.uid, recorded)
            return "" if status in (404, 409) else f"{write.request}: refused ({status})"
        return ""

    def put_off(self, write: Write, now: float) -> None:
        """The API server failed at this write (500), as it does where an admission webhook of that object fails: the
        others come before it is tried again."""
        if write.kind == "topology":
            self._topology.done(write.request, 500, {}, now)
        elif write.pod is None or write.kind == "event":
            self._paused[_place(write)] = now + SETTLING
        else:
            self._refused[write.kind, write.pod.uid] = write.pod, now + SETTLING

    def _pause(self, write: Write, status: int, now: float) -> str:
        refusals = self._refusals.setdefault(_place(write), Refusals())
        self._paused[_place(write)] = now + refusals.pause()
        if refusals.count > 1:
            return ""
        why = {401: "the token is not accepted", 403: "it is not permitted (RBAC, or the policy for the node)",
               404: "there is no such resource: is the CRD installed?"}[status]
        return f"{write.request}: {why}; tried again after {FIRST:.0f} s, later after up to {LONGEST:.0f} s"

    def _free(self, kind: str, now: float, namespace: str = "") -> bool:
        return now >= self._paused.get((kind, namespace), float("-inf"))

    def next_due(self, now: float) -> float:
        """Seconds until something may be due without anything new: REFRESH at the most."""
        ends = [until - now for until in self._paused.values() if until > now]
        ends += [until - now for _, until in self._refused.values() if until > now]
        ends.append(self._topology.next_due(now))
        ends += [since + PASSING_AFTER - now for state, since in self._states.values()
                 if not state.state.lasting and since + PASSING_AFTER > now]
        if not self._reports and not self._late:
            ends.append(self._report_time + AWAY_AFTER - now)
        if (drift := self._drift.due(now)) is not None:
            ends.append(drift - now)
        waits = self._next_event(now) is not None or self._pace.wait(now)
        ends.append(max(self._pace.wait(now), WRITE_SECONDS) if waits else REFRESH)
        return max(0.0, min([*ends, float(REFRESH)]))


def _leftovers(reported: ReportedNode, pods: Pods) -> frozenset[str]:
    """The sandboxes without a VM whose pod is deleted or has ended, or has another one that runs: the kubelet removes
    them some time later, and under the name of a pod that was made again they would look like its own."""
    running = {each.uid for each in reported.sandboxes.values() if each.runs}
    return frozenset(name for name, each in reported.sandboxes.items() if each.uid and not each.runs and (
        each.uid in running or (pod := pods.get(each.uid)) is None or pod.ending))


def _place(write: Write) -> tuple[str, str]:
    return write.kind, "" if write.pod is None else write.pod.namespace


def own_sandbox(found: SandboxPinning | None, pod: PodRecord) -> SandboxPinning | None:
    """The sandbox if it is the pod's. A mirror pod's uid is an annotation, which any pod can have with another's uid:
    its name has to be the runtime's, too."""
    if found is None or pod.runtime_uid == pod.uid or found.pod == (pod.namespace, pod.name):
        return found
    return None
