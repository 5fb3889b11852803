"""Scenarios with the allocator's events, played by the command:

    code, text = shown(tmp_path, SCENARIO, "-o", "json")
    events(tmp_path, "- create: {pod: a/a, container: c, cpus: 2}")[0]["cpus"]
"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from vmpin.cli.main import main

#: Two nodes of four cores with two threads, a third one of memory alone, and a NIC on the second.
NODE = """
topology:
  online: "0-15"
  cores: ["0,8", "1,9", "2,10", "3,11", "4,12", "5,13", "6,14", "7,15"]
  caches: ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]
  nodes: {0: "0-3,8-11", 1: "4-7,12-15", 2: ""}
  distances: [[10, 21, 17], [21, 10, 28], [17, 28, 10]]
  devices: {eth0: 1}
"""


def shown(tmp_path: Path, scenario: str, *options: str) -> tuple[int, str]:
    file = tmp_path / "node.yaml"
    file.write_text(scenario)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(["plan", "--scenario", str(file), *options])
    return code, out.getvalue()


def played(tmp_path: Path, scenario: str) -> list[dict[str, Any]]:
    code, out = shown(tmp_path, scenario, "-o", "json")
    outcomes: list[dict[str, Any]] = json.loads(out)["events"]
    assert code == any("refused" in outcome for outcome in outcomes)
    return outcomes


def events(tmp_path: Path, text: str, allocate: str = "{reserved: 0}", node: str = NODE) -> list[dict[str, Any]]:
    return played(tmp_path, f"{node}\nallocate: {allocate}\nevents:\n{text}")
