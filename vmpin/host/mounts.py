"""The mounts and files of a process that may have mounts of its own."""

from __future__ import annotations

from vmpin.host.files import Files
from vmpin.host.procfs import MountEntry, Procfs


def own_files(proc: Procfs, pid: int | str, files: Files) -> Files:
    """The files as a process sees them: `files`, unless it has mounts of its own, as in a container."""
    own, node = mounts_of(proc, pid), mounts_of(proc, 1)
    return Files(f"{proc.root}/{pid}/root") if own and own != node else files


def mounts_of(proc: Procfs, pid: int | str) -> list[MountEntry]:
    """The mounts of a process; [] if they cannot be read."""
    try:
        return list(proc.mounts(pid))
    except OSError:
        return []
