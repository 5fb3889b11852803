"""The sources that are read: what of the desired state still exists, on trees of /proc and of Kata's state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from system_calls import system_calls
from trees import make_tree

from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import ContainerRecord, DesiredState, reduce
from vmpin.domain.events import ContainerSeen, ContainerStopped, CpusetSeen, Event, Source
from vmpin.domain.model import Container, ContainerId, SandboxId, ThreadId
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.runtime.kata import KataState
from vmpin.sources.disk import DiskSources

STAT = f"7 (web) S {' '.join(['1'] * 50)}"
SANDBOX, WEB = SandboxId("a"), ContainerId("web")


def sources(top: Path) -> DiskSources:
    proc = Procfs(top / "proc")
    (top / "proc").mkdir(exist_ok=True)
    return DiskSources(proc, Cgroups(top / "cgroup", proc), KataState(top / "vc", top / "kata", print))


def persist(top: Path) -> Path:
    at = top / "vc" / "sbs" / SANDBOX
    at.mkdir(parents=True)
    (at / "persist.json").write_text(json.dumps({"Config": {"ContainerConfigs": [
        {"ID": WEB, "Annotations": {"io.kubernetes.cri.container-type": "container"},
         "Resources": {"cpu": {"cpus": "2-3"}}}]}}))
    return at


def after(state: DesiredState, events: list[Event]) -> DesiredState:
    for event in events:
        state = reduce(state, event)
    return state


def read(found: DiskSources, state: DesiredState, *with_vm: SandboxId) -> list[Event]:
    found.read()
    return found.events(state, set(with_vm))


def test_what_kata_has_on_disk_becomes_events(tmp_path: Path) -> None:
    persist(tmp_path)
    found = read(sources(tmp_path), DesiredState(), SANDBOX)
    assert [(event.container.id, event.container.cpuset) for event in found if isinstance(event, ContainerSeen)] == [
        (WEB, CpuSet.parse("2-3"))]


def test_a_sandbox_that_kata_removed_owns_nothing_any_more(tmp_path: Path) -> None:
    at = persist(tmp_path)
    disk = sources(tmp_path)
    state = after(DesiredState(), read(disk, DesiredState(), SANDBOX))
    assert state.sandboxes[SANDBOX].live()
    (at / "persist.json").unlink()
    at.rmdir()
    assert read(disk, state, SANDBOX) == []  # its VM still runs
    ended = read(disk, state)
    assert [event.container for event in ended if isinstance(event, ContainerStopped)] == [WEB]
    assert not after(state, ended).sandboxes[SANDBOX].live()


def test_a_file_that_is_being_written_anew_ends_no_container(tmp_path: Path) -> None:
    at = persist(tmp_path)
    disk = sources(tmp_path)
    state = after(DesiredState(), read(disk, DesiredState(), SANDBOX))
    (at / "persist.json").write_text("{")
    assert not any(isinstance(event, ContainerStopped) for event in read(disk, state))


def test_a_container_whose_bundle_is_gone_has_ended(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    seen = ContainerSeen(SANDBOX, Container(WEB, cpuset=CpuSet.parse("1")), Source.BUNDLE, 10, str(bundle))
    state = after(DesiredState(), [seen])
    disk = sources(tmp_path)
    assert not any(isinstance(event, ContainerStopped) for event in read(disk, state, SANDBOX))
    bundle.rmdir()
    assert any(isinstance(event, ContainerStopped) for event in read(disk, state, SANDBOX))


@pytest.mark.parametrize(("with_vm", "ended"), [((SANDBOX,), False), ((), True)])
def test_the_end_of_a_process_ends_no_container_in_a_vm(
        tmp_path: Path, with_vm: tuple[SandboxId, ...], ended: bool) -> None:
    """Kuasar reports a container's pid in the guest, and no VMM: here any process may have that pid."""
    seen = ContainerSeen(SANDBOX, Container(WEB, cpuset=CpuSet.parse("1")), Source.NRI, 10, init=ThreadId(7, 1))
    events = read(sources(tmp_path), after(DesiredState(), [seen]), *with_vm)
    assert any(isinstance(event, ContainerStopped) for event in events) is ended


@pytest.mark.parametrize(("configured", "effective", "online", "cpus"), [
    ("2-5", "2-5", "0-7", "2-5"),
    ("2-5", "2-3", "0-7", "2-3"),  # a cgroup above has no more
    ("2-5", "2-3", "0-3", "2-5"),  # 4 and 5 are offline, and come back
    ("2-5", "", "0-7", "2-5"),
])
def test_a_cgroup_says_what_a_container_has(configured: str, effective: str, online: str, cpus: str,
                                            tmp_path: Path) -> None:
    make_tree(tmp_path, f"""
        cgroup/cgroup.controllers = cpuset
        cgroup/cpuset.cpus.effective = 0-7
        cgroup/pods/web/cpuset.cpus = {configured}
        cgroup/pods/web/cpuset.cpus.effective = {effective}
        proc/7/task/7/cgroup = 0::/pods/web
    """)
    disk = sources(tmp_path)
    disk.online = CpuSet.parse(online)
    known = ContainerRecord(Container(WEB, "web", CpuSet.parse("2-5")), Source.NRI, 1)
    (event,) = disk.cgroup_events(SANDBOX, known, ThreadId(7, 1))
    assert isinstance(event, CpusetSeen)
    assert (str(event.cpuset), event.source) == (cpus, Source.CGROUP)


@pytest.mark.parametrize(("below", "configured", "above", "effective"), [
    ("init.scope", None, "4-5", ""),  # systemd in a container
    ("container", "4-5", "4-5", "4-5"),  # crun (cgroup-systemd.c: subgroup)
    ("housekeeping", "4", "4-5", "4"),  # KubeVirt (virt-handler: isolateEmulatorThread)
    ("cgroup-child", "4-5", "0-3,6-7", "4-5"),  # CRI-O (cpu-load-balancing.crio.io), an isolated partition
])
def test_a_first_process_may_be_in_a_cgroup_below_its_containers(
        below: str, configured: str | None, above: str, effective: str, tmp_path: Path) -> None:
    make_tree(tmp_path, f"""
        cgroup/cgroup.controllers = cpuset
        cgroup/cpuset.cpus.effective = 0-7
        cgroup/pods/crio-web.scope/cpuset.cpus = 4-5
        cgroup/pods/crio-web.scope/cpuset.cpus.effective = {above}
        cgroup/pods/crio-web.scope/{below}/cgroup.procs = 7
        proc/7/task/7/cgroup = 0::/pods/crio-web.scope/{below}
    """)
    if configured:
        make_tree(tmp_path, f"""
            cgroup/pods/crio-web.scope/{below}/cpuset.cpus = {configured}
            cgroup/pods/crio-web.scope/{below}/cpuset.cpus.effective = {effective}
        """)
    disk = sources(tmp_path)
    disk.online = CpuSet.parse("0-7")
    for cpuset in None, CpuSet.parse("4-6"):  # another plugin has given it a cpuset, or another one, since
        known = ContainerRecord(Container(WEB, "web", cpuset), Source.NRI, 1)
        (event,) = disk.cgroup_events(SANDBOX, known, ThreadId(7, 1))
        assert isinstance(event, CpusetSeen)
        assert str(event.cpuset) == "4-5"


def test_an_unchanged_container_costs_the_files_of_its_cgroup_and_nothing_is_parsed_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one of sixteen passes, and without NRI, its process is read, too. Nothing where each write is reported."""
    make_tree(tmp_path, f"""
        cgroup/cgroup.controllers = cpuset
        cgroup/cpuset.cpus.effective = 0-7
        cgroup/pods/web/cpuset.cpus = 2-5
        cgroup/pods/web/cpuset.cpus.effective = 2-5
        proc/7/stat = {STAT}
        proc/7/task/7/cgroup = 0::/pods/web
    """)
    disk, effective = sources(tmp_path), tmp_path / "cgroup/pods/web/cpuset.cpus.effective"
    disk.online, disk.nri = CpuSet.parse("0-7"), True
    seen = ContainerSeen(SANDBOX, Container(WEB, "web", CpuSet.parse("2-5")), Source.NRI, 1, init=ThreadId(7, 1))
    state = after(DesiredState(), [seen])

    def opened() -> int:
        calls = system_calls(lambda: disk.events(state, set()))
        assert calls["open"] == calls["read"] == calls["close"] == calls.total() / 3
        return calls["open"]

    for _ in range(2):
        state = after(state, read(disk, state))
    assert read(disk, state) == []
    monkeypatch.setattr(CpuSet, "parse", None)
    assert sorted(opened() for _ in range(16)) == [*[2] * 15, 4]
    disk.reports_writes = lambda init: init == ThreadId(7, 1)
    assert sorted(opened() for _ in range(17)) == [*[0] * 15, 2, 4]  # once more, since it was not reported before
    disk.reports_writes = lambda init: False
    assert opened() == 2
    disk.nri = False
    assert opened() == 4
    disk.nri = True
    monkeypatch.undo()
    for content in "2-3", "2-5":
        effective.write_text(content)
        (event,) = read(disk, state)
        assert isinstance(event, CpusetSeen)
        assert str(event.cpuset) == content
        state = after(state, [event])
    disk.online = CpuSet.parse("0-3")
    assert len(read(disk, state)) == 1
    for file in effective, tmp_path / "cgroup/pods/web/cpuset.cpus", tmp_path / "proc/7/stat":
        file.unlink()
    effective.parent.rmdir()
    assert isinstance(read(disk, state)[0], ContainerStopped)  # at once


def test_a_cpuset_that_could_not_be_read_is_read_again_though_its_writes_are_reported(tmp_path: Path) -> None:
    make_tree(tmp_path, f"""
        cgroup/cgroup.controllers = cpuset
        cgroup/cpuset.cpus.effective = 0-7
        cgroup/pods/web/cpuset.cpus = 2-3
        cgroup/pods/web/cpuset.cpus.effective = 2-3
        proc/16/stat = {STAT.replace("7", "16", 1)}
        proc/16/task/16/cgroup = 0::/pods/web
    """)
    disk, configured = sources(tmp_path), tmp_path / "cgroup/pods/web/cpuset.cpus"
    disk.online, disk.nri, init = CpuSet.parse("0-7"), True, ThreadId(16, 1)
    seen = ContainerSeen(SANDBOX, Container(WEB, "web", CpuSet.parse("2-5")), Source.NRI, 1, init=init)
    state = after(DesiredState(), [seen])
    disk.reports_writes = lambda init: True
    configured.rename(tmp_path / "aside")
    configured.mkdir()  # reading it fails
    for _ in range(3):
        assert read(disk, state) == []
    configured.rmdir()
    (tmp_path / "aside").rename(configured)
    (event,) = read(disk, state)
    assert isinstance(event, CpusetSeen)
    assert str(event.cpuset) == "2-3"


def test_a_cgroup_named_after_another_says_nothing_of_a_container_that_the_runtime_reported(
        tmp_path: Path) -> None:
    make_tree(tmp_path, """
        cgroup/cgroup.controllers = cpuset
        cgroup/cpuset.cpus.effective = 0-7
        cgroup/vms/other/cpuset.cpus = 0-7
        cgroup/vms/other/cpuset.cpus.effective = 0-7
        proc/7/task/7/cgroup = 0::/vms/other
    """)
    known = ContainerRecord(Container(WEB, "web", CpuSet.parse("2-5")), Source.NRI, 1)
    assert list(sources(tmp_path).cgroup_events(SANDBOX, known, ThreadId(7, 1))) == []
