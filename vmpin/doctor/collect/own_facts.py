"""vmpin's own files on the node: the run directory, its lock, its spool, its state file.

Reads only."""

from __future__ import annotations

import os
import re
import stat
import time
from pathlib import Path

from vmpin.config.settings import Config
from vmpin.domain.facts import RunDirectoryFacts
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
        found = [entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(path)
                 if entry.name.endswith(".hook") and not entry.name.startswith(".")]
    except OSError:
        return 0, 0.0
    return len(found), max(0.0, time.time() - min(found)) if found else 0.0


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
    """Pid of the process that holds the watcher's lock, from the kernel's list of locks; None if it is free.

    Trying to lock would be simpler, but would make a watcher fail that starts at that moment."""
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
    found = _UNIT.search(os.fsdecode(raw))
    return "" if found is None else found[1]
