"""Scenarios: the format, and an earlier outcome taken up again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scenario_example import EXAMPLE

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, SandboxId, VcpuId
from vmpin.domain.policy import Policy, ThreadPolicy, VcpuRule
from vmpin.domain.sandbox_placement import Previous
from vmpin.domain.topology import Topology
from vmpin.features.scenarios import scenario_file
from vmpin.features.scenarios.node_scenario import Scenario, place_scenario
from vmpin.placement.rules import UNMANAGED

OUTCOME = """
{"sandboxes": [{"id": "pod-a", "mask": "0-3,8-9", "verdict": "pinned", "reasons": [],
   "vcpus": [{"id": 0, "cpus": "0-1,8-9", "container": null}, {"id": 1, "cpus": "2", "container": "main"},
             {"id": 2, "cpus": "3", "container": "main"}],
   "iothreads": [{"index": 0, "cpus": "0-3,8-9"}], "vhost": "0-3,8-9", "emulator": "0-3,8-9",
   "containers": [{"id": "main", "vcpus": "1-2"}, {"id": "sidecar", "vcpus": "0"}, {"id": "init", "vcpus": "0"}]}],
 "collisions": [], "moves": 0}
"""


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def load(tmp_path: Path, text: str, machine: Topology | None = None) -> Scenario:
    path = tmp_path / "node.yaml"
    path.write_text(text)
    return scenario_file.load(path, machine)


def outcome(tmp_path: Path, text: str, previous: str | None = None) -> dict[str, Any]:
    before = None
    if previous is not None:
        path = tmp_path / "previous.json"
        path.write_text(previous)
        before = scenario_file.load_previous(path)
    found: dict[str, Any] = json.loads(json.dumps(place_scenario(load(tmp_path, text), before).data()))
    return found


def test_the_example_gives_its_outcome(tmp_path: Path) -> None:
    found = outcome(tmp_path, EXAMPLE)
    assert found == json.loads(OUTCOME)
    assert list(found["sandboxes"][0]) == ["id", "mask", "verdict", "reasons", "vcpus", "iothreads", "vhost",
                                           "emulator", "containers"]


def test_an_outcome_is_json_and_placed_again_with_it_nothing_moves(tmp_path: Path) -> None:
    found = outcome(tmp_path, EXAMPLE)
    assert outcome(tmp_path, EXAMPLE, json.dumps(found)) == found


def test_moves_counts_vcpus_whose_cpus_changed_and_no_new_ones(tmp_path: Path) -> None:
    wider = EXAMPLE.replace("vcpus: 3 ", "vcpus: 5 ").replace('"2-3", exclusive', '"3-4,6", exclusive')
    found = outcome(tmp_path, wider, OUTCOME)
    assert [vcpu["cpus"] for vcpu in found["sandboxes"][0]["vcpus"]] == ["0-1,8-9", "0-1,8-9", "3", "4", "6"]
    assert found["moves"] == 1


def test_a_previous_outcome_keeps_pairs_that_nothing_else_asks_for(tmp_path: Path) -> None:
    swapped = OUTCOME.replace('"cpus": "2"', '"cpus": "X"').replace('"cpus": "3"', '"cpus": "2"').replace('"X"', '"3"')
    found = outcome(tmp_path, EXAMPLE, swapped)
    assert [vcpu["cpus"] for vcpu in found["sandboxes"][0]["vcpus"]] == ["0-1,8-9", "3", "2"]
    assert found["moves"] == 0


def test_a_previous_outcome_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "previous.json"
    path.write_text(OUTCOME.replace('"0-1,8-9", "container"', 'null, "container"'))
    assert scenario_file.load_previous(path) == {SandboxId("pod-a"): Previous(CpuSet.parse("0-3,8-9"), {
        VcpuId(0): (None, None), VcpuId(1): (CpuSet.parse("2"), ContainerId("main")),
        VcpuId(2): (CpuSet.parse("3"), ContainerId("main"))})}


def test_off_is_null_and_bare_off_is_understood(tmp_path: Path) -> None:
    text = EXAMPLE.replace("vcpus: auto", "vcpus: off").replace("vhost: sandbox", "vhost: off")
    (found,) = outcome(tmp_path, text)["sandboxes"]
    assert found["verdict"] == "off"
    assert [vcpu["cpus"] for vcpu in found["vcpus"]] == [None, None, None]
    assert found["vhost"] is None
    assert outcome(tmp_path, text, json.dumps({"sandboxes": [found]}))["moves"] == 0


def test_of_mixed_cpus_those_that_are_its_own_are_listed(tmp_path: Path) -> None:
    found = outcome(tmp_path, """
        topology: {online: "0-7"}
        shared_pool: "0-3,6-7"
        sandboxes:
          - {id: pod-a, vcpus: 3, containers: [{id: main, cpuset: "1,4-5", exclusive: "4-5"}]}
          - {id: pod-b, vcpus: 1, containers: [{id: main, cpuset: "0-1", exclusive: ""}]}
    """)
    mixed, shared = found["sandboxes"]
    assert (mixed["mask"], mixed["verdict"], mixed["emulator"]) == ("1,4-5", "pinned", "1")
    assert mixed["vcpus"] == [{"id": 0, "cpus": "1", "container": None}, {"id": 1, "cpus": "4", "container": "main"},
                              {"id": 2, "cpus": "5", "container": "main"}]
    assert (shared["mask"], shared["verdict"]) == ("0-1", "floating")
    assert found["collisions"] == []


def test_collisions_name_the_cpu_and_the_sandboxes(tmp_path: Path) -> None:
    found = outcome(tmp_path, """
        topology: {online: "0-7"}
        sandboxes:
          - {id: pod-a, vcpus: 2, containers: [{id: main, cpuset: "4-5", exclusive: true}]}
          - {id: pod-b, vcpus: 2, containers: [{id: main, cpuset: "3-4", exclusive: true}]}
    """)
    assert found["collisions"] == [{"cpu": 4, "sandboxes": ["pod-a", "pod-b"],
                                    "what": "exclusive to main of pod-a and main of pod-b"}]


def test_a_sandbox_for_which_no_cpu_is_left_is_left_alone(tmp_path: Path) -> None:
    found = outcome(tmp_path, """
        topology: {online: "0-1"}
        sandboxes:
          - {id: pod-a, vcpus: 2, containers: [{id: main, cpuset: "0-1", exclusive: true}]}
          - {id: pod-b, vcpus: 1, containers: [{id: side}]}
    """)
    assert found["sandboxes"][1]["vcpus"] == [{"id": 0, "cpus": None, "container": None}]
    assert found["sandboxes"][1]["verdict"] == "unmanaged"
    assert found["sandboxes"][1]["reasons"] == [
        "the shared pool has no CPU, and no CPU is left for it: its threads keep the masks they have"]
    assert found["collisions"] == []


def test_offline_cpus_may_be_named_anywhere(tmp_path: Path) -> None:
    found = outcome(tmp_path, """
        topology: {online: "0-3", cores: ["0,4", "1,5"], nodes: {0: "0-7"}}
        housekeeping: "7"
        shared_pool: "0,4-6"
        policy: {iothreads: "3,7"}
        sandboxes: [{id: a, vcpus: 1, iothreads: 1, containers: [{id: main, cpuset: "3-5"}, {id: x, cpuset: "2,7"}]}]
    """)
    (sandbox,) = found["sandboxes"]
    assert (sandbox["mask"], sandbox["iothreads"]) == ("2-3", [{"index": 0, "cpus": "3"}])


def test_little_need_be_said(tmp_path: Path) -> None:
    machine = Topology.build(CpuSet.parse("0-3"))
    for text in ("", "# nothing\n", "{}", "sandboxes:\npolicy:\nshared_pool:\nhousekeeping:\ntopology:\n"):
        assert load(tmp_path, text, machine).sandboxes == ()
    one = load(tmp_path, "sandboxes: [{id: 7}]", machine)
    assert place_scenario(one).data()["sandboxes"] == [{
        "id": "7", "mask": "", "verdict": "unmanaged", "reasons": [UNMANAGED], "vcpus": [], "iothreads": [],
        "vhost": None, "emulator": None, "containers": []}]
    assert one.node.topology is machine
    given = load(tmp_path, "topology: {online: 5}", machine)
    assert given.node.topology == Topology.build(CpuSet.parse("5"))


def test_an_empty_pool_is_an_unknown_one(tmp_path: Path) -> None:
    text = """
        topology: {online: "0-3"}
        shared_pool: ""
        sandboxes: [{id: a, vcpus: 1, containers: [{id: c, cpuset: 2}]}]
    """
    assert outcome(tmp_path, text)["sandboxes"][0]["verdict"] == "floating"


def test_every_policy_can_be_said(tmp_path: Path) -> None:
    text = ('topology: {online: "0-7"}\npolicy: {vcpus: union, spare_vcpus: housekeeping, iothreads: "2-3", vhost: 4, '
            "emulator: shared, virtiofsd: off, shim: housekeeping}")
    assert load(tmp_path, text).policy == Policy.of({
        "vcpus": "union", "spare_vcpus": "housekeeping", "iothreads": "2-3", "vhost": "4", "emulator": "shared",
        "virtiofsd": "off", "shim": "housekeeping"})
    assert load(tmp_path, text).policy.vcpus is VcpuRule.UNION
    assert load(tmp_path, text).policy.virtiofsd is ThreadPolicy.OFF


def test_a_container_is_created_running_or_stopped(tmp_path: Path) -> None:
    text = """
        topology: {online: "0-7"}
        sandboxes:
          - id: a
            vcpus: 1
            containers:
              - {id: c, cpuset: 2, state: created}
              - {id: r, cpuset: 3, state: running}
              - {id: s, cpuset: 4, state: stopped}
    """
    (sandbox,) = outcome(tmp_path, text)["sandboxes"]
    assert sandbox["mask"] == "2-3"
    assert [container["id"] for container in sandbox["containers"]] == ["c", "r"]


def test_vcpus_are_a_count_or_a_list_with_cores_and_nodes(tmp_path: Path) -> None:
    text = """
        topology: {online: "0-7", cores: ["2,6", "3,7"]}
        sandboxes:
          - id: a
            vcpus: [{id: 7, core: 1, node: 0}, {id: 0, core: 0}, {id: 6, core: 1, node: 0}, {id: 1, core: 0}]
            containers: [{id: c, cpuset: "2-3,6-7", exclusive: true}]
    """
    (sandbox,) = outcome(tmp_path, text)["sandboxes"]
    assert {vcpu["id"]: vcpu["cpus"] for vcpu in sandbox["vcpus"]} == {6: "2", 7: "6", 0: "3", 1: "7"}


def test_vcpus_go_where_the_memory_of_their_guest_node_is(tmp_path: Path) -> None:
    text = """
        topology: {online: "0-7", nodes: {0: "0-3", 1: "4-7"}}
        sandboxes:
          - id: a
            vcpus: [{id: 0, node: 0, memory: [1]}, {id: 1, node: 1, memory: [0]}, {id: 2, node: 1, memory: [0]}]
            containers: [{id: c, cpuset: "3-5", exclusive: true}]
    """
    (sandbox,) = outcome(tmp_path, text)["sandboxes"]
    assert {vcpu["id"]: vcpu["cpus"] for vcpu in sandbox["vcpus"]} == {0: "4", 1: "3", 2: "5"}
    assert sandbox["verdict"] == "pinned"
    assert sandbox["reasons"] == ["1 of 3 pinned vCPUs is on another NUMA node than the memory of the guest"]


def test_a_topology_can_be_described_in_full(tmp_path: Path) -> None:
    found = load(tmp_path, """
        topology:
          online: "0-7"
          cores: ["0-1", "2-3"]
          caches: ["0-3", "4-7"]
          sockets: ["0-7"]
          dies: ["0-3", "4-7"]
          nodes: {0: "0-3", 3: "4-7", 5: ""}
          distances: [[10, 21, 17], [21, 10, 28], [17, 28, 10]]
          kinds: {performance: "0-3", efficient: "4-7"}
          isolated: "3"
          devices: {eth0: 3, "0000:3b:00.0": 0}
    """).node.topology
    assert found == Topology.build(
        cpus("0-7"), [cpus("0-1"), cpus("2-3")], [cpus("0-3"), cpus("4-7")], {0: cpus("0-3"), 3: cpus("4-7")},
        isolated=cpus("3"), distances={0: {0: 10, 3: 21, 5: 17}, 3: {0: 21, 3: 10, 5: 28}, 5: {0: 17, 3: 28, 5: 10}},
        sockets=[cpus("0-7")], dies=[cpus("0-3"), cpus("4-7")],
        kinds={"performance": cpus("0-3"), "efficient": cpus("4-7")},
        memory_nodes=cpus("0,3,5"), devices={"0000:3b:00.0": 0, "eth0": 3})
