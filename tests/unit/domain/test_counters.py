"""What is counted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.domain.counters import BOUNDS, Histogram


def test_a_value_counts_for_the_first_bound_that_it_does_not_exceed() -> None:
    found = Histogram((0.001, 0.01))
    for seconds in (0.0005, 0.001, 0.0011, 0.01, 5.0):
        found.observe(seconds)
    assert found.counts == [2, 2, 1]
    assert found.cumulative() == [(0.001, 2), (0.01, 4), (math.inf, 5)]
    assert found.total == 5
    assert found.sum == pytest.approx(5.0126)


def test_what_seems_to_have_ended_before_it_began_took_no_time() -> None:
    found = Histogram((0.001,))
    found.observe(-3.0)
    assert (found.counts, found.sum) == ([1, 0], 0.0)


@given(st.lists(st.floats(0, 100)))
def test_every_value_is_counted_once_and_at_the_right_place(values: list[float]) -> None:
    found = Histogram()
    for value in values:
        found.observe(value)
    assert sum(found.counts) == found.total == len(values)
    for bound, count in found.cumulative():
        assert count == sum(value <= bound for value in values)
    assert BOUNDS[2] == 0.0005  # what a birth has to be within is a bound of its own
