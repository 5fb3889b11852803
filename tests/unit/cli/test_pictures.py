"""Pictures in docs/pictures show what the program shows now, and nothing of the machine on which they were drawn."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path

import draw_pictures
import pytest

PICTURES = Path(__file__).parents[3] / "docs" / "pictures"


def words(svg: str) -> list[str]:
    """The texts, without what differs between versions of rich."""
    return [html.unescape(text).replace("\xa0", " ").strip()
            for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg) if text.strip()]


@pytest.mark.parametrize(("name", "draw"), [("top", draw_pictures.top), ("status", draw_pictures.status)])
def test_a_screen_in_the_docs_is_as_the_program_draws_it(name: str, draw: Callable[[], str]) -> None:
    assert words(draw()) == words((PICTURES / f"{name}.svg").read_text()), "python tests/unit/draw_pictures.py"


@pytest.mark.parametrize("path", [path for path in sorted(PICTURES.iterdir()) if path.suffix in (".svg", ".png")],
                         ids=lambda path: path.name)
def test_a_picture_is_small_loads_nothing_and_says_how_it_was_made(path: Path) -> None:
    assert path.stat().st_size < 150_000
    assert f"`{path.name}`" in (PICTURES / "README.md").read_text()
    assert f"docs/pictures/{path.name}" in (PICTURES.parents[1] / "README.md").read_text()
    if path.suffix == ".svg":
        assert not re.search(r"url\((?!#)|(?:href|src)=\"(?!#)|/(?:work|home|root)/", path.read_text())
