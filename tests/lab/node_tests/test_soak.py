"""The soak on a whole node: eight CPUs, VMs under KVM beside the stand-ins, real containers of runc and crun.

    python -m lab run --timeout 2400 --env VMPIN_LAB_SOAK_STEPS=300 --env VMPIN_LAB_SEED=7 -- -k soak

The number of steps and the seed are fixed; what comes between the steps (which of two is slower, what a kill
interrupts) differs. CI has the soak of tests/soak instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from lab.node_tests.conftest import RESULTS

SEED = os.environ.get("VMPIN_LAB_SEED", "3")
#: Kinds of steps that any story of this length has.
NEEDED = {"sandbox", "container", "runc pod", "update", "foreign writer", "disk full", "watcher killed"}
STEPS = os.environ.get("VMPIN_LAB_SOAK_STEPS", "60")


@pytest.mark.parametrize("world", ["containers", "nri"])
def test_everything_comes_right_on_a_whole_node(world: str) -> None:
    out = RESULTS / f"soak-{world}.json"
    ran = subprocess.run(
        [sys.executable, "-m", "soak", "--world", world, "--between", "1", "4", "--steps", STEPS, "--seed",
         SEED, "-o", out, "--log", RESULTS / f"soak-{world}.log"], capture_output=True, text=True, check=False)
    print(ran.stdout)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(out.read_text())
    assert found["violations"] == 0
    assert not set(found["never"]) & NEEDED
