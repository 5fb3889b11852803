"""runc containers are given their CPUs back by the runtime: over CRI, else in the answer to NRI's list."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import grpc
import pytest
from cri_peer import CriServer
from guest_peer import until
from watched_place import Place

from vmpin.authorities.authority import GivenAuthority
from vmpin.config import loading as settings
from vmpin.config.timeouts import Timeouts
from vmpin.cpuset import CpuSet
from vmpin.domain.assignments import Assignments, Rank
from vmpin.domain.events import ContainerSeen, CpusetSeen, SandboxSeen, Source
from vmpin.domain.model import Container, ContainerId, Pod, SandboxId
from vmpin.feature import present
from vmpin.features.runc_repair.runc_drift import PAUSE, TRIES
from vmpin.features.runc_repair.runc_repair_watcher_part import RuncRepair
from vmpin.reconcile.intake import take_nri
from vmpin.reconcile.node_state import NodeState
from vmpin.reconcile.reconciler import Reconciler
from vmpin.sources.nri.nri_events import ContainerEvent, NriContainer, NriUpdate, Synced
from vmpin.sources.nri.plugin import NriPlugin
from vmpin.wire.nri_enums import Verb

POD = SandboxId("pod")


def listed(*names: str) -> list[NriContainer]:
    """Containers as the runtime has them, on the CPUs with which it created them."""
    return [NriContainer(ContainerId(name), POD, name, 3, CpuSet.parse("2-3"), {}, 0) for name in names]


def drift(node_state: NodeState, *names: str, handler: str = "") -> None:
    """Have the cgroups of containers differ for longer than a resync from the CPUs with which they were created."""
    node_state.nri_list_came()
    node_state.apply_events([SandboxSeen(POD, "nri", Pod("ns", "web", "uid"), handler=handler)])
    for container in map(ContainerId, names):
        node_state.apply_events([
            ContainerSeen(POD, Container(container, container, CpuSet.parse("2-3")), Source.NRI, 1),
            CpusetSeen(POD, container, CpuSet([4]), Source.CGROUP, 2)])
        node_state.source_disagreements.lasting[POD, container] = "nri 2-3, cgroup 4"


class FakePlugin:
    """What a plugin is asked for: its connection is real elsewhere (sources/nri/test_nri_updates)."""

    def __init__(self) -> None:
        self.can_reconnect = True
        self.asked: list[Mapping[ContainerId, NriUpdate]] = []
        self.lists = 0

    def reconnect(self, updates: Mapping[ContainerId, NriUpdate] | None = None) -> None:
        if updates is None:
            self.lists += 1
        else:
            self.asked.append(updates)


class Drifted:
    """A node on which containers were created with CPUs 2-3, and their cgroups have 4."""

    def __init__(self, path: Path) -> None:
        (path / "run").mkdir()
        self.socket = path / "cri.sock"
        flags = {**{f"paths.{key}": str(path / key) for key in ("run", "kata_go", "kata_rs", "kubelet", "nri")},
                 "paths.cri": str(self.socket), "watch.only": "none"}
        self.reconciler = Reconciler(settings.load(None, {}, {**flags, "runc.repair": "true"}))
        self.node_state = self.reconciler.node_state
        self.plugin = FakePlugin()
        self.process = 7  #: The runtime's.
        #: What the runtime has.
        self.listed: dict[ContainerId, NriContainer] = {}
        take_nri(self.reconciler.node_state, [Synced((), (), 0, runtime=self.process)])
        self.repair = self.repairing()

    def repairing(self, timeout: float = 120.0, pause: float = PAUSE) -> RuncRepair:
        return RuncRepair(self.reconciler.view, self.node_state.read_cgroups, lambda: cast("NriPlugin", self.plugin),
                          timeout, pause)

    def drift(self, *names: str, handler: str = "") -> None:
        drift(self.node_state, *names, handler=handler)
        for made in listed(*names):
            self.node_state.nri_reports.take(ContainerEvent(Verb.POST_CREATE, None, made, 1))
            self.listed[made.id] = made

    def look(self, times: int = 1) -> None:
        """As after resyncs; the runtime lists all when it is asked to."""
        for _ in range(times):
            lists = self.plugin.lists
            asyncio.run(self.repair.repair())
            if self.plugin.lists > lists:
                event = Synced((), tuple(self.listed.values()), 3, runtime=self.process)
                take_nri(self.reconciler.node_state, [event])
                self.repair.take([event])
                asyncio.run(self.repair.repair())

    def confirm(self) -> None:
        """The runtime has listed all, upon the first look."""
        # No public way in: the first look would repair what is confirmed here.
        self.repair._unconfirmed = set(self.listed)
        self.repair.take([Synced((), tuple(self.listed.values()), 3, runtime=self.process)])

    @property
    def outcomes(self) -> dict[str, int]:
        return {outcome: number for outcome, number in self.repair.repairs.items() if number}


@pytest.fixture
def node(tmp_path: Path) -> Drifted:
    return Drifted(tmp_path)


@pytest.fixture
def runtime(node: Drifted) -> Iterator[CriServer]:
    made = CriServer(node.socket)
    yield made
    made.stop()


def test_the_runtime_is_asked_over_cri(node: Drifted, runtime: CriServer) -> None:
    node.drift("a", "b")
    node.look()
    assert sorted(runtime.updates) == [("a", "2-3"), ("b", "2-3")]
    assert (node.outcomes, node.plugin.asked) == ({"done": 2}, [])


def test_what_another_plugin_changed_is_no_drift(node: Drifted, runtime: CriServer) -> None:
    """NRI did not report it; the runtime's list has it."""
    node.drift("a")
    node.listed[ContainerId("a")] = node.listed[ContainerId("a")]._replace(cpus=CpuSet([4]))
    node.look(3)
    assert (runtime.updates, node.plugin.asked, node.plugin.lists) == ([], [], 1)
    assert str(node.node_state.state.sandboxes[POD].containers[ContainerId("a")].reports[Source.NRI].cpuset) == "4"


def test_a_container_is_not_given_the_cpus_of_a_list_alone(node: Drifted, runtime: CriServer) -> None:
    """A restarted CRI-O lists the CPUs of creation (sources/nri/test_crio_list): the cgroup is right."""
    node.drift("a")
    node.process = 8
    take_nri(node.node_state, [Synced((), tuple(node.listed.values()), 3, runtime=node.process)])
    node.look()
    assert (runtime.updates, node.plugin.lists) == ([], 0)
    take_nri(node.node_state, [ContainerEvent(Verb.POST_UPDATE, None, node.listed[ContainerId("a")], 4)])
    node.look()
    assert runtime.updates == [("a", "2-3")]


def test_a_vms_container_is_never_repaired(node: Drifted, runtime: CriServer) -> None:
    node.drift("a", handler="kata-qemu")
    node.look()
    assert (runtime.updates, node.plugin.asked) == ([], [])


def test_between_two_tries_is_a_pause(node: Drifted, runtime: CriServer) -> None:
    """The cgroup may yet be written."""
    node.repair = node.repairing(pause=600.0)
    node.drift("a")
    node.look(TRIES)
    assert len(runtime.updates) == 1


def test_tries_are_bounded(node: Drifted, runtime: CriServer, caplog: pytest.LogCaptureFixture) -> None:
    node.repair = node.repairing(pause=0.0)
    node.drift("a")
    node.look(TRIES + 3)
    assert len(runtime.updates) == TRIES
    assert caplog.text.count("another writer takes them") == 1


def test_nothing_waits_for_a_mute_runtime(node: Drifted, runtime: CriServer) -> None:
    """The loop turns while the call waits, and a second look begins no second call."""
    runtime.mute = True
    node.repair = node.repairing(600.0, pause=600.0)
    node.drift("a", "b")
    node.confirm()

    async def main() -> None:
        task = asyncio.create_task(node.repair.run())
        node.repair.begin()
        assert await asyncio.to_thread(runtime.called.wait, 120)
        node.repair.begin()
        for _ in range(10):
            await asyncio.sleep(0)
        assert node.outcomes == {}
        runtime.answer_all()
        await until(lambda: node.outcomes == {"done": 2})
        task.cancel()

    asyncio.run(main())
    assert runtime.updates == [("a", "2-3"), ("b", "2-3")]


def test_after_the_deadline_of_a_mute_runtime_the_others_wait_for_a_resync(
        node: Drifted, runtime: CriServer, caplog: pytest.LogCaptureFixture) -> None:
    runtime.mute = True
    node.repair = node.repairing(0.1)
    node.drift("a", "b")
    node.confirm()
    asyncio.run(node.repair.repair())
    assert "no answer in time" in caplog.text
    assert (node.outcomes, node.plugin.asked) == ({"failed": 1}, [])


@pytest.mark.parametrize("cri", [True, False], ids=["cri", "nri"])
def test_repairs_under_way_end_when_an_authority_writes_cpusets(node: Drifted, runtime: CriServer, cri: bool) -> None:
    runtime.mute = True
    runtime.failure = None if cri else (grpc.StatusCode.UNIMPLEMENTED, "no CRI here")
    node.repair = node.repairing(600.0)
    node.drift("a", "b")
    node.confirm()

    async def main() -> None:
        task = asyncio.create_task(node.repair.repair())
        assert await asyncio.to_thread(runtime.called.wait, 120)
        node.node_state.put_authority(GivenAuthority(Rank.LEDGER, Assignments(writes=True)))
        runtime.answer_all()
        await task

    asyncio.run(main())
    assert (runtime.updates, node.plugin.asked) == ([("a", "2-3")], [])


def test_the_end_of_the_watcher_stops_repairs(tmp_path: Path) -> None:
    """What it gives back is not written again. A call that is under way cannot be taken back."""
    place = Place(tmp_path)
    (tmp_path / "kubelet/cpu_manager_state").write_text(json.dumps({
        "policyName": "static", "defaultCpuSet": "0-1", "entries": {"uid": {"a": "2", "b": "3"}}, "checksum": 0}))
    runtime = CriServer(tmp_path / "cri.sock")
    runtime.mute = True
    place.config(runc__repair="true", paths__cri=str(runtime.path), watch__on_exit="unpin", watch__only="none")

    async def main() -> None:
        async with place.watching(Timeouts(cri_call=600.0)) as watcher:
            drift(watcher.node_state, "a", "b")
            for after_resync in present(part.after_resync for part in watcher.parts.values()):
                after_resync()
            assert await asyncio.to_thread(runtime.called.wait, 120)
        runtime.answer_all()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

    try:
        asyncio.run(main())
    finally:
        runtime.stop()
    assert runtime.updates == [("a", "2-3")]


def test_one_that_is_refused_does_not_keep_the_next_one_back(node: Drifted, runtime: CriServer) -> None:
    runtime.failure = grpc.StatusCode.UNKNOWN, "no"
    node.drift("a", "b")
    node.look()
    assert len(runtime.updates) == 2
    assert node.outcomes == {"failed": 2}


@pytest.mark.parametrize("served", [None, False], ids=["no socket", "no CRI"])
def test_without_cri_the_updates_go_into_the_answer_to_the_list(node: Drifted, served: bool | None) -> None:
    server = None if served is None else CriServer(node.socket, served)
    try:
        node.drift("a")
        node.look()
    finally:
        if server is not None:
            server.stop()
    assert node.plugin.asked == [{ContainerId("a"): NriUpdate(CpuSet.parse("2-3"), CpuSet.parse("2-3"))}]
    node.repair.take([Synced((), (), 0, (ContainerId("a"),))])
    assert node.outcomes == {"done": 1}


def test_a_plugin_that_cannot_connect_again_is_reported_once(node: Drifted, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    node.plugin.can_reconnect = False
    node.drift("a")
    node.look(3)
    assert node.plugin.asked == []
    assert caplog.text.count("are not repaired") == 1
