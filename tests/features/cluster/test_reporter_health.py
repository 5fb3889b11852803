"""What a reporter sends about its connection to the API server: shown until it is silent, and bounded."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from vmpin.config.timeouts import TIMEOUTS
from vmpin.daemon.control import Control
from vmpin.features.cluster.kube.reporter_report import encode
from vmpin.features.cluster.reporter_requests import ReporterRequests
from vmpin.status.health import SourceHealth


class Given:
    """A watcher's part that keeps it, with a clock of its own, behind a socket's requests."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.watcher: Any = SimpleNamespace(view=None, parts={})
        part = ReporterRequests(self.watcher, clock=lambda: self.now).part()
        self.watcher.parts["cluster"] = part
        assert part.health is not None
        self.health = part.health

    def ask(self, raw: bytes, reading: bool = True) -> Any:
        answer = asyncio.run(Control(self.watcher, reading).answer(raw, 64750))
        assert isinstance(answer, bytes)
        return json.loads(answer)

    @property
    def shown(self) -> list[SourceHealth]:
        return list(self.health())


def test_it_is_shown_until_it_is_mended_or_the_reporter_is_silent() -> None:
    given = Given()
    assert given.shown == []
    assert given.ask(encode("TLS: certificate verify failed")) == {"reporter": "taken"}
    assert given.shown == [SourceHealth("reporter", False, False, "TLS: certificate verify failed")]
    given.now += 60.0
    given.ask(encode(""))
    assert given.shown == [SourceHealth("reporter", True, False)]
    given.now += TIMEOUTS.handed_kept
    assert given.shown == []


@pytest.mark.parametrize("raw", [
    b'{"op":"reporter"}', b'{"op":"reporter","version":2,"trouble":""}', b'{"op":"reporter","version":1,"trouble":[]}',
    b'{"op":"reporter","version":1,"trouble":null}'])
def test_what_is_no_such_request_changes_nothing(raw: bytes) -> None:
    given = Given()
    given.ask(encode("away"))
    given.now += 60.0
    assert "error" in given.ask(raw)
    assert given.shown[0].why == "away"


def test_a_hostile_text_is_cut_and_steers_no_terminal() -> None:
    given = Given()
    raw = json.dumps({"op": "reporter", "version": 1, "trouble": "\x1b[2J" + "x" * 60000}).encode()
    assert given.ask(raw) == {"reporter": "taken"}
    (shown,) = given.shown
    assert shown.why.isprintable()
    assert len(shown.why) <= 300


def test_it_is_taken_once_a_second_and_on_the_status_socket_alone() -> None:
    given = Given()
    assert "not permitted" in given.ask(encode("away"), reading=False)["error"]
    given.ask(encode("away"))
    assert "came less than" in given.ask(encode("another"))["error"]
    assert given.shown[0].why == "away"
