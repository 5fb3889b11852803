"""Withdraws the reporters' writes: NodePinning, the conditions of pods, the nodes' labels; with
kubernetes.nrt NodeResourceTopology. Events expire by themselves.

For one node at SIGTERM, when the reporter's own DaemonSet is being deleted; a rollout, a drain or a node's reboot
withdraw nothing. For all nodes by `vmpin reporter --withdraw` in a Job after the chart was removed. Masks stay: they
are the watcher's (watch.on_exit)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from vmpin.errors import ClusterError, UsageError
from vmpin.features.cluster.kube.api_request import ApiRequest, checked, items_of_pages, node_path
from vmpin.features.cluster.kube.cluster_node import label_withdrawal, node_of
from vmpin.features.cluster.kube.node_pinning import pinning_path, pinning_withdrawal
from vmpin.features.cluster.kube.node_topology import topology_of, topology_path, topology_withdrawal
from vmpin.features.cluster.kube.pod_pinning import condition_withdrawal
from vmpin.features.cluster.kube.pod_record import record_of
from vmpin.features.cluster.kubernetes_settings import KubernetesSettings
from vmpin.features.cluster.reporter.api_server import ApiServer

logger = logging.getLogger(__name__)

#: Seconds to wait for the end of a deleted DaemonSet's pods, and between two requests.
GONE_WITHIN, POLL = 90.0, 2.0
#: The most failures in a message.
SHOWN = 8
#: Objects of a page: pods may have 0.3 MB each, and the Job has the memory of a reporter.
PAGE = 100


class OwnDaemonSet:
    """The reporter's own. :param name: NAMESPACE/NAME, "" for none: then nothing is withdrawn at the end."""

    def __init__(self, server: ApiServer, name: str) -> None:
        self._server = server
        self._path = _path(name) if name else ""
        self._uid = ""

    def read(self) -> None:
        """Read its uid, so that at the end its absence means its deletion, and not a wrong name."""
        if not self._path or self._uid:
            return
        try:
            self._uid = str(self._server.get(self._path)["metadata"]["uid"])
        except (ClusterError, KeyError, TypeError) as err:
            logger.warning("kubernetes.daemonset cannot be read: nothing is withdrawn at the end: %s", err)

    def deleted(self) -> bool:
        """Whether it is being deleted, or is gone since `read`. False where that is unknown."""
        if not self._uid:
            return False
        try:
            meta = self._server.get(self._path)["metadata"]
            return meta.get("uid") == self._uid and bool(meta.get("deletionTimestamp"))
        except ClusterError as err:
            if err.status != 404:
                logger.warning("DaemonSet not read (%s): whether it is being deleted is unknown", err)
            return err.status == 404
        except (KeyError, TypeError):
            return False


def withdraw_node(server: ApiServer, keys: KubernetesSettings) -> int:
    """Withdraw everything that was written about the node `keys.node`; a part that fails does not prevent the others.
    :returns: how many objects were changed. :raises IncompleteWithdrawal: some were not."""
    node = keys.node
    return _run_all([partial(_send, server, pinning_withdrawal(node)), partial(_labels, server, node),
                 partial(_pods, server, node), partial(_topologies, server, node, keys)])


def withdraw_everywhere(server: ApiServer, keys: KubernetesSettings, within: float = GONE_WITHIN) -> int:
    """Withdraw everything that was written about all nodes. First the reporters' DaemonSet `keys.daemonset` ("" where
    none runs) is deleted, as reporters would write it all again. :param within: seconds to wait for their end; a pod
    of a node that is down does not end, and writes nothing. :returns, :raises: as above.
    :raises ClusterError: the DaemonSet cannot be deleted."""
    if keys.daemonset:
        _stop_reporters(server, _path(keys.daemonset), within)

    def pinnings() -> int:
        return _run_all([partial(_send, server, pinning_withdrawal(name)) for name in _names(server, pinning_path())])

    def labels() -> int:
        return _run_all([partial(_labels, server, name) for name in _names(server, "/api/v1/nodes")])

    return _run_all([pinnings, labels, partial(_pods, server, ""), partial(_topologies, server, "", keys)])


def _stop_reporters(server: ApiServer, path: str, within: float) -> None:
    """Delete the DaemonSet, and wait until its pods have ended. :raises ClusterError: it cannot be deleted."""
    if not _send(server, ApiRequest("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1",
                                                     "propagationPolicy": "Foreground"})):
        return
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            server.get(path)
        except ClusterError as err:
            if err.status == 404:
                return
            raise
        time.sleep(POLL)
    logger.warning("%s: its pods have not all ended within %.0f s, as where a node is down; what they wrote is "
                   "withdrawn all the same", path, within)


def _labels(server: ApiServer, node: str) -> int:
    try:
        request = label_withdrawal(node_of(server.get(node_path(node))))
    except ValueError as err:
        raise ClusterError(f"node {node}: {err}") from err
    return 0 if request is None else _send(server, request)


def _pods(server: ApiServer, node: str) -> int:
    selector = (("fieldSelector", f"spec.nodeName={node}"),) if node else ()
    requests = [request for item in _items(server, "/api/v1/pods", selector) if (pod := record_of(item)) is not None
                and (request := condition_withdrawal(pod)) is not None]
    return _run_all([partial(_send, server, request) for request in requests])


def _topologies(server: ApiServer, node: str, keys: KubernetesSettings) -> int:
    """Withdraw vmpin's parts of NodeResourceTopologies. :param node: "" for all nodes. :returns: changed objects."""
    if keys.nrt == "off":
        return 0
    try:
        records = [topology_of(item) for item in (
            [server.get(topology_path(node))] if node else _items(server, topology_path()))]
    except ValueError as err:
        raise ClusterError(f"{topology_path(node)}: {err}") from err
    except ClusterError as err:
        if err.status == 404:
            return 0
        raise
    return _run_all([partial(_send, server, request) for record in records
                     if (request := topology_withdrawal(record)) is not None])


def _names(server: ApiServer, path: str) -> list[str]:
    return [str(item["metadata"]["name"]) for item in _items(server, path)]


def _items(server: ApiServer, path: str, query: tuple[tuple[str, str], ...] = ()) -> Iterator[Mapping[str, Any]]:
    """Yield all objects of a kind; none where the cluster does not have the kind."""
    def read(more: Iterable[tuple[str, str]]) -> Any:
        try:
            return server.send(ApiRequest("GET", path, query=(("limit", str(PAGE)), *query, *more)))
        except ClusterError as err:
            if err.status == 404:
                return {"items": (), "metadata": {}}
            raise

    return items_of_pages(path, read)


def _send(server: ApiServer, request: ApiRequest) -> int:
    """Send it. :returns: 1, or 0 where the object is gone (404), or another object has its name (409). A deletion's
    409 is a failure: the object has changed since it was read."""
    try:
        server.send(request)
    except ClusterError as err:
        if err.status == 404 or (err.status == 409 and request.method != "DELETE"):
            return 0
        raise
    logger.info("withdrawn: %s", request)
    return 1


class IncompleteWithdrawal(ClusterError):
    """Some objects were not withdrawn. The message has the first `failures`."""

    def __init__(self, failures: Sequence[ClusterError]) -> None:
        texts = list(dict.fromkeys(map(str, failures)))
        more = f"; and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
        super().__init__(f"not withdrawn: {'; '.join(texts[:SHOWN])}{more}", failures[0].status)
        self.failures = tuple(failures)


def _run_all(steps: Iterable[Callable[[], int]]) -> int:
    """Take every step, and add up the results. :raises IncompleteWithdrawal: with the failures of all steps."""
    done, failures = 0, list[ClusterError]()
    for step in steps:
        try:
            done += step()
        except IncompleteWithdrawal as err:
            failures += err.failures
        except ClusterError as err:
            failures.append(err)
    if failures:
        raise IncompleteWithdrawal(failures)
    return done


def _path(daemon_set: str) -> str:
    namespace, slash, name = daemon_set.partition("/")
    try:
        if not slash:
            raise ValueError
        return f"/apis/apps/v1/namespaces/{checked(namespace)}/daemonsets/{checked(name)}"
    except ValueError:
        raise UsageError(f"kubernetes.daemonset: {daemon_set!r} is no NAMESPACE/NAME") from None
