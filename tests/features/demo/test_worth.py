"""What follows from the readings."""

from __future__ import annotations

import json

import pytest
from documents import checked
from worth_given import CIRCUMSTANCES, EMULATED, WORTH, reading

from vmpin.features.demo.vm import VCPUS
from vmpin.features.demo.worth import KATA_REASON, Metric, Setup, Spread, WakeUps, Worth, wake_ups


def metric(key: str) -> Metric:
    return next(each for each in WORTH.metrics() if each.key == key)


def test_a_spread_has_the_median_the_least_and_the_most_of_the_rounds() -> None:
    assert metric("longest_gap_ms").spreads == {
        Setup.UNPLACED: Spread(98.0, 88.0, 108.0), Setup.KATA: Spread(33.0, 28.0, 38.0),
        Setup.VMPIN: Spread(0.45, 0.0, 0.9)}


def test_the_factor_is_above_one_where_vmpin_is_better_whichever_way_the_figure_goes() -> None:
    assert metric("share_percent").factor() == pytest.approx(99.87 / 42.7)
    assert metric("wake_up_percentile_99_ms").factor() == pytest.approx(15 / 0.2)


def test_there_is_no_factor_of_nothing() -> None:
    assert metric("migrations_per_minute").factor() is None
    assert [each.factor() for each in EMULATED.metrics() if each.key.startswith("wake_up")] == [None] * 3


def test_a_wake_up_is_late_by_what_its_sleep_was_longer_than_asked() -> None:
    assert wake_ups([*[1.25] * 98, 1.5, 5.0]) == WakeUps(100, 0.25, 4.0, 4.0)


@pytest.mark.parametrize("slept", [[], [0.5, 1.1, 1.2]])
def test_without_sleeps_or_with_a_timer_of_another_frequency_lateness_is_unknown(slept: list[float]) -> None:
    assert wake_ups(slept) is None


def test_disturbed_readings_do_not_count() -> None:
    disturbed = tuple(reading(setup, 5.0, 900.0, 0.0, 50.0, others=20.0) for setup in Setup)
    quiet = Worth(CIRCUMSTANCES, (*disturbed, *WORTH.readings))
    assert (quiet.metrics(), quiet.disturbed) == (WORTH.metrics(), False)


def test_without_a_quiet_reading_of_some_placement_there_is_no_figure() -> None:
    disturbed = tuple(reading(setup, 5.0, 900.0, 0.0, 50.0, others=20.0) for setup in Setup)
    some = Worth(CIRCUMSTANCES, (*disturbed, *WORTH.readings[:2]))
    document = json.loads(json.dumps(some.document()))
    checked("demo-noise", document)
    assert (document["disturbed"], document["metrics"], len(document["readings"])) == (True, [], 5)


def test_json_has_a_version_every_metric_and_every_reading() -> None:
    document = json.loads(json.dumps(WORTH.document()))
    checked("demo-noise", document)
    assert document["circumstances"]["accelerator"] == "KVM"
    assert document["metrics"][0] == {
        "key": "share_percent", "unit": "%", "unplaced": {"median": pytest.approx(42.7), "least": 41.2, "most": 44.2},
        "kata-cpusets": {"median": 51.0, "least": 51.0, "most": 51.0},
        "vmpin": {"median": pytest.approx(99.87), "least": 99.82, "most": 99.92}}
    assert len(document["readings"]) == 6
    assert document["readings"][0]["wake_ups"]["percentile_99"] == 12.0
    assert document["kata_pinning"]["masks"] == {}
    assert "sandbox.go" in document["kata_pinning"]["source"]


def test_what_was_not_measured_is_null_in_json() -> None:
    document = json.loads(json.dumps(EMULATED.document()))
    checked("demo-noise", document)
    assert document["metrics"][-1] == {"key": "wake_up_longest_ms", "unit": "ms", "unplaced": None,
                                       "kata-cpusets": None, "vmpin": None}


def test_kata_pins_nothing_as_the_vm_has_more_vcpus_than_the_pod_cpus() -> None:
    assert KATA_REASON.startswith(f"the VM has {VCPUS} vCPUs and the pod 2 CPUs")
