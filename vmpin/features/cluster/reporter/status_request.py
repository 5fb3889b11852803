"""One request to the watcher's status socket, and its answer."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from vmpin.bounded import load_json
from vmpin.errors import WatcherError

#: For the watcher to answer (seconds).
DEADLINE = 10.0


def ask(path: Path, request: bytes, member: str) -> Any:
    """Send a request, and return one member of the answer. :param request: a line of JSON.
    :raises OSError, ValueError, WatcherError: where there is no such answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(DEADLINE)
        connection.connect(os.fspath(path))
        connection.sendall(request)
        with connection.makefile("rb") as answer:
            found = load_json(answer.readline(65536) or "{}")
    if not isinstance(found, dict) or member not in found:
        raise WatcherError(str(found.get("error", "it hung up")) if isinstance(found, dict) else "no answer to it")
    return found[member]
