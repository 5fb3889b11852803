"""The reporter's process: wakes at changes, and writes what is due, one request at a time."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable

from vmpin.config.settings import Config
from vmpin.errors import ConfigError, WatcherError
from vmpin.feature import features, present
from vmpin.features.cluster.cluster_errors import ClusterError
from vmpin.features.cluster.kube.agenda import Agenda, Write, WriteChoice
from vmpin.features.cluster.kube.api_request import node_path
from vmpin.features.cluster.kube.cluster_node import ClusterNode, node_of
from vmpin.features.cluster.kube.identifiers import valid_name
from vmpin.features.cluster.kube.node_pinning import REFRESH
from vmpin.features.cluster.reporter.api_server import ApiLink, ApiServer
from vmpin.features.cluster.reporter.loop_pauses import Pauses
from vmpin.features.cluster.reporter.pod_watch import PodWatch
from vmpin.features.cluster.reporter.watcher_link import LinkReport, PodHandover, StatusStream

logger = logging.getLogger(__name__)


class Reporter:
    """Created and run once per process, in its main thread. :raises ConfigError: the configuration names no node."""

    def __init__(self, config: Config) -> None:
        keys = config.of_features["kubernetes"]
        if not valid_name(keys.node):
            raise ConfigError("kubernetes.node: no name of a node" if not keys.node else
                              f"kubernetes.node: {keys.node!r} is no name of a node",
                              "set VMPIN_KUBERNETES_NODE from the pod's spec.nodeName")
        self._node_name = keys.node
        self._server = ApiServer(keys.kubeconfig)
        self._stopping = threading.Event()
        self._woken = threading.Event()
        self._socket = config.paths.status_socket
        wanted = WriteChoice(keys.events, keys.conditions, keys.labels, keys.startup_taint, keys.nrt == "own")
        self._link = ApiLink(keys.ready_file, self._wake)
        self._link_report = LinkReport(self._socket)
        self._stream = StatusStream(self._socket, self._wake, self._stopping, wanted.topology)
        is_watched = next(present(feature.watched_annotations(config) for feature in features()
                                  if feature.watched_annotations is not None), None)
        self._watch = PodWatch(self._server, keys.node, self._wake, self._stopping, is_watched, link=self._link)
        self._handover = PodHandover(self._socket, self._stream, self._watch, self._stopping)
        self._threads = {"vmpin-follow": self._stream.run, "vmpin-pods": self._watch.run,
                         **({"vmpin-handover": self._handover.run} if is_watched is not None else {})}
        self._agenda = Agenda(wanted, secrets.token_hex(5), time.monotonic())
        self._pauses = Pauses(self._stopping)
        self._node: ClusterNode | None = None
        self._read = float("-inf")  #: When the node's object was read last.

    def run(self) -> None:
        """Report the node until SIGTERM or SIGINT.
        :raises ConfigError: the kubernetes package or the API server's address is missing.
        :raises WatcherError: the status socket's directory was removed: only a new container sees its successor."""
        self._server.check()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop())
        logger.info("reporting node=%s", self._node_name)
        for name, run in self._threads.items():
            threading.Thread(target=self._guarded(run), name=name, daemon=True).start()
        while not self._stopping.is_set():
            try:
                self._round()
                self._pauses.reset()
            except ClusterError as err:
                self._link.failed("node", str(err))
                self._link_report.send(self._link.trouble, time.monotonic())
                self._pauses.after(err)
            if self._stream.lost:
                raise WatcherError(f"the directory of {self._socket} was removed",
                                   "start the container again: it sees no new directory of this name")

    def _stop(self) -> None:
        self._stopping.set()
        self._wake()

    def _wake(self) -> None:
        self._woken.set()
        self._handover.wake()

    def _guarded(self, run: Callable[[], None]) -> Callable[[], None]:
        """A thread that fails ends the process: the kubelet starts it again."""
        def guarded() -> None:
            try:
                run()
            except BaseException:
                logger.critical("a thread failed", exc_info=True)
                os._exit(1)
        return guarded

    def _round(self) -> None:
        """Write what is due, then wait until something may be due. :raises ClusterError: a request failed."""
        self._woken.clear()
        if self._node is None or time.monotonic() - self._read >= REFRESH:
            self._node = node_of(self._server.get(node_path(self._node_name)))
            self._read = time.monotonic()
        if self._watch.listed:
            self._agenda.observe(self._stream.reported, self._stream.up, self._watch.pods(), time.monotonic(),
                                 time.time())
            for write in self._agenda.due(self._node, time.monotonic(), time.time()):
                self._do(write)
                if self._stopping.is_set():
                    return
        self._link.reached("node")
        report_due = self._link_report.send(self._link.trouble, time.monotonic())
        age = time.monotonic() - self._read
        self._woken.wait(max(0.0, min(self._agenda.next_due(time.monotonic()), REFRESH - age, report_due)))

    def _do(self, write: Write) -> None:
        """Send a write, and record its outcome. :raises ClusterError: it is to be tried again unchanged."""
        status, answer, why = 200, None, ""
        try:
            answer = self._server.send(write.request)
            if write.kind == "condition":
                self._watch.put(answer)
            elif write.kind in ("taint", "labels"):
                self._node = node_of(answer)
            if write.request.method != "GET":
                logger.info("wrote kind=%s %s", write.kind, write.request.path, extra={"pod": write.pod})
        except ClusterError as err:
            if err.status == 500:
                self._agenda.put_off(write, time.monotonic())
            if err.status in (0, 401, 429) or err.status >= 500:
                raise
            status, why = err.status, str(err).removeprefix(f"{write.request}: ")
            if write.kind in ("taint", "labels"):
                self._node = None  # it has changed since: read it again
            logger.debug("%s", err, extra={"pod": write.pod})
        except ValueError as err:
            raise ClusterError(f"{write.request}: {err}") from err
        if text := self._agenda.done(write, status, time.monotonic(), answer):
            logger.error("%s%s", text, f" ({why})" if why else "", extra={"pod": write.pod})
