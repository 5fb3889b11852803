"""The reporter's request to its watcher about itself: why it does not reach the API server, for `vmpin doctor`.

The text comes from a process without rights on the node: both sides bound it, and nothing depends on it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vmpin.domain.terminal import excerpt
from vmpin.errors import WireError

#: The request's name on the status socket, and its version.
OPERATION, VERSION = "reporter", 1
_LONG = 256


def encode(trouble: str) -> bytes:
    """The request, one line. :param trouble: "" where the API server is reached."""
    return json.dumps({"op": OPERATION, "version": VERSION, "trouble": excerpt(trouble, _LONG)}).encode() + b"\n"


def decode(request: Mapping[str, Any]) -> str:
    """The trouble, printable and bounded. :raises WireError: it is malformed."""
    if request.get("version") != VERSION or not isinstance(request.get("trouble"), str):
        raise WireError(OPERATION, "malformed request")
    return excerpt(request["trouble"], _LONG)
