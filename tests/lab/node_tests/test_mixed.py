"""runc containers and VM sandboxes side by side, started, updated and ended in random order: at every step each VM is
where its containers' CPUs are, on nobody else's, and the runc containers are as runc made them.

    python -m lab run --timeout 1800 --env VMPIN_MIXED_SEED=7 --env VMPIN_MIXED_STEPS=500 -- -k side_by_side

A seed gives the same steps again; what comes between them (who is slow, what a kill interrupts) is the machine's. With
VMPIN_MIXED_STEPS=0, as in CI, the story ends when each kind of step has come.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from lab.node_tests.conftest import RESULTS, StartsVms
from lab.node_tests.machines import Kata, Vmpin, Watcher
from lab.node_tests.mixed import Story

SEED = int(os.environ.get("VMPIN_MIXED_SEED", "1"))
STEPS = int(os.environ.get("VMPIN_MIXED_STEPS", "60"))


def test_runc_pods_and_vms_side_by_side(nested_vm: StartsVms, kata: Kata,
                                        vmpin: Vmpin, watcher: Watcher, tmp_path: Path) -> None:
    with Story(SEED, tmp_path, nested_vm, kata, vmpin, watcher) as story:
        started = time.monotonic()
        try:
            story.play(STEPS)
        except AssertionError as err:
            (RESULTS / "mixed.txt").write_text(str(err))  # at once: what is still to be taken down may hang
            raise
        finally:
            took, steps = time.monotonic() - started, sum(story.counts.values())
            print(f"VMPIN_MIXED_SEED={SEED}: {steps} steps in {took:.0f} s, {steps / took:.2f}/s; {story.counts}")
            if story.settled:
                print(f"settled after {statistics.median(story.settled):.1f} s, at most {max(story.settled):.1f} s")
    if STEPS >= 60 or STEPS == 0:
        assert all(story.counts.values()), f"a kind of step never came: {story.counts}"
