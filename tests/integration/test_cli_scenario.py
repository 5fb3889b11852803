"""`vmpin place` on scenarios, without root."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import refused, run

SCENARIO = """\
topology:
  online: "0-15"
  cores: ["0,8", "1,9"]
  nodes: {0: "0-3,8-11", 1: "4-7,12-15"}
housekeeping: "0"
shared_pool: "0-1,8-9"
policy: {vcpus: auto, spare_vcpus: sandbox, iothreads: sandbox, vhost: sandbox, emulator: sandbox}
sandboxes:
  - id: pod-a
    vcpus: 3
    iothreads: 1
    vhost: 2
    containers:
      - {id: main, cpuset: "2-3", exclusive: true}
      - {id: sidecar, cpuset: "0-1,8-9"}
      - {id: init}
"""


PLACED = {
    "version": 1, "sandboxes": [{
        "id": "pod-a", "mask": "0-3,8-9", "verdict": "pinned", "reasons": [],
        "vcpus": [{"id": 0, "cpus": "0-1,8-9", "container": None}, {"id": 1, "cpus": "2", "container": "main"},
                  {"id": 2, "cpus": "3", "container": "main"}],
        "iothreads": [{"index": 0, "cpus": "0-3,8-9"}], "vhost": "0-3,8-9", "emulator": "0-3,8-9",
        "containers": [{"id": "main", "vcpus": "1-2"}, {"id": "sidecar", "vcpus": "0"}, {"id": "init", "vcpus": "0"}],
    }],
    "collisions": [], "moves": 0}


def test_a_scenario_is_placed(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(SCENARIO)
    done = run("plan", "--scenario", str(file), "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == PLACED
    before = tmp_path / "before.json"
    before.write_text(done.stdout)
    again = run("plan", "--scenario", str(file), "--previous", str(before), "-o", "json")
    assert json.loads(again.stdout) == PLACED
    file.write_text(SCENARIO.replace('cpuset: "2-3"', 'cpuset: "3-4"'))
    moved = json.loads(run("plan", "--scenario", str(file), "--previous", str(before), "-o", "json").stdout)
    assert [vcpu["cpus"] for vcpu in moved["sandboxes"][0]["vcpus"]] == ["0-1,8-9", "4", "3"]
    assert moved["moves"] == 1


def test_a_scenario_as_text(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(SCENARIO)
    done = run("plan", "--scenario", str(file))
    assert done.returncode == 0
    assert "sandbox pod-a: pinned, mask 0-3,8-9" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_scenario_on_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("sandboxes: [{id: a, vcpus: 1, containers: [{id: c}]}]\n")
    done = run("plan", "--scenario", str(file), "-o", "json")
    assert json.loads(done.stdout)["sandboxes"][0]["verdict"] == "floating"


def test_events_on_this_machine_end_with_1_where_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("events: [{create: {pod: a/b, container: c}}]\n")
    done = run("plan", "--scenario", str(file), "-o", "json")
    (event,) = json.loads(done.stdout)["events"]
    assert (done.returncode, done.stderr) == (0, "")
    assert event["cpus"] == event["pool"] != ""
    file.write_text("events: [{create: {pod: a/b, container: c, cpus: 9999, policy: exclusive}}]\n")
    done = run("plan", "--scenario", str(file))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("create a/b/c: refused\n  ")
    assert "9999 CPUs" in done.stdout


@pytest.mark.parametrize(("old", "new", "parts"), [
    ("housekeeping:", "housekeepers:", ["unknown key 'housekeepers'"]),
    ('"2-3"', '"2-99"', ["sandboxes[0].containers[0].cpuset", "16-99", "not in the topology"]),
    ("id: sidecar", "id: main", ["sandboxes[0].containers[1].id", "'main' is there twice"]),
    ("vcpus: 3", "vcpus: -3", ["sandboxes[0].vcpus", "-3"]),
    ("vcpus: auto", "vcpus: car", ["policy", "'car'"]),
    ('"2-3"', '"3-2"', ["sandboxes[0].containers[0].cpuset", "3-2"]),
    ("sandboxes:", "sandboxes: [", ["node.yaml:"]),
])
def test_a_scenario_that_makes_no_sense_is_refused_in_one_line(tmp_path: Path, old: str, new: str,
                                                               parts: list[str]) -> None:
    file = tmp_path / "node.yaml"
    assert old in SCENARIO
    file.write_text(SCENARIO.replace(old, new, 1))
    done = run("plan", "--scenario", str(file))
    refused(done, str(file), *parts)


def test_a_scenario_or_a_previous_output_that_is_not_there_is_named(tmp_path: Path) -> None:
    refused(run("plan", "--scenario", str(tmp_path / "no.yaml")), str(tmp_path / "no.yaml"))
    refused(run("plan", "--previous", "x"), "--previous goes with --scenario only")
    file = tmp_path / "node.yaml"
    file.write_text(SCENARIO)
    refused(run("plan", "--scenario", str(file), "--previous", str(tmp_path / "no.json")), "no.json")
