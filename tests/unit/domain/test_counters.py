"""What is counted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.domain.counters import BOUNDS, Histogram


def test_a_value_counts_for_the_first_bound_that_it_does_not_exceed() -> None:
    found = Histogram()
    for seconds in (0.0006, 0.001, 0.0011, 0.0025, 31.0):
        found.observe(seconds)
    assert {bound: count for bound, count in zip((*BOUNDS, math.inf), found.counts, strict=True) if count} == {
        0.001: 2, 0.0025: 2, math.inf: 1}
    assert [count for _, count in found.cumulative()] == [0, 0, 0, 2, *[4] * (len(BOUNDS) - 4), 5]
    assert found.total == 5
    assert found.sum == pytest.approx(31.0052)


def test_what_seems_to_have_ended_before_it_began_took_no_time() -> None:
    found = Histogram()
    found.observe(-3.0)
    assert (found.counts[0], found.total, found.sum) == (1, 1, 0.0)


@given(st.lists(st.floats(0, 100)))
def test_every_value_is_counted_once_and_at_the_right_place(values: list[float]) -> None:
    found = Histogram()
    for value in values:
        found.observe(value)
    assert sum(found.counts) == found.total == len(values)
    for bound, count in found.cumulative():
        assert count == sum(value <= bound for value in values)
    assert BOUNDS[2] == 0.0005  # what a birth has to be within is a bound of its own
