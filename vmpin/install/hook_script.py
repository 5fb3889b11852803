"""The installed copy of the hook: its path, its first line, and whether a file or a registration is that copy's.

A copy, because a registration that points into a venv which is gone stops every container from starting."""

import os
import re
import subprocess
import sys
from pathlib import Path

from vmpin.errors import UsageError
from vmpin.host.files import read_regular
from vmpin.install import data_files
from vmpin.install.file_operations import WriteFile
from vmpin.install.hook_options import SCRIPT

#: Bytes that are read of a script or registration; a registration has some hundred, the script a few thousand.
MAX_BYTES = 1 << 20

_MARK = b'"""vmpin-hook: '
_OLDEST = (3, 9)


def script_path(hooks_dir: Path) -> Path:
    """Return the absolute path of the script's copy in `hooks_dir`."""
    return Path(os.path.abspath(hooks_dir)) / SCRIPT


def script_operation(hooks_dir: Path, python: str | None = None) -> WriteFile:
    """The operation that copies the hook. :param python: the interpreter to run it with; None for `interpreter()`.
    :raises UsageError: when another file has its name."""
    path = script_path(hooks_dir)
    if path.exists() and not is_script(path):
        raise foreign_file(path)
    source = data_files.path(f"hooks/{SCRIPT}").read_bytes()
    return WriteFile(path, with_interpreter(source, python or interpreter()), executable=True)


def with_interpreter(source: bytes, python: str) -> bytes:
    """The script with `python` in its first line. :raises UsageError: when the kernel could not run that line."""
    line = f"#!{python} -IS\n"
    # binfmt_script splits at the first blank and reads 256 bytes (BINPRM_BUF_SIZE).
    if not python.startswith("/") or re.search(r"\s", python) or len(os.fsencode(line)) > 255:
        raise UsageError(f"the interpreter {python!r} cannot stand in a script's first line",
                         "install Python 3.9 or newer as /usr/bin/python3")
    first, _, rest = source.partition(b"\n")
    if not first.startswith(b"#!"):
        raise UsageError("the hook script of this installation is damaged", "install vmpin again")
    return os.fsencode(line) + rest


def interpreter(system: Path = Path("/usr/bin/python3")) -> str:
    """The system's Python where it is new enough: it stays when a venv goes. Else the one this venv was made from."""
    if _version(system) >= _OLDEST:
        return str(system)
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def is_script(path: Path) -> bool:
    """Whether `path` is a copy of the hook; False for a file that cannot be read."""
    try:
        first, _, rest = read_regular(path, MAX_BYTES, follow=True)[0].partition(b"\n")
        return first.startswith(b"#!") and rest.startswith(_MARK)
    except OSError:
        return False


def points_to(entry: object, script: Path) -> bool:
    """Whether a hook entry of the OCI spec runs `script`, by the real path: /var/run mostly leads to /run."""
    path = entry.get("path") if isinstance(entry, dict) else None
    return (isinstance(path, str) and "\0" not in path and os.path.isabs(path)
            and os.path.realpath(path) == os.path.realpath(script))


def foreign_file(path: Path) -> UsageError:
    """The error for a file that is in the way."""
    return UsageError(f"{path} exists and was not written by vmpin", "move it away, or choose another directory")


def _version(python: Path) -> tuple[int, ...]:
    """Major and minor version; () for an interpreter that does not run."""
    try:
        done = subprocess.run([python, "-ISc", "import sys; print(*sys.version_info[:2])"], capture_output=True,
                              timeout=30, check=True)
        return tuple(int(part) for part in done.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()
