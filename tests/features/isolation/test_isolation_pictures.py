"""The pictures of isolation in docs/pictures show what the program shows now."""

from __future__ import annotations

import draw_isolation
from draw_pictures import PICTURES, words_of


def test_the_live_view_in_the_docs_is_as_the_program_draws_it() -> None:
    assert words_of(draw_isolation.top()) == words_of((PICTURES / "top.svg").read_text()), "draw_isolation.py"
