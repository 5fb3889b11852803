"""The kubelet's PodResources API: the containers that have exclusive CPUs, as the kubelet has them in memory.

A second witness beside the checkpoint: it names pods by name, not by uid, and reports no changes by itself. The calls
block (k8s.io/kubelet/pkg/apis/podresources/v1: api.proto); importing this module is cheap, the first call loads
grpc, some 70 ms and 15 MB. What stays out: when it is called (daemon.feeds), and what follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.errors import SourceError
from vmpin.sources.grpc_call import call

if TYPE_CHECKING:
    from vmpin.wire.protos import Messages

#: Below the kubelet's directory.
SOCKET = "pod-resources/kubelet.sock"

_SERVICE = "/v1.PodResourcesLister/"
_TABLE = """
ListPodResourcesResponse pod_resources=1:PodResources*
PodResources name=1 namespace=2 containers=3:ContainerResources*
ContainerResources name=1 cpu_ids=3:int64*
"""
#: By gRPC's status: its meaning here.
_MEANINGS = {
    "UNAVAILABLE": "the kubelet does not answer there",
    "RESOURCE_EXHAUSTED": "the kubelet is asked too often (100 times a second), or its answer is too long",
    "UNIMPLEMENTED": "this kubelet does not have the call",
}

_messages: Messages | None = None


def list_cpus(socket: Path, timeout: float) -> dict[tuple[str, str, str], CpuSet]:
    """The exclusive CPUs of containers, by namespace, pod and container.

    Two pods of one name (one just ending, its successor there already) count as one.

    :param timeout: in seconds.
    :raises SourceError: when there is no answer, or an invalid one.
    """
    found: dict[tuple[str, str, str], CpuSet] = {}
    for pod in _ask(socket, "List", "ListPodResourcesResponse", timeout).pod_resources:
        for container in pod.containers:
            if container.cpu_ids:
                key = pod.namespace, pod.name, container.name
                found[key] = found.get(key, CpuSet()) | _cpus(container.cpu_ids, socket)
    return found


def _cpus(ids: Iterable[int], socket: Path) -> CpuSet:
    try:
        return CpuSet(ids)
    except CpuSetError as err:
        raise SourceError(str(socket), str(err)) from err


def _ask(socket: Path, method: str, answer: str, timeout: float) -> Any:
    """Make one call without arguments. :returns: the decoded message `answer`. :raises SourceError:"""
    raw = call(socket, _SERVICE + method, b"", timeout, _MEANINGS)
    try:
        return _decoder().decode(answer, raw)
    except SourceError as err:
        raise SourceError(str(socket), str(err)) from err


def _decoder() -> Messages:
    """The messages, made once: with the first call, as protobuf is loaded then."""
    global _messages
    if _messages is None:
        from vmpin.wire.protos import Messages

        _messages = Messages("v1", _TABLE)
    return _messages
