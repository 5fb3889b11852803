"""A gRPC server as a container runtime's CRI is one, for UpdateContainerResources alone."""

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
""".replace("\\\n", ""))
#: Longer than any deadline of a test's.
_LONG = 120.0


class CriServer:
    """On a socket. `updates` are the calls, as container and CPUs; `mute` keeps each without an answer."""

    def __init__(self, path: Path, served: bool = True) -> None:
        """:param served: whether the server has CRI at all."""
        self.path = path
        self.updates: list[tuple[str, str]] = []
        self.failure: tuple[grpc.StatusCode, str] | None = None
        self.mute = False
        self.called = threading.Event()
        self._ended = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(8)
        self._server = grpc.server(self._pool, handlers=[self._Handler(self)] if served else [])
        assert self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    class _Handler(grpc.GenericRpcHandler):
        def __init__(self, server: CriServer) -> None:
            self.server = server

        def service(self, handler_call_details: Any) -> Any:
            if handler_call_details.method != "/runtime.v1.RuntimeService/UpdateContainerResources":
                return None
            return grpc.unary_unary_rpc_method_handler(self.server.update)

    def update(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        request = _CRI.decode("UpdateContainerResourcesRequest", raw)
        self.updates.append((request.container_id, request.linux.cpuset_cpus))
        request.linux.ClearField("cpuset_cpus")
        assert not request.linux.ListFields(), "what is not to be changed is left out"
        self.called.set()
        if self.mute:
            self._ended.wait(_LONG)
        if self.failure is not None:
            context.abort(*self.failure)
        return b""

    def stop(self) -> None:
        self._ended.set()
        self._server.stop(0).wait(120)
        self._pool.shutdown()
