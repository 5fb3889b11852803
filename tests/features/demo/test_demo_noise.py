"""`vmpin demo --noise`, as a person runs it: what it reports holds together, and it leaves nothing behind.

No figure is asserted, as they depend on the machine; with vmpin the container's vCPU moves to no other CPU on any.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from cli_runs import refused, run
from documents import checked_output
from need import need_unshare
from test_demo import DEMO, corner, environment

__all__ = ["corner"]

pytestmark = pytest.mark.root

SHORT = [*DEMO, "--noise", "--rounds", "1", "--seconds", "0.5"]


def test_every_placement_is_measured_and_nothing_is_left(corner: Path, tmp_path: Path) -> None:
    done = subprocess.run([*SHORT, "--svg", tmp_path / "worth.svg", "-o", "json"], env=environment(corner),
                          capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert "round 1, vmpin, on CPU" in done.stderr
    checked_output(["demo", "--noise", "-o", "json"], done.stdout)
    result = json.loads(done.stdout)
    assert [each["setup"] for each in result["readings"]] == ["unplaced", "kata-cpusets", "vmpin"]
    for each in result["readings"]:
        assert 0 < each["share"] <= 100
        assert 0 <= each["waited"] <= 100
        assert each["longest_gap"] >= 0
    pinned = result["readings"][2]
    assert pinned["migrations_per_minute"] in (0, None)
    if result["circumstances"]["accelerator"] == "KVM" and pinned["wake_ups"] is not None:
        assert 0 < pinned["wake_ups"]["median"] <= pinned["wake_ups"]["longest"]
    ET.parse(tmp_path / "worth.svg")


def test_without_kvm_it_measures_all_but_wake_ups(corner: Path) -> None:
    wrap = [*need_unshare("-m", "--propagation", "private"), "sh", "-c",
            'touch "$TMPDIR/kvm"; [ -e /dev/kvm ] && mount --bind /dev/null /dev/kvm; rm "$TMPDIR/kvm"; exec "$@"',
            "sh"]
    done = subprocess.run([*wrap, *SHORT, "--quiet-sidecar"], env=environment(corner), capture_output=True, text=True,
                          timeout=1200)
    assert done.returncode == 0, done.stderr
    assert "not measured under TCG" in " ".join(done.stdout.split())
    assert [line.split(",")[0] for line in done.stdout.splitlines()[1:3]] == ["share of its CPU", "longest gap"]
    assert "late" not in done.stdout.split("\n\n", maxsplit=1)[0]


@pytest.mark.parametrize("seen", ["2/2", "round 1, unplaced"])
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
