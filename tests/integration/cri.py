"""A client of the container runtime interface (CRI), as the kubelet is one. Of its messages only what is used here."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # it would complain about every process that is started

import grpc

from vmpin.wire.protos import Messages

_SERVICE = "/runtime.v1.RuntimeService/"
#: Seconds for a call, the runtime's being away for a moment included. containerd gives each pod's pause process 2 CPU
#: shares: beside busy programs it takes a minute to start.
_PATIENCE = 600.0
_NODE = 2  # NamespaceMode
#: Field numbers of cri-api, pkg/apis/runtime/v1/api.proto.
_MESSAGES = Messages("runtime.v1", """
    VersionRequest version=1
    VersionResponse version=1 runtime_name=2 runtime_version=3 runtime_api_version=4
    NamespaceOption network=1:int32 pid=2:int32 ipc=3:int32
    LinuxSandboxSecurityContext namespace_options=1:NamespaceOption
    LinuxPodSandboxConfig cgroup_parent=1 security_context=2:LinuxSandboxSecurityContext
    PodSandboxMetadata name=1 uid=2 namespace=3 attempt=4:uint32
    PodSandboxConfig metadata=1:PodSandboxMetadata log_directory=3 labels=6:map annotations=7:map linux=8:LinuxPodSandboxConfig
    RunPodSandboxRequest config=1:PodSandboxConfig runtime_handler=2
    RunPodSandboxResponse pod_sandbox_id=1
    StopPodSandboxRequest pod_sandbox_id=1
    StopPodSandboxResponse
    RemovePodSandboxRequest pod_sandbox_id=1
    RemovePodSandboxResponse
    ImageSpec image=1
    ContainerMetadata name=1 attempt=2:uint32
    LinuxContainerResources cpu_period=1:int64 cpu_quota=2:int64 cpu_shares=3:int64 cpuset_cpus=6 cpuset_mems=7
    LinuxContainerConfig resources=1:LinuxContainerResources
    KeyValue key=1 value=2
    Device container_path=1 host_path=2 permissions=3
    ContainerConfig metadata=1:ContainerMetadata image=2:ImageSpec command=3:string* envs=6:KeyValue* devices=8:Device* labels=9:map annotations=10:map log_path=11 linux=15:LinuxContainerConfig
    CreateContainerRequest pod_sandbox_id=1 config=2:ContainerConfig sandbox_config=3:PodSandboxConfig
    CreateContainerResponse container_id=1
    StartContainerRequest container_id=1
    StartContainerResponse
    StopContainerRequest container_id=1 timeout=2:int64
    StopContainerResponse
    RemoveContainerRequest container_id=1
    RemoveContainerResponse
    UpdateContainerResourcesRequest container_id=1 linux=2:LinuxContainerResources
    UpdateContainerResourcesResponse
    ContainerStatusRequest container_id=1 verbose=2:bool
    ContainerStatusResponse info=2:map
    PodSandboxStatusRequest pod_sandbox_id=1 verbose=2:bool
    PodSandboxStatusResponse info=2:map
    ListPodSandboxRequest
    PodSandbox id=1
    ListPodSandboxResponse items=1:PodSandbox*
""")  # noqa: E501
CriError = grpc.RpcError


class Cri:
    """The runtime behind a socket. A call fails with CriError; one while the runtime restarts waits for it."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=[
            ("grpc.default_authority", "localhost"), ("grpc.initial_reconnect_backoff_ms", 20),
            ("grpc.min_reconnect_backoff_ms", 20), ("grpc.max_reconnect_backoff_ms", 100)])

    def close(self) -> None:
        self._channel.close()

    def _call(self, method: str, **fields: Any) -> Any:
        request = _MESSAGES[f"{method}Request"](**fields)
        call = self._channel.unary_unary(f"{_SERVICE}{method}", type(request).SerializeToString,
                                         _MESSAGES[f"{method}Response"].FromString)
        return call(request, timeout=_PATIENCE, wait_for_ready=True)

    def _end(self, method: str, **fields: Any) -> None:
        """A call that ends something, made again while it fails, as the kubelet does: one that meets the shim of a VM
        whose VMM was just killed fails with "ttrpc: closed"."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self._call(method, **fields)
                return
            except CriError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.5)

    def version(self) -> str:
        """Of the runtime, such as 1.7.24."""
        return str(self._call("Version").runtime_version).removeprefix("v").partition("~")[0].partition("+")[0]

    # Pods

    def pod_config(self, name: str, uid: str, namespace: str, cgroup_parent: str,
                   annotations: Mapping[str, str]) -> Any:
        """What a pod is made from, and each of its containers. On the host's network, so no CNI is needed."""
        option = _MESSAGES["NamespaceOption"](network=_NODE)
        return _MESSAGES["PodSandboxConfig"](
            metadata=_MESSAGES["PodSandboxMetadata"](name=name, uid=uid, namespace=namespace), annotations=annotations,
            linux=_MESSAGES["LinuxPodSandboxConfig"](
                cgroup_parent=cgroup_parent,
                security_context=_MESSAGES["LinuxSandboxSecurityContext"](namespace_options=option)))

    def run_pod(self, config: Any, handler: str = "") -> str:
        """Its id."""
        return str(self._call("RunPodSandbox", config=config, runtime_handler=handler).pod_sandbox_id)

    def pod_pid(self, pod: str) -> int:
        """Of its first process, as the runtime sees it: of the VMM for a VM."""
        return _pid(self._call("PodSandboxStatus", pod_sandbox_id=pod, verbose=True))

    def stop_pod(self, pod: str) -> None:
        self._end("StopPodSandbox", pod_sandbox_id=pod)

    def remove_pod(self, pod: str) -> None:
        self._end("RemovePodSandbox", pod_sandbox_id=pod)

    def pods(self) -> list[str]:
        return [each.id for each in self._call("ListPodSandbox").items]

    # Containers

    def create(self, pod: str, config: Any, name: str, image: str, resources: Mapping[str, Any],
               annotations: Mapping[str, str], command: Sequence[str], devices: Sequence[str] = (),
               env: Mapping[str, str] | None = None, attempt: int = 0) -> str:
        """Its id.

        :param config: the pod's.
        :param resources: fields of LinuxContainerResources.
        :param devices: paths, the same out here and in the container.
        :param attempt: how many of this name the pod has had.
        """
        return str(self._call("CreateContainer", pod_sandbox_id=pod, sandbox_config=config,
                              config=_MESSAGES["ContainerConfig"](
            metadata=_MESSAGES["ContainerMetadata"](name=name, attempt=attempt),
            image=_MESSAGES["ImageSpec"](image=image),
            command=command, annotations=annotations,
            envs=[_MESSAGES["KeyValue"](key=key, value=value) for key, value in (env or {}).items()],
            devices=[_MESSAGES["Device"](container_path=path, host_path=path, permissions="rwm") for path in devices],
            linux=_MESSAGES["LinuxContainerConfig"](
                resources=_MESSAGES["LinuxContainerResources"](**resources)))).container_id)

    def start(self, container: str) -> None:
        self._call("StartContainer", container_id=container)

    def update(self, container: str, **resources: Any) -> None:
        """:param resources: fields of LinuxContainerResources."""
        self._call("UpdateContainerResources", container_id=container,
                   linux=_MESSAGES["LinuxContainerResources"](**resources))

    def pid(self, container: str) -> int:
        """As the runtime sees it."""
        return _pid(self._call("ContainerStatus", container_id=container, verbose=True))

    def stop(self, container: str) -> None:
        """At once."""
        self._end("StopContainer", container_id=container, timeout=0)

    def remove(self, container: str) -> None:
        self._end("RemoveContainer", container_id=container)


def _pid(status: Any) -> int:
    return int(json.loads(status.info["info"])["pid"])
