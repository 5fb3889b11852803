"""A gRPC server as a container runtime's CRI is one, for UpdateContainerResources and ListPodSandbox alone."""

from __future__ import annotations

import concurrent.futures
import os
import threading
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc

from vmpin.wire.protos import Messages

#: More than is sent: cri-api, pkg/apis/runtime/v1/api.proto.
_CRI = Messages("runtime.v1", """
LinuxContainerResources cpu_period=1:int64 cpu_quota=2:int64 cpu_shares=3:int64 memory_limit_in_bytes=4:int64 \
    oom_score_adj=5:int64 cpuset_cpus=6 cpuset_mems=7
UpdateContainerResourcesRequest container_id=1 linux=2:LinuxContainerResources
PodSandboxMetadata name=1 uid=2 namespace=3 attempt=4:uint32
PodSandbox id=1 metadata=2:PodSandboxMetadata state=3:int32 created_at=4:int64
ListPodSandboxResponse items=1:PodSandbox*
""".replace("\\\n", ""))
#: Longer than any deadline of a test's.
_LONG = 1200.0


class CriServer:
    """On a socket. `updates` are the calls, as container and CPUs; `mute` keeps each without an answer until
    `answer_all`. `pods` are listed: whether each is ready."""

    def __init__(self, path: Path, served: bool = True) -> None:
        """:param served: whether the server has CRI at all."""
        self.path = path
        self.updates: list[tuple[str, str]] = []
        self.pods: dict[str, bool] = {}
        self.failure: tuple[grpc.StatusCode, str] | None = None
        self.mute = False
        self.called = threading.Event()
        self._answering = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(8)
        self._server = grpc.server(self._pool, handlers=[self._Handler(self)] if served else [])
        assert self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    class _Handler(grpc.GenericRpcHandler):
        def __init__(self, server: CriServer) -> None:
            self.server = server

        def service(self, handler_call_details: Any) -> Any:
            service, _, method = handler_call_details.method.rpartition("/")
            served = {"UpdateContainerResources": self.server.update, "ListPodSandbox": self.server.list_pods}
            if service != "/runtime.v1.RuntimeService" or method not in served:
                return None
            return grpc.unary_unary_rpc_method_handler(served[method])

    def list_pods(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        if self.failure is not None:
            context.abort(*self.failure)
        pods = [_CRI["PodSandbox"](id=name, metadata=_CRI["PodSandboxMetadata"](name=f"pod-{name}"), created_at=1,
                                   state=0 if ready else 1) for name, ready in self.pods.items()]
        answer: bytes = _CRI["ListPodSandboxResponse"](items=pods).SerializeToString()
        return answer

    def update(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        request = _CRI.decode("UpdateContainerResourcesRequest", raw)
        self.updates.append((request.container_id, request.linux.cpuset_cpus))
        request.linux.ClearField("cpuset_cpus")
        assert not request.linux.ListFields(), "what is not to be changed is left out"
        self.called.set()
        if self.mute:
            self._answering.wait(_LONG)
        if self.failure is not None:
            context.abort(*self.failure)
        return b""

    def answer_all(self) -> None:
        """Answer the calls that were kept without an answer, and those that come."""
        self._answering.set()

    def stop(self) -> None:
        self.answer_all()
        self._server.stop(0).wait(120)
        self._pool.shutdown()
