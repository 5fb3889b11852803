"""The OCI hook on a node: its options, the installed copy of the script, and its registration, in a hooks.d directory
(podman, CRI-O) or in an OCI runtime spec (containerd's base spec).

A copy of the script, because a registration that points into a venv which is gone stops every container from starting.
For the same reason the operations stand in an order in which no registration ever points to a missing script.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmpin.bounded import load_json
from vmpin.errors import UsageError
from vmpin.features.installer.file_operations import (
    Operation,
    RemoveFile,
    WriteFile,
    failing_as,
    missing_directories,
)
from vmpin.host.files import read_regular
from vmpin.install import data_files

STAGES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
#: The defaults are those of the script (hooks/vmpin-hook): they are left out of its command line.
#: Kata's runtime-rs never runs createRuntime for the containers of a pod, its Go shim never createContainer.
DEFAULT_STAGES = ("createRuntime", "createContainer", "poststart", "poststop")
SCRIPT = "vmpin-hook"
DEFAULT_SOCKET = Path("/run/vmpin/hook.sock")
DEFAULT_SPOOL = Path("/run/vmpin/spool")
DEFAULT_DEADLINE_MS = 200
#: The runtime's own limit fails the container, so it is far beyond the hook's deadline: it only has to end an
#: interpreter that cannot be started, on a node whose disk hangs.
DEFAULT_TIMEOUT_S = 30
#: The longest deadline that the script takes, and the longest path of a socket (linux/un.h: UNIX_PATH_MAX).
_LONGEST_MS, _LONGEST_SOCKET = 10**7 - 1, 107
#: Bytes that are read of a script or registration; a registration has some hundred, the script a few thousand.
MAX_BYTES = 1 << 20

_MARK = b'"""vmpin-hook: '
#: The last line of an installed script, which its removal reads; os.pathsep is between the directories.
_MADE = b"# The installation made these directories: "
_OLDEST = (3, 9)


@dataclass(frozen=True)
class HookOptions:
    """The hook's options, its stages, and the runtime's limit. :raises UsageError: with these no hook could run."""

    stages: tuple[str, ...] = DEFAULT_STAGES
    socket: Path = DEFAULT_SOCKET
    spool: Path = DEFAULT_SPOOL
    #: Milliseconds that the hook waits for the watcher.
    deadline_ms: int = DEFAULT_DEADLINE_MS
    fail_closed: bool = False
    #: Seconds after which the runtime ends the hook and fails the container.
    timeout_s: int = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        unknown = [stage for stage in self.stages if stage not in STAGES]
        if unknown or not self.stages:
            raise UsageError(f"no OCI hook stage: {', '.join(unknown) or 'none given'}",
                             f"the stages are {', '.join(STAGES)}")
        for name, path in ("socket", self.socket), ("spool", self.spool):
            if not path.is_absolute() or not str(path).isprintable():
                raise UsageError(f"the {name} path {str(path)!r} is not absolute and printable",
                                 "the hook runs in the container's bundle directory")
        if len(os.fsencode(self.socket)) > _LONGEST_SOCKET:
            raise UsageError(f"the socket path has {len(os.fsencode(self.socket))} bytes, and a socket's at most "
                             f"{_LONGEST_SOCKET}", "choose a shorter one, also as paths.run")
        if self.deadline_ms > _LONGEST_MS:
            raise UsageError(f"a deadline of {self.deadline_ms} ms is longer than the hook's {_LONGEST_MS} ms",
                             "a container waits for it at each stage")
        if not 1 <= self.deadline_ms < self.timeout_s * 1000:
            raise UsageError(f"a deadline of {self.deadline_ms} ms is not between 1 ms and the runtime's timeout of "
                             f"{self.timeout_s} s", "the runtime fails the container when its timeout ends the hook")

    def args(self, stage: str) -> list[str]:
        """The hook's argv for `stage`, with only the options that differ from the script's own defaults."""
        args = [SCRIPT]
        for name, value, default in (("--socket", self.socket, DEFAULT_SOCKET), ("--spool", self.spool, DEFAULT_SPOOL),
                                     ("--deadline", self.deadline_ms, DEFAULT_DEADLINE_MS)):
            if value != default:
                args += [name, str(value)]
        if self.fail_closed:
            args += ["--fail-closed"]
        return [*args, stage]

    def entry(self, script: Path, stage: str) -> dict[str, Any]:
        """One hook as a JSON object of the OCI runtime spec (config.md, "POSIX-platform Hooks")."""
        return {"path": str(script), "args": self.args(stage), "timeout": self.timeout_s}


def script_path(hooks_dir: Path) -> Path:
    """Return the absolute path of the script's copy in `hooks_dir`."""
    return Path(os.path.abspath(hooks_dir)) / SCRIPT


def script_operation(hooks_dir: Path) -> WriteFile:
    """The operation that copies the hook. :raises UsageError: when another file has its name."""
    path = script_path(hooks_dir)
    if path.exists() and not is_script(path):
        raise foreign_file(path)
    source = data_files.path(f"hooks/{SCRIPT}").read_bytes()
    made = made_directories(path) or missing_directories(path)
    note = _MADE + os.fsencode(os.pathsep.join(map(str, made))) + b"\n" if made else b""
    return WriteFile(path, with_interpreter(source, interpreter()) + note, executable=True)


def made_directories(script: Path) -> list[Path]:
    """The directories that were made for this copy of the hook, the deepest first."""
    try:
        last = read_regular(script, MAX_BYTES, follow=True)[0].rstrip(b"\n").rpartition(b"\n")[2]
    except OSError:
        return []
    listed = os.fsdecode(last.removeprefix(_MADE)) if last.startswith(_MADE) else ""
    # An interrupted removal has moved the script up (RemoveFile).
    return [path for path in map(Path, listed.split(os.pathsep) if listed else ())
            if path in script.parents or script.parent in path.parents]


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


def plan_install(hooks_dir: Path, options: HookOptions) -> list[Operation]:
    """The operations that register the hook, in order: the script, its registrations, the removal of other stages'.
    :raises UsageError: when another file has one of the names."""
    script = script_path(hooks_dir)
    operations: list[Operation] = [script_operation(hooks_dir)]
    for stage in options.stages:
        path = registration_path(hooks_dir, stage)
        if path.exists() and not _is_registration(path, script):
            raise foreign_file(path)
        text = json.dumps(registration(script, stage, options), indent=2) + "\n"
        operations.append(WriteFile(path, text.encode()))
    return operations + _removals(hooks_dir, script, [stage for stage in STAGES if stage not in options.stages])


def plan_remove(hooks_dir: Path) -> list[Operation]:
    """The operations that undo `plan_install`, in order: the registrations, then the script.
    :raises UsageError: naming a registration of the script that vmpin did not write, or a directory that cannot be
        read: it may hold such a registration."""
    script = script_path(hooks_dir)
    removals, directory = _removals(hooks_dir, script, STAGES), script.parent
    removed = {operation.path for operation in removals}
    with failing_as(f"read {directory}"):
        names = sorted(os.listdir(directory)) if directory.exists() else []
    for path in (directory / name for name in names if name.endswith(".json")):
        if path not in removed and _is_registration(path, script):
            raise UsageError(f"{path} points to {script} and was not written by vmpin",
                             "remove it first: with the hook gone it would stop every container from starting")
    return removals + ([RemoveFile(script)] if is_script(script) else [])


def plan_leave(hooks_dir: Path) -> list[Operation]:
    """The operations of plan_remove() and the removal of the directories that were made for the hook. An interrupted
    removal is completed: the script may then be in a directory above. :raises UsageError: as plan_remove()."""
    script = script_path(hooks_dir)
    above = (parent / SCRIPT for parent in script.parent.parents)
    moved = next((path for path in above if script.parent in made_directories(path) and is_script(path)), None)
    removals = plan_remove(hooks_dir)
    if is_script(script):
        return [*removals[:-1], RemoveFile(script, tuple(made_directories(script)))]
    return [*removals, *([RemoveFile(moved, tuple(made_directories(moved)))] if moved else [])]


def registration_path(hooks_dir: Path, stage: str) -> Path:
    """The path of a stage's registration: podman and CRI-O read *.json alone, in the order of the names."""
    return Path(os.path.abspath(hooks_dir)) / f"50-vmpin-{stage}.json"


def registration(script: Path, stage: str, options: HookOptions) -> dict[str, Any]:
    """A hooks.d file, version 1.0.0 (containers/common, pkg/hooks/docs/oci-hooks.5.md)."""
    return {"version": "1.0.0", "hook": options.entry(script, stage), "when": {"always": True}, "stages": [stage]}


def _removals(hooks_dir: Path, script: Path, stages: Sequence[str]) -> list[Operation]:
    paths = [registration_path(hooks_dir, stage) for stage in stages]
    return [RemoveFile(path) for path in paths if _is_registration(path, script)]


def _is_registration(path: Path, script: Path) -> bool:
    """Whether `path` is a hooks.d file for `script`; False for a file that cannot be read."""
    try:
        registration = load_json(read_regular(path, MAX_BYTES, follow=True)[0])
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(registration, dict) and points_to(registration.get("hook"), script)


def with_hook(spec: dict[str, Any], script: Path, options: HookOptions) -> dict[str, Any]:
    """A copy of the OCI spec with the hook, in place of any earlier registration of the same script.
    :raises UsageError: when `spec` is no OCI spec."""
    copied = without_hook(spec, script)
    hooks = copied.setdefault("hooks", {})
    for stage in options.stages:
        hooks.setdefault(stage, []).append(options.entry(script, stage))
    return copied


def without_hook(spec: dict[str, Any], script: Path) -> dict[str, Any]:
    """A copy of the OCI spec without the hook; other hooks stay, an empty `hooks` does not. Kata's runtime-rs takes
    even an empty one as a reason to drop the guest's hooks. :raises UsageError: when `spec` is no OCI spec."""
    if not isinstance(spec.get("ociVersion"), str):
        raise UsageError("this is not an OCI runtime spec: it has no ociVersion", "`ctr oci spec` prints one")
    copied = copy.deepcopy(spec)
    hooks = copied.pop("hooks", None) or {}
    if not isinstance(hooks, dict) or not all(isinstance(entries or [], list) for entries in hooks.values()):
        raise UsageError("the hooks of this OCI spec are not lists by stage")
    other = {stage: [entry for entry in entries or [] if not points_to(entry, script)]
             for stage, entries in hooks.items()}
    if kept := {stage: entries for stage, entries in other.items() if entries}:
        copied["hooks"] = kept
    return copied
