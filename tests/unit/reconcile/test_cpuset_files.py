"""Which cgroups' files the watcher watches, and what is read when one was written."""

from __future__ import annotations

from pathlib import Path

from newcomers import Machine
from trees import make_tree

from vmpin.cpuset import CpuSet
from vmpin.domain.events import ContainerSeen, Source
from vmpin.domain.model import Container, ContainerId, SandboxId, ThreadId
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.reconcile.cpuset_files import CpusetFiles

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
    watched |= paths
    assert reports_writes(INIT)
    watched.remove(above)  # as where the kernel has no more watches
    assert not reports_writes(INIT)
    for written, effective in ({above}, "2-3"), ({above.parent / "a/web/cpuset.cpus"}, "2-5"):
        (tmp_path / "cgroup/pods/a/web/cpuset.cpus.effective").write_text(effective)
        assert files.read({tmp_path / "another"}) == set()
        assert files.read(written) == {SANDBOX}
        assert str(node_state.sandboxes[SANDBOX].containers[WEB].container.cpuset) == effective
