"""Withdraws the reporters' writes: NodePinning, the conditions of pods, the nodes' labels; with
kubernetes.nrt NodeResourceTopology. Events expire by themselves.

For all nodes, by `vmpin reporter --withdraw`: in a Job after the chart was removed, with its reporters, which would
write it all again. Masks stay: they are the watcher's (watch.on_exit)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from vmpin.features.cluster.cluster_errors import ClusterError
from vmpin.features.cluster.kube.api_request import ApiRequest, items_of_pages, node_path
from vmpin.features.cluster.kube.cluster_node import label_withdrawal, node_of
from vmpin.features.cluster.kube.node_pinning import pinning_path, pinning_withdrawal
from vmpin.features.cluster.kube.node_topology import topology_of, topology_path, topology_withdrawal
from vmpin.features.cluster.kube.pod_pinning import condition_withdrawal
from vmpin.features.cluster.kube.pod_record import record_of
from vmpin.features.cluster.kubernetes_settings import KubernetesSettings
from vmpin.features.cluster.reporter.api_server import ApiServer

logger = logging.getLogger(__name__)

#: The most failures in a message.
SHOWN = 8
#: Objects of a page: pods may have 0.3 MB each, and the Job has the memory of a reporter.
PAGE = 100


def withdraw(server: ApiServer, keys: KubernetesSettings) -> int:
    """Withdraw everything that was written about all nodes; a part that fails does not prevent the others.
    :returns: how many objects were changed. :raises IncompleteWithdrawal: some were not."""
    def pinnings() -> int:
        return _run_all([partial(_send, server, pinning_withdrawal(name)) for name in _names(server, pinning_path())])

    def labels() -> int:
        return _run_all([partial(_labels, server, name) for name in _names(server, "/api/v1/nodes")])

    return _run_all([pinnings, labels, partial(_pods, server), partial(_topologies, server, keys)])


def _labels(server: ApiServer, node: str) -> int:
    try:
        request = label_withdrawal(node_of(server.get(node_path(node))))
    except ValueError as err:
        raise ClusterError(f"node {node}: {err}") from err
    return 0 if request is None else _send(server, request)


def _pods(server: ApiServer) -> int:
    requests = [request for item in _items(server, "/api/v1/pods") if (pod := record_of(item)) is not None
                and (request := condition_withdrawal(pod)) is not None]
    return _run_all([partial(_send, server, request) for request in requests])


def _topologies(server: ApiServer, keys: KubernetesSettings) -> int:
    """Withdraw vmpin's parts of NodeResourceTopologies. :returns: changed objects."""
    if keys.nrt == "off":
        return 0
    try:
        records = [topology_of(item) for item in _items(server, topology_path())]
    except ValueError as err:
        raise ClusterError(f"{topology_path()}: {err}") from err
    return _run_all([partial(_send, server, request) for record in records
                     if (request := topology_withdrawal(record)) is not None])


def _names(server: ApiServer, path: str) -> list[str]:
    return [str(item["metadata"]["name"]) for item in _items(server, path)]


def _items(server: ApiServer, path: str) -> Iterator[Mapping[str, Any]]:
    """Yield all objects of a kind; none where the cluster does not have the kind."""
    def read(more: Iterable[tuple[str, str]]) -> Any:
        try:
            return server.send(ApiRequest("GET", path, query=(("limit", str(PAGE)), *more)))
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
