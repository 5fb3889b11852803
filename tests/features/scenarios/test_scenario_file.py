"""The file of a scenario, whatever is in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from absurd_values import YAML, absurd_json, absurd_lines, absurd_texts, spoil

from vmpin.errors import ConfigError
from vmpin.features.scenarios import scenario_file


def test_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"

    def load(raw: bytes) -> object:
        path.write_bytes(raw)
        return scenario_file.load(path)

    document = ("topology:\n  online: 0-3\nshared_pool: 0-1\nsandboxes:\n  - id: pod\n    vcpus: 2\n    containers:\n"
                "      - id: app\n        cpuset: 2-3\n")
    load(document.encode())
    spoil(load, [*absurd_lines(document, YAML, ":"), *absurd_texts()], ConfigError)


def test_an_earlier_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"

    def load(raw: bytes) -> object:
        path.write_bytes(raw)
        return scenario_file.load_previous(path)

    plan = {"sandboxes": [{"id": "pod", "mask": "0-3", "vcpus": [{"id": 0, "cpus": "1", "container": "c1"}]}]}
    spoil(load, [*absurd_json(plan), *absurd_texts()], ConfigError)


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null\n", "{}"])
def test_an_empty_scenario_is_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is empty: a scenario has"):
        scenario_file.load_scenario(path)


def test_a_scenario_may_come_through_a_pipe(tmp_path: Path) -> None:
    """`vmpin plan --scenario <(…)`: it is the operator's own, and waited for."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    if os.fork() == 0:
        try:
            path.write_bytes(b"topology: {online: 0-3}\nsandboxes: []\n")
        finally:
            os._exit(0)
    try:
        assert scenario_file.load(path).sandboxes == ()
    finally:
        os.wait()
