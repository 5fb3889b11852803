"""The kubelet's PodResources API: which containers have CPUs for themselves, by the kubelet's word of the moment.

A second witness beside the checkpoint: it names pods by name, not by uid, and cannot be waited on. The calls block
(k8s.io/kubelet/pkg/apis/podresources/v1: api.proto); importing this module is cheap, the first call loads grpc, some
70 ms and 15 MB. What stays out: when to ask, and what follows.
"""

from __future__ import annotations

import os
import stat
import urllib.parse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.errors import SourceError
from vmpin.runtime.dialect import plain

if TYPE_CHECKING:
    from vmpin.wire.protos import Messages

#: Below the kubelet's directory.
SOCKET = "pod-resources/kubelet.sock"
#: What the kubelet's own client takes (podresources/client.go).
MAX_BYTES = 16 << 20

_SERVICE = "/v1.PodResourcesLister/"
_TABLE = """
ListPodResourcesResponse pod_resources=1:PodResources*
PodResources name=1 namespace=2 containers=3:ContainerResources*
ContainerResources name=1 cpu_ids=3:int64*
AllocatableResourcesResponse cpu_ids=2:int64*
"""
#: By gRPC's status: what it means here.
_MEANINGS = {
    "UNAVAILABLE": "nobody answers there",
    "DEADLINE_EXCEEDED": "no answer in time",
    "RESOURCE_EXHAUSTED": "the kubelet is asked too often (100 times a second), or its answer is too long",
    "UNIMPLEMENTED": "this kubelet does not have the call",
}

_messages: Messages | None = None


def list_cpus(socket: Path, timeout: float) -> dict[tuple[str, str, str], CpuSet]:
    """The CPUs of containers that have some for themselves, by namespace, pod and container.

    Two pods of one name (one just ending, its successor there already) count as one.

    :param timeout: in seconds.
    :raises SourceError: when nobody answers, or not as it should be.
    """
    found: dict[tuple[str, str, str], CpuSet] = {}
    for pod in _ask(socket, "List", "ListPodResourcesResponse", timeout).pod_resources:
        for container in pod.containers:
            if container.cpu_ids:
                key = pod.namespace, pod.name, container.name
                found[key] = found.get(key, CpuSet()) | _cpus(container.cpu_ids, socket)
    return found


def allocatable(socket: Path, timeout: float) -> CpuSet:
    """The CPUs that the kubelet may give to containers, shared or not: all but the reserved ones.

    :raises SourceError: as above.
    """
    return _cpus(_ask(socket, "GetAllocatableResources", "AllocatableResourcesResponse", timeout).cpu_ids, socket)


def _cpus(ids: Iterable[int], socket: Path) -> CpuSet:
    try:
        return CpuSet(ids)
    except CpuSetError as err:
        raise SourceError(str(socket), str(err)) from err


def _ask(socket: Path, method: str, answer: str, timeout: float) -> Any:
    """One call without arguments, on a connection of its own: it is made every few seconds at most, and so nothing is
    left of a kubelet that was restarted."""
    where = str(socket)
    try:
        if not stat.S_ISSOCK(os.stat(socket).st_mode):
            raise SourceError(where, "is no socket")
    except OSError as err:
        raise SourceError(where, err.strerror or str(err)) from err
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # else it complains of processes started beside a call
    import grpc

    channel = grpc.insecure_channel("unix:" + urllib.parse.quote(os.path.abspath(socket)), options=[
        ("grpc.max_receive_message_length", MAX_BYTES), ("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0),
        # Else a connection that failed keeps the next channel waiting, up to two minutes.
        ("grpc.use_local_subchannel_pool", 1)])
    try:
        # No deserializer: what one raises, grpc logs with a traceback.
        call: Any = channel.unary_unary(_SERVICE + method)
        raw = call(b"", timeout=timeout)
    except grpc.RpcError as err:
        # What is raised is a grpc.Call, too (grpc.UnaryUnaryMultiCallable.__call__), which its types do not tell.
        failed: Any = err
        name = failed.code().name
        raise SourceError(where, f"{method}: {_MEANINGS.get(name, name.lower())} "
                                 f"({plain(failed.details() or '', 200)})") from err
    finally:
        channel.close()
    try:
        return _decoder().decode(answer, raw)
    except SourceError as err:
        raise SourceError(where, str(err)) from err


def _decoder() -> Messages:
    """The messages, made once: with the first call, as protobuf is loaded then."""
    global _messages
    if _messages is None:
        from vmpin.wire.protos import Messages

        _messages = Messages("v1", _TABLE)
    return _messages
