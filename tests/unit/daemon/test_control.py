"""What a watcher answers to the command line: the status as one JSON object, whatever it is put together from."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import pytest
from newcomers import Machine, sandbox

from vmpin.daemon.control import LINES, Control
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.model import SandboxId
from vmpin.feature import WatcherPart
from vmpin.reconcile.reconciler import PassReport
from vmpin.reconcile.view import NodeView
from vmpin.status import collector
from vmpin.status.collector import WatcherStatus

pytest_plugins = ["given_unit"]


class StandIn:
    """As much of a watcher as a status takes; its reconciler is real."""

    about = None
    parts: ClassVar[Mapping[str, WatcherPart]] = {}

    def __init__(self, machine: Machine) -> None:
        self.reconciler = machine.reconciler
        self.view = machine.reconciler.view
        self.guests = self

    def feeds(self) -> tuple[None, None]:
        return None, None

    def data(self, sandbox: SandboxId) -> None:
        return None

    def update(self, view: NodeView) -> None:
        pass

    async def unpin_results(self, wanted: Collection[SandboxId]) -> dict[str, str]:
        return {}

    stopping = False

    def refresh_everything(self) -> PassReport:
        return self.reconciler.resync(full=True)


def answer(machine: Machine, **request: object) -> Any:
    raw = asyncio.run(Control(StandIn(machine)).answer(json.dumps(request).encode(), os.geteuid()))  # type: ignore[arg-type]
    assert isinstance(raw, bytes)
    assert raw.endswith(b"\n")
    assert raw.count(b"\n") == 1
    return json.loads(raw)


@pytest.mark.parametrize("request_", [{}, {"wide": True}, {"pods": True}])
def test_the_status_is_the_document(machine: Machine, request_: dict[str, bool]) -> None:
    machine.vmm("a")
    machine.resync()
    found = answer(machine, op="status", **request_)
    whole = json.loads(json.dumps(collector.document(machine.reconciler.view, WatcherStatus(os.getpid()),
                                                    wide=request_.get("wide", False),
                                                    pods=request_.get("pods", False))))
    assert [entry["id"] for entry in found["sandboxes"]] == [sandbox("a")]
    del found["time"], whole["time"]
    assert found == whole


def test_the_status_of_a_sandbox_that_is_not_known_is_an_error(machine: Machine) -> None:
    machine.vmm("a")
    machine.resync()
    assert answer(machine, op="status", sandbox="none")["error"] == "no sandbox 'none' is known"
    assert [entry["id"] for entry in answer(machine, op="status", sandbox=sandbox("a"))["sandboxes"]] == [
        sandbox("a")]


@pytest.mark.parametrize("settled", [True, False])
def test_features_give_back_what_they_changed_of_an_unpinned_sandbox_and_try_again_at_repin(
        machine: Machine, settled: bool) -> None:
    machine.vmm("a")
    machine.resync()
    calls: list[object] = []

    class Watcher(StandIn):
        def refresh_everything(self) -> PassReport:
            calls.append("pass")
            return super().refresh_everything()

    def settle(sandboxes: Collection[SandboxId]) -> bool:
        calls.append(([*sandboxes], [*machine.reconciler.view.placements]))
        return settled

    watcher = Watcher(machine)
    part = WatcherPart(settle=settle, retry=lambda: calls.append("retry"))
    watcher.parts = {"one": part, "another": WatcherPart()}  # type: ignore[misc]
    control = Control(watcher)  # type: ignore[arg-type]

    def ask(operation: str) -> Any:
        raw = asyncio.run(control.answer(json.dumps({"op": operation, "sandbox": sandbox("a")}).encode(), 0))
        assert isinstance(raw, bytes)
        return json.loads(raw)

    assert ask("unpin")["settled"] is settled
    assert "operations" in ask("reconcile")
    assert calls == [([sandbox("a")], []), "retry", "pass"]


def test_a_feature_that_fails_at_unpin_keeps_no_other_from_giving_back(
        machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.vmm("a")
    machine.resync()
    calls: list[Collection[SandboxId]] = []

    def failing(sandboxes: Collection[SandboxId]) -> bool:
        raise OSError(24, "Too many open files")

    def settle(sandboxes: Collection[SandboxId]) -> bool:
        calls.append(sandboxes)
        return True

    watcher = StandIn(machine)
    watcher.parts = {"one": WatcherPart(settle=failing), "two": WatcherPart(settle=settle)}  # type: ignore[misc]
    raw = asyncio.run(Control(watcher).answer(b'{"op": "unpin"}', 0))  # type: ignore[arg-type]
    assert isinstance(raw, bytes)
    answered = json.loads(raw)
    assert "error" not in answered
    assert answered["settled"] is False
    assert calls == [[sandbox("a")]]
    assert "not given back feature=one: OSError: [Errno 24] Too many open files" in caplog.text


@pytest.mark.parametrize("err", [TypeError("a mistake"), OSError(24, "Too many open files")])
def test_a_request_that_fails_in_the_watcher_is_not_one_that_is_not_understood(
        machine: Machine, caplog: pytest.LogCaptureFixture, err: Exception) -> None:
    def fail(state: SandboxState) -> dict[str, object]:
        raise err

    machine.vmm("a")
    machine.resync()
    watcher = StandIn(machine)
    watcher.parts = {"one": WatcherPart(members=fail)}  # type: ignore[misc]
    control = Control(watcher)  # type: ignore[arg-type]
    for _ in range(100):
        raw = asyncio.run(control.answer(b'{"op": "status"}', 0))
        assert isinstance(raw, bytes)
        assert json.loads(raw) == {"error": f"status: {err!r}", "hint": "the watcher's log has more"}
    lines = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(lines) == LINES[0]
    assert re.fullmatch(rf"request failed request=status sandbox=all: in test_control\.py:\d+: {re.escape(repr(err))}",
                        lines[0])
    assert "not understood" in str(asyncio.run(control.answer(b'{"op": ["status"]}', 0)))
