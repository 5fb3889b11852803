"""The requests of `vmpin reporter`, and of other clients that follow the node: `follow`, `pods`, `reporter`.

Annotations that ask for CPUs are decoded only for a feature that takes them (tests/unit/test_floors.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from vmpin.domain.model import SandboxId
from vmpin.errors import WatcherError
from vmpin.feature import SocketRequest, WatcherPart, present
from vmpin.features.cluster.followers import FollowedWatcher, Followers
from vmpin.features.cluster.kube import reporter_report, watched_annotations
from vmpin.status.health import SourceHealth

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from vmpin.features.common.metric_families import Metric

T = TypeVar("T")

#: Seconds between two requests of the reporter, at the least, and for which the last one counts.
PAUSE, KEPT = 1.0, 180.0


class Handover(Generic[T]):
    """The value of the last request of one kind, until the reporter is silent for KEPT. A sender costs a bounded
    request in each `pause`, and the memory of one.
    :param operation: the request's name. :param pause: in seconds. :param clock: a steady one, in seconds."""

    def __init__(self, operation: str, pause: float, clock: Callable[[], float]) -> None:
        self._operation, self._pause, self._clock = operation, pause, clock
        self._value: T | None = None
        self._admitted = self._taken = float("-inf")  #: By the clock.

    def admit(self) -> None:
        """Count a request, before its work. :raises WatcherError: too soon after the last one."""
        now = self._clock()
        if now - self._admitted < self._pause:
            raise WatcherError(f"{self._operation}: came less than {self._pause:g} s after another",
                               "send it again later")
        self._admitted = now

    def take(self, value: T) -> None:
        self._value, self._taken = value, self._clock()

    def value(self) -> T | None:
        """None before the first, and once the last has expired."""
        if self._clock() - self._taken >= KEPT:
            self._value = None
        return self._value


class ReporterRequests:
    """The part of the feature in a watcher. :param watcher: its attributes are read when requests come, as its
    construction is not finished before. :param clock: a steady one, in seconds."""

    def __init__(self, watcher: FollowedWatcher, pause: float = PAUSE, clock: Callable[[], float] = time.monotonic,
                 ) -> None:
        self._watcher = watcher
        self.followers = Followers(watcher)
        self._pods = Handover[None](watched_annotations.OPERATION, pause, clock)
        #: Why the reporter does not reach the API server, "" where it does.
        self._trouble = Handover[str](reporter_report.OPERATION, pause, clock)
        self._pod_reports = 0

    def part(self) -> WatcherPart:
        return WatcherPart(
            tasks={"follow": self.followers.run},
            requests={"follow": SocketRequest(answer=self._follow, reading=True),
                      watched_annotations.OPERATION: SocketRequest(answer=self._take_pods, handed=True,
                                                                   admit=self._pods.admit),
                      reporter_report.OPERATION: SocketRequest(answer=self._take_trouble, handed=True,
                                                               admit=self._trouble.admit)},
            after_pass=self.followers.touch, health=self._health,
            metrics=lambda view, per_sandbox: reporter_families(len(self.followers), self._pod_reports))

    def _follow(self, request: Mapping[str, Any], sandbox: SandboxId | None) -> AsyncGenerator[bytes, None]:
        return self.followers.stream(request.get("kubelet") is True)

    def _take_pods(self, request: Mapping[str, Any], sandbox: SandboxId | None) -> dict[str, Any]:
        takers = [*present(part.take_annotations for part in self._watcher.parts.values())]
        if not takers:
            raise WatcherError("pods: this watcher does not follow annotations", "allocate.live_annotations")
        annotations = watched_annotations.decode(request)
        for take in takers:
            take(annotations)
        self._pod_reports += 1
        return {"pods": len(annotations)}

    def _take_trouble(self, request: Mapping[str, Any], sandbox: SandboxId | None) -> dict[str, Any]:
        self._trouble.take(reporter_report.decode(request))
        return {reporter_report.OPERATION: "taken"}

    def _health(self) -> Iterator[SourceHealth]:
        """The reporter's health, which /readyz does not count; nothing where none has reported lately."""
        trouble = self._trouble.value()
        if trouble is not None:
            yield SourceHealth("reporter", not trouble, False, trouble)


def reporter_families(followers: int, pod_reports: int) -> Iterator[Metric]:
    """The metrics of now. :param followers: clients that follow. :param pod_reports: requests since the watcher
    started."""
    from vmpin.features.common.metric_families import counter, gauge

    yield gauge("vmpin_followers", "Clients that follow the node's changes; vmpin reporter is one.", followers)
    yield counter("vmpin_pod_reports", "Requests in which vmpin reporter handed over annotations of pods.",
                  pod_reports)
