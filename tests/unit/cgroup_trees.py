"""Trees of cgroups, and a process in them."""

from __future__ import annotations

from pathlib import Path

from trees import make_tree

from vmpin.cpuset import CpuSet
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def cgroups(tmp_path: Path, tree: str, cgroup: str, mounts: str = "") -> Cgroups:
    """The tree, and a process 7 with a thread 8 that both say `cgroup` of themselves."""
    make_tree(tmp_path, tree)
    for tid in (7, 8):
        path = tmp_path / f"proc/7/task/{tid}/cgroup"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(cgroup)
    if mounts:
        make_tree(tmp_path, "proc/self/mountinfo =\n")
        (tmp_path / "proc/self/mountinfo").write_text(mounts.replace("ROOT", str(tmp_path / "cg")))
    return Cgroups(tmp_path / "cg", Procfs(tmp_path / "proc"))
