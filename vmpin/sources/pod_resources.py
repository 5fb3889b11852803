"""The kubelet's PodResources API: the exclusive CPUs of containers, as in the kubelet's memory.

A second source beside the checkpoint. It has the names of pods, not their uids, and reports no changes. The calls
block (k8s.io/kubelet/pkg/apis/podresources/v1: api.proto)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from vmpin.cpuset import EMPTY, CpuSet, CpuSetError
from vmpin.errors import SourceError
from vmpin.sources.grpc_call import Connection

if TYPE_CHECKING:
    from vmpin.wire.protos import Messages

_LIST = "/v1.PodResourcesLister/List"
_TABLE = """
ListPodResourcesResponse pod_resources=1:PodResources*
PodResources name=1 namespace=2 containers=3:ContainerResources* cpu_ids=4:int64*
ContainerResources name=1 cpu_ids=3:int64*
"""
#: The meanings of gRPC's status codes.
_MEANINGS = {"UNAVAILABLE": "the kubelet does not answer there",
             "RESOURCE_EXHAUSTED": "the kubelet is asked too often (100 times a second), or its answer is too long",
             "UNIMPLEMENTED": "this kubelet does not have the call"}


def list_cpus(socket: Path, timeout: float) -> dict[tuple[str, str, str], CpuSet]:
    """The exclusive CPUs of containers, by namespace, pod and container; the container "" has those of a whole pod,
    which since Kubernetes 1.37 its containers that share them do not list. Two pods with the same name (one ends while
    its successor starts) count as one. `timeout` is in seconds.
    :raises SourceError: without an answer, or for an invalid one."""
    with Connection(socket) as kubelet:
        raw = kubelet.call(_LIST, b"", timeout, _MEANINGS)
    exclusive: dict[tuple[str, str, str], CpuSet] = {}
    try:
        for pod in _messages().decode("ListPodResourcesResponse", raw).pod_resources:
            containers = ((container.name, container.cpu_ids) for container in pod.containers)
            for name, cpus in (("", pod.cpu_ids), *containers):
                if cpus:
                    key = pod.namespace, pod.name, name
                    exclusive[key] = exclusive.get(key, EMPTY) | CpuSet(cpus)
    except (SourceError, CpuSetError) as err:
        raise SourceError(str(socket), str(err)) from err
    return exclusive


@cache
def _messages() -> Messages:
    """The messages, created at the first call, which loads protobuf."""
    from vmpin.wire.protos import Messages

    return Messages("v1", _TABLE)
