"""What a test needs of the machine. Without it the test is skipped at a desk, and fails in CI: there it is a mistake
in the set-up which a skip would hide.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
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


def need_unshare(*flags: str) -> list[str]:
    """`unshare` with these flags, for a command to follow. It cannot make every namespace everywhere: no mounts in a
    chroot (its / is no mount point, whose propagation could be set), none at all in most containers."""
    made = [need_tool("unshare"), *flags]
    refused = _refused(*made)
    return lacking(f"needs {' '.join(made)}: {refused}") if refused else made


@cache
def _refused(*command: str) -> str:
    """Why a command fails before another one; "" if it does not."""
    tried = subprocess.run([*command, "true"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else tried.stderr.strip() or f"exit code {tried.returncode}"


def need_reaper() -> None:
    """A process 1 that waits for orphans. In a pid namespace of its own Python may be that: it waits for its own
    children alone, and a container's first process that has ended stays there as a zombie."""
    if Path("/proc/1/comm").read_text().startswith(("python", "pytest")):
        lacking("needs a process 1 that waits for orphans: here it is Python")


def need_machines_pids() -> None:
    """The machine's own pid namespace (include/linux/proc_ns.h: PROC_PID_INIT_INO): elsewhere the kernel reports no
    process events, and the doctor finds fault with that."""
    if os.stat("/proc/self/ns/pid").st_ino != 0xEFFFFFFC:
        lacking("needs the machine's own pid namespace")


def lacking(reason: str) -> NoReturn:
    """For what is neither root nor a tool."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}, and CI has to have it")
    pytest.skip(reason)
