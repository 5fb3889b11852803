"""Trees like those of real kernels, and the cgroups of the machine the test runs on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cgroup_trees import cgroups, cpus
from need import need_root
from trees import make_tree

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ThreadId, ThreadRole, VmThread
from vmpin.host import affinity
from vmpin.host.cgroup import Cgroups, CpusetCgroup, Layout, usage
from vmpin.host.procfs import Procfs, read_file

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
