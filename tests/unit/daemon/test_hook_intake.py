"""Hook messages: none is lost, whatever fails; no other source may ever report their containers."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guest_peer import until

from vmpin.config import loading as config
from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.daemon.hook_intake import HookIntake
from vmpin.daemon.run_directory import RunDirectory
from vmpin.daemon.state_saving import StateSaving
from vmpin.domain.events import Event
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.host.lock import Lock
from vmpin.reconcile.intake import take_spool
from vmpin.reconcile.reconciler import Reconciler
from vmpin.runtime.oci import HookState
from vmpin.sources import hook_state
from vmpin.sources.spool import Spool

Place = tuple[Reconciler, Spool]


@pytest.fixture
def raw(tmp_path: Path) -> bytes:
    (tmp_path / "c1").mkdir()
    (tmp_path / "c1/config.json").write_text(json.dumps({"linux": {"resources": {"cpu": {"cpus": "1"}}}}))
    state = {"id": "c1", "pid": 0, "bundle": str(tmp_path / "c1"), "annotations": {
        "io.kubernetes.cri.sandbox-id": "pod", "io.kubernetes.cri.container-type": "container"}}
    return b"vmpin-hook/1 stage=createRuntime boot=1\n" + json.dumps(state).encode()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    paths = {f"paths.{each}": str(tmp_path / each) for each in ("run", "kata_go", "kata_rs", "kubelet", "nri", "proc")}
    (tmp_path / "run").mkdir()
    (tmp_path / "proc").mkdir()
    reconciler = Reconciler(config.load(None, {}, {**paths, "watch.nri": "off", "watch.births": "false",
                                                   "guest.via": "off"}))
    spool = Spool(reconciler.node_state.config.paths.spool)
    spool.prepare()
    return reconciler, spool


@pytest.fixture
def lock(place: Place) -> Iterator[Lock]:
    with Lock(place[0].node_state.config.paths.lock_file) as held:
        yield held


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The next file whose name ends so is not opened, for want of descriptors."""
    endings: list[str] = []
    real = os.open

    def once(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if endings and str(path).endswith(endings[0]):
            del endings[0]
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr("os.open", once)
    return endings


def cpus(reconciler: Reconciler) -> str:
    return str(reconciler.node_state.state.sandboxes[SandboxId("pod")].containers[ContainerId("c1")].container.cpuset)


@pytest.mark.parametrize("file", ["config.json", ".hook"])
def test_from_the_spool(place: Place, raw: bytes, short: list[str], file: str) -> None:
    reconciler, spool = place
    name = spool.keep(raw, 1)
    short.append(file)
    assert take_spool(reconciler.node_state, spool, set()) == []
    assert not reconciler.node_state.state.sandboxes
    assert take_spool(reconciler.node_state, spool, set()) == [name]
    assert cpus(reconciler) == "1"


def test_a_message_that_cannot_be_applied_stops_no_other(place: Place, raw: bytes, monkeypatch: pytest.MonkeyPatch,
                                                         caplog: pytest.LogCaptureFixture) -> None:
    """A mistake of vmpin's would else come again at each resync, and at each start. One line has all of it."""
    reconciler, spool = place
    translate = hook_state.events_of

    def mistaken(hook: HookState, *given: Any) -> list[Event]:
        if hook.container == "c2":
            raise ZeroDivisionError("/by/")
        return translate(hook, *given)

    monkeypatch.setattr(hook_state, "events_of", mistaken)
    names = [spool.keep(raw.replace(b'"id": "c1"', b'"id": "c2"'), 1), spool.keep(raw, 2)]
    assert take_spool(reconciler.node_state, spool, set()) == names
    assert cpus(reconciler) == "1"
    assert reconciler.node_state.counters.hooks == {"refused": 1, "applied": 1}
    (line,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
    assert re.fullmatch(rf"hook message dropped sandbox=pod container=c2 file={names[0]}: a mistake of vmpin's in "
                        r"test_hook_intake\.py:\d+: ZeroDivisionError\('/by/'\)", line)


def intake(place: Place, lock: Lock, lost: list[str] | None = None) -> HookIntake:
    reconciler, spool = place
    saving = StateSaving(reconciler.node_state, spool, [], lock,
                         lambda: None if lost is None else lost.append("lost"), TIMEOUTS)
    return HookIntake(reconciler.node_state, spool, saving, lambda sandboxes, since: None)


def test_a_message_that_can_be_neither_spooled_nor_processed_is_left_to_the_hook(
        place: Place, raw: bytes, short: list[str], lock: Lock) -> None:
    """The hook spools a message that was not answered with ok."""
    reconciler, spool = place
    hooks = intake(place, lock)
    short += [".tmp", "config.json"]
    assert asyncio.run(hooks.receive(raw, 0)) != b"ok\n"
    assert (os.listdir(spool.path), short) == ([], [])
    short.append(".tmp")
    assert asyncio.run(hooks.receive(raw, 0)) == b"ok\n"  # processed all the same
    assert cpus(reconciler) == "1"


def test_a_message_is_spooled_before_it_is_answered_and_until_the_state_file_has_it(
        place: Place, raw: bytes, short: list[str], lock: Lock) -> None:
    reconciler, spool = place
    hooks = intake(place, lock)

    async def scenario() -> None:
        assert await hooks.receive(raw, 0) == b"ok\n"
        short.append("config.json")
        await asyncio.sleep(0)
        assert not reconciler.node_state.state.sandboxes
        hooks.saving.save()
        assert len(os.listdir(spool.path)) == 1
        hooks.take_spool()
        assert cpus(reconciler) == "1"
        hooks.saving.save()
        assert os.listdir(spool.path) == []

    asyncio.run(scenario())


def test_a_message_of_another_user_or_of_another_protocol_is_refused(place: Place, raw: bytes, lock: Lock) -> None:
    hooks = intake(place, lock)
    assert asyncio.run(hooks.receive(raw, 65534)) == b"refused: not root\n"
    assert asyncio.run(hooks.receive(b"garbage", 0)).startswith(b"refused: ")
    assert os.listdir(place[1].path) == []
    assert not hooks.saving.kept


@pytest.mark.parametrize(("state", "container"), [
    ({"id": "c1", "bundle": "relative"}, "c1"), ({"id": "c 1"}, "-"), ({}, "-"), ([], "-")])
def test_a_refused_message_is_logged_with_its_container(
        state: object, container: str, place: Place, lock: Lock, caplog: pytest.LogCaptureFixture) -> None:
    """Also one that the hook has spooled."""
    raw = b"vmpin-hook/1 stage=createRuntime boot=1\n" + json.dumps(state).encode()
    assert asyncio.run(intake(place, lock).receive(raw, 0)).startswith(b"refused: ")
    place[1].keep(raw, 1)
    take_spool(place[0].node_state, place[1], set())
    assert caplog.text.count(f"hook message refused container={container}: createRuntime hook state: ") == 2


def test_nothing_is_written_without_the_lock(place: Place, raw: bytes, lock: Lock) -> None:
    """The run directory was removed, or is another watcher's: whose state file it is has to be found out first."""
    reconciler, spool = place
    lost: list[str] = []
    hooks = intake(place, lock, lost)
    spool.keep(raw, 1)
    hooks.take_spool()
    reconciler.node_state.config.paths.lock_file.unlink()
    hooks.saving.save()
    assert lost == ["lost"]
    assert not reconciler.node_state.config.paths.state_file.exists()
    assert len(os.listdir(spool.path)) == 1
    lock.again()
    hooks.saving.save()
    assert reconciler.node_state.config.paths.state_file.exists()
    assert os.listdir(spool.path) == []


@pytest.mark.parametrize(("early", "written"), [(0.0, True), (3600.0, False)])
def test_the_state_is_written_with_other_work_of_the_loop_once_it_is_early_enough(
        place: Place, raw: bytes, lock: Lock, early: float, written: bool) -> None:
    reconciler, spool = place
    state_file = reconciler.node_state.config.paths.state_file

    async def scenario() -> None:
        saving = StateSaving(reconciler.node_state, spool, [], lock, lambda: None, Timeouts(save=(early, 3600.0)))
        hooks = HookIntake(reconciler.node_state, spool, saving, lambda sandboxes, since: None)
        task = asyncio.create_task(saving.run())
        assert await hooks.receive(raw, 0) == b"ok\n"
        for _ in range(5):
            await asyncio.sleep(0)
        assert not state_file.exists()
        saving.save_with_others()
        for _ in range(5):
            await asyncio.sleep(0)
        assert state_file.exists() is written
        saving.save()
        saving.save_soon()  # there is nothing left to be saved
        saving.save_with_others()
        written_at = state_file.stat().st_ino
        for _ in range(5):
            await asyncio.sleep(0)
        assert state_file.stat().st_ino == written_at
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())


def test_messages_within_a_moment_are_saved_together(place: Place, raw: bytes, lock: Lock) -> None:
    reconciler, spool = place
    saves: list[float] = []

    class Counted(StateSaving):
        def save(self) -> None:
            saves.append(asyncio.get_running_loop().time())
            super().save()

    async def scenario() -> None:
        timeouts = Timeouts(save=(0.05, 0.05))
        saving_counted = Counted(reconciler.node_state, spool, [], lock, lambda: None, timeouts)
        hooks = HookIntake(reconciler.node_state, spool, saving_counted, lambda sandboxes, since: None)
        for _ in range(3):
            assert await hooks.receive(raw, 0) == b"ok\n"
        await asyncio.sleep(0)
        saving = asyncio.create_task(hooks.saving.run())
        await until(lambda: not os.listdir(spool.path))
        saving.cancel()
        await asyncio.gather(saving, return_exceptions=True)

    asyncio.run(scenario())
    assert len(saves) == 1
    assert cpus(reconciler) == "1"


def test_a_run_directory_that_cannot_be_made_again_ends_no_resync(place: Place, lock: Lock,
                                                                  caplog: pytest.LogCaptureFixture) -> None:
    """Nor the watcher's end, at which masks are given back."""
    config = place[0].node_state.config
    renewed: list[bool] = []
    directory = RunDirectory(config, lock, lambda: renewed.append(True))
    directory.open()
    config.paths.control_socket.unlink()
    config.paths.control_socket.mkdir()
    for _ in range(2):
        assert directory.keep(config)
    assert len([record for record in caplog.records if "cannot be created again" in record.message]) == 1
    config.paths.control_socket.rmdir()
    assert directory.keep(config)
    assert renewed == [True]
    assert config.paths.control_socket.is_socket()
    directory.close()
