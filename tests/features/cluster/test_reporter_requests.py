"""What a reporter hands over: taken for a feature that asks for it, shown until it is silent, and bounded."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from newcomers import Machine, sandbox

from vmpin.daemon.control import MAX_REQUEST, Control
from vmpin.domain.events import SandboxSeen
from vmpin.domain.model import Pod, SandboxId
from vmpin.feature import WatcherPart
from vmpin.features.cluster.kube import reporter_report, watched_annotations
from vmpin.features.cluster.kube.watched_annotations import encode
from vmpin.features.cluster.reporter_requests import KEPT, ReporterRequests
from vmpin.status.health import SourceHealth

pytest_plugins = ["given_unit"]

POD = {"a": "b"}


class Watched:
    """As much of a watcher as takes pods' annotations; its reconciler is real."""

    about, stopping = None, False

    def __init__(self, machine: Machine, pause: float = 0.0) -> None:
        self.reconciler = machine.reconciler
        self.view, self.counters = machine.reconciler.view, machine.node_state.counters
        self.guests = self
        self.ahead = 0.0  #: Seconds that pass for the pods' clock alone.
        self.resynced = time.monotonic()
        self.requests = ReporterRequests(self, pause, lambda: time.monotonic() + self.ahead)
        self.taken: list[Mapping[str, Mapping[str, str]]] = []
        self.parts: Mapping[str, WatcherPart] = {
            "cluster": self.requests.part(), "following": WatcherPart(take_annotations=self.taken.append)}

    def feeds(self) -> tuple[None, None]:
        return None, None

    def data(self, sandbox: SandboxId) -> None:
        return None

    def source_health(self) -> tuple[SourceHealth, ...]:
        return ()

    def ask(self, raw: bytes, reading: bool = True, uid: int = 0) -> Any:
        control = Control(self, reading=reading)  # type: ignore[arg-type]
        answer = asyncio.run(control.answer(raw, uid))
        assert isinstance(answer, bytes)
        return json.loads(answer)


@pytest.fixture
def watched(machine: Machine) -> Watched:
    machine.vmm("a")
    machine.node_state.apply_events([SandboxSeen(sandbox("a"), "nri", Pod("shop", "web", "u-1"), handler="kata")])
    machine.resync()
    return Watched(machine)


@pytest.mark.parametrize("uid", [0, os.geteuid(), 65532])
def test_the_control_socket_takes_none_of_it(watched: Watched, uid: int) -> None:
    assert "pods" in watched.ask(encode({"u-1": POD}), reading=False, uid=uid)["error"]
    assert watched.taken == []


@pytest.mark.parametrize("raw", [b'{"op":"pods"}', b'{"op":"pods","version":1,"pods":[[]]}',
                                 b'{"op":"pods","version":9,"pods":{}}', b'{"op":"pods","pods":' + b"[" * 60_000])
def test_what_is_no_such_request_leaves_what_was_there(watched: Watched, raw: bytes) -> None:
    assert watched.ask(encode({"u-1": POD})) == {"pods": 1}
    assert "error" in watched.ask(raw)
    assert watched.taken == [{"u-1": POD}]


def test_requests_in_a_row_are_refused(machine: Machine) -> None:
    watched = Watched(machine, pause=600.0)
    assert watched.ask(encode({"u-1": POD})) == {"pods": 1}
    assert "came less than 600 s after another" in watched.ask(encode({}))["error"]
    assert watched.ask(b'{"op":"status"}')["version"] == 1  # any other is answered all the same
    watched.ahead = 3600.0
    assert watched.ask(encode({})) == {"pods": 0}


def test_the_largest_request_has_room_on_the_socket() -> None:
    assert watched_annotations.MAX_REQUEST <= MAX_REQUEST


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
    assert given.ask(reporter_report.encode("TLS: certificate verify failed")) == {"reporter": "taken"}
    assert given.shown == [SourceHealth("reporter", False, False, "TLS: certificate verify failed")]
    given.now += 60.0
    given.ask(reporter_report.encode(""))
    assert given.shown == [SourceHealth("reporter", True, False)]
    given.now += KEPT
    assert given.shown == []


@pytest.mark.parametrize("raw", [
    b'{"op":"reporter"}', b'{"op":"reporter","version":2,"trouble":""}', b'{"op":"reporter","version":1,"trouble":[]}',
    b'{"op":"reporter","version":1,"trouble":null}'])
def test_what_is_no_such_request_changes_nothing(raw: bytes) -> None:
    given = Given()
    given.ask(reporter_report.encode("away"))
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
    assert "not permitted" in given.ask(reporter_report.encode("away"), reading=False)["error"]
    given.ask(reporter_report.encode("away"))
    assert "came less than" in given.ask(reporter_report.encode("another"))["error"]
    assert given.shown[0].why == "away"
