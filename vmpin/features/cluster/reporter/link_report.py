"""Reports to the node's watcher whether the API server is reached: at each change, and again while it is not."""

from __future__ import annotations

import logging
from math import inf
from pathlib import Path

from vmpin.errors import WatcherError
from vmpin.features.cluster.kube import reporter_report
from vmpin.features.cluster.reporter.status_request import ask

logger = logging.getLogger(__name__)

#: Seconds until the same trouble is sent again (the watcher keeps it for `Timeouts.handed_kept`), and until what the
#: watcher did not take is (it takes one in `Timeouts.handed_pause`, and may be away).
AGAIN, RETRY = 60.0, 5.0


class LinkReport:
    """Called by one thread. :param path: the watcher's status socket."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sent, self._due = "", inf

    def send(self, trouble: str, now: float) -> float:
        """Send the watcher what it has not got yet.
        :param trouble: why the API server is not reached, "" where it is. :param now: a steady clock's time (s).
        :returns: after how many seconds this is due again if nothing changes."""
        if trouble != self._sent or now >= self._due:
            try:
                ask(self._path, reporter_report.encode(trouble), reporter_report.OPERATION)
            except (OSError, ValueError, WatcherError) as err:
                logger.debug("the watcher does not take why the API server is not reached: %s", err)
                return RETRY
            self._sent, self._due = trouble, now + AGAIN if trouble else inf
        return self._due - now
