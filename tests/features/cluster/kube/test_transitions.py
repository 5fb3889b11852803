"""Which changes are worth an Event."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.features.cluster.kube.pod_condition import PinState, PodPinning
from vmpin.features.cluster.kube.reported_node import Repairs
from vmpin.features.cluster.kube.transitions import DRIFT_PAUSE, DriftReports, EventReason, transition


def state(which: PinState | None, text: str = "as it is") -> PodPinning | None:
    return None if which is None else PodPinning(which, text)


@pytest.mark.parametrize(("before", "now", "reason"), [
    (None, PinState.PINNED, EventReason.PINNED), (None, PinState.FLOATING, EventReason.PINNED),
    (None, PinState.DEGRADED, EventReason.DEGRADED), (None, PinState.COLLISION, EventReason.COLLISION),
    (None, PinState.UNMANAGED, None), (None, PinState.OFF, None), (None, PinState.SUSPENDED, EventReason.SUSPENDED),
    (None, PinState.WAITING, None), (PinState.PINNED, PinState.WAITING, None), (PinState.PINNED, PinState.AWAY, None),
    (PinState.PINNED, PinState.NOT_RUNNING, None), (PinState.PINNED, PinState.PINNED, None),
    (PinState.PINNED, PinState.DEGRADED, EventReason.DEGRADED),
    (PinState.DEGRADED, PinState.PINNED, EventReason.RESTORED),
    (PinState.COLLISION, PinState.FLOATING, EventReason.RESTORED),
    (PinState.SUSPENDED, PinState.PINNED, EventReason.RESTORED),
    (PinState.PINNED, PinState.FLOATING, EventReason.PINNED),
    (PinState.PINNED, PinState.UNMANAGED, EventReason.UNPINNED),
    (PinState.PINNED, PinState.OFF, EventReason.UNPINNED)])
def test_events_by_transition(before: PinState | None, now: PinState, reason: EventReason | None) -> None:
    found = transition(state(before), PodPinning(now, "as it is"))
    assert (None if found is None else found.reason) == reason


def test_other_reasons_of_a_degraded_pod_are_news_and_numbers_of_a_collision_are_not() -> None:
    for which, news in ((PinState.DEGRADED, True), (PinState.COLLISION, False), (PinState.PINNED, False)):
        assert (transition(state(which, "2 threads"), PodPinning(which, "3 threads")) is not None) == news


@given(st.lists(st.sampled_from(PinState)))
def test_no_state_twice_is_an_event(states: list[PinState]) -> None:
    before: PodPinning | None = None
    for which in itertools.chain.from_iterable((each, each) for each in states):
        now = PodPinning(which, "the same")
        first = transition(before, now)
        if which.lasting:
            assert transition(now, now) is None
            before = now
        else:
            assert first is None


def repairs(**counts: int) -> Repairs:
    return Repairs(counts, "tuned runs")


def test_drift_is_reported_once_in_ten_minutes_with_its_number() -> None:
    drift = DriftReports()
    assert drift.event("u", repairs(tuned=3), 0.0) is None  # from before the reporter's start
    assert drift.due(0.0) is None
    found = drift.event("u", repairs(tuned=5), 1.0)
    assert found is not None
    assert found.reason is EventReason.RESTORED
    assert found.message == ("2 times a thread was found on other CPUs and put back (tuned; the last time: tuned "
                             "runs)")
    assert drift.event("u", repairs(tuned=9), 2.0) is None
    assert drift.due(2.0) == 1.0 + DRIFT_PAUSE
    found = drift.event("u", repairs(tuned=9, cpuset=1), 1.0 + DRIFT_PAUSE)
    assert found is not None
    assert found.message.startswith("5 times")
    assert "(tuned, cpuset; " in found.message
    assert drift.event("u", repairs(tuned=1), 9999.0) is None  # another watcher, which counts from zero
    drift.keep_only(set())
    assert drift.event("u", repairs(tuned=7), 99999.0) is None


@given(st.lists(st.tuples(st.floats(0, 300), st.integers(0, 5)), max_size=60))
def test_every_repair_is_reported_once_and_no_two_events_come_close(steps: list[tuple[float, int]]) -> None:
    drift, now, total, reported, last = DriftReports(), 0.0, 0, 0, float("-inf")
    drift.event("u", repairs(tuned=0), now)
    for pause, more in steps:
        now, total = now + pause, total + more
        found = drift.event("u", repairs(tuned=total), now)
        if found is not None:
            assert now - last >= DRIFT_PAUSE
            reported, last = reported + int(found.message.split()[0]), now
            assert reported == total
    assert reported <= total
