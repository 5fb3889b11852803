"""Draws the picture of isolation in docs/pictures from recorded data, by the program's own code. From the
repository's root:

    PYTHONPATH=tests:tests/unit python tests/features/isolation/draw_isolation.py
"""

from __future__ import annotations

import contextlib

import pytest
from draw_pictures import PICTURES, svg
from rich.text import Text
from top_given import used

from vmpin.cli.repetition import Screen
from vmpin.features.isolation.verbs.top import show


def top() -> str:
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(Screen()) as page:
        patch.setenv("COLUMNS", "80")
        show(used(), "foreign", threads=False, trouble="")
    return svg([Text.from_ansi(line) for line in page.getvalue().splitlines()], "vmpin top")


def main() -> None:
    (PICTURES / "top.svg").write_text(top(), encoding="utf-8")


if __name__ == "__main__":
    main()
