"""Takes back what reporters wrote: NodePinning, the conditions of pods, the nodes' labels. Events expire by
themselves.

At SIGTERM for one node, when the reporter's own DaemonSet is being deleted; a rollout, a drain or a node's reboot
withdraw nothing. And for all nodes, by `vmpin reporter --withdraw` in a Job before the chart is removed. What stays
out: the masks, which are the watcher's (watch.on_exit)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

from vmpin.errors import ClusterError, UsageError
from vmpin.kube.api_request import ApiRequest, checked, node_path
from vmpin.kube.cluster_node import label_withdrawal, node_of
from vmpin.kube.node_pinning import pinning_path, pinning_withdrawal
from vmpin.kube.pod_condition import condition_withdrawal
from vmpin.kube.pod_record import record_of
from vmpin.reporter.api_server import ApiServer

logger = logging.getLogger(__name__)

#: Seconds for which a deleted DaemonSet's pods are waited for, and between two looks.
GONE_WITHIN, LOOK = 120.0, 2.0


class OwnDaemonSet:
    """The reporter's own. :param name: NAMESPACE/NAME, "" for none: then nothing is ever withdrawn at the end."""

    def __init__(self, server: ApiServer, name: str) -> None:
        self._server = server
        self._path = _path(name) if name else ""
        self._uid = ""

    def read(self) -> None:
        """Note which one it is, so that at the end its absence means its deletion, and not another name."""
        if not self._path or self._uid:
            return
        try:
            self._uid = str(self._server.get(self._path)["metadata"]["uid"])
        except (ClusterError, KeyError, TypeError) as err:
            logger.warning("kubernetes.daemonset cannot be read, so at the end nothing is withdrawn: %s", err)

    def deleted(self) -> bool:
        """Whether it is being deleted, or is gone since `read`. False where that cannot be read."""
        if not self._uid:
            return False
        try:
            meta = self._server.get(self._path)["metadata"]
            return meta.get("uid") == self._uid and bool(meta.get("deletionTimestamp"))
        except ClusterError as err:
            if err.status != 404:
                logger.warning("it cannot be read whether the DaemonSet is being deleted: %s", err)
            return err.status == 404
        except (KeyError, TypeError):
            return False


def withdraw_node(server: ApiServer, node: str) -> int:
    """Of one node. Each part is tried, whether or not another one fails.
    :returns: how many objects were changed. :raises ClusterError: the first failure."""
    return _all([partial(_sent, server, pinning_withdrawal(node)), partial(_labels, server, node),
                 partial(_pods, server, node)])


def withdraw_everywhere(server: ApiServer, daemon_set: str = "") -> int:
    """Of all nodes. :param daemon_set: NAMESPACE/NAME of the reporters, which is deleted first and waited for, as they
    would write it all again; "" where none runs. :returns: as above. :raises ClusterError: the first failure."""
    if daemon_set:
        _stop_reporters(server, _path(daemon_set))

    def pinnings() -> int:
        return _all([partial(_sent, server, pinning_withdrawal(name)) for name in _listed(server, pinning_path())])

    def labels() -> int:
        return _all([partial(_labels, server, name) for name in _listed(server, "/api/v1/nodes")])

    return _all([pinnings, labels, partial(_pods, server, "")])


def _stop_reporters(server: ApiServer, path: str) -> None:
    """:raises ClusterError: where they do not end."""
    if not _sent(server, ApiRequest("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1",
                                                     "propagationPolicy": "Foreground"})):
        return
    deadline = time.monotonic() + GONE_WITHIN
    while time.monotonic() < deadline:
        try:
            server.get(path)
        except ClusterError as err:
            if err.status == 404:
                return
            raise
        time.sleep(LOOK)
    raise ClusterError(f"{path}: its pods have not ended within {GONE_WITHIN:.0f} s")


def _labels(server: ApiServer, node: str) -> int:
    try:
        request = label_withdrawal(node_of(server.get(node_path(node))))
    except ValueError as err:
        raise ClusterError(f"node {node}: {err}") from err
    return 0 if request is None else _sent(server, request)


def _pods(server: ApiServer, node: str) -> int:
    items, _ = server.pods(node)
    requests = [request for item in items if (pod := record_of(item)) is not None
                and (request := condition_withdrawal(pod)) is not None]
    return _all([partial(_sent, server, request) for request in requests])


def _listed(server: ApiServer, path: str) -> list[str]:
    """The names of all objects of a kind, none where the kind is not there."""
    names, token = list[str](), ""
    while True:
        try:
            more = (("continue", token),) if token else ()
            page = server.send(ApiRequest("GET", path, query=(("limit", "500"), *more)))
        except ClusterError as err:
            if err.status == 404:
                return names
            raise
        names += [str(item["metadata"]["name"]) for item in page["items"]]
        token = page["metadata"].get("continue") or ""
        if not token:
            return names


def _sent(server: ApiServer, request: ApiRequest) -> int:
    """1, or 0 where the object is gone (404), or another one of its name is there (409)."""
    try:
        server.send(request)
    except ClusterError as err:
        if err.status in (404, 409):
            return 0
        raise
    logger.info("withdrawn: %s", request)
    return 1


def _all(steps: Iterable[Callable[[], int]]) -> int:
    done, failure = 0, None
    for step in steps:
        try:
            done += step()
        except ClusterError as err:
            failure = failure or err
    if failure is not None:
        raise failure
    return done


def _path(daemon_set: str) -> str:
    namespace, slash, name = daemon_set.partition("/")
    try:
        if not slash:
            raise ValueError
        return f"/apis/apps/v1/namespaces/{checked(namespace)}/daemonsets/{checked(name)}"
    except ValueError:
        raise UsageError(f"kubernetes.daemonset: {daemon_set!r} is no NAMESPACE/NAME") from None
