"""What a test needs of the machine. Without it the test is skipped at a desk, and fails in CI: there it is a mistake
in the set-up which a skip would hide.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

#: Where `make test` unpacks what is not to be installed.
_UNPACKED = Path(__file__).parents[1] / "build/unpacked/usr/bin"
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin",
                         str(_UNPACKED)])


def need_root() -> None:
    if os.geteuid() != 0:
        lacking("needs root")


def need_tool(*names: str) -> str:
    """The path of the first of `names` that is installed."""
    for name in names:
        found = shutil.which(name, path=_PATH)
        if found is not None:
            return found
    return lacking(f"needs {' or '.join(names)}")


def lacking(reason: str) -> NoReturn:
    """For what is neither root nor a tool."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}, and CI has to have it")
    pytest.skip(reason)
