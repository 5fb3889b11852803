"""The kubelet's PodResources API: the containers that have exclusive CPUs, as the kubelet has them in memory.

A second witness beside the checkpoint: it names pods by name, not by uid, and reports no changes by itself. The calls
block (k8s.io/kubelet/pkg/apis/podresources/v1: api.proto).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from vmpin.cpuset import EMPTY, CpuSet, CpuSetError
from vmpin.errors import SourceError
from vmpin.sources.grpc_call import call

if TYPE_CHECKING:
    from vmpin.wire.protos import Messages

_LIST = "/v1.PodResourcesLister/List"
_TABLE = """
ListPodResourcesResponse pod_resources=1:PodResources*
PodResources name=1 namespace=2 containers=3:ContainerResources*
ContainerResources name=1 cpu_ids=3:int64*
"""
#: By gRPC's status: its meaning here.
_MEANINGS = {"UNAVAILABLE": "the kubelet does not answer there",
             "RESOURCE_EXHAUSTED": "the kubelet is asked too often (100 times a second), or its answer is too long",
             "UNIMPLEMENTED": "this kubelet does not have the call"}


def list_cpus(socket: Path, timeout: float) -> dict[tuple[str, str, str], CpuSet]:
    """The exclusive CPUs of containers, by namespace, pod and container. Two pods of one name (one just ending, its
    successor there already) count as one. `timeout` is in seconds.
    :raises SourceError: when there is no answer, or an invalid one."""
    raw = call(socket, _LIST, b"", timeout, _MEANINGS)
    found: dict[tuple[str, str, str], CpuSet] = {}
    try:
        for pod in _messages().decode("ListPodResourcesResponse", raw).pod_resources:
            for container in pod.containers:
                if container.cpu_ids:
                    key = pod.namespace, pod.name, container.name
                    found[key] = found.get(key, EMPTY) | CpuSet(container.cpu_ids)
    except (SourceError, CpuSetError) as err:
        raise SourceError(str(socket), str(err)) from err
    return found


@cache
def _messages() -> Messages:
    """The messages, made with the first call, as protobuf is loaded then."""
    from vmpin.wire.protos import Messages

    return Messages("v1", _TABLE)
