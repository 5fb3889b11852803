"""`vmpin map --scenario`: a node described in a file, drawn as vmpin would place it."""

from __future__ import annotations

import json
from pathlib import Path

import draw_map
import pytest
from draw_pictures import PICTURES, words_of

from vmpin.cli.main import main

PLACED = """\
topology: {online: "0-7", nodes: {0: "0-3", 1: "4-7"}}
shared_pool: "0-1"
sandboxes:
  - id: pod-b
    vcpus: 4
    vhost: 1
    containers:
      - {id: main, cpuset: "4-5", exclusive: true}
      - {id: side, cpuset: "6", exclusive: true}
  - {id: pod-a, vcpus: 2, containers: [{id: only, cpuset: "0-1"}]}
"""


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def drawn(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    file = tmp_path / "node.yaml"
    file.write_text(text)
    assert main(["map", "--scenario", str(file), *more]) == 0
    return capsys.readouterr().out


def test_a_scenario_is_drawn_with_its_planned_masks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = drawn(PLACED, tmp_path, capsys).splitlines()
    assert lines[0] == "node node.yaml; online 0-7; shared pool 0-1; exclusive 4-6; housekeeping none"
    assert any("4 A1 a:v1" in line for line in lines), "the VM of a pod has its letter"
    assert any("6 A2 a:v3" in line for line in lines)
    assert " A2 pod-b side: CPUs 6 (VM)" in lines
    assert "  b pod-a: floating, on 0-1; vCPUs 0-1, vhost, emulator on 0-1" in lines
    assert all(len(line) <= 80 for line in lines)


def test_the_data_of_a_picture_has_what_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """tests/documents.py checks it against the schema."""
    found = json.loads(drawn(PLACED, tmp_path, capsys, "-o", "json"))
    assert (found["node"], found["time"], found["exclusive"], found["reserved"]) == ("node.yaml", None, "4-6", "")
    cpus = {cpu["cpu"]: cpu for node in found["numa_nodes"] for cache in node["caches"]
            for core in cache["cores"] for cpu in core}
    assert (cpus[4]["kind"], cpus[4]["owners"], cpus[4]["pinned"]) == ("exclusive", ["A1"], ["a:v1"])
    assert (cpus[0]["kind"], cpus[0]["owners"], cpus[0]["floating"]) == ("shared", [], 4)
    assert {owner["letter"]: owner["cpus"] for owner in found["owners"]} == {"A1": "4-5", "A2": "6"}
    assert found["guests"][1] == {"letter": "b", "title": "pod-a", "verdict": "floating", "mask": "0-1",
                                  "floating": ["vCPUs 0-1, vhost, emulator on 0-1"], "notes": []}


def test_a_scenario_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["map", "--scenario", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err


def test_the_picture_in_the_readme_is_drawn_today() -> None:
    assert words_of(draw_map.node()) == words_of((PICTURES / "map.svg").read_text()), "draw it again: draw_map.py"
    assert "docs/pictures/map.svg" in (Path(__file__).parents[3] / "README.md").read_text()
