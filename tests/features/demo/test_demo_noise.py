"""`vmpin demo --noise`, as a person runs it: what it reports holds together, and it leaves nothing behind.

No figure is asserted, as they depend on the machine; with vmpin the container's vCPU moves to no other CPU on any.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cli_runs import refused, run
from documents import checked_output
from need import need_unshare
from test_demo import DEMO, corner, environment

from vmpin.features.demo.worth import DISTURBED
from vmpin.host.sysfs import Sysfs

__all__ = ["corner"]

pytestmark = pytest.mark.root

SHORT = [*DEMO, "--noise", "--rounds", "1", "--seconds", "0.5"]


def measured(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Its result. Beside other work of the machine there is no verdict (exit code 3)."""
    assert done.returncode in (0, 3), done.stderr
    checked_output(["demo", "--noise", "-o", "json"], done.stdout)
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["disturbed"] == (done.returncode == 3) == ("vmpin: no verdict: " in done.stderr)
    assert bool(result["metrics"]) == (done.returncode == 0)
    return result


def test_every_placement_is_measured_and_nothing_is_left(corner: Path, tmp_path: Path) -> None:
    done = subprocess.run([*SHORT, "--svg", tmp_path / "worth.svg", "-o", "json"], env=environment(corner),
                          capture_output=True, text=True, timeout=1200)
    result = measured(done)
    assert "round 1, vmpin, on CPU" in done.stderr
    assert [each["setup"] for each in result["readings"]] == ["unplaced", "kata-cpusets", "vmpin"]
    for each in result["readings"]:
        assert 0 < each["share"] <= 100
        assert 0 <= each["waited"] <= 100
        assert each["longest_gap"] >= 0
    pinned = result["readings"][2]
    assert pinned["migrations_per_minute"] in (0, None)
    if result["circumstances"]["accelerator"] == "KVM" and pinned["wake_ups"] is not None:
        assert 0 < pinned["wake_ups"]["median"] <= pinned["wake_ups"]["longest"]
    if result["disturbed"]:
        assert not (tmp_path / "worth.svg").exists()
    else:
        ET.parse(tmp_path / "worth.svg")


@pytest.mark.release
def test_without_kvm_it_measures_all_but_wake_ups(corner: Path) -> None:
    wrap = [*need_unshare("-m", "--propagation", "private"), "sh", "-c",
            'touch "$TMPDIR/kvm"; [ -e /dev/kvm ] && mount --bind /dev/null /dev/kvm; rm "$TMPDIR/kvm"; exec "$@"',
            "sh"]
    done = subprocess.run([*wrap, *SHORT, "--quiet-sidecar", "-o", "json"], env=environment(corner),
                          capture_output=True, text=True, timeout=1200)
    result = measured(done)
    assert result["circumstances"]["accelerator"] == "TCG"
    assert [each["wake_ups"] for each in result["readings"]] == [None] * 3
    assert "wake-ups in the guest are not measured" in done.stderr


@pytest.mark.release
def test_beside_busy_programs_it_gives_no_verdict_but_their_names(corner: Path, tmp_path: Path) -> None:
    burn = "import pathlib; pathlib.Path('/proc/self/comm').write_text('burner'); exec('while True: pass')"
    with ExitStack() as stack:
        for _ in Sysfs().online():
            stack.callback(stack.enter_context(subprocess.Popen([sys.executable, "-c", burn])).kill)
        done = subprocess.run([*SHORT, "--svg", tmp_path / "worth.svg", "-o", "json"], env=environment(corner),
                              capture_output=True, text=True, timeout=1200)
    readings = measured(done)["readings"]
    assert all(each["others"] > DISTURBED for each in readings)
    assert any("burner" in each["others_by"] for each in readings)
    assert re.search(r"vmpin: no verdict: in 3 of 3 measurements other programs took \d+( to \d+)? % of the two CPUs, "
                     r"more than 4 %; on average .* \d+ %\n", done.stderr), done.stderr
    assert list(tmp_path.glob("worth.svg")) == []


@pytest.mark.parametrize("seen", [pytest.param("2/2", marks=pytest.mark.release), "round 1, unplaced"])
def test_it_cleans_up_when_it_is_ended(corner: Path, seen: str) -> None:
    env = {**environment(corner), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(SHORT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if line.strip().startswith(seen):
                break
        demo.send_signal(signal.SIGTERM)
        assert "Traceback" not in demo.stderr.read()
        assert demo.wait(300) == 143


@pytest.mark.parametrize(("arguments", "parts"), [
    (["--rounds", "2"], ["--rounds belongs to --noise"]),
    (["--svg", "x.svg"], ["--svg belongs to --noise"]),
    (["--noise", "--rounds", "0"], ["--rounds 0: is not between 1 and 1000"]),
    (["--noise", "--seconds", "nan"], ["--seconds nan: is not between"]),
    (["--noise", "--svg", "/nonexistent/worth.svg"], ["--svg /nonexistent/worth.svg: cannot be written"]),
    (["--noise", "--svg", os.sep], ["cannot be written"]),
])
def test_wrong_options_are_refused_before_anything_starts(arguments: list[str], parts: list[str]) -> None:
    refused(run("demo", *arguments), *parts)
