"""The kubelet's checkpoint as an authority."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vmpin.authorities.kubelet_authority import KubeletAuthority, assignments_of
from vmpin.authorities.kubelet_checkpoint import KubeletCheckpoint
from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import DesiredState
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import Container, ContainerId

UID = "uid-1"


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def write(directory: Path, policy: str = "static", default: str = "0-1", **entries: str) -> None:
    (directory / "new").write_text(json.dumps({"policyName": policy, "defaultCpuSet": default,
                                               "entries": {UID: entries}, "checksum": 0}))
    (directory / "new").rename(directory / "cpu_manager_state")


@pytest.mark.parametrize("state", [None, CpuManagerState("none", CpuSet()), CpuManagerState("none", cpus("0-3"))])
def test_without_the_static_policy_it_does_not_rule(state: CpuManagerState | None) -> None:
    assert assignments_of(state) is None


def test_a_container_is_found_by_pod_and_name_or_by_id() -> None:
    by_name = assignments_of(CpuManagerState("static", cpus("0-1"), {(UID, "app"): cpus("2-3")}, {UID: cpus("2-4")}))
    by_id = assignments_of(CpuManagerState("static", cpus("0-1"), by_id={"c1": cpus("2-3")}))
    assert by_name is not None
    assert by_id is not None
    app, side, nameless = (Container(ContainerId("c1"), name) for name in ("app", "side", ""))
    assert by_name.cpus_of(UID, app) == cpus("2-3")
    assert [by_name.cpus_of(UID, side), by_name.cpus_of("", app), by_name.cpus_of(UID, nameless)] == [None] * 3
    assert by_id.cpus_of(UID, app) == by_id.cpus_of("", nameless) == cpus("2-3")
    assert by_id.cpus_of(UID, Container(ContainerId("c2"), "c1")) is None
    assert (by_name.owned, dict(by_name.by_pod), by_name.complete) == (cpus("2-4"), {UID: cpus("2-4")}, True)
    assert (by_id.owned, dict(by_id.by_pod)) == (cpus("2-3"), {})


def test_its_answer_is_the_same_object_until_the_contents_change(tmp_path: Path) -> None:
    write(tmp_path, app="2-3")
    authority = KubeletAuthority(KubeletCheckpoint(tmp_path, lambda text: None), used=True)
    first = authority.assignments(DesiredState())
    assert first is not None
    assert (first.pool, first.complete, first.writes) == (cpus("0-1"), True, False)
    assert first.since.keys() == {(UID, "app")}
    write(tmp_path, app="2-3")
    assert not authority.read(used=True)
    assert authority.assignments(DesiredState()) is first
    write(tmp_path, default="0", app="2-3")
    assert authority.read(used=True)
    second = authority.assignments(DesiredState())
    assert second is not None
    assert second.pool == cpus("0")
    write(tmp_path, policy="none", default="")
    assert authority.read(used=True)
    assert authority.assignments(DesiredState()) is None
    assert authority.state is not None
    assert authority.read(used=False)
    assert authority.state is None


@pytest.mark.parametrize("default", ["", "0-1"])
def test_its_pool_is_the_default_set_even_if_that_is_empty(default: str) -> None:
    found = assignments_of(CpuManagerState("static", cpus(default)))
    assert found is not None
    assert found.pool == cpus(default)
