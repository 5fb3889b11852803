"""A hook's message that cannot be looked into just now is heard again: nobody else may ever tell of its container."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vmpin.config import loading as config
from vmpin.daemon.run_directory import RunDirectory
from vmpin.daemon.watcher import Watcher
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.host.lock import Lock
from vmpin.reconcile.intake import take_spool
from vmpin.reconcile.reconciler import Reconciler
from vmpin.sources.spool import Spool

Place = tuple[Reconciler, Spool]


@pytest.fixture
def raw(tmp_path: Path) -> bytes:
    (tmp_path / "c1").mkdir()
    (tmp_path / "c1/config.json").write_text(json.dumps({"linux": {"resources": {"cpu": {"cpus": "1"}}}}))
    state = {"id": "c1", "pid": 0, "bundle": str(tmp_path / "c1"), "annotations": {
        "io.kubernetes.cri.sandbox-id": "pod", "io.kubernetes.cri.container-type": "container"}}
    return b"vmpin-hook/1 stage=createRuntime time=1\n" + json.dumps(state).encode()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    paths = {f"paths.{each}": str(tmp_path / each) for each in ("run", "kata_go", "kata_rs", "kubelet", "nri", "proc")}
    (tmp_path / "run").mkdir()
    (tmp_path / "proc").mkdir()
    reconciler = Reconciler(config.load(None, {}, {**paths, "watch.nri": "off", "watch.births": "false",
                                                   "guest.via": "off"}))
    spool = Spool(reconciler.config.paths.spool)
    spool.prepare()
    return reconciler, spool


@pytest.fixture
def lock(place: Place) -> Iterator[Lock]:
    with Lock(place[0].config.paths.lock_file) as held:
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
    return str(reconciler.state.sandboxes[SandboxId("pod")].containers[ContainerId("c1")].container.cpuset)


@pytest.mark.parametrize("file", ["config.json", ".hook"])
def test_from_the_spool(place: Place, raw: bytes, short: list[str], file: str) -> None:
    reconciler, spool = place
    name = spool.keep(raw, 1)
    short.append(file)
    assert take_spool(reconciler, spool, set()) == []
    assert not reconciler.state.sandboxes
    assert take_spool(reconciler, spool, set()) == [name]
    assert cpus(reconciler) == "1"


def test_what_can_neither_be_kept_nor_looked_into_is_left_to_the_hook(place: Place, raw: bytes,
                                                                      short: list[str], lock: Lock) -> None:
    """Which keeps what was not answered with ok."""
    reconciler, spool = place
    watcher = Watcher(reconciler.config, lambda: reconciler.config, reconciler, spool, [], lock)
    short += [".tmp", "config.json"]
    assert asyncio.run(watcher._on_hook(raw, 0)) != b"ok\n"
    assert (os.listdir(spool.path), short) == ([], [])
    short.append(".tmp")
    assert asyncio.run(watcher._on_hook(raw, 0)) == b"ok\n"  # heard all the same
    assert cpus(reconciler) == "1"


def test_from_the_socket(place: Place, raw: bytes, short: list[str], lock: Lock) -> None:
    """It is in the spool before it is answered."""
    reconciler, spool = place
    watcher = Watcher(reconciler.config, lambda: reconciler.config, reconciler, spool, [], lock)

    async def told() -> None:
        assert await watcher._on_hook(raw, 0) == b"ok\n"
        short.append("config.json")
        await asyncio.sleep(0)
        assert not reconciler.state.sandboxes
        watcher._saved()
        assert len(os.listdir(spool.path)) == 1
        watcher._take_spool()
        assert cpus(reconciler) == "1"
        watcher._saved()
        assert os.listdir(spool.path) == []

    asyncio.run(told())


def test_a_run_directory_that_cannot_be_made_again_ends_no_resync(place: Place, lock: Lock,
                                                                  caplog: pytest.LogCaptureFixture) -> None:
    """Nor the way out, on which masks are given back."""
    reconciler, spool = place
    config = reconciler.config
    watcher = Watcher(config, lambda: config, reconciler, spool, [], lock)
    watcher._directory = RunDirectory(config, lock)
    config.paths.control_socket.unlink()
    config.paths.control_socket.mkdir()
    assert [watcher._in_place(), watcher._in_place()] == [True, True]
    assert len([record for record in caplog.records if "cannot be made again" in record.message]) == 1
    config.paths.control_socket.rmdir()
    assert watcher._in_place()
    assert config.paths.control_socket.is_socket()
    watcher._directory.close()
