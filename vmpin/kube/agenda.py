"""What is to be written to the API server, and when: nothing twice, each kind at its own pace.

Pure state: it is given what is so (`observe`) and how writes ended (`done`), with both clocks: `now` is a steady one,
`clock` CLOCK_REALTIME, both in seconds. What stays out: the requests' contents (pod_condition, node_pinning, …) and
sending them (reporter.service)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from vmpin.kube.api_request import ApiRequest
from vmpin.kube.cluster_node import ClusterNode, label_update, taint_removal
from vmpin.kube.event_limits import EventLimits, Recorded, TokenBucket
from vmpin.kube.node_pinning import REFRESH, dated, node_pinning
from vmpin.kube.pod_condition import AWAY, PinState, PodPinning, condition_update, pinning_of
from vmpin.kube.pod_event import event_request
from vmpin.kube.pod_record import PodRecord, Pods
from vmpin.kube.reported_node import NOTHING, ReportedNode
from vmpin.kube.transitions import DriftReports, PodNotice, transition

#: Seconds without a watcher's report until that is shown: a watcher that is updated is back by then.
AWAY_AFTER = 60.0
#: Seconds that a state which does not last (waiting, without a VM) has to be there until it is shown.
UNSETTLED_AFTER = 10.0
#: Between two writes of NodePinning, and of the node's labels (seconds).
NODE_PAUSE = 10.0
#: Seconds until what was written may be written again because the API server does not show it.
SETTLING = 30.0
#: Seconds until a kind of write that is forbidden, or has no resource there, is tried again.
REFUSED_PAUSE = 300.0
#: Conditions and Events: so many at once, and then one in so many seconds.
WRITE_BURST, WRITE_SECONDS = 20, 0.1
MAX_EVENTS = 500

NO_SANDBOX = PodPinning(PinState.NOT_RUNNING, "no VM sandbox of it is known to the watcher on this node")


class Wanted(NamedTuple):
    """What is written at all; `startup_taint` is the key of the taint that is removed, "" for none."""

    events: bool = True
    conditions: bool = True
    labels: bool = True
    startup_taint: str = ""


class Write(NamedTuple):
    """One write. `kind` is taint, labels, condition, event or pinning; `what` is what it is about and holds."""

    kind: str
    request: ApiRequest
    pod: PodRecord | None = None
    what: Any = None


class Agenda:
    """Of one node, in one process. :param prefix: makes names of Events those of this process."""

    def __init__(self, wanted: Wanted, prefix: str, now: float) -> None:
        self._wanted = wanted
        self._limits = EventLimits(prefix, now)
        self._drift = DriftReports()
        self._pace = TokenBucket(WRITE_BURST, WRITE_SECONDS, now)
        self._reported, self._reports = NOTHING, False
        self._heard, self._late = now, False  #: When the watcher reported last, and whether that is too long ago.
        self._pods = Pods()
        self._states: dict[str, tuple[PodPinning, float]] = {}  #: By uid, since when the state is this one.
        self._settled: dict[str, PodPinning] = {}  #: By uid, the last that was worth an Event.
        self._shown: dict[str, tuple[PodPinning, float]] = {}  #: By uid, the condition that was written, and when.
        self._refused: dict[str, PodRecord] = {}  #: By uid, the pod as it was when its condition was refused.
        self._events: deque[tuple[PodRecord, Recorded, bool]] = deque(maxlen=MAX_EVENTS)
        self._pinning: Mapping[str, Any] | None = None  #: The object that was written last.
        self._made: tuple[tuple[object, ...], dict[str, Any]] = (), {}
        self._paused: dict[str, float] = {}  #: By kind of write, until when there is none.

    @property
    def away(self) -> bool:
        """Whether there has been no report for so long that it is shown."""
        return not self._reports and self._late

    def observe(self, reported: ReportedNode, reports: bool, pods: Pods, now: float, clock: float) -> None:
        """What is so now. :param reports: whether the watcher's connection is up."""
        self._heard = now if reports else self._heard
        self._late = now - self._heard >= AWAY_AFTER
        self._reported, self._reports, self._pods = reported, reports, pods
        by_uid = {each.uid: each for each in reported.sandboxes.values() if each.uid}
        present = set()
        for pod in pods:
            sandbox = by_uid.get(pod.runtime_uid)
            if pod.ending or (sandbox is None and pod.condition is None):
                continue
            present.add(pod.uid)
            state = (AWAY if self.away else NO_SANDBOX if sandbox is None else
                     pinning_of(sandbox, reported.node.collisions))
            known = self._states.get(pod.uid)
            self._states[pod.uid] = state, known[1] if known is not None and known[0].state is state.state else now
            if reports and sandbox is not None and self._wanted.events:
                self._note(pod, transition(self._before(pod), state), now, clock)
                self._note(pod, self._drift.event(pod.uid, sandbox.repairs, now), now, clock)
            if reports and state.state.settled:
                self._settled[pod.uid] = state
        for table in (self._states, self._settled, self._shown, self._refused):
            for gone in table.keys() - present:
                del table[gone]
        self._drift.keep_only(present)

    def _before(self, pod: PodRecord) -> PodPinning | None:
        """The pod's last settled state; that of its condition for one that is met now, so that a reporter that is
        started again repeats nothing."""
        if pod.uid in self._settled or pod.condition is None:
            return self._settled.get(pod.uid)
        try:
            shown = PodPinning(PinState(str(pod.condition.get("reason"))), str(pod.condition.get("message")))
        except ValueError:
            return None
        return shown if shown.state.settled else None

    def _note(self, pod: PodRecord, event: PodNotice | None, now: float, clock: float) -> None:
        found = None if event is None else self._limits.admit(pod.uid, pod.name, event, now, clock)
        if found is not None:
            self._events.append((pod, found, found.times == 1))

    def due(self, node: ClusterNode, now: float, clock: float) -> Iterator[Write]:
        """What is to be written now. The caller reports each with `done` before it takes the next one."""
        wanted = self._wanted
        ready = self._reports and self._reported.node.ready
        if ready and self._free("taint", now) and (request := taint_removal(node, wanted.startup_taint)) is not None:
            yield Write("taint", request)
        if (wanted.labels and self._reported.time and (self._reports or self.away) and self._free("labels", now)
                and (request := label_update(node, self._reported.node, self._reports)) is not None):
            yield Write("labels", request)
        if wanted.conditions:
            yield from self._conditions(now, clock)
        while self._events and self._free("event", now) and self._pace.take(now):
            pod, recorded, create = self._events[0]
            yield Write("event", event_request(pod, recorded, node.name, clock, create), pod, recorded)
        if self._reported.time and (self._reports or self.away) and self._free("pinning", now):
            made = self._object(node)
            if made != self._pinning or self._free("refresh", now):
                yield Write("pinning", dated(made, self._reported.time), None, made)

    def _object(self, node: ClusterNode) -> dict[str, Any]:
        """The NodePinning, made again where something that it is made of is another."""
        parts = node, self._reported.node, self._reported.sandboxes, self._reports
        if not self._made[0] or any(one is not other for one, other in zip(parts, self._made[0], strict=True)):
            self._made = parts, node_pinning(node, self._reported, self._reports)
        return self._made[1]

    def _conditions(self, now: float, clock: float) -> Iterator[Write]:
        for pod in self._pods:
            if not self._free("condition", now):
                return
            state, since = self._states.get(pod.uid, (None, 0.0))
            if state is None or pod.ending or self._refused.get(pod.uid) == pod:
                continue
            if not state.state.settled and state is not AWAY and now - since < UNSETTLED_AFTER:
                continue
            written, when = self._shown.get(pod.uid, (None, 0.0))
            if written == state and now - when < SETTLING:
                continue
            request = condition_update(pod, state, clock)
            if request is None:
                continue
            if not self._pace.take(now):
                return
            yield Write("condition", request, pod, state)

    def done(self, write: Write, status: int, now: float) -> str:
        """How a write ended. :param status: of HTTP. :returns: a sentence for the log where it is refused; "" where it
        is done, or not worth one."""
        good = 200 <= status < 300
        if write.kind == "event":
            return self._event_done(write, status, now)
        if status in (401, 403) or (status == 404 and write.kind == "pinning"):
            return self._pause(write, status, now)
        if write.kind == "condition" and write.pod is not None:
            if not good:  # 404, 409: it is gone, or another of its name is there, as the watch will show
                self._refused[write.pod.uid] = write.pod
                return "" if status in (404, 409) else f"{write.request}: refused ({status})"
            self._shown[write.pod.uid] = write.what, now
        elif write.kind == "pinning":
            self._pinning = write.what if good else None
            self._paused["refresh"] = now + REFRESH
        if write.kind != "condition":
            self._paused[write.kind] = now + NODE_PAUSE
        expected = good or (write.kind == "taint" and status in (404, 409, 422))  # it changed meanwhile: read again
        return "" if expected else f"{write.request}: refused ({status})"

    def _event_done(self, write: Write, status: int, now: float) -> str:
        pod, recorded, create = self._events.popleft()
        if status == 404 and not create:  # it has expired
            self._events.appendleft((pod, recorded, True))
            return ""
        if status in (401, 403):
            self._events.clear()
            return self._pause(write, status, now)
        if not 200 <= status < 300:
            self._limits.refused(pod.uid, recorded)
            return "" if status in (404, 409) else f"{write.request}: refused ({status})"
        return ""

    def _pause(self, write: Write, status: int, now: float) -> str:
        self._paused[write.kind] = now + REFUSED_PAUSE
        why = {401: "the token is not accepted", 403: "it is not permitted (RBAC, or the policy for the node)",
               404: "there is no such resource: is the CRD installed?"}[status]
        return f"{write.request}: {why}; tried again in {REFUSED_PAUSE:.0f} s"

    def _free(self, kind: str, now: float) -> bool:
        return now >= self._paused.get(kind, float("-inf"))

    def next_due(self, now: float) -> float:
        """Seconds until something may be due without anything new: REFRESH at the most."""
        ends = [until - now for until in self._paused.values() if until > now]
        ends += [since + UNSETTLED_AFTER - now for state, since in self._states.values()
                 if not state.state.settled and since + UNSETTLED_AFTER > now]
        if not self._reports and not self._late:
            ends.append(self._heard + AWAY_AFTER - now)
        if (drift := self._drift.due(now)) is not None:
            ends.append(drift - now)
        ends.append(max(self._pace.wait(now), WRITE_SECONDS) if self._events or self._pace.wait(now) else REFRESH)
        return max(0.0, min([*ends, float(REFRESH)]))
