"""Pictures in docs/pictures show what the program shows now, and nothing of the machine on which they were drawn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from draw_pictures import PICTURES, status, words_of


def test_a_screen_in_the_docs_is_as_the_program_draws_it() -> None:
    assert words_of(status()) == words_of((PICTURES / "status.svg").read_text()), "python tests/unit/draw_pictures.py"


@pytest.mark.parametrize("path", [path for path in sorted(PICTURES.iterdir()) if path.suffix in (".svg", ".png")],
                         ids=lambda path: path.name)
def test_a_picture_is_small_loads_nothing_and_says_how_it_was_made(path: Path) -> None:
    assert path.stat().st_size < 150_000
    assert f"`{path.name}`" in (PICTURES / "README.md").read_text()
    assert f"docs/pictures/{path.name}" in (PICTURES.parents[1] / "README.md").read_text()
    if path.suffix == ".svg":
        assert not re.search(r"url\((?!#)|(?:href|src)=\"(?!#)|/(?:work|home|root)/", path.read_text())
