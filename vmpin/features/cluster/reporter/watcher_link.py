"""The reporter's end of the watcher's status socket: it follows the node there, and hands over the annotations
by which pods ask for CPUs, and whether the API server is reached."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any

from vmpin.bounded import load_json
from vmpin.errors import SourceError, WatcherError
from vmpin.features.cluster.kube import reporter_report
from vmpin.features.cluster.kube.reported_node import NOTHING, ReportedNode
from vmpin.features.cluster.kube.watched_annotations import OPERATION, encode
from vmpin.features.cluster.reporter.loop_pauses import Pauses
from vmpin.features.cluster.reporter.pod_watch import PodWatch

logger = logging.getLogger(__name__)

#: For the watcher to answer (seconds).
DEADLINE = 10.0
#: A watcher sends a line every ten seconds at least; one that is silent for so long (seconds) hangs.
SILENCE = 45.0
#: The longest line (bytes): 1,000 sandboxes take some 2 MB.
MAX_LINE = 64 << 20
#: Seconds between two requests with pods at the least, and until the same pods or trouble are sent again (the watcher
#: keeps them for `reporter_requests.KEPT`).
PAUSE, AGAIN = 2.0, 60.0
#: Seconds until trouble that the watcher did not take is sent again: it takes one in `reporter_requests.PAUSE`, and
#: may be away.
RETRY = 5.0


def ask(path: Path, request: bytes, member: str) -> Any:
    """Send a request, and return a member of the answer. :param request: a line of JSON.
    :raises OSError, ValueError, WatcherError: there is no answer with this member."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(DEADLINE)
        connection.connect(os.fspath(path))
        connection.sendall(request)
        with connection.makefile("rb") as stream:
            answer = load_json(stream.readline(65536) or "{}")
    if not isinstance(answer, dict) or member not in answer:
        raise WatcherError(str(answer.get("error", "it hung up")) if isinstance(answer, dict) else "no answer to it")
    return answer[member]


class StatusStream:
    """The watcher's reports, over `follow`. `run` is a thread's body.
    :param changed: called in it after each line and each loss of the connection.
    :param kubelet: whether the kubelet's configuration is asked for, too. :param pauses: after errors."""

    def __init__(self, path: Path, changed: Callable[[], None], stopping: threading.Event,
                 kubelet: bool = False, pauses: Pauses | None = None) -> None:
        self._path, self._changed, self._stopping = path, changed, stopping
        self._request = b'{"op":"follow","kubelet":true}\n' if kubelet else b'{"op":"follow"}\n'
        self._pauses = pauses or Pauses(stopping, longest=5.0)
        #: The last report, and whether the connection is up; an assignment each, so no lock.
        self.reported: ReportedNode = NOTHING
        self.up = False
        self.connections = 0  #: How many were up.
        #: The directory was removed: a container that has it mounted sees no new directory of its name.
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
                    raise WatcherError(f"a line has more than {MAX_LINE >> 20} MiB")
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


class PodHandover:
    """Hands the watcher the annotations by which pods ask for CPUs: after a change, to a watcher that has just come,
    and each `again` seconds. `run` is a thread's body. :param pauses: after errors."""

    def __init__(self, path: Path, stream: StatusStream, watch: PodWatch, stopping: threading.Event,
                 pause: float = PAUSE, again: float = AGAIN, pauses: Pauses | None = None) -> None:
        self._path, self._stream, self._watch, self._stopping = path, stream, watch, stopping
        self._pause, self._again = pause, again
        self._woken, self._pauses = threading.Event(), pauses or Pauses(stopping)

    def wake(self) -> None:
        """The watcher's report or a pod changed."""
        self._woken.set()

    def run(self) -> None:
        """Hand pods over until `stopping` is set; it may last as long as `again` then, so it is a daemon's thread."""
        sent = 0, b""
        sent_at, trouble = float("-inf"), ""
        while not self._stopping.is_set():
            self._woken.clear()
            if self._stream.up and self._watch.listed:
                connection, request = self._stream.connections, encode(self._watched())
                if (connection, request) != sent or time.monotonic() - sent_at >= self._again:
                    try:
                        ask(self._path, request, OPERATION)
                    except (OSError, ValueError, WatcherError) as err:
                        if str(err) != trouble:
                            logger.info("the watcher does not take pods' annotations: %s", err)
                        trouble = str(err)
                        self._pauses.after(WatcherError(str(self._path)), logging.DEBUG)
                        continue
                    sent, sent_at, trouble = (connection, request), time.monotonic(), ""
                    self._pauses.reset()
                    self._stopping.wait(self._pause)
            self._woken.wait(self._again)

    def _watched(self) -> dict[str, Mapping[str, str]]:
        """The annotations that ask for CPUs, of all pods that run. A static pod's uid is an annotation, which any pod
        can have with another's uid: static pods are left out."""
        return {pod.uid: pod.watched for pod in self._watch.pods()
                if pod.watched is not None and pod.runtime_uid == pod.uid and not pod.ending}


class LinkReport:
    """Reports to the watcher whether the API server is reached: at each change, and again while it is not. Called by
    one thread. :param path: the watcher's status socket."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sent, self._due = "", inf

    def send(self, trouble: str, now: float) -> float:
        """Send the trouble if it is new to the watcher, or due again.
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
