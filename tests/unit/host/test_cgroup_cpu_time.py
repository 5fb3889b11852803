"""The CPU time of a container, in the hierarchy and the cgroup that count it."""

from __future__ import annotations

from pathlib import Path

import pytest
from cgroup_trees import cgroups

from vmpin.host.cgroup import Cgroups, usage
from vmpin.host.procfs import Procfs


def test_the_cpu_time_of_a_containers_cgroup_is_read_in_both_versions(tmp_path: Path) -> None:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    for pid, text in ((1, "0::/\n"), (7, "0::/pod/box\n"), (8, "4:cpuset:/box\n3:cpu,cpuacct:/pod/box\n0::/x\n"),
                      (9, "3:cpu,cpuacct:/\n"), (10, "0::/../out\n")):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "cgroup").write_text(text)
    for directory in ("pod/box", "cpu,cpuacct/pod/box"):
        (root / directory).mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpu\n")
    (root / "pod/box/cpu.stat").write_text("usage_usec 1234\nuser_usec 1000\n")
    (root / "cpu,cpuacct/pod/box/cpuacct.usage").write_text("99\n")
    cgroups = Cgroups(root, Procfs(proc))
    found = {pid: cgroups.usage_file(pid) for pid in (1, 7, 8, 9, 10, 11)}
    assert found == {1: None, 7: f"{root}/pod/box/cpu.stat", 8: f"{root}/cpu,cpuacct/pod/box/cpuacct.usage",
                     9: None, 10: None, 11: None}
    assert [usage(path) for path in (found[7] or "", found[8] or "", f"{root}/gone")] == [1_234_000, 99, None]


@pytest.mark.parametrize(("options", "point", "controllers"), [
    ("rw,cpuacct,cpu", "cpu,cpuacct", "cpuacct,cpu"),
    ("rw,cpuset,cpu,cpuacct", "cpu,cpuacct,cpuset", "cpuset,cpu,cpuacct"),
    ("rw,cpuacct", "usage", "cpuacct"), ("rw,cpu,cpuacct,name=systemd", "systemd", "cpu,cpuacct,name=systemd")])
def test_the_cpu_time_is_read_in_the_hierarchy_with_that_controller(
        tmp_path: Path, options: str, point: str, controllers: str) -> None:
    found = cgroups(tmp_path, f"cg/{point}/pods/a/cpuacct.usage = 5\nproc/7/cgroup = 4:{controllers}:/pods/a\n", "",
                    f"31 23 0:30 / ROOT/{point} rw - cgroup cgroup {options}\n")
    path = found.usage_file(7)
    assert path == f"{tmp_path}/cg/{point}/pods/a/cpuacct.usage"
    assert usage(path) == 5


@pytest.mark.parametrize("point", ["cpu,cpuacct", "cpuacct,cpu", "cpuset,cpuacct"])
def test_without_a_mount_table_the_hierarchy_is_known_by_its_name_in_any_order(tmp_path: Path, point: str) -> None:
    tree = f"cg/{point}/pods/a/cpuacct.usage = 5\nproc/7/cgroup = 4:cpu,cpuset,cpuacct:/pods/a\n"
    found = cgroups(tmp_path, tree, "")
    assert found.usage_file(7) == f"{tmp_path}/cg/{point}/pods/a/cpuacct.usage"


CONTAINER = "c0ffee" + "0" * 58


@pytest.mark.parametrize(("cgroup", "found"), [
    (f"/kubepods/pod1/{CONTAINER}/init.scope", f"/kubepods/pod1/{CONTAINER}"),
    (f"/kubepods.slice/cri-containerd-{CONTAINER}.scope/system.slice/a.service",
     f"/kubepods.slice/cri-containerd-{CONTAINER}.scope"),
    (f"/kubepods-pod1.slice:cri-containerd:{CONTAINER}/init", f"/kubepods-pod1.slice:cri-containerd:{CONTAINER}"),
    (f"/pod1/crio-{CONTAINER}.scope", f"/pod1/crio-{CONTAINER}.scope"),
    # A runtime within it, whose containers it named like itself.
    (f"/pod1/{CONTAINER}/docker/{CONTAINER}", f"/pod1/{CONTAINER}"),
    (f"/pod1/{CONTAINER}x/init.scope", f"/pod1/{CONTAINER}x/init.scope"),
    (f"/pod1/x{CONTAINER}/init.scope", f"/pod1/x{CONTAINER}/init.scope"), ("/pod1/box", "/pod1/box")])
@pytest.mark.parametrize("unified", [True, False])
def test_the_cpu_time_of_a_container_is_that_of_its_own_cgroup(tmp_path: Path, cgroup: str, found: str,
                                                               unified: bool) -> None:
    """And not of one below it, which systemd and a nested runtime make for their first process."""
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "7").mkdir(parents=True)
    (proc / "7/cgroup").write_text(f"0::{cgroup}\n" if unified else f"3:cpuacct:{cgroup}\n0::/x\n")
    root.mkdir()
    (root / "cgroup.controllers").write_text("cpu\n")
    (root / "cpuacct").mkdir()
    cgroups = Cgroups(root, Procfs(proc))
    top, file = (root, "cpu.stat") if unified else (root / "cpuacct", "cpuacct.usage")
    assert cgroups.usage_file(7, CONTAINER) == f"{top}{found}/{file}"
    assert cgroups.usage_file(7) == f"{top}{cgroup}/{file}"
