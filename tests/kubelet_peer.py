"""A gRPC server as the kubelet's PodResources is one."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc

from vmpin.wire.protos import Messages

#: More than is asked for: api.proto of Kubernetes 1.36, and the pod's own CPUs of the version after it.
KUBELET = Messages("v1", """
TopologyInfo nodes=1:NUMANode*
NUMANode ID=1:int64
ContainerDevices resource_name=1 device_ids=2:string* topology=3:TopologyInfo
ContainerMemory memory_type=1 size=2:uint64 topology=3:TopologyInfo
ContainerResources name=1 devices=2:ContainerDevices* cpu_ids=3:int64* memory=4:ContainerMemory*
PodResources name=1 namespace=2 containers=3:ContainerResources* cpu_ids=4:int64* memory=5:ContainerMemory*
ListPodResourcesResponse pod_resources=1:PodResources*
AllocatableResourcesResponse devices=1:ContainerDevices* cpu_ids=2:int64* memory=3:ContainerMemory*
""")

Answer = Callable[[bytes, grpc.ServicerContext], bytes]


class Kubelet:
    """A server on a socket, whose calls are replaced as a test goes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: dict[str, Answer] = {}
        self._pool = concurrent.futures.ThreadPoolExecutor(4)
        self._server = grpc.server(self._pool, handlers=[self._Handler(self.calls)])
        assert self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    class _Handler(grpc.GenericRpcHandler):
        def __init__(self, calls: dict[str, Answer]) -> None:
            self.calls = calls

        def service(self, handler_call_details: Any) -> Any:
            prefix, _, name = handler_call_details.method.rpartition("/")
            answer = self.calls.get(name) if prefix == "/v1.PodResourcesLister" else None
            return None if answer is None else grpc.unary_unary_rpc_method_handler(answer)

    def lists(self, *pods: Any) -> None:
        raw = KUBELET["ListPodResourcesResponse"](pod_resources=pods).SerializeToString()
        self.calls["List"] = lambda request, context: raw

    def fails(self, code: grpc.StatusCode, details: str) -> None:
        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            context.abort(code, details)
            raise AssertionError

        self.calls["List"] = answer

    def stop(self) -> None:
        self._server.stop(0).wait(120)
        self._pool.shutdown()
