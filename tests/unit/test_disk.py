"""The sources that are read: what of the desired state still exists, on trees of /proc and of Kata's state."""

from __future__ import annotations

import json
from pathlib import Path

from vmpin.cpuset import CpuSet
from vmpin.events import ContainerSeen, ContainerStopped, Event, Source
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.model import Container, ContainerId, SandboxId
from vmpin.runtime.kata import KataState
from vmpin.source.disk import DiskSources
from vmpin.state import DesiredState, reduce

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
