"""The pauses between attempts at one peer."""

from __future__ import annotations

import pytest

from vmpin.host import retry
from vmpin.host.retry import Backoff


def test_each_pause_is_twice_the_one_before_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "JITTER", 0.0)
    backoff = Backoff(0.5, 6.0)
    assert [backoff.pause() for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 6.0, 6.0]
    backoff.reset()
    assert backoff.pause() == 0.5


def test_pauses_differ_by_chance_and_none_exceeds_the_longest() -> None:
    pauses = [Backoff(8.0, last).pause() for last in (8.0, 9.0, 30.0) for _ in range(200)]
    assert 6.0 <= min(pauses[:200]) < max(pauses[:200]) <= 8.0
    assert 8.0 < max(pauses[200:400]) <= 9.0 < max(pauses[400:]) <= 10.0
