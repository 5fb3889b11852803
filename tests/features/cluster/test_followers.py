"""`follow`: every client gets everything first and then what changed, and one that does not read is dropped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from documents import checked
from kube_given import NODE, line, node_part
from kubelet_processes import doubted_checkpoint
from newcomers import Machine, sandbox
from recorded_node import DB, LOGS, MAIN, SHOP, WEB, status

from vmpin.daemon.control import Control
from vmpin.domain.events import ContainerSeen, SandboxSeen, Source
from vmpin.domain.model import Container, ContainerId, Pod, SandboxId
from vmpin.errors import WatcherError
from vmpin.feature import WatcherPart
from vmpin.features.cluster.followers import MAX_FOLLOWERS, MAX_WAITING, Followers, Survey, brief
from vmpin.features.cluster.kube.node_pinning import node_pinning
from vmpin.features.cluster.kube.pod_events import transition
from vmpin.features.cluster.kube.pod_pinning import PinState, pinning_of
from vmpin.features.cluster.kube.reported_node import NOTHING, ReportedNode
from vmpin.features.cluster.reporter_requests import ReporterRequests
from vmpin.host import sockets
from vmpin.host.sockets import Peer
from vmpin.placement.ownership import CpuClaims, ownership
from vmpin.status.health import SourceHealth

pytest_plugins = ["given_unit"]


class Watched:
    """As much of a watcher as followers take; its reconciler is real."""

    def __init__(self, machine: Machine, beat: float = 600.0) -> None:
        self.machine = machine
        self.view = machine.reconciler.view
        self.resynced = float("inf")
        self.sources: tuple[SourceHealth, ...] = ()
        self.guests = self
        requests = ReporterRequests(self)
        # No line without a change, and no pause after one.
        self.followers = requests.followers = Followers(self, calm=0.001, beat=beat)
        self.parts: Mapping[str, WatcherPart] = {"cluster": requests.part()}

    def data(self, sandbox: SandboxId) -> None:
        return None

    def source_health(self) -> Iterable[SourceHealth]:
        return self.sources

    def resync(self) -> None:
        self.machine.resync()
        self.followers.touch()


@contextlib.asynccontextmanager
async def serving(path: Path, watched: Watched, admit: bool = True) -> AsyncIterator[None]:
    """The status socket, and the followers' task."""
    listener = sockets.listen(path)
    control = Control(watched, reading=True)  # type: ignore[arg-type]
    tasks = [asyncio.create_task(sockets.serve(listener, 65536, control.answer, True, 120.0, lambda peer: admit)),
             asyncio.create_task(watched.followers.run())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        async with asyncio.timeout(120):
            await asyncio.gather(*tasks, return_exceptions=True)


class Client:
    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self, path: Path, **request: object) -> Client:
        self.reader, self.writer = await asyncio.open_unix_connection(path, limit=1 << 24)
        self.writer.write(json.dumps(request or {"op": "follow"}).encode() + b"\n")
        return self

    async def line(self) -> Any:
        async with asyncio.timeout(120):
            raw = await self.reader.readline()
        answer = json.loads(raw) if raw else None
        if answer is not None and "error" not in answer:
            checked("follow", answer)
        return answer

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


def ids(line: Any) -> list[str]:
    return [entry["id"] for entry in line["sandboxes"]]


def test_a_client_gets_everything_and_then_what_changed(machine: Machine, tmp_path: Path) -> None:
    async def main() -> None:
        machine.vmm("a")
        machine.resync()
        watched = Watched(machine)
        async with serving(tmp_path / "s", watched), contextlib.AsyncExitStack() as opened:
            first = await opened.enter_async_context(await Client().connect(tmp_path / "s"))
            change = await first.line()
            assert (change["version"], change["follow"], ids(change)) == (1, "all", [sandbox("a")])
            assert change["node"]["online"] == str(watched.view.node.online)
            assert (change["node"]["ready"], change["node"]["why"]) == (True, "")
            (entry,) = change["sandboxes"]
            assert (entry["verdict"], entry["misplaced"], entry["suspended"]) == ("waiting", 0, False)
            assert "threads" not in entry
            gone = machine.vmm("b")
            watched.resync()
            change = await first.line()
            assert (change["follow"], ids(change), change["gone"]) == ("change", [sandbox("b")], [])
            assert "node" not in change
            second = await opened.enter_async_context(await Client().connect(tmp_path / "s"))
            assert sorted(ids(await second.line())) == [sandbox("a"), sandbox("b")]
            watched.sources = (SourceHealth("nri", False, True, "not connected"),)
            watched.followers.touch()
            for client in (first, second):
                change = await client.line()
                assert (ids(change), change["node"]["ready"]) == ([], False)
                assert change["node"]["why"] == "nri: not connected"
            gone.kill()
            gone.wait()
            watched.resync()
            for client in (first, second):
                change = await client.line()
                assert change["gone"] == [sandbox("b")] or change["sandboxes"][0]["vmm"] is None
    asyncio.run(main())


def test_the_kubelets_configuration_is_read_for_a_client_that_asks_for_it(
        machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, however often it comes again: that takes a search among all processes."""
    read = []

    def running(proc: object) -> dict[str, str]:
        read.append(proc)
        return {"topologyManagerPolicy": "none"}

    monkeypatch.setattr("vmpin.features.common.kubelet_config.running_kubelet", running)

    async def main() -> None:
        watched = Watched(machine)
        async with serving(tmp_path / "s", watched), await Client().connect(tmp_path / "s") as first:
            assert (await first.line())["node"]["kubelet"] == {}
            await first.close()
        watched = Watched(machine, beat=0.01)  # a client that is gone is noticed
        async with serving(tmp_path / "s", watched):
            for _ in range(3):
                async with await Client().connect(tmp_path / "s", op="follow", kubelet=True) as second:
                    assert (await second.line())["node"]["kubelet"] == {"topologyManagerPolicy": "none"}
                async with asyncio.timeout(120):
                    while len(watched.followers):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            assert len(read) == 1
    asyncio.run(main())


def test_a_features_part_is_sent_where_there_is_one_and_when_it_changes(machine: Machine, tmp_path: Path) -> None:
    async def main() -> None:
        given: dict[str, object] | None = None
        watched = Watched(machine)
        watched.parts = {**watched.parts, "allocator": WatcherPart(brief=lambda: given), "other": WatcherPart()}
        async with serving(tmp_path / "s", watched), await Client().connect(tmp_path / "s") as client:
            assert (await client.line())["node"]["features"] == {}
            given = {"allocatable": "1-3", "free": "1", "why": ""}
            watched.followers.touch()
            assert (await client.line())["node"]["features"] == {"allocator": given}
    asyncio.run(main())


def test_without_a_client_nothing_wakes_the_task(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a clock nor a pass."""
    async def main() -> None:
        watched, loop = Watched(machine, beat=0.001), asyncio.get_running_loop()
        scheduled: list[str] = []

        def counted(name: str) -> Callable[..., Any]:
            schedule: Callable[..., Any] = getattr(loop, name)

            def call(*args: Any, **keywords: Any) -> Any:
                scheduled.append(name)
                return schedule(*args, **keywords)

            return call

        task = asyncio.create_task(watched.followers.run())
        monkeypatch.setattr(loop, "call_at", counted("call_at"))
        for _ in range(3):
            await asyncio.sleep(0)  # the task comes to its first wait
        monkeypatch.setattr(loop, "call_soon", counted("call_soon"))
        watched.resync()
        watched.resync()
        monkeypatch.undo()
        assert scheduled == []
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    asyncio.run(main())


def test_without_a_change_there_is_a_line_now_and_then(machine: Machine, tmp_path: Path) -> None:
    async def main() -> None:
        watched = Watched(machine, beat=0.01)
        async with serving(tmp_path / "s", watched), await Client().connect(tmp_path / "s") as client:
            assert (await client.line())["follow"] == "all"
            for _ in range(3):
                change = await client.line()
                assert (change["follow"], change["sandboxes"], change["gone"]) == ("change", [], [])
    asyncio.run(main())


def test_a_client_that_does_not_read_is_dropped_and_others_go_on(machine: Machine, tmp_path: Path) -> None:
    async def main() -> None:
        watched = Watched(machine)
        stream = watched.followers.stream()
        reading = asyncio.create_task(anext(stream))  # registers, and then reads nothing more
        async with serving(tmp_path / "s", watched), await Client().connect(tmp_path / "s") as client:
            assert json.loads(await reading)["follow"] == "all"
            await client.line()
            for number in range(MAX_WAITING + 2):
                watched.sources = (SourceHealth("nri", False, True, str(number)),)
                watched.followers.touch()
                assert (await client.line())["node"]["why"] == f"nri: {number}"
            assert len(watched.followers) == 1
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
    asyncio.run(main())


def test_there_are_not_more_clients_than_allowed(machine: Machine, tmp_path: Path) -> None:
    async def main() -> None:
        watched = Watched(machine)
        async with serving(tmp_path / "s", watched), contextlib.AsyncExitStack() as opened:
            clients = [await opened.enter_async_context(await Client().connect(tmp_path / "s"))
                       for _ in range(MAX_FOLLOWERS)]
            for client in clients:
                assert (await client.line())["follow"] == "all"
            with pytest.raises(WatcherError):
                watched.followers.stream()
            more = await opened.enter_async_context(await Client().connect(tmp_path / "s"))
            assert "clients follow already" in (await more.line())["error"]
            assert await more.line() is None
            await clients.pop().close()
            for number in range(100_000):  # noticed at a line that cannot be written
                if len(watched.followers) < MAX_FOLLOWERS:
                    break
                watched.sources = (SourceHealth("nri", False, True, str(number)),)
                watched.followers.touch()
                await clients[0].line()
            more = await opened.enter_async_context(await Client().connect(tmp_path / "s"))
            assert (await more.line())["follow"] == "all"
    asyncio.run(main())


@pytest.mark.parametrize("operation", ["about", "plan", "reconcile", "unpin", "unpinning", "", None, "nonsense"])
def test_the_status_socket_answers_nothing_that_acts_not_even_to_root(machine: Machine, operation: object) -> None:
    control = Control(Watched(machine), reading=True)  # type: ignore[arg-type]
    for uid in (0, os.geteuid(), 65532):
        answer = asyncio.run(control.answer(json.dumps({"op": operation}).encode(), uid))
        assert isinstance(answer, bytes)
        assert json.loads(answer)["error"] == f"{operation}: not answered on this socket"


def test_a_peer_that_is_not_admitted_gets_nothing(machine: Machine, tmp_path: Path) -> None:
    async def main() -> None:
        async with (serving(tmp_path / "s", Watched(machine), admit=False),
                    await Client().connect(tmp_path / "s") as client):
            with contextlib.suppress(ConnectionResetError):  # what it sent is not even read
                assert await client.line() is None
    asyncio.run(main())


def test_members_are_known_by_the_kernel(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        peer = sockets.peer_of(ours)
    assert peer.uid == os.geteuid()
    assert peer.gids == {os.getegid(), *os.getgroups()}
    stranger = Peer(4_000_000_000, frozenset({65532, 4_000_000_001}))
    assert sockets.is_member(stranger, "65532")
    assert sockets.is_member(stranger, "4000000001")
    for group in ("", "65533", "root", "no-such-group", "65532.0", "4294967295", "٣"):
        assert not sockets.is_member(stranger, group)
    assert sockets.is_member(Peer(0, frozenset()), "65533")


UID = "0b1c2d3e-0000-4000-8000-000000000001"


def surveyed(machine: Machine) -> ReportedNode:
    """As the reporter receives it."""
    survey = Survey()
    for _ in survey.take(machine.reconciler.view, lambda sandbox: None):
        pass
    return _received(survey.node, *survey.sandboxes.values())


def _received(node: Mapping[str, object], *sandboxes: Mapping[str, object]) -> ReportedNode:
    return NOTHING.after(line("all", *sandboxes, node={**node_part(), **node}))


def test_a_collision_names_pods_and_containers_and_its_sentence_is_whole(machine: Machine) -> None:
    reconciler = machine.reconciler
    reconciler.node_state.apply_events([
        SandboxSeen(SandboxId(SHOP), "nri", Pod("shop", "web", UID), handler="runc"),
        ContainerSeen(SandboxId(SHOP), Container(ContainerId(WEB), "app", machine.other), Source.NRI, 1)])
    claims = {SandboxId(SHOP): CpuClaims(((ContainerId(WEB), machine.other),), ()),
              SandboxId(DB): CpuClaims((), ((ContainerId(MAIN), machine.other),))}
    reconciler.node_state.placement_cache.own = ownership(claims, reconciler.view.node)
    report = surveyed(machine)
    (collision,) = node_pinning(NODE, report, True)["status"]["collisions"]
    assert collision == {
        "cpu": machine.other.first, "sandboxes": [SHOP, DB],  # of DB no source has reported a pod
        "message": f"exclusive to app of shop/web, but in the shared cpuset of {MAIN[:12]} of {DB[:12]}"}


def test_a_pods_condition_and_event_name_what_its_sentences_have_as_ids() -> None:
    entry = next(sandbox for sandbox in status()["sandboxes"] if sandbox["drift"])
    entry["reasons"] = [f"the sources disagree on the CPUs of container {WEB}: 40 and 41", f"{LOGS} is of no name"]
    entry["drift"]["why"] = f"{MAIN} of {DB} was given the CPUs"
    in_brief = brief(entry, False, {WEB: "web", MAIN: "main", DB: "shop/db-0"})
    (received,) = _received({}, in_brief).sandboxes.values()
    state = pinning_of(received)
    assert state.state is PinState.DEGRADED
    assert state.message == ("the sources disagree on the CPUs of container web: 40 and 41; "
                             f"{LOGS[:12]} is of no name")
    event = transition(None, state)
    assert event is not None
    assert event.message == state.message
    assert received.repairs.why == "main of shop/db-0 was given the CPUs"
    assert entry["drift"]["why"] == f"{MAIN} of {DB} was given the CPUs"  # the status document has ids


def test_a_collision_has_the_doubt_about_the_checkpoint(machine: Machine) -> None:
    """Where no kubelet runs; whole, before the reporter cuts it."""
    doubted_checkpoint(machine, UID)
    survey = Survey()
    assert [*survey.take(machine.reconciler.view, lambda sandbox: None)]
    assert survey.node["collisions"][0]["what"].endswith("written 2026-11-26T05:00:00Z, may be out of date)")  # type: ignore[index]
