"""How often Events are written: never more than client-go would, and the same ones as a count."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kube_given import pod

from vmpin.features.cluster.kube.event_limits import (
    COMBINED,
    MEMORY,
    POD_BURST,
    POD_SECONDS,
    PROCESS_BURST,
    PROCESS_SECONDS,
    SIMILAR,
    SIMILAR_SECONDS,
    EventLimits,
    TokenBucket,
)
from vmpin.features.cluster.kube.pod_event import MAX_MESSAGE, event_request
from vmpin.features.cluster.kube.transitions import EventReason, PodNotice


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
        found = limits.admit(uid, f"pod-{uid}", notice(str(text), reason), now, 1000.0 + now)
        if found is None:
            continue
        written[uid] += 1
        assert found.times == names.get(found.name, 0) + 1
        names[found.name] = found.times
        assert written[uid] <= POD_BURST + now / POD_SECONDS + 1e-6
        assert written.total() <= PROCESS_BURST + now / PROCESS_SECONDS + 1e-6
    assert written.total() + limits.dropped == len(steps)


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
    found = [limits.admit("u", "web", notice(f"text {number}"), 1.0, 1.0) for number in range(SIMILAR + 3)]
    messages = ["" if each is None else each.event.message for each in found]
    assert messages[:SIMILAR - 1] == [f"text {number}" for number in range(SIMILAR - 1)]
    assert messages[SIMILAR - 1:] == [f"{COMBINED}text {number}" for number in range(SIMILAR - 1, SIMILAR + 3)]
    assert len({each.name for each in found if each is not None}) == SIMILAR
    rested = limits.admit("u", "web", notice("after"), 1.0 + SIMILAR_SECONDS + 1, 1.0)
    assert rested is not None
    assert rested.event.message == "after"


def test_what_is_remembered_is_bounded() -> None:
    limits = EventLimits("x", 0.0)
    for number in range(MEMORY + 50):
        limits.admit(str(number), "web", notice(), number * 10.0, 0.0)
    # No public way in: nothing shows how much is remembered.
    assert max(len(table) for table in (limits._pods, limits._similar, limits._recorded)) == MEMORY


def test_the_object_names_pod_node_and_reason() -> None:
    recorded = EventLimits("abc", 0.0).admit("u", "web", notice("é" * 2000), 0.0, 0.0)
    assert recorded is not None
    made = event_request(pod(), recorded, "node-a", 60.0, create=True)
    body: Any = made.body
    assert (made.method, made.path) == ("POST", "/api/v1/namespaces/default/events")
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
