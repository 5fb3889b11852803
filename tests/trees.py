"""Recorded /sys, /proc and cgroup trees: a text of lines `path = content` becomes files.

A file ends with a newline, as the kernel's do, and `\\n` in the text stands for one within. Lines that start with
`#` say how the tree was recorded, or where it comes from and under which licence. No content is an empty line; a path
that ends with `/` is a directory; `cpu[0-3,8]/…` stands for the same file of each of these CPUs.
"""

from __future__ import annotations

import re
from pathlib import Path

from vmpin.cpuset import CpuSet

DATA = Path(__file__).parent / "data" / "sysfs"


def recorded() -> list[str]:
    """The names of all recorded /sys trees."""
    return sorted(path.stem for path in DATA.glob("*.tree"))


def make_tree(tmp_path: Path, text_or_name: str) -> Path:
    """Write a tree below `tmp_path`, which it returns; a name is that of a file in tests/data/sysfs."""
    text = text_or_name
    if "\n" not in text and "=" not in text:
        text = (DATA / f"{text}.tree").read_text()
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, _, content = line.partition("=")
        for each in _each(name.strip()):
            path = tmp_path / each
            if each.endswith("/"):
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content.removeprefix(" ").replace("\\n", "\n") + "\n")
    return tmp_path


def stat_line(tid: int, name: str = "x", parent: int = 1, start: int = 100, flags: int = 0x00400000) -> str:
    """The stat file of a thread that sleeps (proc_pid_stat(5))."""
    return f"{tid} ({name}) S {parent} 1 1 0 -1 {flags} {'0 ' * 8}20 0 1 0 {start} {'0 ' * 15}17{' 0' * 6}"


def _each(path: str) -> list[str]:
    """The paths that a path with a list of CPUs in it stands for."""
    if (match := re.fullmatch(r"(.*/cpu)\[([0-9,-]+)\](/.*)", path)) is None:
        return [path]
    return [f"{match[1]}{cpu}{match[3]}" for cpu in CpuSet.parse(match[2])]
