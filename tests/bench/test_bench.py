"""The benchmark runs and says what it should. No test looks at a time: those are the machine's."""

from __future__ import annotations

import contextlib
import glob
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from need import lacking, need_root, need_tool

pytestmark = pytest.mark.root

RUN = Path(__file__).with_name("run.py")
FIELDS = {"name", "value", "unit", "floor", "ratio", "limit", "ok"}
#: Seconds until a benchmark has hung: the longest takes half a minute on two idle cores.
PATIENCE = 900.0


def run(*args: str | Path) -> tuple[subprocess.Popen[str], str, str]:
    """The process (ended), its output and what it said besides."""
    started = subprocess.Popen([sys.executable, RUN, "--quick", *args], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    out, err = started.communicate(timeout=PATIENCE)
    return started, out, err


def left_over(pid: int) -> list[Path]:
    """The VMs, files and cgroups of a benchmark: all bear its process's number."""
    mark = f"b{pid:07}"
    # Not Path.glob: other cgroups come and go meanwhile.
    found = [Path(each) for pattern in (f"/dev/shm/vmpin-bench-{mark}-*", f"/sys/fs/cgroup/**/vmpin-bench-{mark}")
             for each in glob.glob(pattern, recursive=True)]
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "cmdline").read_text(errors="replace"):
                found.append(process)
    return found


def test_quick_figures_have_their_shape_and_nothing_is_left(tmp_path: Path) -> None:
    need_root()
    need_tool("gcc", "cc")
    out = tmp_path / "made" / "bench.json"
    ran, said, err = run("--only", "pass_200x16", "--only", "update_16", "-o", out)
    assert ran.returncode == 0, err
    figures = json.loads(out.read_text())["benchmarks"]
    assert [figure["name"] for figure in figures] == ["pass_200x16", "update_16"]
    for figure in figures:
        assert figure.keys() >= FIELDS
        assert figure["value"] > 0
        assert figure["floor"] > 0
        assert figure["ratio"] == pytest.approx(figure["value"] / figure["floor"], rel=0.02)
        assert isinstance(figure["ok"], bool)
        assert figure["name"] in said
    assert left_over(ran.pid) == []


@pytest.mark.release
def test_drift_and_sampling_are_measured_beside_their_peers(tmp_path: Path) -> None:
    need_root()
    need_tool("gcc", "cc")
    out = tmp_path / "bench.json"

    ran, _, err = run("--only", "sampling_200x16", "--only", "repair_200x16", "-o", out)
    assert ran.returncode == 0, err
    sampling, repair = json.loads(out.read_text())["benchmarks"]
    assert (sampling["name"], repair["name"]) == ("sampling_200x16", "repair_200x16")
    assert sampling["threads"] == repair["threads"] == 320
    assert min(sampling["asleep"], sampling["value"], sampling["psutil"]) > 0
    assert min(repair["taskset"], repair["psutil"], repair["blind"], repair["floor"], repair["value"]) > 0
    assert left_over(ran.pid) == []


@pytest.mark.release
def test_the_live_view_is_measured_beside_a_reader_of_the_same_files(tmp_path: Path) -> None:
    need_root()
    need_tool("gcc", "cc")
    out = tmp_path / "bench.json"
    ran, _, err = run("--only", "top_200x16", "-o", out)
    assert ran.returncode == 0, err
    (figure,) = json.loads(out.read_text())["benchmarks"]
    assert figure.keys() >= FIELDS
    assert (figure["name"], figure["threads"], figure["refreshes"]) == ("top_200x16", 320, 3)
    assert min(figure["value"], figure["floor"], figure["asleep"], figure["asleep_floor"],
               figure["bytes_a_refresh"]) > 0
    assert left_over(ran.pid) == []


@pytest.mark.release
def test_starts_are_measured_beside_bare_pythons(tmp_path: Path) -> None:
    need_root()
    need_tool("gcc", "cc")
    out = tmp_path / "bench.json"
    ran, _, err = run("--only", "start_to_watching", "--only", "reconcile_command", "-o", out)
    assert ran.returncode == 0, err
    start, reconcile = json.loads(out.read_text())["benchmarks"]
    assert (start["name"], start["containers"]) == ("start_to_watching", 100)
    assert (reconcile["name"], reconcile["threads"]) == ("reconcile_command", 16)
    assert reconcile["value"] == pytest.approx(max(reconcile["alone"], reconcile["through_the_watcher"]), abs=0.01)
    for figure in start, reconcile:
        assert figure.keys() >= FIELDS
        assert min(figure["floor"], figure["python"]) > 0
    assert left_over(ran.pid) == []


@pytest.mark.release
def test_events_of_the_runtime_are_measured(tmp_path: Path) -> None:
    need_root()
    need_tool("gcc", "cc")
    out = tmp_path / "bench.json"
    names = "nri_to_pinned", "nri_create_to_pinned", "nri_vcpu_to_pinned", "nri_sync_500"
    ran, _, err = run(*(word for name in names for word in ("--only", name)), "-o", out)
    assert ran.returncode == 0, err
    pinned, created, born, sync = json.loads(out.read_text())["benchmarks"]
    assert (pinned["name"], pinned["threads"]) == ("nri_to_pinned", 16)
    assert (created["name"], created["threads"]) == ("nri_create_to_pinned", 16)
    assert (sync["name"], sync["pods"], sync["containers"]) == ("nri_sync_500", 250, 500)
    assert sync["parts"] > 1
    assert (born["name"], born["sandboxes"]) == ("nri_vcpu_to_pinned", pinned["sandboxes"] + 1)
    for figure in (pinned, created, born, sync):
        assert figure.keys() >= FIELDS
        assert min(figure["value"], figure["floor"]) > 0
    assert left_over(ran.pid) == []


@pytest.mark.release
def test_what_a_plugin_costs_is_measured(tmp_path: Path) -> None:
    need_root()
    out = tmp_path / "bench.json"
    ran, _, err = run("--only", "nri_update_cost", "-o", out)
    if "not measured: needs " in err:
        lacking(err)
    assert ran.returncode == 0, err
    (figure,) = json.loads(out.read_text())["benchmarks"]
    assert figure.keys() >= FIELDS
    assert figure["name"] == "nri_update_cost"
    assert min(figure["floor"], figure["with_plugin"]) > 0  # the value is a difference
    assert figure["pairs"] == 20
    assert left_over(ran.pid) == []


@pytest.mark.release
def test_the_events_of_a_container_are_measured_beside_a_bare_plugin(tmp_path: Path) -> None:
    need_root()
    need_tool("gcc", "cc")
    out = tmp_path / "bench.json"
    names = "lifecycle_runc", "lifecycle_allocating", "lifecycle_vm", "hook_to_masks"
    ran, _, err = run(*(word for name in names for word in ("--only", name)), "-o", out)
    assert ran.returncode == 0, err
    figures = json.loads(out.read_text())["benchmarks"]
    assert tuple(figure["name"] for figure in figures) == names
    for figure in figures:
        assert figure.keys() >= FIELDS
        assert figure["floor"] > 0
    assert [figure.get("others") for figure in figures] == [100, 100, 100, None]
    assert figures[3]["value"] >= 0
    assert left_over(ran.pid) == []


@pytest.mark.release
def test_an_exclusive_container_among_shared_ones_is_measured(tmp_path: Path) -> None:
    need_root()
    out = tmp_path / "bench.json"
    ran, _, err = run("--only", "first_exclusive_100", "-o", out)
    if "not measured: needs " in err:
        lacking(err)
    assert ran.returncode == 0, err
    (figure,) = json.loads(out.read_text())["benchmarks"]
    assert figure.keys() >= FIELDS
    assert (figure["name"], figure["shared"], figure["rounds"]) == ("first_exclusive_100", 10, 2)
    assert min(figure["value"], figure["floor"], figure["without_headroom"], figure["beside"]) > 0


@pytest.mark.release
def test_a_node_of_containers_at_rest_is_measured(tmp_path: Path) -> None:
    need_root()
    out = tmp_path / "bench.json"
    ran, _, err = run("--only", "idle_containers", "-o", out)
    if "not measured: needs " in err:
        lacking(err)
    assert ran.returncode == 0, err
    (figure,) = json.loads(out.read_text())["benchmarks"]
    assert figure.keys() >= FIELDS
    assert (figure["name"], figure["containers"]) == ("idle_containers", 100)
    assert min(figure["value"], figure["floor"], figure["resident_mib"]) > 0
    assert left_over(ran.pid) == []


def test_new_threads_and_storms_are_measured(tmp_path: Path) -> None:
    need_root()
    need_tool("gcc", "cc")
    out = tmp_path / "bench.json"

    ran, _, err = run("--only", "birth_to_placed", "--only", "birth_p99", "--only", "fork_storm", "-o", out)
    if "births are not reported" in err:
        lacking(err)
    assert ran.returncode == 0, err
    placed, worst, storm = json.loads(out.read_text())["benchmarks"]
    assert [figure["name"] for figure in (placed, worst, storm)] == ["birth_to_placed", "birth_p99", "fork_storm"]
    for figure in (placed, worst, storm):
        assert figure.keys() >= FIELDS
        assert figure["floor"] > 0
    assert placed["value"] == max(placed["outside_us"], placed["vcpu_us"])
    assert placed["value"] <= worst["value"]
    assert placed["new_threads"] == 100
    assert min(storm["new_threads"], storm["processes_a_second"], storm["events"]["exec"]) > 0
    assert left_over(ran.pid) == []


@pytest.mark.release
def test_the_agent_in_a_guest_is_measured(tmp_path: Path) -> None:
    need_root()
    need_tool("gcc", "cc")
    out = tmp_path / "bench.json"
    ran, _, err = run("--only", "guest_apply", "--only", "guest_idle_rss", "--only", "guest_idle_wakes",
                      "--only", "pyz_size", "-o", out)
    if "not measured: needs cpuset cgroups" in err:
        lacking(err)
    assert ran.returncode == 0, err
    apply, resident, wakes, size = json.loads(out.read_text())["benchmarks"]
    assert [each["name"] for each in (apply, resident, wakes, size)] == [
        "guest_apply", "guest_idle_rss", "guest_idle_wakes", "pyz_size"]
    assert (apply["containers"], apply["threads"]) == (5, 100)
    assert wakes["value"] > 0
    for figure in (apply, resident, size):
        assert figure.keys() >= FIELDS
        assert min(figure["value"], figure["floor"]) > 0
    assert left_over(ran.pid) == []


@pytest.mark.release
def test_the_search_for_cpus_is_measured(tmp_path: Path) -> None:
    need_root()
    out = tmp_path / "bench.json"
    names = ["allocate_96", "allocate_512", "allocate_scattered", "nri_create_cost"]
    ran, _, err = run(*(word for name in names for word in ("--only", name)), "-o", out)
    assert ran.returncode == 0, err
    figures = json.loads(out.read_text())["benchmarks"]
    *searches, creation = figures
    assert [figure["name"] for figure in figures] == names
    assert creation.keys() >= FIELDS
    assert 0 < creation["floor"] < creation["value"] <= creation["p95"]
    for figure in searches:
        assert figure.keys() >= FIELDS
        assert min(figure["floor"], *figure["by_machine"].values()) > 0
        assert figure["value"] == max(figure["by_machine"].values())
    assert left_over(ran.pid) == []


@pytest.mark.release
def test_a_reading_of_interrupts_is_measured_beside_one_of_the_same_files(tmp_path: Path) -> None:
    need_root()
    out = tmp_path / "bench.json"
    ran, _, err = run("--only", "irqs_256x2000", "-o", out)
    assert ran.returncode == 0, err
    (figure,) = json.loads(out.read_text())["benchmarks"]
    assert figure.keys() >= FIELDS
    assert 0 < figure["floor"] < figure["value"]
    assert figure["bytes"] > 5_000_000


def test_what_cannot_be_measured_is_an_error(tmp_path: Path) -> None:
    need_root()
    need_tool("gcc", "cc")
    ran, _, err = run("--only", "status_json", "--command", tmp_path / "vmpin", "-o", tmp_path / "bench.json")
    assert ran.returncode == 1
    assert "status_json: not measured: needs the vmpin command" in err
    assert json.loads((tmp_path / "bench.json").read_text()) == {"python": sys.version, "benchmarks": []}
    assert left_over(ran.pid) == []


def test_an_interrupted_run_ends_its_machines(tmp_path: Path) -> None:
    need_root()
    need_tool("gcc", "cc")
    started = subprocess.Popen([sys.executable, RUN, "--only", "pass_200x16", "-o", tmp_path / "bench.json"],
                               stderr=subprocess.PIPE, text=True)
    assert started.stderr is not None
    while "starting" not in (line := started.stderr.readline()):
        assert line, "ended before it began"
    deadline = time.monotonic() + PATIENCE
    while len(left_over(started.pid)) < 20:
        assert time.monotonic() < deadline, "its machines do not come"
        time.sleep(0.1)
    started.terminate()
    assert started.wait(PATIENCE) == 130
    started.stderr.close()
    assert left_over(started.pid) == []
    assert not (tmp_path / "bench.json").exists()


@pytest.mark.release
def test_the_dearest_inputs_are_measured(tmp_path: Path) -> None:
    need_root()
    out, names = tmp_path / "bench.json", ["hostile_frame", "hostile_checkpoint", "hostile_persist", "flooding_guest"]
    ran, _, err = run(*(arg for name in names for arg in ("--only", name)), "-o", out)
    assert ran.returncode == 0, err
    figures = json.loads(out.read_text())["benchmarks"]
    assert [figure["name"] for figure in figures] == names
    for figure in figures:
        assert figure.keys() >= FIELDS
        assert figure["value"] > 0
    assert left_over(ran.pid) == []


@pytest.mark.release
@pytest.mark.release
def test_growth_and_a_hostile_storm_are_measured(tmp_path: Path) -> None:
    need_root()
    need_tool("gcc", "cc")
    need_tool("unshare")
    out = tmp_path / "bench.json"
    ran, _, err = run("--only", "exec_storm_hostile", "--only", "name_storm_hostile", "--only", "growth_rss",
                      "--only", "growth_idle", "--only", "growth_status", "--only", "growth_start", "--only",
                      "growth_pass", "-o", out)
    if "births are not reported" in err:
        lacking(err)
    assert ran.returncode == 0, err
    storm, names, *growing = json.loads(out.read_text())["benchmarks"]
    assert storm["name"] == "exec_storm_hostile"
    assert storm.keys() >= FIELDS
    assert storm["hooks"] > 0
    assert storm["executions_a_second"] > 0
    assert names["name"] == "name_storm_hostile"
    assert names.keys() >= FIELDS
    assert min(names["names_a_second"], names["hook_ms"], names["hook_quiet_ms"]) > 0
    assert [each["name"] for each in growing] == [
        "growth_rss", "growth_idle", "growth_status", "growth_start", "growth_pass"]
    for figure in growing[:3]:
        assert figure.keys() >= FIELDS
        assert (figure["sandboxes"], figure["threads"]) == (20, 320)
        assert figure["by_size"].keys() == {"5", "10", "20"}
        assert min(figure["by_size"].values()) > 0
    assert left_over(ran.pid) == []
