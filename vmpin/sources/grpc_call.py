"""gRPC calls to a unix socket of the node: the kubelet's PodResources, or the container runtime's CRI.

A call blocks, at most until its deadline. The first one loads grpc (some 70 ms and 15 MB). A failed call is not
repeated here; callers repeat it at the next resync, with the current data.
"""

from __future__ import annotations

import os
import stat
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from vmpin.errors import SourceError
from vmpin.runtime.dialect import plain

MAX_BYTES = 16 << 20  #: Bytes of an answer, as the kubelet's own client accepts (podresources/client.go).
#: The meanings of gRPC's status codes.
_MEANINGS = {"UNAVAILABLE": "no server answers there", "DEADLINE_EXCEEDED": "no answer in time"}


class CallError(SourceError):
    """The call failed. `code` is the name of gRPC's status; "" if there was no socket."""

    def __init__(self, where: str, why: str, code: str = "") -> None:
        super().__init__(where, why)
        self.code = code


class Connection:
    """A connection to a socket, made at the first call and kept for the next ones, as each costs threads of gRPC and
    some 2 ms of CPU. Keep it for calls that follow one another, but not after one that met no server: gRPC waits
    before it connects again. They may come from any thread, one at a time. A call that runs at the end is not
    cancelled: the connection then ends with it."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._channel: Any = None
        self._calling = self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._close()

    def _close(self) -> None:
        if self._ended and not self._calling and self._channel is not None:
            self._channel.close()

    def call(self, method: str, request: bytes, timeout: float, meanings: Mapping[str, str] | None = None) -> bytes:
        """Make one call.
        :param method: `/package.Service/Method`. :param timeout: in seconds.
        :param meanings: of gRPC's status codes for this call.
        :returns: the answer's bytes. :raises CallError: naming the socket and the method."""
        self._calling = True
        try:
            if self._channel is None:
                self._channel = _channel(self.socket)
            return self._called(method, request, timeout, meanings or {})
        finally:
            self._calling = False
            self._close()

    def _called(self, method: str, request: bytes, timeout: float, meanings: Mapping[str, str]) -> bytes:
        import grpc

        try:
            unary: Any = self._channel.unary_unary(method)  # no deserializer: grpc would log its exceptions
            answer: bytes = unary(request, timeout=timeout)
            return answer
        except grpc.RpcError as err:
            # The exception is also a grpc.Call (grpc.UnaryUnaryMultiCallable.__call__); grpc's types lack that.
            failed: Any = err
            code = str(failed.code().name)
            why = {**_MEANINGS, **meanings}.get(code, code.lower())
            # For a server that does not answer the details are gRPC's own: sockets and errnos, and long.
            details = "" if code in _MEANINGS else f" ({plain(failed.details() or '', 200)})"
            name = method.rpartition("/")[2]
            raise CallError(str(self.socket), f"{name}: {why}{details}", code) from err


def _channel(socket: Path) -> Any:
    """Open a channel to a socket. :raises CallError: if there is none."""
    try:
        if not stat.S_ISSOCK(os.stat(socket).st_mode):
            raise CallError(str(socket), "is no socket")
    except OSError as err:
        raise CallError(str(socket), err.strerror or str(err)) from err
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # otherwise it warns of processes started during a call
    import grpc

    return grpc.insecure_channel("unix:" + urllib.parse.quote(os.path.abspath(socket)), options=[
        ("grpc.max_receive_message_length", MAX_BYTES), ("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0),
        # Some versions use the escaped path as the authority, which servers in Go refuse.
        ("grpc.default_authority", "localhost"),
        # Otherwise a failed connection delays the next channel, up to two minutes.
        ("grpc.use_local_subchannel_pool", 1)])
