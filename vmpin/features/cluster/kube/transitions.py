"""Events of a pod: what the difference between two states of its CPUs is worth.

A pod's first good state is an Event, each change between states that last, a new reason while it is degraded, and
threads that were put back."""

from __future__ import annotations

import enum
from typing import NamedTuple

from vmpin.domain.terminal import number_of
from vmpin.features.cluster.kube.pod_condition import PinState, PodPinning
from vmpin.features.cluster.kube.reported_node import Repairs

#: Between two Events of one pod about threads that were put back (seconds); their numbers are added up.
DRIFT_PAUSE = 600.0


class EventReason(enum.StrEnum):
    PINNED = "Pinned"
    DEGRADED = "PinningDegraded"
    RESTORED = "PinRestored"
    COLLISION = "CPUCollision"
    SUSPENDED = "PinningSuspended"
    UNPINNED = "Unpinned"
    REFUSED = "CPUsRefused"  #: A changed annotation; at a creation the kubelet has an Event of its own.

    @property
    def type(self) -> str:
        return "Normal" if self in (self.PINNED, self.RESTORED, self.SUSPENDED) else "Warning"


class PodNotice(NamedTuple):
    reason: EventReason
    message: str


_WORSE = {PinState.DEGRADED: EventReason.DEGRADED, PinState.COLLISION: EventReason.COLLISION,
          PinState.SUSPENDED: EventReason.SUSPENDED, PinState.UNMANAGED: EventReason.UNPINNED,
          PinState.OFF: EventReason.UNPINNED}


def transition(before: PodPinning | None, now: PodPinning) -> PodNotice | None:
    """Return the Event for a change of a pod's state; None where it is worth none.
    :param before: the last state that may last; None for a pod that had none yet."""
    state = now.state
    if not state.lasting:
        return None
    if before is not None and before.state is state:
        # A collision's text has numbers of threads, which change all the time.
        changed = state is PinState.DEGRADED and before.message != now.message
        return PodNotice(EventReason.DEGRADED, now.message) if changed else None
    if state.good:
        if before is None or before.state.good:
            return PodNotice(EventReason.PINNED, now.message)
        return PodNotice(EventReason.RESTORED, f"{now.message} (before: {before.state.value})")
    reason = _WORSE[state]
    if before is None and reason is EventReason.UNPINNED:
        return None  # it never was
    return PodNotice(reason, now.message)


class DriftReports:
    """Threads that were put back, of all pods: one Event for each pod in ten minutes, with how many. Times are of one
    steady clock, in seconds."""

    def __init__(self) -> None:
        #: By pod: the counts that were reported (or that were there when it was met), and when.
        self._reported: dict[str, tuple[Repairs, float]] = {}

    def event(self, uid: str, repairs: Repairs, now: float) -> PodNotice | None:
        """The Event that is due for a pod, which then counts as reported."""
        counted, last = self._reported.get(uid, (None, float("-inf")))
        if counted is None or repairs.total < counted.total:  # met now, or its watcher was started again
            self._reported[uid] = repairs, last
            return None
        new = repairs.total - counted.total
        if not new or now - last < DRIFT_PAUSE:
            return None
        self._reported[uid] = repairs, now
        causes = [cause for cause, count in repairs.counts.items() if count > counted.counts.get(cause, 0)]
        return PodNotice(EventReason.RESTORED, f"{number_of(new, 'time')} a thread was found on other CPUs and put "
                        f"back ({', '.join(causes)}; the last time: {repairs.why})")

    def due(self, now: float) -> float | None:
        """Return when the first pod that was reported lately may be reported again; None without one."""
        ends = [last + DRIFT_PAUSE for _, last in self._reported.values() if last + DRIFT_PAUSE > now]
        return min(ends, default=None)

    def keep_only(self, uids: set[str]) -> None:
        self._reported = {uid: found for uid, found in self._reported.items() if uid in uids}
