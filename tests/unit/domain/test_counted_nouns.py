"""A count and its noun, as a person says them."""

from __future__ import annotations

import pytest

from vmpin.domain.terminal import number_of


@pytest.mark.parametrize(("count", "noun", "text"), [
    (0, "thread", "0 threads"), (1, "thread", "1 thread"), (2, "sandbox", "2 sandboxes"), (1, "sandbox", "1 sandbox"),
    (1, "thread is", "1 thread is"), (3, "thread is", "3 threads are"), (2, "guest answers", "2 guests answer"),
    (1, "guest answers", "1 guest answers"),
    (6, "object was", "6 objects were"), (2, "process has", "2 processes have")])
def test_a_noun_and_its_verb_follow_the_count(count: int, noun: str, text: str) -> None:
    assert number_of(count, noun) == text
