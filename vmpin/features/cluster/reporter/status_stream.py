"""The watcher's reports, over `follow` on its status socket, in a thread of their own."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from vmpin.errors import SourceError, WatcherError
from vmpin.features.cluster.kube.reported_node import NOTHING, ReportedNode
from vmpin.features.cluster.reporter.loop_pauses import Pauses

logger = logging.getLogger(__name__)

#: A watcher sends a line every ten seconds at least; one that is silent for so long (seconds) hangs.
SILENCE = 45.0
#: The longest line (bytes): 1,000 sandboxes take some 2 MB.
MAX_LINE = 64 << 20


class StatusStream:
    """`run` is a thread's body. :param changed: called in it after each line and each loss of the connection.
    :param kubelet: whether the kubelet's configuration is asked for, too. :param pauses: after errors."""

    def __init__(self, path: Path, changed: Callable[[], None], stopping: threading.Event,
                 kubelet: bool = False, pauses: Pauses | None = None) -> None:
        self._path, self._changed, self._stopping = path, changed, stopping
        self._request = b'{"op":"follow","kubelet":true}\n' if kubelet else b'{"op":"follow"}\n'
        self._pauses = pauses or Pauses(stopping, longest=5.0)
        #: What was reported last, and whether the connection is up; one assignment each, so no lock.
        self.reported: ReportedNode = NOTHING
        self.up = False
        self.connections = 0  #: How many were up.
        #: The directory was removed: a container that has it mounted sees no other one of its name.
        self.lost = False

    def run(self) -> None:
        """Read the watcher's reports until `stopping` is set, or the directory is lost."""
        why = ""
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._follow()
            except (OSError, SourceError, WatcherError) as err:
                text = f"{self._path}: {getattr(err, 'strerror', None) or err}"
                if self.up or text != why:
                    logger.warning("the watcher does not report: %s", text)
                why = text
            if self.up:
                self.up = False
                self._changed()
            if self._removed():
                self.lost = True
                self._changed()
                return
            self._pauses.lasted(time.monotonic() - began)
            self._pauses.after(WatcherError(f"{self._path}"), logging.DEBUG)

    def _follow(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(SILENCE)
            connection.connect(os.fspath(self._path))
            connection.sendall(self._request)
            buffer = bytearray()
            while not self._stopping.is_set():
                part = connection.recv(1 << 18)
                if not part:
                    raise WatcherError("it hung up")
                buffer += part
                if len(buffer) > MAX_LINE:
                    raise WatcherError("a line without an end")
                if b"\n" in part:
                    *lines, rest = bytes(buffer).split(b"\n")
                    buffer = bytearray(rest)
                    for line in lines:
                        self.reported = self.reported.after(line)
                    if not self.up:
                        logger.info("the watcher reports sandboxes=%d version=%s", len(self.reported.sandboxes),
                                    self.reported.node.version)
                        self.connections += 1
                    self.up = True
                    self._changed()

    def _removed(self) -> bool:
        try:
            return os.stat(self._path.parent).st_nlink == 0
        except OSError:
            return False
