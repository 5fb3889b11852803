"""Whether the reporter reaches the API server: a file that is there while it does, for the readiness probe, and the
reason while it does not, for the watcher.

A file, as a pod without a port has no other probe, and one that starts Python for each answer is expensive."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

#: What has to be reached: the node's own object, and the list and watch of its pods.
PARTS = ("node", "pods")


class ApiLink:
    """Called by the threads that make requests. :param ready: the file, None for none; one of an earlier process is
    removed. :param changed: called after each change of `trouble`."""

    def __init__(self, ready: Path | None, changed: Callable[[], None]) -> None:
        self._ready, self._changed = ready, changed
        self._lock = threading.Lock()
        #: Why a part is not reached, "" where it is, None where it was not asked for yet.
        self._troubles: dict[str, str | None] = dict.fromkeys(PARTS)
        self._show(False)

    @property
    def trouble(self) -> str:
        """Why the API server is not reached; "" where it is, or was not asked yet."""
        return next((text for text in self._troubles.values() if text), "")

    def reached(self, part: str) -> None:
        """A request succeeded. :param part: of PARTS."""
        self._set(part, "")

    def failed(self, part: str, why: str) -> None:
        """A request failed, and is tried again later."""
        self._set(part, why)

    def _set(self, part: str, why: str) -> None:
        with self._lock:
            before, was_reached = self.trouble, self._reached()
            self._troubles[part] = why
            after, reached = self.trouble, self._reached()
            if was_reached != reached:
                self._show(reached)
        if before != after:
            self._changed()

    def _reached(self) -> bool:
        return not any(text is None or text for text in self._troubles.values())

    def _show(self, reached: bool) -> None:
        if self._ready is None:
            return
        try:
            if reached:
                self._ready.touch()
            else:
                self._ready.unlink(missing_ok=True)
        except OSError as err:
            logger.warning("kubernetes.ready_file: %s", err)
