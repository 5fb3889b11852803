"""A scenario's events played: what containers get, and how it is shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from played_scenario import NODE, events, shown

from vmpin.cpuset import CpuSet

ROOT = Path(__file__).parents[3]
DOCS = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("allocation", "migrate")}
#: By page: the scenario that stands in it, and what is shown.
EXAMPLES = {name: ([block for kind, block in blocks if kind == "yaml"],
                   [block for _, block in blocks if block.startswith("create ")])
            for name, page in DOCS.items()
            for blocks in [re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)]}

@pytest.mark.parametrize("page", EXAMPLES)
def test_the_example_of_the_documentation_is_shown_as_there(tmp_path: Path, page: str) -> None:
    (example,), (expected,) = EXAMPLES[page]
    code, out = shown(tmp_path, example)
    assert out == expected
    assert max(map(len, out.splitlines())) <= 80
    assert code == 0


def test_an_event_has_its_cpus_memory_pool_and_cost(tmp_path: Path) -> None:
    first, second, third = events(tmp_path, """
        - create: {pod: shop/db, container: main, cpus: 4, policy: exclusive, near: eth0}
        - create: {pod: shop/web, container: web, cpus: 0.5}
        - remove: {pod: shop/db, container: main}
    """)
    assert first == {
        "event": "create", "pod": "shop/db", "container": "main", "cpus": "4-5,12-13", "mems": "0-2",
        "cost": {"nodes": 1, "distance": 0, "away": 0, "caches": 1, "partial_cores": 0, "broken_nodes": 1,
                 "broken_caches": 0, "broken_cores": 0, "leftover": 0, "node_left": 4}, "pool": "0-3,6-11,14-15"}
    assert second == {"event": "create", "pod": "shop/web", "container": "web", "cpus": "0-3,6-11,14-15",
                      "mems": "0-2", "pool": "0-3,6-11,14-15"}
    assert third == {"event": "remove", "pod": "shop/db", "container": "main", "cpus": "", "mems": "",
                     "pool": "0-15"}


def test_containers_of_odd_sizes_leave_whole_cores(tmp_path: Path) -> None:
    """Two single CPUs share a core, and three times three CPUs break two cores, not three."""
    made = [f"- create: {{pod: a/p{at}, container: c, cpus: {size}, policy: exclusive}}"
            for at, size in enumerate((1, 1, 3, 3, 3))]
    found = events(tmp_path, "\n".join(made), '{reserved: "0,8"}', """
topology:
  online: "0-15"
  cores: ["0,8", "1,9", "2,10", "3,11", "4,12", "5,13", "6,14", "7,15"]
""")
    assert [event["cpus"] for event in found] == ["1", "9", "2-3,10", "4,11-12", "5-6,13"]
    assert [event["cost"]["broken_cores"] for event in found] == [1, 0, 1, 0, 1]


def test_the_parts_of_the_cost_come_in_the_order_of_the_alignment(tmp_path: Path) -> None:
    orders = [list(event["cost"])[:5] for event in events(tmp_path, "\n".join(
        f"- create: {{pod: a/{align}, container: c, cpus: 2, policy: exclusive, align: {align}}}"
        for align in ("node", "cache", "core")))]
    assert orders == [["nodes", "distance", "away", "caches", "partial_cores"],
                      ["caches", "nodes", "distance", "away", "partial_cores"],
                      ["partial_cores", "nodes", "distance", "away", "caches"]]


def test_what_cannot_be_is_refused_with_numbers_and_changes_nothing(tmp_path: Path) -> None:
    found = events(tmp_path, """
        - create: {pod: a/a, container: c, cpus: 9, policy: exclusive, align: node!}
        - create: {pod: a/a, container: c, cpus: 16, policy: exclusive}
        - create: {pod: a/a, container: c, cpus: 1.5, policy: exclusive}
        - create: {pod: a/a, container: c, cpus: 1, limit: 2, policy: exclusive}
        - create: {pod: a/a, container: c, cpus: 1, policy: exclusiv}
        - create: {pod: a/a, container: c, cpus: 1, policy: infra}
        - remove: {pod: a/a, container: c}
        - create: {pod: a/a, container: c, cpus: 8, policy: exclusive}
        - create: {pod: a/a, container: c, cpus: 8, policy: exclusive}
    """)
    assert [event.get("refused", "") != "" for event in found] == [True] * 7 + [False, True]
    assert [event["pool"] for event in found[:7]] == ["0-15"] * 7
    for event, part in zip(found, ["node 0 has 7, node 1 has 8", "16 CPUs, 15 are free", "is 1.5, the", "the limit 2",
                                   "exclusiv", "privileged_namespaces", "it does not run"], strict=False):
        assert part in event["refused"]
    assert found[7]["cpus"] == "4-7,12-15"
    assert found[8]["refused"] == "it runs already"
    assert all("cost" not in event and "cpus" not in event for event in found if "refused" in event)


def test_what_has_no_cpuset_of_vmpins_runs_where_the_runtime_lets_it(tmp_path: Path) -> None:
    preserved, other, preferred, shared = events(tmp_path, """
        - create: {pod: a/preserved, container: c, cpus: 1,
                   annotations: {cpu.preserve.resource-policy.nri.io: "true"}}
        - create: {pod: a/other, container: c, cpus: 1, policy: exclusive, cpuset: "3"}
        - create: {pod: kube-system/preferred, container: c, cpus: 1,
                   annotations: {prefer-isolated-cpus.resource-policy.nri.io: "true"}}
        - create: {pod: a/shared, container: c, cpus: 1}
    """, "{reserved: 0, honour: nri-plugins}")
    assert (preserved["cpus"], preserved["notes"]) == ("0-15", ["is left alone, as nri-plugins would"])
    assert (other["cpus"], other["notes"]) == ("3", ["has the cpuset 3 of another plugin: left alone"])
    assert "cost" in preferred
    assert preferred["notes"] == ["what it prefers cannot be had: cpu-kind.vmpin.io=isolated: this machine has no "
                                  "isolated CPUs that are online and not reserved"]
    assert shared["cpus"] == preferred["pool"]


def test_a_group_and_infra_of_cpus_that_are_not_there_are_refused(tmp_path: Path) -> None:
    reserved, offline, infra = events(tmp_path, """
        - create: {pod: a/a, container: c, cpus: 1, policy: "group:reserved"}
        - create: {pod: a/b, container: c, cpus: 1, policy: "group:offline"}
        - create: {pod: kube-system/c, container: c, cpus: 1, policy: infra}
    """, "{reserved: 16, groups: 'reserved=16;offline=17'}", NODE.replace('"7,15"]', '"7,15", "16-17"]'))
    assert "of the CPUs 16 that allocate.groups has for it, none is online and not reserved" in reserved["refused"]
    assert "of the CPUs 17 that" in offline["refused"]
    assert infra["refused"].endswith("of allocate.reserved=16 no CPU is online")


def test_refused_events_are_shown_and_the_exit_code_is_1(tmp_path: Path) -> None:
    code, out = shown(tmp_path, NODE + """
events:
  - create: {pod: a/a, container: c, cpus: 99, policy: exclusive}
""")
    assert code == 1
    assert out.startswith("create a/a/c: refused\n  ")
    assert "99 CPUs" in out


def test_a_stopped_containers_cpus_are_its_pods_until_the_pod_ends(tmp_path: Path) -> None:
    found = events(tmp_path, """
        - create: {pod: a/a, container: init, cpus: 4, policy: exclusive}
        - create: {pod: a/a, container: log}
        - remove: {pod: a/a, container: init}
        - create: {pod: a/b, container: c, cpus: 4, policy: exclusive}
        - create: {pod: a/a, container: main, cpus: 4, policy: exclusive}
        - remove: {pod: a/a, container: main}
        - remove: {pod: a/a, container: log}
    """)
    init, _, kept, other, main_, _, last = found
    assert CpuSet.parse(init["cpus"]).isdisjoint(CpuSet.parse(kept["pool"]))
    assert CpuSet.parse(init["cpus"]).isdisjoint(CpuSet.parse(other["cpus"]))
    assert main_["cpus"] == init["cpus"]
    assert CpuSet.parse(last["pool"]) == CpuSet.parse("0-15") - CpuSet.parse(other["cpus"])


def test_a_vm_has_spare_cpus_of_the_pool(tmp_path: Path) -> None:
    (vm, without, pooled) = events(tmp_path, """
        - create: {pod: a/vm, container: c, cpus: 2, policy: exclusive, vm: true, vcpus: 2}
        - create: {pod: a/none, container: c, cpus: 2, policy: exclusive, vm: true, spare: 0}
        - create: {pod: a/pool, container: c, vm: true}
    """)
    assert len(CpuSet.parse(vm["spare"])) == 2
    assert CpuSet.parse(vm["spare"]) <= CpuSet.parse(vm["pool"])
    assert "spare" not in without
    assert pooled["cpus"] == pooled["pool"]


def test_kinds_isolated_and_other_plugins_cpus(tmp_path: Path) -> None:
    node = """
topology: {online: "0-7", nodes: {0: "0-7"}, kinds: {performance: "0-3", efficient: "4-7"}, isolated: "3"}
"""
    found = events(tmp_path, """
        - create: {pod: a/p, container: c, cpus: 2, policy: exclusive, kind: efficient}
        - create: {pod: a/i, container: c, cpus: 1, policy: exclusive, kind: isolated}
        - create: {pod: kube-system/i, container: c, cpus: 1, policy: exclusive, kind: isolated}
        - create: {pod: a/o, container: c, cpus: 1, policy: exclusive, cpuset: "1"}
    """, node=node)
    assert CpuSet.parse(found[0]["cpus"]) <= CpuSet.parse("4-7")
    assert "privileged" in found[1]["refused"]
    assert found[2]["cpus"] == "3"
    assert found[3]["cpus"] == "1"
    assert all(3 not in CpuSet.parse(event["pool"]) for event in found)


def test_a_required_alignment_of_the_configuration_counts_where_no_annotation_does(tmp_path: Path) -> None:
    wished, required = (events(tmp_path, """
        - create: {pod: a/a, container: c, cpus: 6, policy: exclusive}
        - create: {pod: a/b, container: c, cpus: 6, policy: exclusive}
        - create: {pod: a/c, container: c, cpus: 2.5}
        - create: {pod: a/d, container: c, cpus: 2, policy: exclusive, align: cache}
        - create: {pod: a/e, container: c, cpus: 2, policy: exclusive}
        - remove: {pod: a/d, container: c}
        - create: {pod: a/f, container: c, cpus: 3, policy: exclusive}
        - create: {pod: a/g, container: c, cpus: 3, policy: exclusive, align: node}
    """, allocate=f'{{reserved: 0, align: "{align}"}}') for align in ("node", "node!"))
    refused = ["refused" in event for event in wished], ["refused" in event for event in required]
    assert refused == ([False] * 4 + [True, False, False, True], [False] * 4 + [True, False, True, False])
    assert "node 0 has 1, node 1 has 2" in required[6]["refused"]
    # The memory of its CPUs' node, as with the annotation; of containers with CPUs of their own alone.
    assert [event.get("mems") for event in wished[:4]] == ["0-2"] * 4
    assert {event.get("mems") for event in required[:2]} == {"0", "1"}
    assert [event.get("mems") for event in required[2:4]] == ["0-2"] * 2


def test_without_named_nodes_there_is_one(tmp_path: Path) -> None:
    (found,) = events(tmp_path, "- create: {pod: a/a, container: c, cpus: 2, policy: exclusive, align: node!}",
                      node='topology: {online: "0-3"}')
    assert (found["cpus"], found["cost"]["nodes"]) == ("1-2", 1)


def test_a_running_container_is_changed_with_the_least_movement(tmp_path: Path) -> None:
    own, fixed, again, back, last, wrong = events(tmp_path, """
        - create: {pod: a/a, container: c, cpus: 4, policy: exclusive}
        - set: {pod: a/a, container: c, policy: fixed}
        - set: {pod: a/a, container: c, policy: exclusive}
        - set: {pod: a/a, container: c, policy: none}
        - set: {pod: a/a, container: c, policy: exclusive, near: eth0}
        - set: {pod: a/a, container: c, align: die}
    """)
    assert own["cpus"] == fixed["cpus"] == again["cpus"]
    assert own["mems"] == fixed["mems"] == "0-2"
    assert CpuSet.parse(fixed["cpus"]) <= CpuSet.parse(fixed["pool"])
    assert CpuSet.parse(again["cpus"]).isdisjoint(CpuSet.parse(again["pool"]))
    assert back["cpus"] == back["pool"] == "0-15"
    assert CpuSet.parse(last["cpus"]) <= CpuSet.parse("4-7,12-15")
    assert (last["cost"]["nodes"], last["cost"]["away"]) == (1, 0)
    assert "die" in wrong["refused"]
    assert wrong["pool"] == last["pool"]


def test_a_resize_keeps_the_cpus_or_a_part_of_them(tmp_path: Path) -> None:
    first, _, grown, vm, shrunk, part, many = events(tmp_path, """
        - create: {pod: a/a, container: c, cpus: 3, policy: exclusive}
        - create: {pod: a/vm, container: c, cpus: 2, policy: exclusive, vm: true}
        - set: {pod: a/a, container: c, cpus: 6}
        - set: {pod: a/vm, container: c, cpus: 4}
        - set: {pod: a/a, container: c, cpus: 1}
        - set: {pod: a/a, container: c, cpus: 1.5}
        - set: {pod: a/a, container: c, cpus: 99}
    """)
    sets = [CpuSet.parse(event["cpus"]) for event in (first, grown, shrunk)]
    assert [len(cpus) for cpus in sets] == [3, 6, 1]
    assert sets[0] < sets[1]
    assert sets[2] < sets[1]
    assert (len(CpuSet.parse(vm["cpus"])), len(CpuSet.parse(vm["spare"]))) == (4, 1)
    assert part["refused"].startswith("cpu-policy.vmpin.io=exclusive needs request = limit in whole CPUs: the request "
                                      "is 1.5")
    assert many["refused"].startswith("needs 98 CPUs more than the 1 that is kept, 10 are free: node 0 has ")
    assert many["pool"] == shrunk["pool"]


def test_a_pod_is_guaranteed_where_all_of_its_containers_are(tmp_path: Path) -> None:
    alone, main_, side = events(tmp_path, """
        - create: {pod: a/alone, container: c, cpus: 2}
        - create: {pod: a/two, container: main, cpus: 2}
        - create: {pod: a/two, container: side, cpus: 0.5, limit: 1}
    """, "{reserved: 0, default: guaranteed}")
    assert ("cost" in alone, "cost" in main_, "cost" in side) == (True, False, False)


def test_cranes_annotations_are_honoured(tmp_path: Path) -> None:
    (found,) = events(tmp_path, """
        - create: {pod: a/a, container: c, cpus: 2, annotations: {topology.crane.io/cpu-policy: exclusive}}
    """)
    assert len(CpuSet.parse(found["cpus"])) == 2


def test_what_the_log_would_have_besides_is_noted(tmp_path: Path) -> None:
    text = """
        - create: {pod: a/a, container: c, cpus: 1, annotations: {topology.crane.io/cpu-policy: static}}
        - create: {pod: a/b, container: c, cpus: 1, policy: exclusive, cpuset: "9"}
        - create: {pod: a/c, container: c, cpus: 1, policy: exclusive}
    """
    passed, left, plain = events(tmp_path, text)
    assert passed["notes"] == ["topology.crane.io/cpu-policy=static: Crane has none, exclusive, numa, immovable; "
                               "passed over"]
    assert (left["cpus"], left["notes"]) == ("9", ["has the cpuset 9 of another plugin: left alone"])
    assert "notes" not in plain
    assert "\n  note: has the cpuset 9 of another plugin" in shown(tmp_path, f"{NODE}\nevents:\n{text}")[1]


def test_sandboxes_and_events_go_together_and_alone_sandboxes_are_as_before(tmp_path: Path) -> None:
    sandboxes = "sandboxes: [{id: pod, vcpus: 1, containers: [{id: c, cpuset: '2', exclusive: true}]}]\n"
    _, alone = shown(tmp_path, NODE + sandboxes, "-o", "json")
    _, both = shown(tmp_path, NODE + sandboxes + "events: [{create: {pod: a/a, container: c}}]", "-o", "json")
    assert "events" not in json.loads(alone)
    assert {key: value for key, value in json.loads(both).items() if key != "events"} == json.loads(alone)
    assert len(json.loads(both)["events"]) == 1


@pytest.mark.parametrize("text", ["events: 3", "allocate: []", "allocate: {mode: maybe}", "events: [{create: {}}]"])
def test_what_makes_no_sense_is_an_error_of_the_scenario(tmp_path: Path, text: str,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    code, out = shown(tmp_path, NODE + text)
    assert (code, out) == (2, "")
    assert text.split(":")[0] in capsys.readouterr().err


def test_every_key_of_create_is_in_the_documentation() -> None:
    from vmpin.features.allocator.scenario_events import CONTAINER_KEYS, POD_KEYS
    page = DOCS["allocation"]
    assert {*CONTAINER_KEYS, *POD_KEYS} <= set(re.findall(r"`(\w+)`", page[page.index("| key of `create` |"):]))
