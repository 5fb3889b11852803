"""Registers the OCI hook with runtimes: a hooks.d directory (podman, CRI-O) or an OCI base spec (containerd).

Decides which files to write and remove (`plan_install`, `plan_remove`), carries that out in an order in which no
registration ever points to nothing, and adds the hook to a spec (`snippet_base_spec`, pure). What stays out: the
hook itself (hooks/vmpin-hook), and the runtimes' own configuration, which is the operator's.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vmpin.errors import UsageError
from vmpin.host.regular import read_regular
from vmpin.install import data_files

STAGES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
#: Kata's runtime-rs never runs createRuntime for the containers of a pod, its Go shim never createContainer.
DEFAULT_STAGES = ("createRuntime", "createContainer", "poststart", "poststop")
SCRIPT = "vmpin-hook"
DEFAULT_SOCKET = Path("/run/vmpin/hook.sock")
DEFAULT_SPOOL = Path("/run/vmpin/spool")
DEFAULT_DEADLINE_MS = 200
#: The runtime's own limit fails the container, so it is far beyond the hook's deadline: it only has to end an
#: interpreter that cannot be started, on a node whose disk hangs.
DEFAULT_TIMEOUT_S = 30

#: Bytes; a registration has some hundred, the script a few thousand.
_MOST = 1 << 20
_MARK = b'"""vmpin-hook: '
_OLDEST = (3, 9)
_MAX_LINKS = 40


@dataclass(frozen=True)
class HookOptions:
    """What the hook is told on its command line, the stages it is registered for, and the runtime's time limit."""

    stages: tuple[str, ...] = DEFAULT_STAGES
    socket: Path = DEFAULT_SOCKET
    spool: Path = DEFAULT_SPOOL
    deadline_ms: int = DEFAULT_DEADLINE_MS
    fail_closed: bool = False
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
        if not 1 <= self.deadline_ms < self.timeout_s * 1000:
            raise UsageError(f"a deadline of {self.deadline_ms} ms is not between 1 ms and the runtime's timeout of "
                             f"{self.timeout_s} s", "the runtime fails the container when its timeout ends the hook")

    def args(self, stage: str) -> list[str]:
        """The hook's argv for `stage`, with only what differs from the hook's own defaults."""
        args = [SCRIPT]
        if self.socket != DEFAULT_SOCKET:
            args += ["--socket", str(self.socket)]
        if self.spool != DEFAULT_SPOOL:
            args += ["--spool", str(self.spool)]
        if self.deadline_ms != DEFAULT_DEADLINE_MS:
            args += ["--deadline", str(self.deadline_ms)]
        if self.fail_closed:
            args += ["--fail-closed"]
        return [*args, stage]


@dataclass(frozen=True)
class WriteFile:
    """Puts `data` at `path`, whole or not at all. What is `executable` is tried before it takes the place.

    A file that is there already keeps its owner, mode and extended attributes (ACLs, labels), and a symbolic link to
    it stays one. A hard link is parted: both cannot be kept whole.
    """

    path: Path
    data: bytes
    executable: bool = False

    def describe(self) -> str:
        return f"write {self.path}"

    def execute(self) -> None:
        with _said(f"write {self.path}"):
            path = _behind_links(self.path)
            tmp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                _write_through(tmp, self.data, 0o755 if self.executable else 0o644)
                _like(tmp, path, 0o555 if self.executable else 0)
                if self.executable:
                    _try_script(tmp)
                tmp.rename(path)
            finally:
                tmp.unlink(missing_ok=True)
            _sync_directory(path.parent)


@dataclass(frozen=True)
class RemoveFile:
    path: Path

    def describe(self) -> str:
        return f"remove {self.path}"

    def execute(self) -> None:
        with _said(f"remove {self.path}"):
            self.path.unlink(missing_ok=True)
            _sync_directory(self.path.parent)


Operation = WriteFile | RemoveFile


def install(hooks_dir: Path, options: HookOptions) -> list[Path]:
    """Put the hook and its registrations into `hooks_dir`; the files written."""
    operations = plan_install(hooks_dir, options)
    execute(operations)
    return [each.path for each in operations if isinstance(each, WriteFile)]


def remove(hooks_dir: Path) -> list[Path]:
    """Take out of `hooks_dir` what install() put there; the files removed."""
    operations = plan_remove(hooks_dir)
    execute(operations)
    return [each.path for each in operations]


def plan_install(hooks_dir: Path, options: HookOptions) -> list[Operation]:
    """What install() will do, in order: the script, then what points to it, then what is no longer wanted.

    :raises UsageError: when a file of that name is not ours.
    """
    script = script_path(hooks_dir)
    operations: list[Operation] = [script_operation(hooks_dir)]
    for stage in options.stages:
        path = registration_path(hooks_dir, stage)
        if path.exists() and not _is_registration(path, script):
            raise _foreign(path)
        operations.append(WriteFile(path, _json(registration(script, stage, options))))
    unwanted = [stage for stage in STAGES if stage not in options.stages]
    return operations + _removals(hooks_dir, script, unwanted)


def plan_remove(hooks_dir: Path) -> list[Operation]:
    """What remove() will do: the registrations first, and the script only when nothing else points to it.

    :raises UsageError: naming the file which another hand has made point to the script, or a directory that cannot be
        read: nobody knows then what is in it.
    """
    script = script_path(hooks_dir)
    ours = _removals(hooks_dir, script, STAGES)
    mine = {each.path for each in ours}
    where = script.parent
    with _said(f"read {where}"):
        found = sorted(where / name for name in os.listdir(where) if name.endswith(".json")) if where.exists() else []
    for path in found:
        if path not in mine and _is_registration(path, script):
            raise UsageError(f"{path} points to {script} and was not written by vmpin",
                             "remove it first: with the hook gone it would stop every container from starting")
    return ours + ([RemoveFile(script)] if _is_script(script) else [])


def execute(operations: Sequence[Operation]) -> None:
    """Carry them out in order.

    :raises UsageError: at the first that cannot be done.
    """
    for operation in operations:
        operation.execute()


def script_operation(hooks_dir: Path) -> WriteFile:
    """Copy the hook. A copy, because a registration that points into a venv which is gone stops every container."""
    path = script_path(hooks_dir)
    if path.exists() and not _is_script(path):
        raise _foreign(path)
    source = data_files.path(f"hooks/{SCRIPT}").read_bytes()
    return WriteFile(path, with_interpreter(source, interpreter()), executable=True)


def script_path(hooks_dir: Path) -> Path:
    return Path(os.path.abspath(hooks_dir)) / SCRIPT


def registration_path(hooks_dir: Path, stage: str) -> Path:
    """Podman and CRI-O run the files of a directory in the order of their names, and read only *.json."""
    return Path(os.path.abspath(hooks_dir)) / f"50-vmpin-{stage}.json"


def registration(script: Path, stage: str, options: HookOptions) -> dict[str, Any]:
    """A hooks.d file, version 1.0.0 (containers/common, pkg/hooks/docs/oci-hooks.5.md)."""
    return {
        "version": "1.0.0",
        "hook": hook_entry(script, stage, options),
        "when": {"always": True},
        "stages": [stage],
    }


def hook_entry(script: Path, stage: str, options: HookOptions) -> dict[str, Any]:
    """One hook as the OCI runtime spec has it."""
    return {"path": str(script), "args": options.args(stage), "timeout": options.timeout_s}


def snippet_base_spec(spec: dict[str, Any], script: Path, options: HookOptions) -> dict[str, Any]:
    """The OCI spec with the hook in it, in place of any earlier registration of the same script.

    :raises UsageError: when `spec` is no OCI spec.
    """
    made = without_hook(spec, script)
    hooks = made.setdefault("hooks", {})
    for stage in options.stages:
        hooks.setdefault(stage, []).append(hook_entry(script, stage, options))
    return made


def without_hook(spec: dict[str, Any], script: Path) -> dict[str, Any]:
    """The OCI spec without the hook; other hooks stay, an empty `hooks` does not.

    Kata's runtime-rs takes even an empty one as a reason to drop the guest's hooks.
    """
    if not isinstance(spec.get("ociVersion"), str):
        raise UsageError("this is no OCI runtime spec: it has no ociVersion", "`ctr oci spec` prints one")
    made = copy.deepcopy(spec)
    hooks = made.pop("hooks", None) or {}
    if not isinstance(hooks, dict) or not all(isinstance(entries or [], list) for entries in hooks.values()):
        raise UsageError("the hooks of this OCI spec are not lists by stage")
    kept = {stage: [entry for entry in entries or [] if not _points_to(entry, script)]
            for stage, entries in hooks.items()}
    kept = {stage: entries for stage, entries in kept.items() if entries}
    if kept:
        made["hooks"] = kept
    return made


def with_interpreter(source: bytes, python: str) -> bytes:
    """The script with `python` in its first line.

    :raises UsageError: when the kernel could not run that line.
    """
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


def _version(python: Path) -> tuple[int, ...]:
    show = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-ISc", show], capture_output=True, timeout=30, check=True)
        return tuple(int(part) for part in done.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


def _try_script(script: Path) -> None:
    """A directory mounted noexec, or an interpreter that does not start, would fail every container."""
    try:
        subprocess.run([script, "--help"], capture_output=True, timeout=30, check=True, env={})
    except (OSError, subprocess.SubprocessError) as err:
        raise UsageError(f"the hook cannot be run from {script.parent}: {err}",
                         "is the directory mounted noexec? nothing was registered") from err


def _removals(hooks_dir: Path, script: Path, stages: Sequence[str]) -> list[Operation]:
    paths = [registration_path(hooks_dir, stage) for stage in stages]
    return [RemoveFile(path) for path in paths if _is_registration(path, script)]


def _is_registration(path: Path, script: Path) -> bool:
    """Whether `path` is a hooks.d file for `script`; one that cannot be read is not."""
    try:
        found = json.loads(read_regular(path, _MOST, follow=True)[0])
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and _points_to(found.get("hook"), script)


def _points_to(entry: object, script: Path) -> bool:
    """By the real path: /var/run and /run are one directory on most nodes."""
    path = entry.get("path") if isinstance(entry, dict) else None
    return (isinstance(path, str) and "\0" not in path and os.path.isabs(path)
            and os.path.realpath(path) == os.path.realpath(script))


def _is_script(path: Path) -> bool:
    try:
        first, _, rest = read_regular(path, _MOST, follow=True)[0].partition(b"\n")
        return first.startswith(b"#!") and rest.startswith(_MARK)
    except OSError:
        return False


def _foreign(path: Path) -> UsageError:
    return UsageError(f"{path} exists and was not written by vmpin", "move it away, or choose another directory")


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _write_through(path: Path, data: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with open(fd, "wb") as file:
        os.fchmod(fd, mode)  # whatever the umask is, the runtime has to run it
        file.write(data)
        file.flush()
        os.fsync(fd)


def _behind_links(path: Path) -> Path:
    """What a path ends in when its last part is a symbolic link, or a link to one.

    :raises UsageError: for a link of another user's: it may lead to any file (fs.protected_symlinks guards open(2) and
        not rename).
    """
    for _ in range(_MAX_LINKS):
        try:
            info = path.lstat()
        except FileNotFoundError:
            return path
        if not stat.S_ISLNK(info.st_mode):
            return path
        if info.st_uid not in (0, os.geteuid()):
            raise UsageError(f"{path} is a symbolic link of uid {info.st_uid}'s", "name the file itself")
        path = path.parent / os.readlink(path)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))


def _like(made: Path, there: Path, bits: int) -> None:
    """Give a new file the owner, mode and extended attributes of the one that it replaces, if there is one.

    :param bits: of the mode, to be set whatever that had.
    """
    try:
        info = there.lstat()
    except FileNotFoundError:
        return
    os.chown(made, info.st_uid, info.st_gid)
    made.chmod(stat.S_IMODE(info.st_mode) | bits)
    with contextlib.suppress(OSError):  # a file system without them
        for name in os.listxattr(there):
            os.setxattr(made, name, os.getxattr(there, name))


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _said(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as err:
        raise UsageError(f"cannot {what}: {err.strerror or err}", "run it as root, on a file system that can be "
                         "written") from err
