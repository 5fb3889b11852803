"""What a reporter hands over: shown until it is silent, bounded, and without effect on a mask."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from newcomers import Machine, sandbox

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.daemon.control import MAX_REQUEST, Control
from vmpin.domain.events import SandboxSeen
from vmpin.domain.model import Pod, SandboxId
from vmpin.feature import WatcherPart
from vmpin.features.cluster.kube import reporter_report, untrusted_pod
from vmpin.features.cluster.kube.untrusted_pod import PodResize, UntrustedPod, encode
from vmpin.features.cluster.reporter_requests import ReporterRequests
from vmpin.host import sockets
from vmpin.status.health import SourceHealth

pytest_plugins = ["given_unit"]

POD = UntrustedPod("Guaranteed", "kata", (PodResize("PodResizePending", "Deferred", "no room", ""),), {"a": "b"}, 2)
#: One of many requests in a row.
AT_ONCE = Timeouts(handed_pause=0.0)


class Watched:
    """As much of a watcher as takes pods' data and shows it; its reconciler is real."""

    about, stopping = None, False

    def __init__(self, machine: Machine, timeouts: Timeouts = AT_ONCE) -> None:
        self.reconciler = machine.reconciler
        self.view, self.counters = machine.reconciler.view, machine.node_state.counters
        self.guests = self
        self.ahead = 0.0  #: Seconds that pass for the pods' clock alone.
        self.resynced = time.monotonic()
        self.requests = ReporterRequests(self, timeouts, lambda: time.monotonic() + self.ahead)
        self.parts: Mapping[str, WatcherPart] = {"cluster": self.requests.part()}

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

    def shown(self) -> Any:
        (entry,) = self.ask(b'{"op":"status"}')["sandboxes"]
        return entry["untrusted"]


@pytest.fixture
def watched(machine: Machine) -> Watched:
    machine.vmm("a")
    machine.node_state.apply_events([SandboxSeen(sandbox("a"), "nri", Pod("shop", "web", "u-1"), handler="kata")])
    machine.resync()
    return Watched(machine)


def test_it_is_shown_beside_its_sandbox_and_replaced_as_a_whole(watched: Watched) -> None:
    assert watched.shown() is None
    assert watched.ask(encode({"u-1": POD, "other": POD})) == {"pods": 2}
    assert watched.shown() == {"qos": "Guaranteed", "runtime_class": "kata", "annotations": {"a": "b"},
                               "more_annotations": 2, "resizes": [
        {"type": "PodResizePending", "reason": "Deferred", "message": "no room", "since": ""}]}
    assert watched.ask(encode({"other": POD})) == {"pods": 1}
    assert watched.shown() is None


def test_it_expires_when_nothing_is_sent_any_more(watched: Watched) -> None:
    watched.ask(encode({"u-1": POD}))
    assert watched.shown()
    watched.ahead = AT_ONCE.handed_kept
    assert watched.shown() is None
    # No public way in: nothing shows what is kept and not shown.
    assert watched.requests.handed_pods._value is None


def test_it_changes_no_placement(watched: Watched) -> None:
    def decided() -> object:
        view = watched.view
        planned = [result.operation for result in watched.reconciler.resync(act=False).results]
        return planned, dict(view.placements), view.ownership, dict(view.sandboxes)

    before = decided()
    watched.ask(encode({"u-1": POD._replace(annotations={"vmpin/exclusive": "true", "io.kubernetes.cri.cpus": "0"})}))
    assert decided() == before


@pytest.mark.parametrize("uid", [0, os.geteuid(), 65532])
def test_the_control_socket_takes_none_of_it(watched: Watched, uid: int) -> None:
    assert "pods" in watched.ask(encode({"u-1": POD}), reading=False, uid=uid)["error"]
    assert watched.shown() is None


@pytest.mark.parametrize("raw", [b'{"op":"pods"}', b'{"op":"pods","version":1,"pods":[[]]}',
                                 b'{"op":"pods","version":9,"pods":[]}', b'{"op":"pods","pods":' + b"[" * 60_000])
def test_what_is_no_such_request_leaves_what_was_there(watched: Watched, raw: bytes) -> None:
    watched.ask(encode({"u-1": POD}))
    assert "error" in watched.ask(raw)
    assert watched.shown()


def test_requests_in_a_row_are_refused_a_large_one_before_it_is_parsed(machine: Machine,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(machine, Timeouts(handed_pause=600.0))
    assert watched.ask(encode({"u-1": POD})) == {"pods": 1}
    assert "came less than 600 s after another" in watched.ask(encode({}))["error"]
    garbage = b"[" * (MAX_REQUEST + 1)
    assert "came less than 600 s after another" in watched.ask(garbage)["error"]
    watched.ahead = 3600.0
    assert watched.ask(garbage)["error"] == "the request is not understood"
    assert "came less than 600 s after another" in watched.ask(encode({}))["error"]  # that one counted
    assert watched.ask(b'{"op":"status"}')["version"] == 1  # what is small is answered all the same


def test_a_request_of_the_largest_size_has_room_on_the_socket_and_no_other(watched: Watched, tmp_path: Path) -> None:
    async def main() -> None:
        listener = sockets.listen(tmp_path / "s")
        control = Control(watched, reading=True)  # type: ignore[arg-type]
        task = asyncio.create_task(sockets.serve(listener, untrusted_pod.MAX_REQUEST, control.answer, True, 120.0))

        async def ask(raw: bytes) -> bytes:
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            writer.write(raw)
            answer = await reader.read()
            writer.close()
            return answer

        large = POD._replace(annotations={f"{number:02}": "x" * 256 for number in range(24)})
        raw = encode({str(number): large for number in range(untrusted_pod.MAX_PODS)})
        assert untrusted_pod.MAX_REQUEST * 0.9 < len(raw) <= untrusted_pod.MAX_REQUEST
        async with asyncio.timeout(120):
            assert json.loads(await ask(raw)) == {"pods": untrusted_pod.MAX_PODS}
            with contextlib.suppress(ConnectionResetError):
                assert (await ask(b"x" * (untrusted_pod.MAX_REQUEST + 2))).startswith(b"refused: more than")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    asyncio.run(main())


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
    given.now += TIMEOUTS.handed_kept
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
