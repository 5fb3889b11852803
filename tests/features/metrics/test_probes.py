"""The pages of /healthz and /readyz."""

from __future__ import annotations

from vmpin.features.metrics.exporter import page
from vmpin.status.health import SourceHealth


def test_what_is_down_counts_when_it_is_needed() -> None:
    well, text = page([SourceHealth("hook", True, True),
                              SourceHealth("podresources", False, False, "no answer")])
    assert well
    assert text == "[+]hook ok\n[~]podresources down, not needed: no answer\nok\n"
    well, text = page([SourceHealth("hook", True, True), SourceHealth("nri", False, True, "not connected")])
    assert not well
    assert text == "[+]hook ok\n[-]nri failed: not connected\nfailed\n"


def test_what_an_error_says_stays_within_its_line() -> None:
    _, text = page([SourceHealth("nri", False, True, "a\n[+]nri ok\x1b[2J" + "b" * 1000)])
    assert text.splitlines()[0].startswith("[-]nri failed: a?[+]nri ok?[2Jbbb")
    assert len(text.splitlines()) == 2
    assert len(text) < 300
