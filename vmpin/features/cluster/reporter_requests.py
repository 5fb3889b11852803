"""What clients that follow the node, `vmpin reporter` among them, request of a watcher: `follow`, `pods`, `reporter`.

Of the watcher's process this module alone reads the untrusted text about pods that was handed over, and for the status
alone; what asks for CPUs crosses apart from it (tests/unit/test_floors.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.domain.model import SandboxId
from vmpin.feature import SocketRequest, WatcherPart, present
from vmpin.features.cluster.followers import FollowedWatcher, Followers
from vmpin.features.cluster.handed_pods import HandedPods
from vmpin.features.cluster.kube import reporter_report, untrusted_pod
from vmpin.features.cluster.kube.asked_annotations import decoded_member
from vmpin.features.cluster.reporter_health import ReporterHealth

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from vmpin.domain.guest_report import GuestData


class GuestReports(Protocol):
    """The reports from guests."""

    def data(self, sandbox: SandboxId, /) -> GuestData | None: ...


class ReportedWatcher(FollowedWatcher, Protocol):
    """What is reported of a watcher."""

    @property
    def guests(self) -> GuestReports: ...


class ReporterRequests:
    """:param watcher: as it is being made: its attributes are read when requests come.
    :param clock: a steady one, in seconds."""

    def __init__(self, watcher: ReportedWatcher, timeouts: Timeouts = TIMEOUTS,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._watcher = watcher
        self.followers = Followers(watcher, lambda sandbox: watcher.guests.data(sandbox), timeouts)
        self.handed_pods = HandedPods(timeouts, clock)
        self._health = ReporterHealth(timeouts, clock)
        self._pod_reports = 0

    def part(self) -> WatcherPart:
        return WatcherPart(
            tasks={"follow": self.followers.run},
            requests={"follow": SocketRequest(answer=self._follow, reading=True),
                      untrusted_pod.OPERATION: SocketRequest(answer=self._take_pods, handed=True,
                                                             largest=untrusted_pod.MAX_REQUEST,
                                                             admit=self.handed_pods.admit),
                      reporter_report.OPERATION: SocketRequest(answer=self._take_trouble, handed=True)},
            after_pass=self.followers.touch, members=self.handed_pods.members, health=self._health.source_health,
            metrics=lambda scrape: self._metrics())

    def _follow(self, request: Mapping[str, Any], sandbox: SandboxId | None) -> AsyncGenerator[bytes, None]:
        return self.followers.stream(request.get("kubelet") is True)

    def _take_pods(self, request: Mapping[str, Any], sandbox: SandboxId | None) -> dict[str, Any]:
        if takers := [*present(part.take_annotations for part in self._watcher.parts.values())]:
            annotations = decoded_member(request)
            for take in takers:
                take(annotations)
        count = self.handed_pods.take(request)
        self._pod_reports += 1
        return {"pods": count}

    def _take_trouble(self, request: Mapping[str, Any], sandbox: SandboxId | None) -> dict[str, Any]:
        self._health.take(request)
        return {reporter_report.OPERATION: "taken"}

    def _metrics(self) -> Iterable[Any]:
        from vmpin.features.cluster.reporter_metrics import reporter_families

        return reporter_families(len(self.followers), self._pod_reports)
