"""The soak until enough has happened (`story.LEAST`), the same story each time. `make soak` lets it go on for longer,
with another one each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from need import need_root, need_tool

#: It ends at a rest, when enough has happened; where it has not by then (seconds), this fails.
LONGEST, SEED = 1800, 20260


def soaked(tmp_path: Path, *arguments: str) -> Any:
    """What is counted of a story in which nothing was wrong."""
    need_root()
    need_tool("qemu-system-x86_64")
    out = tmp_path / "soak.json"
    ran = subprocess.run(
        [sys.executable, "-m", "soak", "--seed", str(SEED), "-o", out, *arguments],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}, capture_output=True, text=True,
        timeout=2 * LONGEST)
    print(ran.stdout)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(out.read_text())
    assert found["violations"] == 0
    return found


@pytest.mark.root
def test_whatever_happens_everything_comes_right(tmp_path: Path) -> None:
    found = soaked(tmp_path, "--seconds", "0", "--longest", str(LONGEST))
    # It did happen.
    assert found["lacking"] == []
    assert found["checks"] >= 9 * found["rests"]
    assert found["checks_by_kind"]["gone"] == 1


@pytest.mark.root
@pytest.mark.release
def test_with_an_api_server_that_comes_and_goes_masks_are_as_without(tmp_path: Path) -> None:
    found = soaked(tmp_path, "--world", "cluster", "--steps", "150", "--between", "4", "12")
    assert min(found["alone"]) >= 2
    assert max(found["alone"]) < found["rests"]
