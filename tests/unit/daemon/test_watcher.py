"""The watcher in this process, with real sockets, files, signals and reconciler, on a node without processes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from guest_peer import until
from nri_events import KEY, container, pod
from removal import remove_in_use
from watched_place import Place

from vmpin import log
from vmpin.config import loading
from vmpin.config.settings import Config
from vmpin.config.timeouts import Timeouts
from vmpin.daemon.supervision import SupervisedTasks
from vmpin.daemon.watcher import Watcher
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole
from vmpin.errors import ConfigError, LockHeldError
from vmpin.feature import features, present
from vmpin.host.lock import Lock
from vmpin.host.procfs import Procfs
from vmpin.sources.nri.nri_events import ContainerEvent
from vmpin.sources.spool import Spool
from vmpin.vmm.qemu import QEMU
from vmpin.vmm.virtual_machine import Process, Vm
from vmpin.wire.nri_enums import Verb


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def notified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """What was sent to systemd since the last call."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))

        def received() -> list[str]:
            found = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    found.append(receiver.recv(4096).decode())
            return found

        yield received


def containers(watcher: Watcher) -> dict[str, str]:
    return {container: str(record.container.cpuset) for sandbox in watcher.view.sandboxes.values()
            for container, record in sandbox.containers.items()}


def test_it_serves_both_sockets_until_it_is_ended(place: Place, notified: Callable[[], list[str]]) -> None:
    async def main() -> None:
        async with place.watching() as watcher:
            assert notified() == ["READY=1"]
            assert await place.ask("hook.sock", place.message()) == b"ok\n"
            await until(lambda: containers(watcher) == {"c1": "1"})
            status = await place.control(op="status")
            assert (status["watcher"], status["sources"]["hooks"]["applied"]) == (os.getpid(), 1)
            about = await place.control(op="about")
            of_features = {name for part in watcher.parts.values() for name in part.tasks}
            assert {each["name"] for each in about["sources"]} == {
                "hook", "control", "status", "resync", "recheck", "state", "files", "guests"} | of_features
            assert all(each["up"] for each in about["sources"])
            assert watcher.view.counters.passes["hook"] == 1
        assert notified() == ["STOPPING=1"]
        of_features = {name for feature in features() for name in feature.files}
        assert set(os.listdir(place.root / "run")) - of_features == {"lock", "spool", "state.json", "status"}
        async with place.watching() as again:
            assert containers(again) == {"c1": "1"}

    asyncio.run(main())


def test_a_message_in_the_spool_is_processed_before_it_is_ready_and_a_pass_follows(place: Place) -> None:
    spool = Spool(place.config().paths.spool)
    spool.prepare()
    spool.keep(place.message(), 1)

    async def main() -> None:
        async with place.watching() as watcher:
            assert containers(watcher) == {"c1": "1"}
            await until(lambda: watcher.view.counters.passes["resync"])
            assert not os.listdir(spool.path)

    asyncio.run(main())


def test_the_line_of_each_pass_has_the_number_of_what_led_to_it(place: Place) -> None:
    """Also of a pass that no source's report led to: a recheck, and a resync."""
    written, vmpin = io.StringIO(), logging.getLogger("vmpin")
    handler, level = logging.StreamHandler(written), vmpin.level
    handler.setFormatter(log.Text())
    place.settings["watch.resync_seconds"] = "0.1"

    async def main() -> None:
        async with place.watching(Timeouts(rechecks=(0.001, 0.001))) as watcher:
            assert await place.ask("hook.sock", place.message()) == b"ok\n"
            passes = watcher.view.counters.passes
            await until(lambda: passes["hook"] == 1 and passes["recheck"] >= 2 and passes["resync"])

    vmpin.addHandler(handler)
    vmpin.setLevel(logging.DEBUG)
    try:
        asyncio.run(main())
    finally:
        vmpin.removeHandler(handler)
        vmpin.setLevel(level)
    found = re.findall(r"pass why=(\w+) .*", written.getvalue())
    numbered = re.findall(r"pass why=(\w+) .* op=(\d+)$", written.getvalue(), re.MULTILINE)
    assert {"hook", "recheck", "resync"} <= {why for why, _ in numbered}
    assert [why for why, _ in numbered] == found
    assert len({number for _, number in numbered}) == len(numbered)


def test_events_that_waited_make_no_pass_while_nothing_has_to_move(place: Place) -> None:
    """Unless their pods may get VMs that no event reports."""
    def created(cpus: str | None) -> ContainerEvent:
        return ContainerEvent(Verb.CREATE, pod(), container(cpus=cpus), 1)

    place.config(policy__exclusive_annotation=KEY)

    async def main() -> None:
        async with place.watching() as watcher:
            passes = watcher.view.counters.passes
            watcher._on_nri([created(None)], 0.0, True)
            assert passes["nri"] == 1  # the kernel does not report new programs
            watcher.node_state.forks_reported(True)
            watcher._on_nri([created(None), ContainerEvent(Verb.STOP, pod(), container(), 2)], 0.0, True)
            assert (containers(watcher), passes["nri"]) == ({"c1": "None"}, 1)
            watcher._on_nri([created("1")._replace(time_ns=3)], 0.0, False)
            assert (containers(watcher), passes["nri"]) == ({"c1": "1"}, 2)
            exclusive = container(cpus="1", annotations={KEY: "true"})
            watcher._on_nri([ContainerEvent(Verb.POST_CREATE, pod(), exclusive, 5)], 0.0, True)
            assert (str(watcher.view.ownership.exclusive), passes["nri"]) == ("1", 3)  # others may have to move

    asyncio.run(main())


def test_sighup_loads_the_configuration_again_and_an_invalid_one_is_refused(
        place: Place, notified: Callable[[], list[str]], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vmpin")

    async def main() -> None:
        async with place.watching() as watcher:
            place.load = lambda: place.config(watch__resync_seconds="300")
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: watcher.view.config.watch.resync_seconds == 300)
            await until(lambda: watcher.view.counters.passes["resync"] == 1)

            def broken() -> Config:
                raise ConfigError("policy.vcpus: no such policy")

            place.load = broken
            before = watcher.view.config
            notified()
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: "configuration not loaded: policy.vcpus: no such policy" in caplog.text)
            await until(lambda: "READY=1" in notified())
            assert watcher.view.config is before

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["change", "signal"])
def test_a_changed_file_is_loaded_again_where_that_is_asked_for(place: Place, mode: str) -> None:
    """As a ConfigMap shows it: a link to another directory from one moment to the next."""
    for name, only in (("..1", "a*"), ("..2", "b*")):
        (place.root / name).mkdir()
        (place.root / name / "vmpin.yaml").write_text(f"watch: {{only: {only}, reload: {mode}}}\n")
    data, file = place.root / "..data", place.root / "vmpin.yaml"
    data.symlink_to("..1")
    file.symlink_to("..data/vmpin.yaml")
    place.settings["watch.resync_seconds"] = "0.1"
    place.file, place.changed = file, loading.WatchedFile(file).changed

    async def main() -> None:
        async with place.watching() as watcher:
            assert watcher.view.config.watch.only == "a*"
            (place.root / "..new").symlink_to("..2")
            (place.root / "..new").rename(data)
            if mode == "signal":
                before = watcher.view.counters.passes["resync"]
                await until(lambda: watcher.view.counters.passes["resync"] > before + 2)
                assert watcher.view.config.watch.only == "a*"
                os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: watcher.view.config.watch.only == "b*")

    asyncio.run(main())


def test_a_file_that_has_not_changed_is_not_loaded_again(tmp_path: Path) -> None:
    file = tmp_path / "vmpin.yaml"
    watched = loading.WatchedFile(file)
    assert not watched.changed()
    changes: list[Callable[[], object]] = [lambda: file.write_text("a"), lambda: file.write_text("bc"), file.unlink]
    for change in changes:
        change()
        assert (watched.changed(), watched.changed()) == (True, False)


def test_the_kubelets_checkpoint_is_read_when_it_is_written(place: Place) -> None:
    place.config(watch__kubelet="true")

    async def main() -> None:
        async with place.watching() as watcher:
            new = place.root / "kubelet/.new"
            new.write_text('{"policyName":"none","defaultCpuSet":"","checksum":1353318690}')
            new.rename(place.root / "kubelet/cpu_manager_state")
            await until(lambda: watcher.view.kubelet is not None)
            assert watcher.view.counters.passes["files"] >= 1
            assert {each.name for each in watcher.source_health()} >= {"kubelet", "files"}

    asyncio.run(main())


def test_a_removed_run_directory_is_made_again_at_the_next_resync(place: Place) -> None:
    place.config(watch__resync_seconds="0.1")

    async def main() -> None:
        async with place.watching() as watcher:
            assert await place.ask("hook.sock", place.message()) == b"ok\n"
            await until(lambda: containers(watcher) == {"c1": "1"})
            remove_in_use(place.root / "run")
            await until(lambda: (place.root / "run/state.json").exists())
            assert containers(watcher) == {"c1": "1"}
            assert (await place.control(op="status"))["watcher"] == os.getpid()
            assert await place.ask("hook.sock", place.message("c2", "0")) == b"ok\n"
            await until(lambda: containers(watcher) == {"c1": "1", "c2": "0"})

    asyncio.run(main())


def test_it_ends_and_touches_nothing_when_another_process_takes_the_lock(place: Place) -> None:
    place.config(watch__resync_seconds="0.1", watch__on_exit="unpin")
    ends: list[Callable[[], None]] = []

    async def main() -> None:
        config = place.config()
        async with place.watching() as watcher:
            ends.extend(present(part.end for part in watcher.parts.values()))
            for settled in present(part.settled for part in watcher.parts.values()):
                await settled()  # its databases are open: what they write is in the removed directory
            with contextlib.ExitStack() as stack:
                # At once: between the two a resync may make the directory again, and take the lock.
                remove_in_use(config.paths.run)
                config.paths.run.mkdir()
                other = stack.enter_context(Lock(config.paths.lock_file))
                config.paths.state_file.write_text("another's")
                await until(lambda: watcher.stopping)
                assert other.held()
                await asyncio.sleep(0.01)
                assert config.paths.state_file.read_text() == "another's"

    with pytest.raises(LockHeldError, match="another vmpin"):
        asyncio.run(main())
    assert ends
    for end in ends:  # its databases end with its process; closed here, they write nothing either
        end()
    assert sorted(os.listdir(place.root / "run")) == ["lock", "state.json"]


def test_with_on_exit_unpin_nothing_is_left(place: Place) -> None:
    place.config(watch__on_exit="unpin")

    async def main() -> None:
        async with place.watching() as watcher:
            assert await place.ask("hook.sock", place.message()) == b"ok\n"
            await until(lambda: containers(watcher) == {"c1": "1"})

    asyncio.run(main())
    assert not (place.root / "run/state.json").exists()


# The restart of failed tasks


def test_a_task_that_fails_is_started_again_with_growing_pauses(caplog: pytest.LogCaptureFixture) -> None:
    runs: list[dict[str, str]] = []
    tasks = SupervisedTasks(Timeouts(restart=0.01, restart_most=0.02))

    async def broken() -> None:
        runs.append(dict(tasks.failing))
        if len(runs) < 4:
            raise OSError("of no use")
        await asyncio.Event().wait()

    async def sound() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            tasks.start(group, {"broken": broken, "sound": sound})
            await until(lambda: tasks.failing)
            assert tasks.failing == {"broken": "OSError('of no use')"}
            await until(lambda: len(runs) == 4)
            assert (tasks.names, tasks.restarts, tasks.failing) == (("broken", "sound"), {"broken": 3}, {})
            tasks.cancel(*tasks.names)

    asyncio.run(main())
    assert runs == [{}] * 4
    assert [record.getMessage().split(" again in ")[1] for record in caplog.records
            if record.levelno == logging.ERROR] == ["0.0 s"] * 3


@pytest.mark.parametrize(("threads", "levels"), [(1, []), (2, ["WARNING"]), (9, ["WARNING"])])
def test_vcpus_are_missed_once_the_vmm_has_more_than_its_first_thread(
        place: Place, caplog: pytest.LogCaptureFixture, threads: int, levels: list[str]) -> None:
    async def main() -> None:
        async with place.watching() as watcher:
            pid = os.getpid()
            vmm = Process(pid, ThreadId(pid, 1), ThreadRole.EMULATOR, ["qemu"])
            vmm.stats.update({number: stat for number in range(threads) if (stat := Procfs().stat(pid)) is not None})
            caplog.clear()
            watcher.passes.report_unidentified(Vm(SandboxId("a"), QEMU, vmm))

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    assert [record.levelname for record in caplog.records if "not identified" in record.getMessage()] == levels
