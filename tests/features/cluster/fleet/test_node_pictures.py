"""The map of nodes by their NodePinnings: one with its owners, many with a sign for each CPU."""

from __future__ import annotations

from typing import Any

import pytest
from fleet_given import COLLISION, NOW, in_namespace, mixed, pinning, record
from kube_given import entry

from vmpin.features.cluster.fleet.node_pictures import MANY, map_parts, strips
from vmpin.features.cluster.fleet.node_record import NodeRecord, fleet_of, record_of_pinning
from vmpin.features.map.node_map import picture
from vmpin.features.map.text import lines


def raw(*records: NodeRecord, width: int = 80) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in strips(fleet_of(records, [], NOW), width)][1:]


def drawn(*records: NodeRecord) -> list[str]:
    return [" ".join(line.split()) for line in raw(*records)]


def topology(**changes: Any) -> dict[str, Any]:
    return {"cores": 4, "threads_per_core": 2, "caches": [], "nodes": {}, "isolated": "", **changes}


def test_each_cpu_has_its_sign() -> None:
    node = record("node-1", entry("web"), exclusive="4-6", collisions=[{**COLLISION, "cpu": 7}])
    assert drawn(node) == ["node-1 collision 0 ··--##+!"]
    assert drawn(record("n", entry("web", vcpus={"0": "0-1,4-5"}))) == ["n ok 0 ··--oo--"]


def test_a_line_for_each_numa_node_with_a_space_between_caches() -> None:
    node = record("node-1", entry("web"), topology=topology(nodes={"0": "0-3", "1": "4-7"},
                                                            caches=["0-1", "2-3", "4-7"]))
    assert drawn(node) == ["node-1 ok 0 ·· --", "1 ##--"]


def test_long_lines_are_wrapped() -> None:
    rows = raw(record("n", online="0-99", topology=topology()), width=40)
    assert len(rows) > 1
    assert sum(line.count("-") for line in rows) == 96
    assert max(map(len, rows)) <= 40


def test_cpus_of_another_namespace_are_another_containers() -> None:
    other = {"name": "main", "cpus": "6", "exclusive": True, "vcpus": "0", "guest": ""}
    node = record("n", in_namespace("web", "shop"),
                   in_namespace("db", "other", containers=[other], vcpus={"0": "6"}), exclusive="4-6")
    assert drawn(node) == ["n ok 0 ··--###-"]
    assert drawn(node.within("shop")) == ["n ok 0 ··--##+-"]


def test_a_node_without_cpus_or_with_very_many_is_said() -> None:
    rows = drawn(*(node.record for node in mixed().nodes if node.record.name == "odd"))
    assert rows == ["odd unreadable nothing is known of its CPUs"]
    assert f"{MANY + 1} CPUs: --node draws them" in drawn(record("n", online=f"0-{MANY}"))[0]


def test_the_map_of_a_node_is_that_of_the_node_itself_but_for_siblings() -> None:
    drawing = picture(*map_parts(record("node-1", entry("web"), exclusive="4-6")))
    assert [owner.legend for owner in drawing.owners] == [
        "default/web main: CPUs 4-5 (VM)", "node-1/ containers that are in no VM shown here: CPUs 6 (other)"]
    assert [guest.legend for guest in drawing.guests] == ["default/web: Pinned, on 0-1,4-5; vCPU 0 on 0-1"]
    assert {cpu.number: cpu.pinned for cpu in drawing.cpus() if cpu.pinned} == {4: ("a:v1",), 5: ("a:v2",)}
    assert drawing.facts["time"].startswith("node-1, 2027-")
    assert "".join(text for line in lines(drawing, 100) for text, _ in line)


@pytest.mark.parametrize("status", [
    {"topology": {"nodes": {"0": "0-3", "1": "3-7"}}}, {"topology": {"caches": ["0-3", "3-4"]}},
    {"topology": {"nodes": {"0": "x"}, "caches": ["9-1"], "isolated": "-"}}, {"cpus": {"online": "0-9999999"}},
    {"cpus": {"online": "0-7", "shared": "a", "exclusive": "0-8191"}}])
def test_lists_that_make_no_sense_are_no_failure(status: dict[str, Any]) -> None:
    item = pinning("node-1", entry("web"), collisions=[COLLISION])
    item["status"] |= status
    node = record_of_pinning(item)
    picture(*map_parts(node))
    assert drawn(node)
