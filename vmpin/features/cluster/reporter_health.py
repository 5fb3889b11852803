"""What the node's reporter sent last about its connection to the API server, until it is silent for too long.

Kept for the doctor, the metrics and /readyz, where it does not count."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.errors import WatcherError
from vmpin.features.cluster.kube.reporter_report import OPERATION, decode
from vmpin.status.health import SourceHealth


class ReporterHealth:
    """Replaced by each request. :param clock: a steady one, in seconds."""

    def __init__(self, timeouts: Timeouts = TIMEOUTS, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeouts, self._clock = timeouts, clock
        self._trouble, self._taken = "", float("-inf")

    def take(self, request: Mapping[str, Any]) -> None:
        """Keep what a request has. :raises WireError: for what is none.
        :raises WatcherError: when another one came just now."""
        now = self._clock()
        if now - self._taken < self._timeouts.handed_pause:
            raise WatcherError(f"{OPERATION}: came less than {self._timeouts.handed_pause:g} s after another",
                               "send it again later")
        self._trouble, self._taken = decode(request), now

    def source_health(self) -> Iterator[SourceHealth]:
        """Its health; nothing where no reporter has reported lately."""
        if self._clock() - self._taken < self._timeouts.handed_kept:
            yield SourceHealth("reporter", not self._trouble, False, self._trouble)
