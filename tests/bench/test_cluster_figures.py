"""The benchmarks that take an API server. CI builds it while other tests run: they come late (tests/conftest)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from need import lacking, need_root, need_tool
from test_bench import FIELDS, left_over, run

pytestmark = [pytest.mark.root, pytest.mark.cluster]


def test_the_reporter_is_measured_at_an_api_server(tmp_path: Path) -> None:
    need_root()
    need_tool("gcc", "cc")
    out = tmp_path / "bench.json"
    ran, _, err = run("--only", "report_rss", "--only", "report_idle_cpu", "--only", "change_to_condition", "-o", out)
    if "not measured: needs " in err:
        lacking(err)
    assert ran.returncode == 0, err
    resident, idle, change = json.loads(out.read_text())["benchmarks"]
    assert [each["name"] for each in (resident, idle, change)] == [
        "report_rss", "report_idle_cpu", "change_to_condition"]
    for figure in (resident, change):
        assert figure.keys() >= FIELDS
        assert min(figure["value"], figure["floor"]) > 0
    assert idle["value"] >= 0
    assert all(each["peak"] >= each["rss"] > 0 for each in resident["by_client"].values())
    assert left_over(ran.pid) == []


@pytest.mark.release
def test_every_node_at_one_glance_is_measured(tmp_path: Path) -> None:
    need_root()
    out = tmp_path / "bench.json"
    ran, _, err = run("--only", "all_nodes_200", "--only", "all_nodes_rss", "-o", out)
    if "not measured: needs " in err:
        lacking(err)
    assert ran.returncode == 0, err
    spent, memory = json.loads(out.read_text())["benchmarks"]
    assert [each["name"] for each in (spent, memory)] == ["all_nodes_200", "all_nodes_rss"]
    for figure in (spent, memory):
        assert figure.keys() >= FIELDS
        assert min(figure["value"], figure["floor"]) > 0
        assert (figure["nodes"], figure["sandboxes"]) == (5, 50)
    assert all(each.keys() >= {"status", "verify"} for each in spent["by_client"].values())
    assert left_over(ran.pid) == []
