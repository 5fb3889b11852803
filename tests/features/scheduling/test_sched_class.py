"""Scheduling classes as text."""

from __future__ import annotations

import pytest

from vmpin.config.loading import load
from vmpin.errors import ConfigError
from vmpin.features.scheduling.sched_class import SchedClass, parse_class


@pytest.mark.parametrize(("text", "wanted"), [
    ("fifo:1", SchedClass(1, 1, True)), ("fifo:49", SchedClass(1, 49, True)), ("rr:07", SchedClass(2, 7, True)),
    ("fifo", SchedClass(1, 1, True)), ("other", None)])
def test_a_value_becomes_a_class_that_new_threads_do_not_inherit(text: str, wanted: SchedClass | None) -> None:
    assert parse_class(text) == wanted


@pytest.mark.parametrize("value", [
    "", "fifo:", "fifo:0", "fifo:50", "rr:99", "fifo:-1", "fifo:+1", "FIFO:1", "fifo:1 ", "fifo:1\n", "fifo:\u0661",
    "deadline", "fifo:999999999999", "batch", True, 1, None, [], "\0"])
def test_any_other_value_is_refused_with_the_reason(value: object) -> None:
    with pytest.raises(ValueError, match="N from 1 to 49: the kernel's threads for interrupts have 50"):
        parse_class(value)


def test_the_configuration_has_a_class_in_one_spelling() -> None:
    config = load(None, {}, {"scheduling.vcpu_class": "rr:07"})
    assert config.of_features["scheduling"].vcpu_class == "rr:7"
    assert load(None, {}, {}).of_features["scheduling"] == ("other", "", False)
    with pytest.raises(ConfigError, match=r"scheduling\.vcpu_class"):
        load(None, {}, {"scheduling.vcpu_class": "fifo:50"})


def test_a_class_is_shown_as_it_is_configured() -> None:
    assert [str(SchedClass(*values)) for values in ((0,), (1, 3), (2, 4), (3,), (5,), (6,), (9,))] == [
        "other", "fifo:3", "rr:4", "batch", "idle", "deadline", "9"]
    assert SchedClass(1, 3).describe() == "fifo:3, which its new threads inherit"
    assert SchedClass(1, 3, True).describe() == "fifo:3"
