"""The doctor's check of the node's reporter."""

from __future__ import annotations

import pytest
from healthy_node import facts, running

from vmpin.domain.facts import NodeFacts
from vmpin.features.cluster.reporter_check import reporter
from vmpin.features.doctor.checks import all_checks


@pytest.mark.parametrize(("known", "level", "text"), [
    (facts(), "ok", "or none runs"),
    (running(hook=True), "ok", "or none runs"),
    (running(hook=True, reporter=False), "warn", "does not reach the API server"),
    (running(hook=True, reporter=True), "ok", "reaches the API server")])
def test_it_is_judged_by_what_the_reporter_said_last(known: NodeFacts, level: str, text: str) -> None:
    found = reporter(known)
    assert (found.level, text in found.what) == (level, True)
    assert reporter in [check.judge for check in all_checks()]
