"""The rows of docs/migrate.md on the kubelet, tried in scenarios: what a container gets with the counterpart of each
option, and what it gets without it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from played_scenario import NODE as MACHINE
from played_scenario import events

PAGE = (Path(__file__).parents[3] / "docs" / "migrate.md").read_text()
KUBELET = PAGE.partition("\n## The kubelet's static policy\n")[2].partition("\n## ")[0]
NODE = MACHINE.replace("  nodes:", '  sockets: ["0-15"]\n  nodes:')
#: One cache is of both nodes.
ACROSS = NODE.replace('"2-3,10-11", "4-5,12-13"', '"2-5,10-13"')
#: Four nodes: the second and the fourth are near each other, as are the first and the third.
FAR = """
topology:
  online: "0-7"
  nodes: {0: "0-1", 1: "2-3", 2: "4-5", 3: "6-7"}
  distances: [[10, 30, 12, 30], [30, 10, 30, 12], [12, 30, 10, 30], [30, 12, 30, 10]]
"""
MANY = "topology:\n  online: '0-19'\n  nodes: {" + ", ".join(f"{n}: '{2 * n}-{2 * n + 1}'" for n in range(10)) + "}\n"



def make(cpus: int, pod: str = "a/a", container: str = "c") -> str:
    return f"- create: {{pod: {pod}, container: {container}, cpus: {cpus}, POLICY}}\n"


class Case(NamedTuple):
    """What the last of these containers gets without the counterpart, and with it; "" where it is refused.

    :param here: a key of the configuration, or of the creation in place of `POLICY`.
    """

    here: str
    steps: str
    without: str
    expected: str
    allocate: str = "reserved: '0,8'"
    node: str = NODE


SHARED = "- create: {pod: a/a, container: c, cpus: 0.5}"
#: By the code that a row of the page begins with, or its first words.
CASES = {
    "Guaranteed pods with whole CPUs": Case(
        "default: guaranteed", "- create: {pod: a/a, container: c, cpus: 2}", "0-15", "1,9"),
    "reservedSystemCPUs": Case("reserved: '0,8'", make(2), "0,8", "1,9", allocate=""),
    "systemReserved": Case("reserved: '0-1'", make(15), "0-14", "", allocate=""),
    "full-pcpus-only": Case("smt: require", make(3), "2-3,10", ""),
    "prefer-align-cpus-by-uncorecache": Case(
        "align: cache", make(6), "1-3,9-11", "2-4,10-12", node=ACROSS),
    "distribute-cpus-across-numa": Case("spread: nodes", make(10), "1,4-7,9,12-15", "1-6,10-13"),
    "align-by-socket": Case("align: socket", make(10), "1,4-7,9,12-15", "1-5,9-13"),
    "distribute-cpus-across-cores": Case("smt: spread", make(6), "1-3,9-11", "4-7,12-13"),
    "strict-cpu-reservation": Case("strict_reserved: true", SHARED, "0-15", "1-7,9-15"),
    "topologyManagerPolicy: none": Case("align: node", make(10), "1,4-7,9,12-15", "1,4-7,9,12-15"),
    "restricted": Case("align: node!", make(10), "1,4-7,9,12-15", ""),
    "single-numa-node": Case("align: node!", make(4, "a/b") + make(6, "a/d") + make(4), "1,7,9,15", ""),
    "prefer-closest-numa-nodes": Case("align: node", make(4), "2-3,6-7", "2-3,6-7", "reserved: '0'", FAR),
    "max-allowable-numa-nodes": Case("align: node", make(18), "0-17", "0-17", "", MANY),
    "topologyManagerScope: container": Case("align: node", make(2, container="b") + make(4), "2-3,10-11", "2-3,10-11"),
    "hints of device plugins": Case("policy: exclusive, near: devices", make(4), "2-3,10-11", "4-5,12-13"),
}


#: No event of a scenario can show the quota and state files; the memory is below.
ELSEWHERE = {"cpuCFSQuota: false", "cpu_manager_state", "memoryManagerPolicy: Static"}


def last(tmp_path: Path, case: Case, here: str) -> dict[str, Any]:
    policy = here if here.startswith("policy") else "policy: exclusive"
    keys = ", ".join(key for key in (case.allocate, "" if here.startswith("policy") else here) if key)
    return events(tmp_path, case.steps.replace("POLICY", policy), f"{{{keys}}}", case.node)[-1]


@pytest.mark.parametrize("row", CASES)
def test_a_row_on_the_kubelet_is_as_it_says(tmp_path: Path, row: str) -> None:
    case = CASES[row]
    found = [last(tmp_path, case, here).get("cpus", "") for here in ("", case.here)]
    assert found == [case.without, case.expected]


@pytest.mark.parametrize(("align", "mems"), [("node", "0-2"), ("node!", "0")])
def test_a_required_node_limits_the_memory_too(tmp_path: Path, align: str, mems: str) -> None:
    assert last(tmp_path, Case(f"align: {align}", make(2), "", ""), f"align: {align}")["mems"] == mems


def test_every_row_has_its_case() -> None:
    """But for those of which vmpin has nothing."""
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in KUBELET.splitlines()
            if line.startswith("| ") and not line.startswith("| kubelet |") and not line.startswith("| topology and")]
    tried = {first.replace("`", "") for first, here in rows if not here.startswith("nothing: ") and here != "nothing"}
    names = {*CASES, *ELSEWHERE} - {"max-allowable-numa-nodes"}  # nothing, and tried all the same
    assert [row for row in tried if not any(row.startswith(name) for name in names)] == []
    assert [name for name in names if not any(row.startswith(name) for row in tried)] == []


def test_the_pages_name_the_same_counterparts() -> None:
    allocation = (Path(__file__).parents[3] / "docs" / "allocation.md").read_text()
    for row, case in CASES.items():
        if "-cpu" in row or "cpus" in row or row.startswith("align"):
            for page in (allocation, PAGE):
                assert re.search(rf"^\| `{row}` \|.*`(allocate\.)?{case.here}`", page, re.MULTILINE), row
