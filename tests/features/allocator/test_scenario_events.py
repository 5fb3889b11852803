"""Events of a scenario: the format, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from played_scenario import played, shown

from vmpin.cpuset import CpuSet
from vmpin.errors import ConfigError
from vmpin.features.allocator.allocate_settings import scenario_options
from vmpin.features.allocator.scenario_events import (
    ContainerCreated,
    ContainerRemoved,
    ScenarioEvent,
    WishChanged,
    read_events,
    read_pods,
)
from vmpin.features.common.scenario_values import ScenarioValues

VALUES = ScenarioValues("node.yaml")
VALID = CpuSet.parse("0-15")


def events(text: str) -> tuple[ScenarioEvent, ...]:
    return read_events(VALUES, yaml.safe_load(text), VALID)


def test_events_are_read_in_order() -> None:
    assert events("""
        - create: {pod: shop/db, container: main, cpus: 4, policy: exclusive, align: cache!, near: eth0}
        - create: {pod: shop/db, container: log}
        - set: {pod: shop/db, container: main, policy: fixed, spare: 0}
        - set: {pod: shop/db, container: log, cpus: 1, limit: 1500m}
        - remove: {pod: shop/db, container: main}
    """) == (
        ContainerCreated("shop/db", "main", 4000, 4000, {
            "cpu-policy.vmpin.io/container.main": "exclusive", "cpu-align.vmpin.io/container.main": "cache!",
            "cpu-near.vmpin.io/container.main": "eth0"}, False, 1, 0, None),
        ContainerCreated("shop/db", "log", 0, None, {}, False, 1, 0, None),
        WishChanged("shop/db", "main", {"policy": "fixed", "spare": "0"}),
        WishChanged("shop/db", "log", {}, (1000, 1500)),
        ContainerRemoved("shop/db", "main"))


def test_a_container_of_a_vm_and_one_of_another_plugin() -> None:
    vm, other = events("""
        - create: {pod: a/vm, container: c, cpus: 1.5, limit: 2500m, vm: true, vcpus: 2,
                   annotations: {topology.crane.io/cpu-policy: exclusive}}
        - create: {pod: a/b, container: c, cpus: 1, limit: 0, cpuset: "3-4"}
    """)
    assert vm == ContainerCreated("a/vm", "c", 1500, 2500, {"topology.crane.io/cpu-policy": "exclusive"}, True, 2,
                                  0, None)
    assert other == ContainerCreated("a/b", "c", 1000, None, {}, False, 1, 0, CpuSet.parse("3-4"))


@pytest.mark.parametrize(("value", "amount"), [(2, 2000), (0.5, 500), ("500m", 500), ("2", 2000), ("1.25", 1250),
                                               (0.001, 1), ("0m", 0), (4096, 4096000)])
def test_cpus_are_whole_or_thousandths(value: object, amount: int) -> None:
    (event,) = read_events(VALUES, [{"create": {"pod": "a/b", "container": "c", "cpus": value}}], VALID)
    assert isinstance(event, ContainerCreated)
    assert event.request == amount


CREATE: dict[str, object] = {"pod": "a/b", "container": "c"}


@pytest.mark.parametrize(("given_events", "place", "why"), [
    ({"create": {}}, "events", "is no list"),
    ([[]], "events[0]", "[] is no mapping"),
    ([{}], "events[0]", "has 0 of the keys create, remove, set, and must have one"),
    ([{"create": CREATE, "remove": CREATE}], "events[0]", "has 2 of the keys"),
    ([{"destroy": CREATE}], "events[0]", "unknown key 'destroy' (known: create, remove, set)"),
    ([{"create": None}], "events[0].create", "None is no mapping"),
    ([{"create": {}}], "events[0].create.pod", "None is no NAMESPACE/NAME"),
    ([{"create": {"pod": "b", "container": "c"}}], "events[0].create.pod", "'b' is no NAMESPACE/NAME"),
    ([{"create": {"pod": "a/../b", "container": "c"}}], "events[0].create.pod", "is no NAMESPACE/NAME"),
    ([{"create": {"pod": "a/b\n", "container": "c"}}], "events[0].create.pod", "is no NAMESPACE/NAME"),
    ([{"create": {"pod": "a/b"}}], "events[0].create.container", "None is no name of a container"),
    ([{"create": {"pod": "a/b", "container": "C_"}}], "events[0].create.container", "'C_' is no name"),
    *(([{"create": {**CREATE, key: value}}], f"events[0].create.{key}", why) for key, value, why in [
        ("cpus", -1, "-1 is no number of CPUs"), ("cpus", True, "True is no number"), ("cpus", [1], "[1] is no"),
        ("cpus", "1e3", "'1e3' is no number"), ("cpus", 10 ** 18, "is no number"), ("cpus", float("nan"), "nan is no"),
        ("cpus", float("inf"), "inf is no"), ("cpus", 0.0001, "0.0001 is no"), ("cpus", "٣", "is no number"),
        ("limit", "x", "'x' is no number"), ("vm", "yes", "'yes' is neither true nor false"),
        ("vcpus", -1, "-1 is no number"), ("overhead", 0.5, "0.5 is no number"),
        ("cpuset", "14-16", "CPUs 16 of '14-16' are not in the topology (0-15)"),
        ("cpuset", "x", "'x'"), ("annotations", ["a"], "['a'] is no mapping"), ("policy", True, "True is no text"),
        ("align", None, "None is no text"), ("smt", ["x"], "['x'] is no text")]),
    ([{"create": {**CREATE, "annotations": {"a": {}}}}], "events[0].create.annotations.a", "{} is no text"),
    ([{"create": {**CREATE, "annotations": {None: "x"}}}], "events[0].create.annotations", "None is no text"),
    ([{"create": {**CREATE, "polcy": "x"}}], "events[0].create", "unknown key 'polcy'"),
    ([{"remove": CREATE}], "events[0].remove", "container 'c' of pod 'a/b' was never created"),
    ([{"create": CREATE}, {"remove": {**CREATE, "cpus": 1}}], "events[1].remove", "unknown key 'cpus'"),
    ([{"create": CREATE}, {"set": CREATE}], "events[1].set", "names nothing to change (known: cpus, policy, align"),
    ([{"create": CREATE}, {"set": {**CREATE, "cpus": 2, "policy": "fixed"}}], "events[1].set",
     "has cpus, a resize, and policy: those are two events"),
    ([{"set": {**CREATE, "policy": "fixed"}}], "events[0].set", "was never created"),
    ([{"create": CREATE}, {"create": {"pod": "a/b", "container": "d", "vm": True}}], "events[1].create.vm",
     "is not the same for all containers of the pod"),
    ([{}] * 100_001, "events", "are 100001, at most 100000 are read"),
])
def test_what_makes_no_sense_is_refused_in_one_line(given_events: object, place: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_events(VALUES, given_events, VALID)
    said = str(caught.value)
    assert said.startswith(f"node.yaml: {place}: ")
    assert why in said
    assert said.isprintable()
    assert len(said) < 1000


def test_the_settings_are_the_configurations() -> None:
    options = scenario_options(VALUES, {"reserved": 0, "groups": "db=1-2;web=3", "align": "cache", "mode": True,
                                    "spread": False}, VALID)
    assert (options.reserved, options.align, options.mode, options.spread, options.smt, set(options.groups)) == (
        CpuSet((0,)), "cache", "on", "", "prefer", {"db", "web"})
    assert scenario_options(VALUES, None, VALID).reserved == CpuSet()


@pytest.mark.parametrize(("given_settings", "why"), [
    ([], "allocate: [] is no mapping"),
    ({"align": "die"}, "allocate.align: 'die': is none of node, cache, core, socket, node!"),
    ({"reserved": "3-1"}, "allocate.reserved: '3-1': invalid CPU list"),
    ({"reserved": "0,99"}, "allocate.reserved: CPUs 99 of '0,99' are not in the topology"),
    ({"groups": "db=1;web=2,99@shop"}, "allocate.groups: web: CPUs 99 of '2,99' are not in the topology"),
    ({"reservd": "1"}, "allocate: unknown key 'reservd'"),
])
def test_settings_that_make_no_sense_are_refused(given_settings: object, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"node.yaml: {why}")):
        scenario_options(VALUES, given_settings, VALID)


_SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 2 ** 63), st.floats(), st.text(max_size=8),
    st.sampled_from(["a/b", "c", "exclusive", "0-3", "cache!", "500m"]))
_KEYS = st.sampled_from(["create", "remove", "set", "pod", "container", "cpus", "limit", "policy", "vm", "annotations",
                         "cpuset", "vcpus", "reserved", "align", ""])
_ANYTHING = st.recursive(_SCALARS, lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.dictionaries(st.one_of(_KEYS, _SCALARS.filter(lambda key: key == key)), inner,
                                                 max_size=4)), max_leaves=12)


_CREATIONS = st.fixed_dictionaries(
    {"pod": st.just("a/b"), "container": st.just("c")},
    optional={key: _ANYTHING for key in ("cpus", "limit", "vm", "vcpus", "cpuset", "annotations", "policy")})


def refusal(read: Callable[[], object]) -> str:
    try:
        read()
    except ConfigError as err:
        return str(err)
    return ""


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.one_of(_ANYTHING, st.lists(st.fixed_dictionaries({"create": _CREATIONS}), max_size=3)))
def test_whatever_stands_there_is_read_or_refused_in_one_line(anything: Any) -> None:
    for said in (refusal(lambda: read_events(VALUES, anything, VALID)),
                 refusal(lambda: scenario_options(VALUES, anything, VALID))):
        assert said.isprintable()
        assert len(said) < 1000


NODE = """
topology: {online: "0-7", cores: ["0,4", "1,5", "2,6", "3,7"], nodes: {0: "0-1,4-5", 1: "2-3,6-7"}}
allocate: {reserved: "0"}
"""


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
    found = played(tmp_path, NODE + """
pods:
  - {pod: a/a, policy: exclusive, containers: [{container: c, cpus: 2}, {container: d, cpus: 1, policy: none}]}
  - {pod: a/b, containers: [{container: c, cpus: 2, policy: fixed}]}
events:""" + events)
    assert found == played(tmp_path, NODE + """
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
    refused, given = played(tmp_path, NODE + text)
    assert "8 CPUs" in refused["refused"]
    assert len(CpuSet.parse(given["cpus"])) == 1
    code, out = shown(tmp_path, NODE + text)
    assert code == 1
    assert out.startswith("create a/a/c: refused\n  ")
    assert "\ncreate a/a/d: CPUs " in out


def test_a_container_of_pods_may_be_created_again_after_its_removal(tmp_path: Path) -> None:
    found = played(tmp_path, NODE + """
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
def test_pods_that_make_no_sense_are_refused_with_the_place(pods: object, place: str, why: str) -> None:
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
    code, out = shown(tmp_path, NODE + "pods: [{pod: a/b, containers: [{container: c}]}]\n" + text)
    assert (code, out) == (2, "")
    said = capsys.readouterr().err
    assert f"{place}: " in said
    assert why in said
