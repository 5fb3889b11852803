"""Calls of the container runtime interface (CRI): update a container's CPUs, as the kubelet does, and list the running
pods. The calls block; the watcher makes them in a thread.

Sources: k8s.io/cri-api pkg/apis/runtime/v1/api.proto. A missing field means "no change": the kubelet's CPU manager
also sends only the cpuset (pkg/kubelet/cm/cpumanager/cpu_manager.go, updateContainerCPUSet). """

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from vmpin.cpuset import CpuSet
from vmpin.domain.distributions import DISTRIBUTIONS
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.errors import SourceError
from vmpin.sources.grpc_call import CallError, Connection

if TYPE_CHECKING:
    from vmpin.wire.protos import Messages

#: The default sockets of containerd, CRI-O and distributions.
DEFAULTS = tuple(dict.fromkeys(Path(distribution.socket) for distribution in DISTRIBUTIONS))

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
#: The server is no CRI runtime (Docker's containerd), or does not have the container: another server may.
_NO_CRI, _NOT_MINE = "UNIMPLEMENTED", ("UNIMPLEMENTED", "NOT_FOUND")


class NoRuntime(SourceError):
    """No CRI runtime answers on any of the sockets."""


def is_mute(err: SourceError) -> bool:
    """Whether the server did not answer, so that another call would also wait until its deadline."""
    return isinstance(err, CallError) and err.code in ("DEADLINE_EXCEEDED", "UNAVAILABLE")


def sockets(configured: Path | None, defaults: Sequence[Path] = DEFAULTS) -> list[Path]:
    """The existing sockets of runtimes: the configured one, else the default ones."""
    return [path for path in ([configured] if configured else defaults) if path.exists()]


@contextmanager
def connected(paths: Iterable[Path]) -> Iterator[list[Connection]]:
    """Connections to the sockets of runtimes, for calls that follow one another."""
    with ExitStack() as stack:
        yield [stack.enter_context(Connection(path)) for path in paths]


def update_cpus(servers: Sequence[Connection], container: ContainerId, cpus: CpuSet, timeout: float) -> None:
    """Update a container's CPUs, at the first server that can. A failed call is not repeated here: the next resync
    tries again, three times in ten minutes.
    :param timeout: in seconds, for each server.
    :raises NoRuntime: without servers, or if none has CRI.
    :raises SourceError: if all servers failed: the error of the last one that has the container, or did not answer."""
    request = _messages()["UpdateContainerResourcesRequest"](container_id=container)
    request.linux.cpuset_cpus = str(cpus)
    failed: list[CallError] = []
    for server in servers:
        try:
            server.call(_UPDATE, request.SerializeToString(), timeout)
            return
        except CallError as err:
            failed.append(err)
    if all(err.code == _NO_CRI for err in failed):
        raise _no_runtime(servers)
    raise next((err for err in reversed(failed) if err.code not in _NOT_MINE), failed[-1])


def ready_pods(servers: Sequence[Connection], timeout: float) -> frozenset[SandboxId]:
    """The running pods of all servers. :param timeout: in seconds, for each server.
    :raises NoRuntime: without servers, or if none has CRI. :raises SourceError: if one of them failed."""
    request, pods, answered = _messages()["ListPodSandboxRequest"]().SerializeToString(), set(), False
    for server in servers:
        try:
            answer = _messages().decode("ListPodSandboxResponse", server.call(_LIST, request, timeout))
        except CallError as err:
            if err.code == _NO_CRI:
                continue
            raise
        answered = True
        pods |= {SandboxId(pod.id) for pod in answer.items if pod.state == _READY}
    if not answered:
        raise _no_runtime(servers)
    return frozenset(pods)


def _no_runtime(servers: Sequence[Connection]) -> NoRuntime:
    return NoRuntime(", ".join(str(server.socket) for server in servers) or "CRI", "no CRI runtime answers there")


@cache
def _messages() -> Messages:
    """The messages, created at the first call, which loads protobuf."""
    from vmpin.wire.protos import Messages

    return Messages("runtime.v1", _TABLE)
