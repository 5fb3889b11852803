"""Alive and ready."""

from __future__ import annotations

from vmpin.status import health
from vmpin.status.health import SourceHealth


def test_a_watcher_that_looks_at_everything_in_time_is_alive() -> None:
    assert health.alive(0.0, 10.0).up
    assert health.alive(60.0, 0.1).up  # a source that failed is waited for
    assert not health.alive(60.1, 0.1).up
    assert health.alive(300.0, 100.0).up
    assert not health.alive(300.1, 100.0).up


def test_what_is_down_counts_when_it_is_needed() -> None:
    well, text = health.page([SourceHealth("hook", True, True),
                              SourceHealth("podresources", False, False, "no answer")])
    assert well
    assert text == "[+]hook ok\n[~]podresources down, not needed: no answer\nok\n"
    well, text = health.page([SourceHealth("hook", True, True), SourceHealth("nri", False, True, "not connected")])
    assert not well
    assert text == "[+]hook ok\n[-]nri failed: not connected\nfailed\n"


def test_what_an_error_says_stays_within_its_line() -> None:
    _, text = health.page([SourceHealth("nri", False, True, "a\n[+]nri ok\x1b[2J" + "b" * 1000)])
    assert text.splitlines()[0].startswith("[-]nri failed: a?[+]nri ok?[2Jbbb")
    assert len(text.splitlines()) == 2
    assert len(text) < 300
