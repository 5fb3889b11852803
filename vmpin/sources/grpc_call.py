"""A gRPC call to a unix socket of the node: the kubelet's PodResources, or the container runtime's CRI.

The call blocks, at most until its deadline. The first one loads grpc (some 70 ms and 15 MB). A failed call is not
repeated here; callers repeat it at the next resync, with the current data.
"""

from __future__ import annotations

import os
import stat
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def call(socket: Path, method: str, request: bytes, timeout: float,
         meanings: Mapping[str, str] | None = None) -> bytes:
    """Make one call, over a connection of its own: calls are seconds apart, and the server may restart between them.
    :param method: `/package.Service/Method`. :param timeout: in seconds.
    :param meanings: of gRPC's status codes for this call.
    :returns: the answer's bytes. :raises CallError: naming the socket and the method."""
    where, name = str(socket), method.rpartition("/")[2]
    try:
        if not stat.S_ISSOCK(os.stat(socket).st_mode):
            raise CallError(where, "is no socket")
    except OSError as err:
        raise CallError(where, err.strerror or str(err)) from err
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # otherwise it warns of processes started during a call
    import grpc

    channel = grpc.insecure_channel("unix:" + urllib.parse.quote(os.path.abspath(socket)), options=[
        ("grpc.max_receive_message_length", MAX_BYTES), ("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0),
        # Some versions use the escaped path as the authority, which servers in Go refuse.
        ("grpc.default_authority", "localhost"),
        # Otherwise a failed connection delays the next channel, up to two minutes.
        ("grpc.use_local_subchannel_pool", 1)])
    try:
        unary: Any = channel.unary_unary(method)  # no deserializer: grpc would log its exceptions with a traceback
        answer: bytes = unary(request, timeout=timeout)
        return answer
    except grpc.RpcError as err:
        # The exception is also a grpc.Call (grpc.UnaryUnaryMultiCallable.__call__); grpc's types lack that.
        failed: Any = err
        code = str(failed.code().name)
        why = {**_MEANINGS, **(meanings or {})}.get(code, code.lower())
        # For a server that does not answer the details are gRPC's own: sockets and errnos, and long.
        details = "" if code in _MEANINGS else f" ({plain(failed.details() or '', 200)})"
        raise CallError(where, f"{name}: {why}{details}", code) from err
    finally:
        channel.close()
