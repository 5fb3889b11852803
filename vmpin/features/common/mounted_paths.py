"""Where the directories of a process with mounts of its own are on the node."""

from __future__ import annotations

from vmpin.host.files import Files
from vmpin.host.mounts import mounts_of
from vmpin.host.procfs import Procfs


def path_on_node(proc: Procfs, pid: int | str, path: str) -> str:
    """The node's path of a directory that a process has at `path`; `path` itself where no mount of the node shows it,
    or the process has the node's mounts."""
    own, node = mounts_of(proc, pid), mounts_of(proc, 1)
    if own == node:
        return path
    path = Files(f"{proc.root}/{pid}/root").real(path)
    above = [mount for mount in own if _below(path, mount.point) is not None]
    # Of several mounts on each other, the last one is visible.
    mount = max(reversed(above), key=lambda mount: len(mount.point), default=None)
    if mount is None:
        return path
    inside = _joined(mount.top, _below(path, mount.point) or "")
    places = [_joined(other.point, below) for other in node
              if other.device == mount.device and (below := _below(inside, other.top)) is not None]
    return min(places, key=len, default=path)


def _below(path: str, top: str) -> str | None:
    """The rest of a path below a directory, "" for the directory itself; None if it is not below."""
    top = top.rstrip("/")
    return path[len(top) + 1:] if f"{path.rstrip('/')}/".startswith(f"{top}/") else None


def _joined(top: str, below: str) -> str:
    return f"{top.rstrip('/')}/{below}".rstrip("/") or "/"
