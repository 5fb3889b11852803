"""Where the hierarchies of cgroups are: by the mount table, and by their directories without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from cgroup_trees import cgroups, cpus

from vmpin.host.cgroup import Cgroups, CpusetCgroup, Layout
from vmpin.host.procfs import Procfs

MOUNTS = r"""31 23 0:28 / ROOT rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:30 / ROOT/a\040b rw,relatime shared:9 master:1 - cgroup cgroup rw,cpuset,cpu
34 31 0:31 /docker/x ROOT/bound rw,relatime - cgroup cgroup rw,cpuset
38 31 0:35 / ROOT/sys rw,relatime - cgroup cgroup rw,name=cpuset
39 31 0:36 / ROOT/two rw,relatime - cgroup2 cgroup2 rw
40 31 0:36 / /elsewhere rw,relatime - cgroup2 cgroup2 rw
garbage
"""


def test_the_mount_table_says_where_the_hierarchies_are(tmp_path: Path) -> None:
    found = cgroups(tmp_path, "cg/a b/pods/cpuset.cpus = 1\n", "2:cpuset,cpu:/pods\n0::/\n", MOUNTS)
    assert found.layout is Layout.HYBRID
    assert found.cpuset_of(7) == CpusetCgroup(tmp_path / "cg/a b/pods", cpus("1"), cpus("1"))


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("point", ["dev/cpuset", "cgroup/cpuset"])
def test_a_controller_of_v1_may_be_mounted_elsewhere(tmp_path: Path, point: str, unified: bool) -> None:
    """As Android and old distributions do it; one below the usual directory comes first."""
    mounts = (f"31 23 0:30 / {tmp_path}/{point} rw - cgroup none rw,cpuset,noprefix,release_agent=/sbin/agent\n"
              + "39 31 0:36 / ROOT rw - cgroup2 cgroup2 rw\n" * unified)
    found = cgroups(tmp_path, f"cg/\n{point}/pods/cpus = 2\n", "4:cpuset:/pods\n0::/x\n", mounts)
    assert found.layout is (Layout.HYBRID if unified else Layout.V1)
    assert found.cpuset_of(7) == CpusetCgroup(tmp_path / point / "pods", cpus("2"), cpus("2"))
    found = cgroups(tmp_path, "cg/own/pods/cpuset.cpus = 3\n", "4:cpuset:/pods\n0::/x\n",
                    f"{mounts}40 31 0:30 / ROOT/own rw - cgroup none rw,cpuset\n")
    assert found.cpuset_path(7) == tmp_path / "cg/own/pods"


def test_a_long_mount_table_is_read_to_its_end(tmp_path: Path) -> None:
    others = "".join(f"{n} 23 0:{n} / /var/lib/kubelet/pods/{n} rw - tmpfs tmpfs rw\n" for n in range(100, 5000))
    found = cgroups(tmp_path, "cg/\n", "0::/\n", others + MOUNTS)
    assert found.layout is Layout.HYBRID


@pytest.mark.parametrize(("top", "cgroup", "below"), [
    ("/", "/pods/a", "pods/a"),
    ("/docker/x", "/docker/x", ""),
    ("/docker/x", "/docker/x/pods", "pods"),
    ("/docker/x", "/docker/xy", None),
    ("/docker/x", "/docker", None),
    ("/docker/x", "/docker/x/../y", None),
    # the whole hierarchy, mounted from outside of this process's cgroup namespace
    ("/../..", "/../../pods/a", "pods/a"),
    ("/../..", "/../pods", None),
    ("/../..", "/pods", None),
])
def test_a_mount_of_a_part_shows_that_part(tmp_path: Path, top: str, cgroup: str, below: str | None) -> None:
    found = cgroups(tmp_path, "cg/\n", f"0::{cgroup}\n", f"39 31 0:36 {top} ROOT rw - cgroup2 cgroup2 rw\n")
    assert found.cpuset_path(7) == (None if below is None else tmp_path / "cg" / below)


#: Hierarchies with cpuset: the options of the mount, its directory, and its controllers in /proc/PID/cgroup.
JOINED = [("rw,cpuset", "cpuset", "cpuset"),
          ("rw,cpuset,cpu,cpuacct", "cpu,cpuacct,cpuset", "cpuset,cpu,cpuacct"),
          ("rw,xattr,cpuset,clone_children", "elsewhere", "cpuset"),
          ("rw,cpuset,memory,name=all", "all", "cpuset,memory,name=all"),
          ("rw,cpuset,cpuset_v2_mode,release_agent=/sbin/cpuset_agent", "cpuset", "cpuset")]


@pytest.mark.parametrize(("options", "point", "controllers"), JOINED)
@pytest.mark.parametrize("unified", [True, False])
def test_v1_hierarchies_are_known_by_their_options_whatever_their_directory(
        tmp_path: Path, options: str, point: str, controllers: str, unified: bool) -> None:
    mounts = (f"30 23 0:29 / ROOT/named rw - cgroup cgroup rw,name=cpuset\n"
              f"31 23 0:30 / ROOT/{point} rw,nosuid shared:3 - cgroup none {options}\n"
              + "32 23 0:31 / ROOT/unified rw - cgroup2 cgroup2 rw\n" * unified)
    tree = f"cg/{point}/pods/a/cpuset.cpus = 2-3\ncg/{point}/pods/a/cpuset.effective_cpus = 2\n"
    found = cgroups(tmp_path, tree, f"3:name=cpuset:/pods/b\n2:{controllers}:/pods/a\n0::/x\n", mounts)
    assert found.layout is (Layout.HYBRID if unified else Layout.V1)
    path = tmp_path / "cg" / point / "pods/a"
    assert found.cpuset_of(7) == CpusetCgroup(path, cpus("2-3"), cpus("2"))
    assert found.cpus_file(path) == path / "cpuset.cpus"
    assert found.is_top(tmp_path / "cg" / point)


@pytest.mark.parametrize("listed", [True, False])
def test_v1_with_noprefix_has_files_without_the_controllers_name(tmp_path: Path, listed: bool) -> None:
    tree = "".join(f"cg/cpuset{group}/{file} = {text}\n" for group, text in (("", "0-7"), ("/pods/a", "2-3"))
                   for file in ("cpus", "effective_cpus", "mems"))
    mounts = "31 23 0:30 / ROOT/cpuset rw - cgroup cgroup rw,cpuset,noprefix,cpuset_v2_mode\n" if listed else ""
    found = cgroups(tmp_path, tree, "4:cpuset:/pods/a\n", mounts)
    path = tmp_path / "cg/cpuset/pods/a"
    assert found.cpuset_of(7) == CpusetCgroup(path, cpus("2-3"), cpus("2-3"))
    assert found.cpus_file(path) == path / "cpus"


@pytest.mark.parametrize("prefix", ["cpuset.", ""])
def test_without_a_mount_table_the_root_may_be_a_hierarchy_itself(tmp_path: Path, prefix: str) -> None:
    tree = "".join(f"cg{group}/{prefix}{file} = {text}\n" for group, text in (("", "0-7"), ("/pods/a", "2-3"))
                   for file in ("cpus", "effective_cpus"))
    found = cgroups(tmp_path, f"{tree}cg/cpuacct.usage = 9\ncg/pods/a/cpuacct.usage = 5\n",
                    "1:cpuset,cpuacct:/pods/a\n")
    (tmp_path / "proc/7/cgroup").write_text("1:cpuset,cpuacct:/pods/a\n")
    assert found.cpuset_of(7) == CpusetCgroup(tmp_path / "cg/pods/a", cpus("2-3"), cpus("2-3"))
    assert found.usage_file(7) == f"{tmp_path}/cg/pods/a/cpuacct.usage"
    assert found.is_top(tmp_path / "cg")


def test_the_directory_of_the_mounts_may_be_a_link(tmp_path: Path) -> None:
    cgroups(tmp_path, "cg/cpuset,cpu/pods/cpuset.cpus = 1\n", "2:cpu,cpuset:/pods\n",
            "31 23 0:30 / ROOT/cpuset,cpu rw - cgroup cgroup rw,cpuset,cpu\n")
    (tmp_path / "link").symlink_to(tmp_path / "cg")
    found = Cgroups(tmp_path / "link", Procfs(tmp_path / "proc"))
    assert found.cpuset_path(7) == tmp_path / "cg/cpuset,cpu/pods"
