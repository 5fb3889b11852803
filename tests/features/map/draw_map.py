"""Draws the map in docs/pictures, by the program's own code. From the repository's root:

    PYTHONPATH=tests:tests/unit python tests/features/map/draw_map.py
"""

from __future__ import annotations

import contextlib

import pytest
from draw_pictures import PICTURES, svg
from rich.text import Text

from vmpin.cli.main import main as vmpin
from vmpin.cli.repetition import Screen


def node() -> str:
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(Screen()) as page:
        patch.setenv("COLUMNS", "110")
        assert vmpin(["map", "--scenario", str(PICTURES / "node.yaml")]) == 0
    return svg([Text.from_ansi(line) for line in page.getvalue().splitlines()], "vmpin map", 110)


if __name__ == "__main__":
    (PICTURES / "map.svg").write_text(node(), encoding="utf-8")
