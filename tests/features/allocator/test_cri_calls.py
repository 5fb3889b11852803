"""Cgroups that are read back, at a container's start and after a resync; and pods that ended unreported. The view of
the node is a stand-in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from cri_peer import CriServer
from guest_peer import PATIENCE

from vmpin.config import loading
from vmpin.cpuset import CpuSet
from vmpin.daemon.feeds import NriFeed
from vmpin.domain.events import Source
from vmpin.domain.model import ContainerId, ContainerState, SandboxId
from vmpin.domain.runtime_call import Listed, RequestedContainer
from vmpin.domain.topology import Topology
from vmpin.features.allocator.cpu_allocator import CpuAllocator
from vmpin.features.allocator.cri_calls import TRIES, EndedPods, PoolUpdates
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions
from vmpin.features.allocator.ledger_file import LedgerFile
from vmpin.features.allocator.vm_size import VmSize
from vmpin.wire.nri_enums import Verb

MACHINE = Topology.build(CpuSet(range(4)))
POD, MAIN = SandboxId("pod"), ContainerId("main")
OWN, OTHER = CpuSet((1, 2)), CpuSet((0, 3))
RUNNING = RequestedContainer(
    MAIN, POD, "main", "shop", "web", "uid", pod_annotations={"cpu-policy.vmpin.io": "exclusive"}, shares=2048,
    quota=200_000, period=100_000, state=ContainerState.RUNNING)


def an_allocator(path: Path) -> CpuAllocator:
    """Its ledger has a running container with the CPUs 1-2."""
    allocator = CpuAllocator(MACHINE, AllocationOptions(AllocationMode.ON, CpuSet((0,))), LedgerFile(path, "boot"),
                             lambda pod: VmSize())
    allocator.synchronize(Listed(frozenset((POD,)), (RUNNING,)))
    return allocator


class Node:
    """A pod with an exclusive container on CPUs 1-2, and its cgroup, which has `cgroup` at the next reading."""

    def __init__(self, path: Path, cri: Path | None = None, pause: float = 30.0) -> None:
        self.allocator = an_allocator(path)
        self.cgroup: CpuSet | None = OWN
        self.vms: set[SandboxId] = set()
        self.reports: dict[Source, Any] = {}
        self.disagreements: dict[tuple[SandboxId, ContainerId], str] = {}
        record = SimpleNamespace(reports=self.reports)
        view: Any = SimpleNamespace(config=SimpleNamespace(paths=SimpleNamespace(cri=cri)),
                                    vm_sandboxes=lambda: self.vms, disagreements=self.disagreements,
                                    sandboxes={POD: SimpleNamespace(containers={MAIN: record})})
        self.updates = PoolUpdates(view, self.allocator, self._read, lambda: None, PATIENCE, pause)

    def _read(self, containers: Container[ContainerId]) -> None:
        if MAIN in containers and self.cgroup is not None:
            self.reports[Source.CGROUP] = SimpleNamespace(cpuset=self.cgroup)

    def start(self) -> Any:
        """:returns: the update that is due then."""
        self.updates.started([(POD, MAIN)])
        return self.allocator.next_update(())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path / "ledger.json")
    assert made.allocator.expected() == {MAIN: OWN}
    return made


def test_a_cgroup_with_its_cpus_is_the_proof(node: Node) -> None:
    assert node.start() is None


def test_a_cgroup_with_other_cpus_is_corrected(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.cgroup = OTHER
    with caplog.at_level(logging.WARNING):
        assert node.start() == (MAIN, OWN)
    assert "other CPUs container=main has=0,3 granted=1-2: vmpin gives it its own again" in caplog.text


def test_of_a_vms_container_and_of_one_that_has_ended_no_cgroup_counts(node: Node) -> None:
    node.cgroup = None
    assert node.start() is None
    node.cgroup, node.vms = OTHER, {POD}
    assert node.start() is None


def test_another_writer_is_left_its_way_after_some_tries(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.cgroup, node.disagreements[POD, MAIN] = OTHER, "its cgroup has other CPUs"
    update = node.start()
    for _ in range(TRIES + 3):
        node.allocator.given(update)
        node.updates.compare()
    assert caplog.text.count("vmpin gives it its own again") == TRIES
    assert caplog.text.count("another program changes them") == 1


class Refusing(CriServer):
    """Calls `meanwhile` with each update, and refuses it."""

    def __init__(self, path: Path, meanwhile: Callable[[], None]) -> None:
        self._meanwhile = meanwhile
        super().__init__(path)
        self.failure = (grpc.StatusCode.UNKNOWN, "read-only")

    def update(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        self._meanwhile()
        return super().update(raw, context)


def test_a_call_that_the_runtime_refuses_counts_no_try(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """However often, and although a pass reads the cgroup during each: no other writer took anything."""
    path = tmp_path / "cri.sock"
    node = Node(tmp_path / "ledger.json", path, pause=0.0)
    node.cgroup, node.disagreements[POD, MAIN] = OTHER, "its cgroup has other CPUs"
    calls = iter(range(TRIES + 3))
    loop = asyncio.new_event_loop()

    def meanwhile() -> None:
        update = node.allocator.next_update(())
        assert update == (MAIN, OWN)
        node.allocator.given(update)  # NRI reports the update before the runtime carries it out
        node.updates.compare()
        if next(calls, None) is None:
            loop.call_soon_threadsafe(task.cancel)

    runtime = Refusing(path, meanwhile)
    node.start()
    task = loop.create_task(node.updates.run())
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    runtime.stop()
    assert len(runtime.updates) > TRIES
    assert caplog.text.count("CPUs not given container=main by=CRI cpus=1-2") > TRIES
    assert "another writer" not in caplog.text


def test_a_granted_cpu_that_was_offline_is_given_again(node: Node) -> None:
    """The ledger is the same all the time: the grant keeps its CPU."""
    node.allocator.renew(Topology.build(CpuSet((0, 1, 3))))
    away = node.allocator.next_update(())
    assert away is not None
    assert away == (MAIN, CpuSet((1,)))
    node.allocator.given(away)
    assert node.allocator.pause() is None
    node.allocator.renew(MACHINE)
    assert node.allocator.next_update(()) == (MAIN, OWN)


class CountingRuntime(CriServer):
    """Counts the requests for its list. `meanwhile` is called during each."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked = 0
        self.meanwhile: Callable[[], object] = lambda: None

    def list_pods(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        self.asked += 1
        self.meanwhile()
        return super().list_pods(raw, context)


class StoppingPod:
    """A pod with an exclusive container, which stops. `lists` counts the connections that NRI is to make again."""

    def __init__(self, path: Path) -> None:
        self.allocator = an_allocator(path / "ledger.json")
        self.runtime = CountingRuntime(path / "cri.sock")
        self.lists = self.ended = 0
        nri = NriFeed(loading.load(None, {}, {}), lambda events, since, waited: None, lambda: None)
        plugin: Any = SimpleNamespace(can_reconnect=True, reconnect=self._reconnect)
        nri.plugin = plugin
        self.pods = EndedPods(self.allocator, self.runtime.path, self._end, lambda: nri, PATIENCE)

    def _reconnect(self) -> None:
        self.lists += 1

    def _end(self) -> None:
        self.ended += 1

    @property
    def asked(self) -> int:
        return self.runtime.asked

    def stop(self) -> None:
        self.allocator.decide(Verb.STOP, RUNNING)

    def refresh(self) -> int:
        """:returns: how many grants there are then."""
        asyncio.run(self.pods.refresh())
        ledger = self.allocator.ledger()
        assert ledger is not None
        return len(ledger.grants)


@pytest.fixture
def stopping(tmp_path: Path) -> Iterator[StoppingPod]:
    made = StoppingPod(tmp_path)
    yield made
    made.runtime.stop()


def test_a_pod_that_runs_no_more_is_ended_at_the_second_look(stopping: StoppingPod) -> None:
    assert [stopping.refresh(), stopping.refresh(), stopping.asked] == [1, 1, 0]
    stopping.stop()
    assert (stopping.refresh(), stopping.asked) == (1, 0)
    assert (stopping.refresh(), stopping.asked, stopping.ended) == (0, 1, 1)
    assert stopping.allocator.idle_pods() == frozenset()
    assert (stopping.refresh(), stopping.asked) == (0, 1)


def test_a_pod_that_runs_holds_its_cpus_for_its_next_container(stopping: StoppingPod) -> None:
    stopping.stop()
    stopping.runtime.pods = {POD: True}
    assert [stopping.refresh() for _ in range(3)] == [1, 1, 1]
    assert (stopping.asked, stopping.ended) == (2, 0)
    stopping.runtime.failure = (grpc.StatusCode.UNAVAILABLE, "it starts")
    assert (stopping.refresh(), stopping.lists) == (1, 0)


def test_a_container_that_comes_meanwhile_keeps_the_pod(stopping: StoppingPod) -> None:
    stopping.stop()
    stopping.refresh()
    created = RUNNING._replace(id=ContainerId("next"))
    stopping.runtime.meanwhile = lambda: stopping.allocator.decide(Verb.CREATE, created)
    stopping.refresh()
    assert (stopping.ended, stopping.allocator.idle_pods()) == (0, frozenset())


def test_without_cri_a_list_is_asked_for_and_not_soon_again(stopping: StoppingPod) -> None:
    stopping.stop()
    stopping.runtime.failure = (grpc.StatusCode.UNIMPLEMENTED, "unknown service")
    assert [stopping.refresh() for _ in range(4)] == [1, 1, 1, 1]
    assert (stopping.asked, stopping.lists) == (3, 1)
