"""vmpin's own files on the node: the run directory with its lock, spool and state file, and the registrations of the
OCI hook, in hook directories (podman, CRI-O) and in base specs (containerd).

Reads only."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from vmpin.bounded import load_json
from vmpin.config.settings import Config
from vmpin.domain.facts import Engine, Hook, RunDirectoryFacts
from vmpin.errors import SourceError
from vmpin.host.files import Files
from vmpin.host.procfs import Procfs, read_file
from vmpin.reconcile import state_file

_UNIT = re.compile(r"([A-Za-z0-9:_.@\\-]+\.service)$", re.MULTILINE)


def run_directory(config: Config, proc: Procfs) -> RunDirectoryFacts:
    """The run directory now. Write access is tested without writing."""
    path = config.paths.run
    try:
        info = path.lstat()
        space = os.statvfs(path)
    except OSError:
        return RunDirectoryFacts(str(path))
    spooled, oldest = _spool(config.paths.spool)
    readable = os.access(config.paths.state_file, os.R_OK)
    try:
        size = config.paths.state_file.lstat().st_size
    except OSError:
        size = None
    trouble = ("" if size is None or not readable else
               state_file.load(config.paths.state_file, proc.boot_id(), set_aside=False)[1])
    return RunDirectoryFacts(
        str(path), exists=True, uid=info.st_uid, mode=stat.S_IMODE(info.st_mode), file_system=_file_system(path),
        read_only=bool(space.f_flag & os.ST_RDONLY), writable=os.access(path, os.W_OK | os.X_OK),
        free=space.f_bavail * space.f_frsize, inodes=space.f_favail, spooled=spooled, oldest=oldest,
        set_aside=os.path.exists(path / f"{config.paths.state_file.name}.bad"), state_size=size,
        state_read=readable, state_trouble=trouble)


def _spool(path: Path) -> tuple[int, float]:
    """The number of waiting messages, and the age of the oldest (seconds)."""
    try:
        times = [entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(path)
                 if entry.name.endswith(".hook") and not entry.name.startswith(".")]
    except OSError:
        return 0, 0.0
    return len(times), max(0.0, time.time() - min(times)) if times else 0.0


def _file_system(path: Path) -> str:
    """The type of the file system at a path, for example `tmpfs`."""
    import psutil

    try:
        mounts = [mount for mount in psutil.disk_partitions(all=True)
                  if f"{os.path.realpath(path)}/".startswith(f"{mount.mountpoint.rstrip('/')}/")]
    except OSError:
        mounts = []
    kind: str = max(reversed(mounts), key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""
    return kind or "unknown file system"


def lock_holder(config: Config, proc: Procfs) -> int | None:
    """Pid of the process that holds the watcher's lock, from the kernel's list of locks; None if it is free. (To try
    the lock would make a watcher fail that starts at that moment.)"""
    try:
        info = config.paths.lock_file.stat()
        table = Path(f"{proc.root}/locks").read_text("ascii", "replace")
    except OSError:
        return None
    file = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    for line in table.splitlines():
        fields = line.split()  # 1: FLOCK ADVISORY WRITE 1234 00:17:5678 0 EOF
        if "FLOCK" in fields and fields[-3] == file:
            return int(fields[-4])
    return None


def unit(proc: Procfs, pid: int) -> str:
    """The systemd service of a process, "" for none."""
    raw = read_file(f"{proc.root}/{pid}/cgroup") or b""
    match = _UNIT.search(os.fsdecode(raw))
    return "" if match is None else match[1]


_SCRIPT = "vmpin-hook"
_SOCKET = "/run/vmpin/hook.sock"
#: Directories that are read even if no runtime names them.
USUAL = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d", "/run/containers/oci/hooks.d")


def hooks(files: Files, engines: Sequence[Engine]) -> tuple[Hook, ...]:
    """The registrations, one for each file."""
    #: By real directory (/var/run and /run are the same on most nodes): its first name and its readers.
    places: dict[str, tuple[str, list[str]]] = {files.real(place): (place, []) for place in USUAL}
    for engine in engines:
        for place in engine.hooks_dirs:
            places.setdefault(files.real(place), (place, []))[1].append(engine.name)
    found: list[Hook] = []
    for place, readers in places.values():
        for name in files.names(place):
            if name.endswith(".json"):
                found += _in_file(files, f"{place}/{name}", tuple(dict.fromkeys(readers)))
    specs: dict[str, list[str]] = {}
    for engine in engines:
        for handler in engine.handlers:
            if handler.base_spec:
                specs.setdefault(handler.base_spec, []).append(f"{engine.name} handler {handler.name}")
    for path, names in specs.items():
        found += _in_spec(files, path, tuple(names))
    return tuple(found)


def _in_file(files: Files, path: str, readers: tuple[str, ...]) -> Iterator[Hook]:
    document = _json(files, path)
    if isinstance(document, dict) and _ours(document.get("hook")):
        stages = document.get("stages")
        yield _hook(files, path, [(str(stage), document["hook"]) for stage in
                                  (stages if isinstance(stages, list) else [])], readers)


def _in_spec(files: Files, path: str, readers: tuple[str, ...]) -> Iterator[Hook]:
    document = _json(files, path)
    stages = document.get("hooks") if isinstance(document, dict) else None
    entries = [(stage, entry) for stage, listed in (stages.items() if isinstance(stages, dict) else ())
               for entry in (listed if isinstance(listed, list) else ()) if _ours(entry)]
    if entries:
        yield _hook(files, path, entries, readers)


def _json(files: Files, path: str) -> object:
    try:
        return load_json(files.read(path) or b"null")
    except (SourceError, ValueError, RecursionError):
        return None


def _ours(entry: object) -> bool:
    path = entry.get("path") if isinstance(entry, dict) else None
    return isinstance(path, str) and path.rpartition("/")[2] == _SCRIPT


def _hook(files: Files, path: str, entries: Sequence[tuple[str, dict[str, object]]], readers: tuple[str, ...]) -> Hook:
    script = str(entries[0][1]["path"]) if entries else ""
    args = entries[0][1].get("args") if entries else []
    argv = [str(arg) for arg in args] if isinstance(args, list) else []
    socket = argv[argv.index("--socket") + 1] if "--socket" in argv[:-1] else _SOCKET
    return Hook(path, tuple(stage for stage, _ in entries), script, socket, "--fail-closed" in argv,
                _broken(files, script), readers)


def _broken(files: Files, script: str) -> str:
    """Why a runtime could not run the script, "" if it could."""
    try:
        raw = files.read(script)
    except SourceError as err:
        return err.why
    if raw is None:
        return "is not there"
    if not os.stat(files.host(script)).st_mode & 0o111:
        return "is not executable"
    line = raw.partition(b"\n")[0][:256]
    interpreter = os.fsdecode((line[2:].split() or [b""])[0]) if line.startswith(b"#!") else ""
    if interpreter and not files.exists(interpreter):
        return f"its interpreter {interpreter} is not there"
    return ""
