"""What two tests cannot have at a time although their files and sandboxes are their own: a program that all see."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def alone_with(what: str) -> Iterator[None]:
    """Wait until no other test, in any process on this machine, is alone with `what`."""
    path = Path(f"/tmp/vmpin-tests-{what}.lock")  # whatever TMPDIR is
    with suppress(PermissionError):  # it is another user's
        path.touch()
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
