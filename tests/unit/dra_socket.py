"""The socket by which a DRA driver is registered."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def listening(path: Path, begin: bool = True) -> Iterator[socket.socket]:
    """A socket at a path of any length, which stays there at the end. :param begin: whether it accepts connections."""
    directory = os.open(path.parent, os.O_PATH)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(f"/proc/self/fd/{directory}/{path.name}")
            if begin:
                server.listen()
            yield server
    finally:
        os.close(directory)
