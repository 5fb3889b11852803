"""Events of pods: which change is one, and never more than client-go would write, the same ones as a count."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_given import pod

from vmpin.features.cluster.kube.pod_events import (
    COMBINED,
    DRIFT_PAUSE,
    MAX_MESSAGE,
    MEMORY,
    POD_BURST,
    POD_SECONDS,
    PROCESS_BURST,
    PROCESS_SECONDS,
    SIMILAR,
    SIMILAR_SECONDS,
    DriftReports,
    EventLimits,
    EventReason,
    PodNotice,
    TokenBucket,
    event_request,
    transition,
)
from vmpin.features.cluster.kube.pod_pinning import PinState, PodPinning
from vmpin.features.cluster.kube.reported_node import Repairs


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
    event = transition(state(before), PodPinning(now, "as it is"))
    assert (None if event is None else event.reason) == reason


def test_other_reasons_of_a_degraded_pod_are_news_and_numbers_of_a_collision_are_not() -> None:
    for which, news in ((PinState.DEGRADED, True), (PinState.COLLISION, False), (PinState.PINNED, False)):
        assert (transition(state(which, "2 threads"), PodPinning(which, "3 threads")) is not None) == news


@given(st.lists(st.sampled_from(PinState)))
def test_no_state_twice_is_an_event(states: list[PinState]) -> None:
    before: PodPinning | None = None
    for which in itertools.chain.from_iterable((state, state) for state in states):
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
    event = drift.event("u", repairs(tuned=5), 1.0)
    assert event is not None
    assert event.reason is EventReason.RESTORED
    assert event.message == ("2 times a thread was found on other CPUs and put back (tuned; the last time: tuned "
                             "runs)")
    assert drift.event("u", repairs(tuned=9), 2.0) is None
    assert drift.due(2.0) == 1.0 + DRIFT_PAUSE
    event = drift.event("u", repairs(tuned=9, cpuset=1), 1.0 + DRIFT_PAUSE)
    assert event is not None
    assert event.message.startswith("5 times")
    assert "(tuned, cpuset; " in event.message
    assert drift.event("u", repairs(tuned=1), 9999.0) is None  # another watcher, which counts from zero
    drift.keep_only(set())
    assert drift.event("u", repairs(tuned=7), 99999.0) is None


@given(st.lists(st.tuples(st.floats(0, 300), st.integers(0, 5)), max_size=60))
def test_every_repair_is_reported_once_and_no_two_events_come_close(steps: list[tuple[float, int]]) -> None:
    drift, now, total, reported, last = DriftReports(), 0.0, 0, 0, float("-inf")
    drift.event("u", repairs(tuned=0), now)
    for pause, more in steps:
        now, total = now + pause, total + more
        event = drift.event("u", repairs(tuned=total), now)
        if event is not None:
            assert now - last >= DRIFT_PAUSE
            reported, last = reported + int(event.message.split()[0]), now
            assert reported == total
    assert reported <= total


def notice(text: str = "text", reason: EventReason = EventReason.DEGRADED) -> PodNotice:
    return PodNotice(reason, text)


@given(st.integers(1, 30), st.floats(0.1, 300), st.lists(st.floats(0, 1000), max_size=100))
def test_a_bucket_gives_its_burst_and_then_its_rate(burst: int, seconds: float, pauses: list[float]) -> None:
    bucket, now, taken = TokenBucket(burst, seconds, 0.0), 0.0, 0
    for pause in pauses:
        now += pause
        waits = bucket.wait(now)
        if bucket.take(now):
            assert waits <= 1e-6 * seconds
            taken += 1
        else:
            assert waits > 0
            assert not bucket.take(now + waits * 0.99)
        assert taken <= burst + now / seconds + 1e-6


@given(st.lists(st.tuples(st.floats(0, 200), st.integers(0, 3), st.sampled_from(EventReason), st.integers(0, 30)),
                max_size=150))
def test_no_pod_and_no_process_has_more_than_its_limit(steps: list[tuple[float, int, EventReason, int]]) -> None:
    limits, now = EventLimits("x", 0.0), 0.0
    written: Counter[str] = Counter()
    names: dict[str, int] = {}
    for pause, which, reason, text in steps:
        now += pause
        uid = str(which)
        recorded = limits.admit(uid, f"pod-{uid}", notice(str(text), reason), now, 1000.0 + now)
        if recorded is None:
            continue
        written[uid] += 1
        assert recorded.times == names.get(recorded.name, 0) + 1
        names[recorded.name] = recorded.times
        assert written[uid] <= POD_BURST + now / POD_SECONDS + 1e-6
        assert written.total() <= PROCESS_BURST + now / PROCESS_SECONDS + 1e-6


def test_the_same_event_raises_the_count_of_the_first() -> None:
    limits = EventLimits("x", 0.0)
    first = limits.admit("u", "web", notice(), 0.0, 100.0)
    second = limits.admit("u", "web", notice(), 5.0, 105.0)
    assert first is not None
    assert second is not None
    assert (first.times, second.times, first.name == second.name, second.first) == (1, 2, True, 100.0)
    other = limits.admit("u", "web", notice(reason=EventReason.PINNED), 5.0, 105.0)
    assert other is not None
    assert (other.times, other.name != first.name) == (1, True)
    limits.refused("u", second)
    again = limits.admit("u", "web", notice(), 6.0, 106.0)
    assert again is not None
    assert (again.times, again.name != first.name) == (1, True)


def test_similar_events_are_one_from_the_tenth_on_until_they_rest() -> None:
    limits = EventLimits("x", 0.0)
    recorded = [limits.admit("u", "web", notice(f"text {number}"), 1.0, 1.0) for number in range(SIMILAR + 3)]
    messages = ["" if event is None else event.notice.message for event in recorded]
    assert messages[:SIMILAR - 1] == [f"text {number}" for number in range(SIMILAR - 1)]
    assert messages[SIMILAR - 1:] == [f"{COMBINED}text {number}" for number in range(SIMILAR - 1, SIMILAR + 3)]
    assert len({event.name for event in recorded if event is not None}) == SIMILAR
    rested = limits.admit("u", "web", notice("after"), 1.0 + SIMILAR_SECONDS + 1, 1.0)
    assert rested is not None
    assert rested.notice.message == "after"


def test_what_is_remembered_is_bounded() -> None:
    limits = EventLimits("x", 0.0)
    for number in range(MEMORY + 50):
        limits.admit(str(number), "web", notice(), number * 10.0, 0.0)
    # No public way in: nothing shows how much is remembered.
    assert max(len(table) for table in (limits._pods, limits._similar, limits._recorded)) == MEMORY


def test_the_object_names_pod_node_and_reason() -> None:
    recorded = EventLimits("abc", 0.0).admit("u", "web", notice("é" * 2000), 0.0, 0.0)
    assert recorded is not None
    created = event_request(pod(), recorded, "node-a", 60.0, create=True)
    body: Any = created.body
    assert (created.method, created.path) == ("POST", "/api/v1/namespaces/default/events")
    assert body["metadata"] == {"name": "web.abc1", "namespace": "default"}
    assert body["involvedObject"]["uid"] == "uid-web"
    assert (body["reason"], body["type"], body["count"]) == ("PinningDegraded", "Warning", 1)
    assert body["source"] == {"component": "vmpin-reporter", "host": "node-a"}
    assert (body["firstTimestamp"], body["lastTimestamp"]) == ("1970-01-01T00:00:00Z", "1970-01-01T00:01:00Z")
    assert len(body["message"].encode()) <= MAX_MESSAGE
    raised = event_request(pod(), recorded._replace(times=4), "node-a", 61.0, create=False)
    body = raised.body
    assert (raised.method, raised.path) == ("PATCH", "/api/v1/namespaces/default/events/web.abc1")
    assert (body["count"], body["lastTimestamp"]) == (4, "1970-01-01T00:01:01Z")
