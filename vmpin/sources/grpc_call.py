"""One gRPC call to a unix socket of the node: the kubelet's PodResources, or the container runtime's CRI.

The call blocks until its deadline at most. The first one loads grpc (some 70 ms and 15 MB). A failed one is not
repeated here: callers make it again at the next resync, with what is true by then.
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
#: By gRPC's status: its meaning, unless the caller gives a more specific one.
_MEANINGS = {"UNAVAILABLE": "no server answers there", "DEADLINE_EXCEEDED": "no answer in time"}


class CallError(SourceError):
    """The call failed. `code` is gRPC's status by name; "" where there was no socket to call."""

    def __init__(self, where: str, why: str, code: str = "") -> None:
        super().__init__(where, why)
        self.code = code


def call(socket: Path, method: str, request: bytes, timeout: float,
         meanings: Mapping[str, str] | None = None) -> bytes:
    """Make one call, over a connection of its own: calls are seconds apart, and a connection that is kept would
    outlive a restart of the server.
    :param method: `/package.Service/Method`; `timeout` is in seconds.
    :param meanings: by gRPC's status: its meaning for this call.
    :returns: the answer's bytes.
    :raises CallError: naming the socket and the method."""
    where, name = str(socket), method.rpartition("/")[2]
    try:
        if not stat.S_ISSOCK(os.stat(socket).st_mode):
            raise CallError(where, "is no socket")
    except OSError as err:
        raise CallError(where, err.strerror or str(err)) from err
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # else it complains of processes started beside a call
    import grpc

    channel = grpc.insecure_channel("unix:" + urllib.parse.quote(os.path.abspath(socket)), options=[
        ("grpc.max_receive_message_length", MAX_BYTES), ("grpc.enable_http_proxy", 0), ("grpc.enable_retries", 0),
        # Servers in Go refuse an escaped path as the authority, which is the default of some versions.
        ("grpc.default_authority", "localhost"),
        # Else a connection that failed keeps the next channel waiting, up to two minutes.
        ("grpc.use_local_subchannel_pool", 1)])
    try:
        unary: Any = channel.unary_unary(method)  # no deserializer: what one raises, grpc logs with a traceback
        answer: bytes = unary(request, timeout=timeout)
        return answer
    except grpc.RpcError as err:
        # What is raised is a grpc.Call, too (grpc.UnaryUnaryMultiCallable.__call__), which its types do not say.
        failed: Any = err
        code = str(failed.code().name)
        why = {**_MEANINGS, **(meanings or {})}.get(code, code.lower())
        # Of a server that is away, as in a restart, the details are gRPC's own: sockets and errnos, and long.
        details = "" if code in _MEANINGS else f" ({plain(failed.details() or '', 200)})"
        raise CallError(where, f"{name}: {why}{details}", code) from err
    finally:
        channel.close()
