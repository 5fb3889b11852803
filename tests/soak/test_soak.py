"""The soak until enough has happened (`story.LEAST`), the same story each time. `make soak` lets it go on for longer,
with another one each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from need import need_root, need_tool

#: It ends at a rest, when enough has happened; where it has not by then (seconds), this fails.
LONGEST, SEED = 1800, 20260


@pytest.mark.root
def test_whatever_happens_everything_comes_right(tmp_path: Path) -> None:
    need_root()
    need_tool("qemu-system-x86_64")
    out = tmp_path / "soak.json"
    ran = subprocess.run(
        [sys.executable, "-m", "soak", "--seconds", "0", "--longest", str(LONGEST), "--seed",
         str(SEED), "-o", out],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}, capture_output=True, text=True,
        timeout=2 * LONGEST)
    print(ran.stdout)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(out.read_text())
    assert found["violations"] == 0
    # It did happen.
    assert found["lacking"] == []
    assert found["checks"] >= 9 * found["rests"]
    assert found["checks_by_kind"]["gone"] == 1
