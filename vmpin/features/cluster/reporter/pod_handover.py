"""Hands the watcher what the API server has of the pods in its VMs, over its status socket, in a thread of its own.

Sent after a change, to a watcher that has just come, and again from time to time, as the watcher drops what is not
repeated."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from vmpin.errors import WatcherError
from vmpin.features.cluster.kube.agenda import own_sandbox
from vmpin.features.cluster.kube.asked_annotations import encoded_member
from vmpin.features.cluster.kube.untrusted_pod import OPERATION, UntrustedPod, encode
from vmpin.features.cluster.reporter.loop_pauses import Pauses
from vmpin.features.cluster.reporter.pod_watch import PodWatch
from vmpin.features.cluster.reporter.status_request import ask
from vmpin.features.cluster.reporter.status_stream import StatusStream

logger = logging.getLogger(__name__)

#: Seconds between two requests at the least, and at the most (a watcher keeps one for `Timeouts.handed_kept`).
PAUSE, AGAIN = 2.0, 60.0


class PodHandover:
    """`run` is a thread's body. :param pauses: after errors."""

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
        sent: tuple[int, dict[str, UntrustedPod], bytes] = 0, {}, b""
        when, why = float("-inf"), ""
        while not self._stopping.is_set():
            self._woken.clear()
            if self._stream.up and self._watch.listed:
                now = self._stream.connections, self._pods(), encoded_member(self._asked())
                if now != sent or time.monotonic() - when >= self._again:
                    try:
                        ask(self._path, encode(now[1], now[2]), OPERATION)
                    except (OSError, ValueError, WatcherError) as err:
                        if str(err) != why:
                            logger.info("the watcher does not take pods' data: %s", err)
                        why = str(err)
                        self._pauses.after(WatcherError(str(self._path)), logging.DEBUG)
                        continue
                    sent, when, why = now, time.monotonic(), ""
                    self._pauses.reset()
                    self._stopping.wait(self._pause)
            self._woken.wait(self._again)

    def _pods(self) -> dict[str, UntrustedPod]:
        """Return the pods in VMs: of others the watcher shows nothing. The same objects where nothing is new."""
        by_uid = {each.uid: each for each in self._stream.reported.sandboxes.values()}
        return {pod.runtime_uid: pod.untrusted for pod in self._watch.pods()
                if pod.untrusted is not None and own_sandbox(by_uid.get(pod.runtime_uid), pod) is not None}

    def _asked(self) -> dict[str, Mapping[str, str]]:
        """The annotations that ask for CPUs, of all pods that run. A static pod's uid is an annotation, which any pod
        can have with another's: it is left out."""
        return {pod.uid: pod.asked for pod in self._watch.pods()
                if pod.asked is not None and pod.runtime_uid == pod.uid and not pod.ending}
