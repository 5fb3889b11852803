"""Which cgroups' files the watcher watches, and what is read when one was written."""

from __future__ import annotations

from pathlib import Path

from newcomers import Machine
from trees import make_tree

from vmpin.cpuset import CpuSet
from vmpin.domain.events import ContainerSeen, Source
from vmpin.domain.model import Container, ContainerId, SandboxId, ThreadId, ThreadRole
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.reconcile.cpuset_files import CpusetFiles
from vmpin.vmm.qemu import QEMU
from vmpin.vmm.virtual_machine import Process, Vm

pytest_plugins = ["given_unit"]

SANDBOX, WEB, INIT = SandboxId("a"), ContainerId("web"), ThreadId(7, 1)


def test_a_write_to_a_containers_cgroup_or_one_above_it_is_read(machine: Machine, tmp_path: Path) -> None:
    make_tree(tmp_path, """
        cgroup/cgroup.controllers = cpuset
        cgroup/cpuset.cpus.effective = 0-7
        cgroup/pods/a/web/cpuset.cpus = 2-5
        cgroup/pods/a/web/cpuset.cpus.effective = 2-5
        proc/7/task/7/cgroup = 0::/pods/a/web
    """)
    node_state, above = machine.node_state, tmp_path / "cgroup/pods/cpuset.cpus"
    node_state.cgroups = node_state.sources.cgroups = Cgroups(tmp_path / "cgroup", Procfs(tmp_path / "proc"))
    node_state.sources.online = CpuSet.parse("0-7")
    node_state.apply_events([ContainerSeen(SANDBOX, Container(WEB, "web", CpuSet.parse("2-5")), Source.NRI, 1,
                                           init=INIT)])
    watched: set[Path] = set()
    files, reports_writes = CpusetFiles(node_state, watched), node_state.sources.reports_writes
    assert not reports_writes(INIT)
    paths = files.paths()
    assert {str(path.relative_to(tmp_path)) for path in paths} == {
        "cgroup/pods/a/web/cpuset.cpus", "cgroup/pods/a/cpuset.cpus", "cgroup/pods/cpuset.cpus"}
    assert files.looked_up == paths
    assert files.paths() == paths
    assert files.looked_up == set()
    again = INIT._replace(starttime=2)  # a container that is created again may have a cgroup of the same name
    node_state.apply_events([ContainerSeen(SANDBOX, Container(WEB, "web", CpuSet.parse("2-5")), Source.NRI, 2,
                                           init=again)])
    assert not reports_writes(again)
    assert files.paths() == files.looked_up == paths
    node_state.apply_events([ContainerSeen(SANDBOX, Container(WEB, "web", CpuSet.parse("2-5")), Source.NRI, 3,
                                           init=INIT)])
    assert files.paths() == paths
    watched |= paths
    assert reports_writes(INIT)
    watched.remove(above)  # as where the kernel has no more watches
    assert not reports_writes(INIT)
    for written, effective in ({above}, "2-3"), ({above.parent / "a/web/cpuset.cpus"}, "2-5"):
        (tmp_path / "cgroup/pods/a/web/cpuset.cpus.effective").write_text(effective)
        assert files.read({tmp_path / "another"}) == set()
        assert files.read(written) == {SANDBOX}
        assert str(node_state.state.sandboxes[SANDBOX].containers[WEB].container.cpuset) == effective
        assert files.read(written) == set()  # as where the CPUs that a call set were read back at once


def test_files_are_to_be_watched_again_only_after_a_vmm_was_moved(machine: Machine, tmp_path: Path) -> None:
    make_tree(tmp_path, """
        cgroup/cgroup.controllers = cpuset
        cgroup/cpuset.cpus.effective = 0-7
        cgroup/pods/a/cpuset.cpus = 2-5
        cgroup/pods/b/cpuset.cpus = 2-5
        proc/8/task/8/cgroup = 0::/pods/a
    """)
    node_state, vmm = machine.node_state, Process(8, ThreadId(8, 1), ThreadRole.EMULATOR, [])
    node_state.cgroups = node_state.sources.cgroups = Cgroups(tmp_path / "cgroup", Procfs(tmp_path / "proc"))
    node_state.inventory.vms[SANDBOX] = Vm(SANDBOX, QEMU, vmm)
    watched: set[Path] = set()
    files = CpusetFiles(node_state, watched)
    for directory in "ab":
        (tmp_path / "proc/8/task/8/cgroup").write_text(f"0::/pods/{directory}\n")
        assert files.moved([SANDBOX])
        watched |= files.paths()
        assert tmp_path / f"cgroup/pods/{directory}/cpuset.cpus" in watched
        assert not files.moved([SANDBOX])
    watched.clear()  # the file did not exist when the feed was to watch it
    assert files.moved([SANDBOX])
    assert not files.moved([SandboxId("of no VM")])
