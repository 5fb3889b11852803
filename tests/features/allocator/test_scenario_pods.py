"""A scenario's pods: the format, what is refused, and that they are there before the events."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from vmpin.cli.main import main
from vmpin.cpuset import CpuSet
from vmpin.errors import ConfigError
from vmpin.features.allocator.scenario_events import ContainerCreated, read_pods
from vmpin.scenario.scenario_reader import ScenarioValues

VALUES = ScenarioValues("node.yaml")
VALID = CpuSet.parse("0-7")
NODE = """
topology: {online: "0-7", cores: ["0,4", "1,5", "2,6", "3,7"], nodes: {0: "0-1,4-5", 1: "2-3,6-7"}}
allocate: {reserved: "0"}
"""


def planned(tmp_path: Path, text: str, *options: str) -> tuple[int, str]:
    file = tmp_path / "node.yaml"
    file.write_text(NODE + text)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(["plan", "--scenario", str(file), *options])
    return code, out.getvalue()


def played(tmp_path: Path, text: str) -> list[dict[str, Any]]:
    code, out = planned(tmp_path, text, "-o", "json")
    found: list[dict[str, Any]] = json.loads(out)["events"]
    assert code == any("refused" in event for event in found)
    return found


def test_each_container_is_created_with_what_its_pod_has() -> None:
    assert read_pods(VALUES, yaml.safe_load("""
        - pod: shop/db
          policy: exclusive
          vm: true
          vcpus: 2
          overhead: 1
          annotations: {cpu-smt.vmpin.io: require}
          containers:
            - {container: main, cpus: 2, align: cache}
            - {container: log, cpus: 500m, limit: 0, policy: none}
        - {pod: shop/web, containers: [{container: web, cpuset: "3"}]}
    """), VALID) == (
        ContainerCreated("shop/db", "main", 2000, 2000, {
            "cpu-smt.vmpin.io": "require", "cpu-policy.vmpin.io/pod": "exclusive",
            "cpu-align.vmpin.io/container.main": "cache"}, True, 2, 1, None),
        ContainerCreated("shop/db", "log", 500, None, {
            "cpu-smt.vmpin.io": "require", "cpu-policy.vmpin.io/pod": "exclusive",
            "cpu-policy.vmpin.io/container.log": "none"}, True, 2, 1, None),
        ContainerCreated("shop/web", "web", 0, None, {}, False, 1, 0, CpuSet((3,))))


def test_pods_have_their_cpus_before_the_events_as_if_events_had_created_them(tmp_path: Path) -> None:
    events = """
  - create: {pod: a/c, container: c, cpus: 2, policy: exclusive}
  - remove: {pod: a/a, container: c}
"""
    found = played(tmp_path, """
pods:
  - {pod: a/a, policy: exclusive, containers: [{container: c, cpus: 2}, {container: d, cpus: 1, policy: none}]}
  - {pod: a/b, containers: [{container: c, cpus: 2, policy: fixed}]}
events:""" + events)
    assert found == played(tmp_path, """
events:
  - create: {pod: a/a, container: c, cpus: 2, policy: exclusive}
  - create: {pod: a/a, container: d, cpus: 1}
  - create: {pod: a/b, container: c, cpus: 2, policy: fixed}""" + events)
    assert [(event["event"], event["pod"], event["container"]) for event in found] == [
        ("create", "a/a", "c"), ("create", "a/a", "d"), ("create", "a/b", "c"), ("create", "a/c", "c"),
        ("remove", "a/a", "c")]
    first, shared, fixed, last, _ = (CpuSet.parse(event["cpus"]) for event in found)
    assert len(first) == len(fixed) == len(last) == 2
    assert not first & (fixed | last | shared)


def test_pods_need_no_events_and_a_refused_one_is_shown_as_an_event_is(tmp_path: Path) -> None:
    text = "pods: [{pod: a/a, policy: exclusive, containers: [{container: c, cpus: 8}, {container: d, cpus: 1}]}]"
    refused, given = played(tmp_path, text)
    assert "8 CPUs" in refused["refused"]
    assert len(CpuSet.parse(given["cpus"])) == 1
    code, out = planned(tmp_path, text)
    assert code == 1
    assert out.startswith("create a/a/c: refused\n  ")
    assert "\ncreate a/a/d: CPUs " in out


def test_a_container_of_pods_may_be_created_again_after_its_removal(tmp_path: Path) -> None:
    found = played(tmp_path, """
pods: [{pod: a/a, containers: [{container: c, cpus: 1, policy: exclusive}]}]
events: [{remove: {pod: a/a, container: c}}, {create: {pod: a/a, container: c, cpus: 2, policy: exclusive}}]
""")
    assert [len(CpuSet.parse(event["cpus"])) for event in found] == [1, 0, 2]


C = {"container": "c"}


@pytest.mark.parametrize(("pods", "place", "why"), [
    ({}, "pods", "is no list"),
    ([{"pod": "a/b"}], "pods[0].containers", "names no container"),
    ([{"pod": "b", "containers": [C]}], "pods[0].pod", "'b' is no NAMESPACE/NAME"),
    ([{"pod": "a/b", "containers": [C], "cpus": 2}], "pods[0]", "unknown key 'cpus'"),
    ([{"pod": "a/b", "containers": [{}]}], "pods[0].containers[0].container", "None is no name of a container"),
    ([{"pod": "a/b", "containers": [C, C]}], "pods[0].containers[1].container", "'c' is there twice"),
    ([{"pod": "a/b", "containers": [C]}] * 2, "pods[1].pod", "'a/b' is there twice"),
    ([{"pod": "a/b", "containers": [{**C, "vm": True}]}], "pods[0].containers[0].vm", "beside `containers`"),
    ([{"pod": "a/b", "containers": [{**C, "exclusive": True}]}], "pods[0].containers[0].exclusive",
     "is a key of `sandboxes`; in `pods` give policy: exclusive"),
    ([{"pod": "a/b", "containers": [{"id": "c"}]}], "pods[0].containers[0].id", "give container: NAME"),
    ([{"pod": "a/b", "containers": [{**C, "polcy": 1}]}], "pods[0].containers[0]", "unknown key 'polcy'"),
    ([{"pod": "a/b", "containers": [{**C, "cpus": "x"}]}], "pods[0].containers[0].cpus", "'x' is no number of CPUs"),
    ([{"pod": "a/b", "policy": [1], "containers": [C]}], "pods[0].policy", "[1] is no text"),
])
def test_what_makes_no_sense_is_refused_with_its_place(pods: object, place: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_pods(VALUES, pods, VALID)
    assert str(caught.value).startswith(f"node.yaml: {place}: ")
    assert why in str(caught.value)


@pytest.mark.parametrize(("text", "place", "why"), [
    ("sandboxes: [{id: a}]", "sandboxes", "cannot stand beside `pods`"),
    ("shared_pool: '0-3'", "shared_pool", "cannot stand beside `pods`"),
    ("events: [{create: {pod: a/b, container: c}}]", "events[0].create", "is created by `pods` already"),
    ("events: [{create: {pod: a/b, container: d, vm: true}}]", "events[0].create.vm", "is not the same for all"),
])
def test_what_is_given_both_ways_is_refused(tmp_path: Path, text: str, place: str, why: str,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    code, out = planned(tmp_path, "pods: [{pod: a/b, containers: [{container: c}]}]\n" + text)
    assert (code, out) == (2, "")
    said = capsys.readouterr().err
    assert f"{place}: " in said
    assert why in said
