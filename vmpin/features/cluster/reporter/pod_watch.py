"""The pods of this node, kept up to date by one list and then watches, in a thread of their own.

A watch begins at the version of the last event or bookmark, and ends at a random time, so that the nodes' watches are
not renewed together. A version that the server has forgotten (410), or an end that it cannot serve in time (504), is
followed by another list; any other error by a pause."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from vmpin.bounded import whole
from vmpin.features.cluster.cluster_errors import ClusterError
from vmpin.features.cluster.kube.pod_record import PodRecord, record_of
from vmpin.features.cluster.reporter.api_server import ApiLink, ApiServer
from vmpin.features.cluster.reporter.loop_pauses import Pauses

logger = logging.getLogger(__name__)

#: Seconds that a watch lasts at most; it ends at a random time in the second half.
WATCH_SECONDS = 480
#: A watch that ended sooner (seconds) is renewed after a pause only.
TOO_SOON = 1.0
EXPIRED = (410, 504)


class PodWatch:
    """`run` is a thread's body. :param changed: called in it after each change. :param is_watched: as for `record_of`.
    :param pauses: after errors. :param link: is set to whether the
    pods are listed and watched."""

    def __init__(self, server: ApiServer, node: str, changed: Callable[[], None], stopping: threading.Event,
                 is_watched: Callable[[str], bool] | None = None,
                 pauses: Pauses | None = None, link: ApiLink | None = None) -> None:
        self._server, self._node, self._changed, self._stopping = server, node, changed, stopping
        self._is_watched, self._pauses = is_watched, pauses or Pauses(stopping)
        self._link = link or ApiLink(None, lambda: None)
        self._lock = threading.Lock()
        self._pods: dict[str, PodRecord] = {}
        self._first = True
        self._had_event = False  #: Whether the last watch had an event.
        self.listed = False

    def pods(self) -> tuple[PodRecord, ...]:
        """The pods as of now."""
        with self._lock:
            return tuple(self._pods.values())

    def put(self, item: Mapping[str, Any]) -> None:
        """Take in a pod as a write returned it, ahead of its event."""
        self._take("MODIFIED", item)

    def run(self) -> None:
        """List and watch the node's pods until `stopping` is set; it may last as long as a watch then, so it is a
        daemon's thread."""
        version = ""
        while not self._stopping.is_set():
            began, self._had_event = time.monotonic(), False
            try:
                version = self._watched(version or self._listed())
                seconds = time.monotonic() - began
                self._pauses.lasted(seconds)
                if seconds < TOO_SOON:
                    self._pauses.after(ClusterError("the watch ended at once"))
            except _Expired as err:
                logger.info("pods: listed again: %s", err)
                version = ""
                if time.monotonic() - began < TOO_SOON:
                    self._pauses.after(ClusterError(str(err)))
            except _Broken as err:
                version = err.version
                self._link.failed("pods", str(err))
                if self._had_event:  # else it may have waited for its answer all the time
                    self._pauses.lasted(time.monotonic() - began)
                self._pauses.after(err)

    def _listed(self) -> str:
        try:
            # The first time the server's cache is enough: the watch begins at its version.
            items, version = self._server.pods(self._node, "0" if self._first else "")
        except ClusterError as err:
            raise _Broken(err, "") from err
        self._first = False
        with self._lock:
            self._pods = {pod.uid: pod for item in items
                          if (pod := record_of(item, self._is_watched)) is not None}
            self.listed = True
        self._changed()
        return version

    def _watched(self, version: str) -> str:
        """Take the events of one watch, and return the version of the last one."""
        seconds = random.randint(WATCH_SECONDS // 2, WATCH_SECONDS)
        try:
            for event in self._server.watch_pods(self._node, version, seconds, lambda: self._link.reached("pods")):
                kind, item, self._had_event = str(event.get("type")), event.get("object") or {}, True
                if kind == "ERROR":
                    code = whole(item.get("code"), 999) or 0
                    if code in EXPIRED:
                        raise _Expired(str(item.get("message")))
                    raise ClusterError(f"watch pods: {item.get('message')}", code)
                version = str((item.get("metadata") or {}).get("resourceVersion") or version)
                if kind != "BOOKMARK":
                    self._take(kind, item)
                if self._stopping.is_set():
                    break
        except ClusterError as err:
            if err.status in EXPIRED:
                raise _Expired(str(err)) from err
            raise _Broken(err, version) from err
        return version

    def _take(self, kind: str, item: Mapping[str, Any]) -> None:
        pod = record_of(item, self._is_watched)
        if pod is None:
            return
        with self._lock:
            if kind == "DELETED":
                self._pods.pop(pod.uid, None)
            elif self._pods.get(pod.uid) == pod:
                return  # no member that is kept has changed
            else:
                self._pods[pod.uid] = pod
        self._changed()


class _Expired(Exception):
    """The version is forgotten: a list is needed."""


class _Broken(ClusterError):
    """A request failed; the next watch begins at `version`, "" after a failed list."""

    def __init__(self, err: ClusterError, version: str) -> None:
        super().__init__(str(err), err.status, err.after)
        self.version = version
