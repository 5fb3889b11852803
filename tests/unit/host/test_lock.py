"""The lock on the run directory, and which process holds it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from vmpin.host.lock import Lock, lock_holder
from vmpin.host.procfs import Procfs


def test_the_holder_of_the_lock_is_found_without_trying_it(tmp_path: Path) -> None:
    path = tmp_path / "run" / "lock"
    assert lock_holder(path, Procfs()) is None
    with Lock(path):
        assert lock_holder(path, Procfs()) == os.getpid()
    assert path.exists()
    assert lock_holder(path, Procfs()) is None
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)  # by any holder
        assert lock_holder(path, Procfs()) == os.getpid()
