"""What comes from inotify and from the kubelet reaches the loop once, and the health of each source is shown."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from guest_peer import until
from kubelet_peer import KUBELET, Kubelet

from vmpin.config import loading
from vmpin.config.timeouts import Timeouts
from vmpin.cpuset import CpuSet
from vmpin.daemon.feeds import FileFeed, poll_pod_resources, source_health, wants_nri
from vmpin.reconcile.reconciler import Reconciler


@contextlib.asynccontextmanager
async def running(source: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(source)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# inotify


def test_a_burst_of_writes_is_one_report(tmp_path: Path) -> None:
    reports: list[tuple[set[Path], float]] = []
    files = [tmp_path / name for name in ("a", "b")]
    for file in files:
        file.touch()

    async def main() -> None:
        feed = FileFeed(lambda paths, since: reports.append((paths, since)), Timeouts(file_calm=0.05))
        feed.watch([*files, tmp_path / "absent"])
        async with running(feed.run()):
            await asyncio.sleep(0)
            began = time.perf_counter()
            for _ in range(5):  # without a turn of the loop
                for file in files:
                    file.write_text("x")
            await until(lambda: reports)
            ((paths, since),) = reports
            assert paths == set(files)
            assert began <= since <= time.perf_counter() - 0.05  # the first write, not the report
            feed.watch(files[1:])
            for file in files:
                file.write_text("y")
            await until(lambda: len(reports) == 2)
            assert reports[1][0] == {files[1]}

    asyncio.run(main())


def test_what_is_put_into_a_watched_directory_is_reported(tmp_path: Path) -> None:
    reports: list[set[Path]] = []
    new = tmp_path / "new"
    new.touch()
    watched = tmp_path / "watched"
    watched.mkdir()

    async def main() -> None:
        feed = FileFeed(lambda paths, since: reports.append(paths), Timeouts(file_calm=0.001))
        feed.watch([watched])
        async with running(feed.run()):
            await asyncio.sleep(0)
            new.rename(watched / "new")
            await until(lambda: reports)
            assert reports[0] == {watched}

    asyncio.run(main())


def test_a_feed_that_is_started_again_while_a_report_is_due_reports_again(tmp_path: Path) -> None:
    reports: list[set[Path]] = []
    file = tmp_path / "a"
    file.touch()

    async def main() -> None:
        feed = FileFeed(lambda paths, since: reports.append(paths), Timeouts(file_calm=1.0))
        feed.watch([file])
        async with running(feed.run()):
            await asyncio.sleep(0)
            file.write_text("x")
            await until(lambda: feed._due)
        assert reports == []
        async with running(feed.run()):
            await asyncio.sleep(0)
            file.write_text("y")
            await until(lambda: reports)

    asyncio.run(main())


def test_a_file_that_took_the_place_of_another_is_watched_when_it_is_asked_for_again(tmp_path: Path) -> None:
    """As of a cgroup that is created again: the kernel does not report the end of the former one's files."""
    reports: list[set[Path]] = []
    file, former = tmp_path / "a", tmp_path / "former"
    file.touch()

    async def main() -> None:
        feed = FileFeed(lambda paths, since: reports.append(paths), Timeouts(file_calm=0.001))
        feed.watch([file])
        async with running(feed.run()):
            await asyncio.sleep(0)
            (number,) = feed.watched.values()
            file.rename(former)
            file.touch()
            feed.watch([file], again={file})
            assert set(feed.watched) == {file}
            assert feed.watched[file] != number
            file.write_text("x")
            await until(lambda: reports)
            feed.watch([file], again={file})
            assert feed.watched[file] != number
            file.unlink()
            feed.watch([file], again={file})
            assert feed.watched == {}

    asyncio.run(main())


def test_a_file_whose_change_could_not_be_read_counts_as_not_watched(tmp_path: Path) -> None:
    """Else a resync would not read it either."""
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.touch()
    failed: list[set[Path]] = []

    def fail(paths: set[Path], since: float) -> None:
        failed.append(paths)
        raise OSError(errno.EMFILE, "no descriptor")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        feed = FileFeed(fail, Timeouts(file_calm=0.001))
        feed.watch(files)
        async with running(feed.run()):
            await asyncio.sleep(0)
            files[0].write_text("x")
            await until(lambda: failed)
            assert set(feed.watched) == {files[1]}
            feed.watch(files)
            assert set(feed.watched) == set(files)
            files[0].write_text("y")
            await until(lambda: len(failed) == 2)

    asyncio.run(main())


def test_a_feed_that_could_not_watch_all_watches_nothing(tmp_path: Path) -> None:
    """Else its successor would take the paths for watched."""
    file = tmp_path / "a"
    file.touch()
    feed = FileFeed(lambda paths, since: None)
    feed.watch([file])

    async def main() -> None:
        with pytest.MonkeyPatch.context() as patch:
            for kind in "IN_MODIFY", "IN_MOVED_TO", "IN_DELETE":
                patch.setattr(f"vmpin.host.inotify.{kind}", 0)  # a watch of no event is an error (EINVAL)
            with pytest.raises(OSError, match="Invalid argument"):
                await feed.run()
        assert feed._inotify is None

    asyncio.run(main())


# PodResources


def test_the_kubelets_pod_resources_are_asked_for_and_a_failure_is_logged_once(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[Mapping[tuple[str, str, str], CpuSet] | None] = []
    config = loading.load(None, {}, {"paths.kubelet": str(tmp_path), "watch.resync_seconds": "0.1"})
    (tmp_path / "pod-resources").mkdir()
    timeouts = Timeouts(pod_resources_pause=0.01, pod_resources=120.0)

    async def main() -> None:
        async with running(poll_pod_resources(config, answers.append, timeouts)):
            await until(lambda: answers)
            assert answers == [None]  # no socket yet
            kubelet = Kubelet(tmp_path / "pod-resources/kubelet.sock")
            try:
                kubelet.lists(KUBELET["PodResources"](name="web", namespace="shop", containers=[
                    KUBELET["ContainerResources"](name="app", cpu_ids=[2, 3])]))
                await until(lambda: answers[-1] is not None)
                assert answers[-1] == {("shop", "web", "app"): CpuSet((2, 3))}
                kubelet.fails(grpc.StatusCode.UNAVAILABLE, "not now")
                await until(lambda: answers[-1] is None)
                count = len(answers)
                await until(lambda: len(answers) > count + 2)
            finally:
                kubelet.stop()

    asyncio.run(main())
    assert len(caplog.records) == 1


# Health


def test_the_health_of_each_source_is_shown(tmp_path: Path) -> None:
    paths = {f"paths.{each}": str(tmp_path / each) for each in ("run", "kubelet", "nri", "proc", "kata_go", "kata_rs")}
    (tmp_path / "proc").mkdir()
    config = loading.load(None, {}, {**paths, "watch.kubelet": "true"})
    view = Reconciler(config, acts=False).view
    found = {each.name: each for each in source_health(view, None, None, [
        "hook", "recheck", "files", "podresources"], {"files": "OSError()"})}
    assert list(found) == ["hook", "recheck", "files"]  # this node has no kubelet's socket
    assert [(each.up, each.needed, each.why) for each in found.values()] == [
        (True, True, ""), (True, True, ""), (False, False, "OSError()")]
    (failing,) = source_health(view, None, None, ["hook"], {"hook": "OSError()"})
    assert (failing.up, failing.needed) == (False, True)
    (tmp_path / "kubelet/pod-resources").mkdir(parents=True)
    (tmp_path / "kubelet/pod-resources/kubelet.sock").touch()
    (found_,) = source_health(view, None, None, ["podresources"], {})
    assert (found_.up, found_.needed) == (False, False)


def test_a_plugin_that_the_runtime_started_is_wanted_whatever_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    off = loading.load(None, {}, {"watch.nri": "off"})
    assert not wants_nri(off)
    assert wants_nri(loading.load(None, {}, {"watch.nri": "auto"}))
    monkeypatch.setenv("NRI_PLUGIN_SOCKET", str(os.getpid()))
    assert wants_nri(off)
