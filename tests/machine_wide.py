"""What two tests cannot have at a time although their files and sandboxes are their own: a program that all see."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone_with(what: str) -> Iterator[None]:
    """Wait until no other test, in any process on this machine, is alone with `what`."""
    with Path(tempfile.gettempdir(), f"vmpin-tests-{what}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
