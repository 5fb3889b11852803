"""When two writers contend for a thread, and how long it is left alone."""

from __future__ import annotations

import pytest

from vmpin.cpuset import CpuSet
from vmpin.domain.contention import LONGEST_REST, Contention, ContentionRules, OnContention, Turn
from vmpin.domain.model import ThreadId

ONE, TWO = CpuSet((1,)), CpuSet((2,))
A, B = ThreadId(10, 1), ThreadId(11, 1)


def test_a_thread_that_drifts_now_and_then_is_put_back_each_time() -> None:
    contention = Contention[ThreadId](ContentionRules(repairs=3))
    for minute in range(20):
        assert not contention.starts(A, ONE, minute * 30.0)
        contention.add_repairs([A], minute * 30.0)
        assert not contention.resting(A, ONE, minute * 30.0)


def test_more_repairs_a_minute_than_the_rules_allow_are_contention_of_that_thread_alone() -> None:
    contention = Contention[ThreadId](ContentionRules(repairs=3, rest=300))
    for second in (0.0, 10.0, 20.0):
        assert not contention.starts(A, ONE, second)
        contention.add_repairs([A], second)
        contention.add_repairs([B], second - 100)
    assert contention.starts(A, ONE, 30.0)
    assert not contention.starts(B, ONE, 30.0)
    assert contention.resting(A, ONE, 31.0)
    assert contention.resting(A, ONE, 329.0)
    assert not contention.resting(A, ONE, 330.0)
    assert not contention.resting(B, ONE, 31.0)
    assert contention.next_retry([A, B], 31.0) == 330.0
    assert contention.next_retry([B], 31.0) is None


def test_what_rests_is_set_all_the_same_when_it_is_to_be_elsewhere() -> None:
    contention = Contention[ThreadId](ContentionRules(repairs=1))
    contention.add_repairs([A], 0.0)
    assert contention.starts(A, ONE, 1.0)
    assert not contention.resting(A, TWO, 2.0)


def test_after_its_rest_a_thread_is_tried_once_and_rests_twice_as_long() -> None:
    contention = Contention[ThreadId](ContentionRules(repairs=3, rest=100))
    for second in (0.0, 1.0, 2.0):
        contention.add_repairs([A], second)
    now, rests = 3.0, []
    for _ in range(9):
        assert contention.starts(A, ONE, now)
        end = contention.next_retry([A], now)
        assert end is not None
        rests.append(end - now)
        now = end
        assert not contention.resting(A, ONE, now)
        assert contention.retry_due(A, ONE, now)
        contention.add_repairs([A], now)
        assert not contention.retry_due(A, ONE, now)
        now += 1.0
    assert rests[:4] == [100, 200, 400, 800]
    assert rests[-1] == LONGEST_REST


def test_a_thread_that_stays_after_its_rest_is_fought_over_no_more() -> None:
    contention = Contention[ThreadId](ContentionRules(repairs=2, rest=100))
    for second in (0.0, 1.0):
        contention.add_repairs([A], second)
    assert contention.starts(A, ONE, 2.0)
    contention.add_repairs([A], 102.0)
    contention.keep_only({A}, 150.0)
    assert contention
    contention.keep_only({A}, 163.0)
    assert not contention
    contention.add_repairs([A], 164.0)
    assert not contention.starts(A, ONE, 165.0)


def test_leave_rests_for_good_and_persist_never() -> None:
    left = Contention[ThreadId](ContentionRules(OnContention.LEAVE, 1))
    kept = Contention[ThreadId](ContentionRules(OnContention.PERSIST, 1))
    for contention in (left, kept):
        contention.add_repairs([A], 0.0)
        assert contention.starts(A, ONE, 1.0)
        assert contention.count(A) == 1
    assert left.resting(A, ONE, 1e9)
    assert not kept.resting(A, ONE, 1.5)
    kept.add_repairs([A], 2.0)
    assert kept.starts(A, ONE, 3.0)
    assert kept.count(A) == 2  # so that it is not said again as if it were new


def test_by_hand_all_is_taken_up_again() -> None:
    contention = Contention[ThreadId](ContentionRules(OnContention.LEAVE, 2))
    contention.add_repairs([A], 0.0)
    contention.add_repairs([A], 1.0)
    assert contention.starts(A, ONE, 2.0)
    contention.retry_now()
    assert not contention.resting(A, ONE, 2.0)
    assert not contention.starts(A, ONE, 2.0)


def test_threads_that_ended_are_forgotten() -> None:
    contention = Contention[ThreadId](ContentionRules())
    contention.add_repairs([A], 0.0)
    contention.add_repairs([B], 0.0)
    contention.keep_only({B}, 1.0)
    assert contention.starts(A, ONE, 1.0) is False
    contention.keep_only(set(), 1.0)
    assert not contention


@pytest.mark.parametrize(("resync", "within"), [(1.0, 60.0), (10.0, 60.0), (60.0, 360.0)])
def test_where_everything_is_looked_at_seldom_contention_takes_longer_to_be_seen(resync: float, within: float) -> None:
    rules = ContentionRules(repairs=3, resync=resync)
    assert rules.within == within
    contention = Contention[ThreadId](rules)
    now = 0.0
    for _ in range(3):
        assert not contention.starts(A, ONE, now)
        contention.add_repairs([A], now)
        now += resync
    assert contention.starts(A, ONE, now)


def test_a_turn_is_a_repair_until_contention_begins_then_a_rest_and_then_a_retry() -> None:
    contention = Contention[ThreadId](ContentionRules(OnContention.REST, 2, rest=300.0))
    turns = [contention.turn(A, ONE, False, 0.0)]
    for now in (1.0, 2.0):
        turns.append(contention.turn(A, ONE, True, now))
        contention.add_repairs([A], now)
    turns += [contention.turn(A, ONE, True, now) for now in (3.0, 4.0)]
    turns.append(contention.turn(A, ONE, False, 303.0))
    assert turns == [Turn(False, False, False), Turn(False, True, False), Turn(False, True, False),
                     Turn(True, True, True), Turn(True, True, False), Turn(False, True, False)]


def test_a_thread_that_is_put_back_each_time_rests_never() -> None:
    contention = Contention[ThreadId](ContentionRules(OnContention.PERSIST, 1))
    contention.add_repairs([A], 0.0)
    assert contention.turn(A, ONE, True, 1.0) == Turn(rests=False, repairs=True, begins=True)
