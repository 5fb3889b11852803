"""Trees like those of real kernels, and the cgroups of the machine the test runs on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from need import need_root
from trees import make_tree

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ThreadId, ThreadRole, VmThread
from vmpin.host import affinity
from vmpin.host.cgroup import Cgroups, CpusetCgroup, Layout, usage
from vmpin.host.procfs import Procfs, read_file


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


#: Linux 6.12, 8 CPUs: cpuset is passed on to pods and pods/a, not below them, and to plain without any CPUs set.
V2 = """
cg/cgroup.controllers = cpuset cpu io memory hugetlb pids rdma misc
cg/cpuset.cpus.effective = 0-7
cg/cpuset.cpus.isolated =
cg/plain/cpuset.cpus =
cg/plain/cpuset.cpus.effective = 0-7
cg/plain/deep/cgroup.controllers =
cg/pods/cpuset.cpus = 0-5
cg/pods/cpuset.cpus.effective = 0-5
cg/pods/a/cpuset.cpus = 2-3
cg/pods/a/cpuset.cpus.effective = 2-3
cg/pods/a/leaf/deeper/cgroup.controllers =
cg/pods/b/cpuset.cpus = 4-7
cg/pods/b/cpuset.cpus.effective = 4-5
cg/pods/c/cpuset.cpus = 7
cg/pods/c/cpuset.cpus.effective = 0-5
"""

#: Linux 6.18 with the controllers in v1 and an empty v2 hierarchy besides.
HYBRID = """
cg/cpuset/cpuset.cpus = 0-7
cg/cpuset/cpuset.effective_cpus = 0-7
cg/cpuset/kubepods/cpuset.cpus = 2-5
cg/cpuset/kubepods/cpuset.effective_cpus = 2-4
cg/cpuset/kubepods/new/cpuset.cpus =
cg/cpuset/kubepods/new/cpuset.effective_cpus =
cg/cpuset/kubepods/old/cpuset.cpus = 3
cg/memory/memory.limit_in_bytes = 1
cg/unified/cgroup.controllers =
"""


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


@pytest.mark.parametrize(("cgroup", "configured", "effective"), [
    ("/", None, "0-7"),
    ("/plain", None, "0-7"),
    ("/plain/deep", None, "0-7"),
    ("/pods", "0-5", "0-5"),
    ("/pods/a", "2-3", "2-3"),
    ("/pods/a/leaf", None, "2-3"),
    ("/pods/a/leaf/deeper", None, "2-3"),
    ("/pods/b", "4-7", "4-5"),
    ("/pods/c", "7", "0-5"),
])
def test_v2_takes_the_effective_cpus_of_the_nearest_that_has_them(
        tmp_path: Path, cgroup: str, configured: str | None, effective: str) -> None:
    found = cgroups(tmp_path, V2, f"0::{cgroup}\n")
    assert found.layout is Layout.V2
    path = tmp_path / f"cg{cgroup}"
    expected = CpusetCgroup(path, None if configured is None else cpus(configured), cpus(effective))
    assert found.cpuset_of(7) == found.cpuset_of(7, 8) == expected
    assert found.cpuset_path(7) == path


@pytest.mark.parametrize(("cgroup", "configured", "effective"), [
    ("/", "0-7", "0-7"),
    ("/kubepods", "2-5", "2-4"),
    ("/kubepods/new", None, ""),
    ("/kubepods/old", "3", "3"),
])
@pytest.mark.parametrize("controllers", ["cpuset", "cpu,cpuset", "cpuset,cpuacct"])
def test_hybrid_asks_v1_where_the_controller_is(
        tmp_path: Path, cgroup: str, configured: str | None, effective: str, controllers: str) -> None:
    found = cgroups(tmp_path, HYBRID, f"9:name=systemd:/x\n4:memory:/y\n3:{controllers}:{cgroup}\n1:cpu:/z\n0::/\n")
    assert found.layout is Layout.HYBRID
    assert found.cpuset_of(7) == CpusetCgroup(
        tmp_path / f"cg/cpuset{cgroup}", None if configured is None else cpus(configured), cpus(effective))


def test_v1_alone_is_a_layout_too(tmp_path: Path) -> None:
    found = cgroups(tmp_path, HYBRID.replace("unified/", "other/x/"), "3:cpuset:/kubepods\n")
    assert found.layout is Layout.V1
    assert found.cpuset_path(7) == tmp_path / "cg/cpuset/kubepods"


def test_a_thread_may_have_a_cgroup_of_its_own(tmp_path: Path) -> None:
    found = cgroups(tmp_path, V2, "0::/pods\n")
    (tmp_path / "proc/7/task/8/cgroup").write_text("0::/pods/a\n")
    assert found.cpuset_path(7) == tmp_path / "cg/pods"
    assert found.cpuset_path(7, 8) == tmp_path / "cg/pods/a"


def test_what_has_vanished_is_none(tmp_path: Path) -> None:
    found = cgroups(tmp_path, V2, "0::/pods/removed\n")
    assert found.cpuset_of(7) is None  # the cgroup; not its parent's CPUs
    assert found.cpuset_of(9) is None  # the process
    assert found.cpuset_path(7, 9) is None  # the thread
    hybrid = cgroups(tmp_path / "hybrid", HYBRID, "3:cpuset:/removed\n0::/\n")
    assert hybrid.cpuset_of(7) is None


def test_a_removed_cgroup_that_a_zombie_is_still_in_is_none(tmp_path: Path) -> None:
    assert cgroups(tmp_path, V2, "0::/pods/x (deleted)\n").cpuset_of(7) is None


@pytest.mark.parametrize("text", [
    "0::/../../pods\n", "0::/..\n", "0::/pods/../..\n", "0::/pods/./a\n", "0::pods\n", "0::\n", "0:\n", "0", "", "\n",
    "::/pods\n", "1:memory:/pods\n", "x:name=cpuset:/pods\n", "\xff\xfe\0\n", "0::/a\0b\n",
])
def test_a_cgroup_out_of_sight_or_not_understood_is_none(tmp_path: Path, text: str) -> None:
    found = cgroups(tmp_path, V2, text)
    assert found.cpuset_path(7) is None
    assert found.cpuset_of(7) is None


@pytest.mark.parametrize("name", ["a:b", "kubepods-pod1.slice:cri-containerd:abc", "with space", "q\\x2dr", "ü"])
def test_a_cgroups_name_may_hold_nearly_anything(tmp_path: Path, name: str) -> None:
    found = cgroups(tmp_path, V2 + f"cg/{name}/cpuset.cpus.effective = 5\n", f"0::/{name}\n")
    shown = found.cpuset_of(7)
    assert shown is not None
    assert shown.effective == cpus("5")


@pytest.mark.parametrize("separator", ["\v", "\f", "\x1c", "\x85", "\u2028", "\r"])
def test_a_cgroups_name_cannot_forge_a_line(tmp_path: Path, separator: str) -> None:
    found = cgroups(tmp_path, V2, f"0::/evil{separator}1:cpuset:/pods{separator}0::/pods\n")
    assert found.cpuset_of(7) is None


def test_a_container_that_nests_its_cgroups_keeps_its_own(tmp_path: Path) -> None:
    """It may do so to a path that no file can have, and each level would be looked into."""
    deep = "/d" * 2025
    found = cgroups(tmp_path, V2.replace("pods/a", "pods/b/c1"), f"0::/pods/b/c1{deep}\n")
    path = tmp_path / f"cg/pods/b/c1{deep[:2 * 61]}"
    path.mkdir(parents=True)
    assert found.cpuset_path(7) == path
    assert found.cpuset_of(7) == CpusetCgroup(path, None, cpus("2-3"))
    assert found.container_cpuset(7, "c1") == CpusetCgroup(tmp_path / "cg/pods/b/c1", cpus("2-3"), cpus("2-3"))


def test_a_cgroup_whose_path_no_file_can_have_is_none(tmp_path: Path) -> None:
    found = cgroups(tmp_path, V2, f"0::/pods/{'/'.join(['d' * 255] * 16)}\n")
    assert found.cpuset_of(7) is None
    # Linux 6.1 refuses to show it at all.
    assert Cgroups(tmp_path / "cg", Procfs(tmp_path / ("p" * 256))).cpuset_of(7) is None


@pytest.mark.parametrize("garbage", ["0-", "max", "(null)", "0-99999", "\xff"])
@pytest.mark.parametrize("file", ["cpuset.cpus", "cpuset.cpus.effective"])
def test_garbage_in_a_cgroup_is_none(tmp_path: Path, file: str, garbage: str) -> None:
    assert cgroups(tmp_path, V2 + f"cg/pods/a/{file} = {garbage}\n", "0::/pods/a\n").cpuset_of(7) is None
    hybrid = HYBRID + f"cg/cpuset/kubepods/{file.replace('cpus.effective', 'effective_cpus')} = {garbage}\n"
    assert cgroups(tmp_path / "hybrid", hybrid, "3:cpuset:/kubepods\n").cpuset_of(7) is None


def test_without_a_cpuset_controller_there_is_no_cpuset(tmp_path: Path) -> None:
    tree = "cg/cgroup.controllers = memory pids\ncg/pods/cgroup.controllers =\n"
    # An ancestor of the mount is none of the cgroup's ancestors.
    make_tree(tmp_path, "cpuset.cpus.effective = 0-7\n")
    found = cgroups(tmp_path, tree, "0::/pods\n")
    assert found.cpuset_path(7) == tmp_path / "cg/pods"
    assert found.cpuset_of(7) is None


def test_a_machine_without_cgroups_has_none(tmp_path: Path) -> None:
    found = cgroups(tmp_path, "cg/\n", "0::/\n")
    assert found.layout is Layout.NONE
    assert found.cpuset_of(7) is None
    assert Cgroups(tmp_path / "missing", Procfs(tmp_path / "proc")).layout is Layout.NONE


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


def test_this_processs_mask_is_within_its_cpuset() -> None:
    found = Cgroups()
    own = found.cpuset_of(os.getpid())
    if own is None:
        pytest.skip(f"cgroup layout {found.layout}: this process's cpuset cgroup is not to be seen")
    assert os.sched_getaffinity(0) <= own.effective.frozen()
    assert found.cpuset_of(os.getpid(), os.getpid()) == own


@pytest.fixture
def sleeper() -> Iterator[VmThread]:
    with subprocess.Popen(["sleep", "600"]) as process:
        stat = Procfs().stat(process.pid)
        assert stat is not None
        yield VmThread(ThreadId(process.pid, stat.starttime), ThreadRole.EMULATOR, stat.comm, process.pid)
        process.send_signal(signal.SIGKILL)


@pytest.fixture
def group() -> Iterator[Path]:
    """A cpuset cgroup of this machine, made and removed."""
    need_root()
    layout = Cgroups().layout
    if layout is Layout.NONE:
        pytest.skip("no cgroups here")
    top = Path("/sys/fs/cgroup") if layout is Layout.V2 else Path("/sys/fs/cgroup/cpuset")
    if layout is Layout.V2:
        if "cpuset" not in (top / "cgroup.controllers").read_text().split():
            pytest.skip("the cpuset controller is not in this hierarchy")
        (top / "cgroup.subtree_control").write_text("+cpuset")
    made = top / f"vmpin-test-{os.getpid()}"
    made.mkdir()
    yield made
    for _ in range(6000):
        try:
            made.rmdir()
            return
        except OSError:  # EBUSY until the last process in it is reaped
            time.sleep(0.02)
    made.rmdir()


@pytest.mark.root
def test_a_real_cgroup_is_followed_and_trims_what_is_pinned(group: Path, sleeper: VmThread) -> None:
    every = CpuSet(os.sched_getaffinity(0))
    if len(every) < 2:
        pytest.skip("needs two CPUs")
    one = CpuSet((every.first,))
    (group / "cpuset.mems").write_text("0")
    (group / "cpuset.cpus").write_text(str(one))
    (group / "cgroup.procs").write_text(str(sleeper.pid))
    try:
        assert Cgroups().cpuset_of(sleeper.pid) == CpusetCgroup(group, one, one)
        assert affinity.pin_threads(Procfs(), [(sleeper, every)]) == [one]
        (group / "cpuset.cpus").write_text(str(every))
        assert Cgroups().cpuset_of(sleeper.pid, sleeper.pid) == CpusetCgroup(group, every, every)
    finally:
        os.kill(sleeper.pid, signal.SIGKILL)


@pytest.mark.root
def test_a_file_of_a_cgroup_that_was_removed_since_it_was_opened_is_gone(group: Path) -> None:
    file = next(path for path in (group / "cpu.stat", group / "cpuacct.usage", group / "cpuset.cpus") if path.exists())
    opened = os.open(file, os.O_RDONLY)
    try:
        group.rmdir()
        with pytest.raises(OSError, match="No such device"):
            os.read(opened, 1)
        assert read_file(f"/proc/self/fd/{opened}") is None
        assert usage(f"/proc/self/fd/{opened}") is None
    finally:
        os.close(opened)
        group.mkdir()


# CPU time


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
