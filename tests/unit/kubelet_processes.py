"""A /proc with a few processes, for whoever looks for a kubelet in it."""

from __future__ import annotations

from pathlib import Path

from vmpin.host.procfs import Procfs


def proc_tree(path: Path) -> Procfs:
    """A node with an init of its own, below `path`; what is there already stays."""
    if not (path / "1").exists():
        process(path, 1, "/sbin/init")
        (path / "self").symlink_to("1")
    return Procfs(path)


def process(path: Path, pid: int, command: str, starttime: int = 100, namespace: str = "pid:[1]",
            state: str = "S") -> None:
    """A process with this command line; of a number that is there already, another one."""
    directory = path / str(pid)
    (directory / "ns").mkdir(parents=True, exist_ok=True)
    (directory / "cmdline").write_bytes(b"\0".join(word.encode() for word in command.split("|")) + b"\0")
    fields = [state, "1", *["0"] * 17, str(starttime), *["0"] * 20]
    (directory / "stat").write_text(f"{pid} (x) {' '.join(fields)}\n")
    link = directory / "ns/pid"
    link.unlink(missing_ok=True)
    link.symlink_to(namespace)
