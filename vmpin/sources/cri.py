"""The container runtime interface (CRI): the call that gives a container other CPUs, as the kubelet makes it, and the
list of the pods that run.

Sources: k8s.io/cri-api pkg/apis/runtime/v1/api.proto. Fields that are left out mean "no change": the kubelet's CPU
manager sends the cpuset alone, too (pkg/kubelet/cm/cpumanager/cpu_manager.go, updateContainerCPUSet). A call blocks:
the watcher makes it in a thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from vmpin.cpuset import CpuSet
from vmpin.domain.distributions import DISTRIBUTIONS
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.errors import SourceError
from vmpin.sources.grpc_call import CallError, call

if TYPE_CHECKING:
    from vmpin.wire.protos import Messages

#: containerd's default, CRI-O's, and those of distributions.
DEFAULTS = tuple(dict.fromkeys(Path(each.socket) for each in DISTRIBUTIONS))

_UPDATE = "/runtime.v1.RuntimeService/UpdateContainerResources"
_LIST = "/runtime.v1.RuntimeService/ListPodSandbox"
#: PodSandboxState: SANDBOX_READY.
_READY = 0
_TABLE = """
PodSandbox id=1 state=3:int32
ListPodSandboxRequest
ListPodSandboxResponse items=1:PodSandbox*
LinuxContainerResources cpuset_cpus=6
UpdateContainerResourcesRequest container_id=1 linux=2:LinuxContainerResources
"""
#: The server is no CRI runtime (Docker's containerd), or does not have this container: another one may.
_NO_CRI, _NOT_MINE = "UNIMPLEMENTED", ("UNIMPLEMENTED", "NOT_FOUND")


class NoRuntime(SourceError):
    """No CRI runtime answers on any of the sockets."""


def is_mute(err: SourceError) -> bool:
    """Whether the server did not answer: another call would only wait until its deadline, too."""
    return isinstance(err, CallError) and err.code in ("DEADLINE_EXCEEDED", "UNAVAILABLE")


def sockets(configured: Path | None, defaults: Sequence[Path] = DEFAULTS) -> list[Path]:
    """The existing sockets of runtimes: the configured one, else those of the defaults."""
    return [path for path in ([configured] if configured else defaults) if path.exists()]


def update_cpus(servers: Sequence[Path], container: ContainerId, cpus: CpuSet, timeout: float) -> None:
    """Ask each server in turn to give the container these CPUs, until one does. Not repeated on failure: the next
    resync finds the container unchanged and tries again, three times in ten minutes.
    :param timeout: in seconds, for each server.
    :raises NoRuntime: when there are no servers, or none has CRI.
    :raises SourceError: when all of them failed: the error of the last one that has the container, or did not answer.
    """
    request = _messages()["UpdateContainerResourcesRequest"](container_id=container)
    request.linux.cpuset_cpus = str(cpus)
    failed: list[CallError] = []
    for socket in servers:
        try:
            call(socket, _UPDATE, request.SerializeToString(), timeout)
            return
        except CallError as err:
            failed.append(err)
    if all(err.code == _NO_CRI for err in failed):
        raise NoRuntime(", ".join(map(str, servers)) or "CRI", "no CRI runtime answers there")
    raise next((err for err in reversed(failed) if err.code not in _NOT_MINE), failed[-1])


def ready_pods(servers: Sequence[Path], timeout: float) -> frozenset[SandboxId]:
    """The pods that run, of all servers. :param timeout: in seconds, for each server.
    :raises NoRuntime: when there are no servers, or none has CRI. :raises SourceError: when one of them has failed."""
    request, found, answered = _messages()["ListPodSandboxRequest"]().SerializeToString(), set(), False
    for socket in servers:
        try:
            answer = _messages().decode("ListPodSandboxResponse", call(socket, _LIST, request, timeout))
        except CallError as err:
            if err.code == _NO_CRI:
                continue
            raise
        answered = True
        found |= {SandboxId(pod.id) for pod in answer.items if pod.state == _READY}
    if not answered:
        raise NoRuntime(", ".join(map(str, servers)) or "CRI", "no CRI runtime answers there")
    return frozenset(found)


@cache
def _messages() -> Messages:
    """The messages, made with the first call, as protobuf is loaded then."""
    from vmpin.wire.protos import Messages

    return Messages("runtime.v1", _TABLE)
