"""Cgroups that are read back: at a container's start, and after a resync. The view of the node is a stand-in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from cri_peer import CriServer

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.cpuset import CpuSet
from vmpin.domain.events import Source
from vmpin.domain.model import ContainerId, ContainerState, SandboxId
from vmpin.domain.runtime_call import Listed, RequestedContainer, VmSize
from vmpin.domain.topology import Topology
from vmpin.features.allocator.cpu_allocator import CpuAllocator
from vmpin.features.allocator.cri_calls import TRIES, PoolUpdates
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions
from vmpin.features.allocator.ledger_file import LedgerFile

MACHINE = Topology.build(CpuSet(range(4)))
POD, MAIN = SandboxId("pod"), ContainerId("main")
OWN, OTHER = CpuSet((1, 2)), CpuSet((0, 3))


class Node:
    """A pod with an exclusive container on CPUs 1-2, and its cgroup, which has `cgroup` at the next reading."""

    def __init__(self, path: Path, cri: Path | None = None, timeouts: Timeouts = TIMEOUTS) -> None:
        self.allocator = CpuAllocator(MACHINE, AllocationOptions(AllocationMode.ON, CpuSet((0,))),
                                      LedgerFile(path, "boot"), lambda pod: VmSize())
        self.allocator.synchronize(Listed(frozenset((POD,)), (RequestedContainer(
            MAIN, POD, "main", "shop", "web", "uid",
            pod_annotations={"cpu-policy.vmpin.io": "exclusive"}, shares=2048, quota=200_000,
            period=100_000, state=ContainerState.RUNNING),)))
        self.cgroup: CpuSet | None = OWN
        self.vms: set[SandboxId] = set()
        self.reports: dict[Source, Any] = {}
        self.disagreements: dict[tuple[SandboxId, ContainerId], str] = {}
        record = SimpleNamespace(reports=self.reports)
        view: Any = SimpleNamespace(config=SimpleNamespace(paths=SimpleNamespace(cri=cri)),
                                    vm_sandboxes=lambda: self.vms, disagreements=self.disagreements,
                                    sandboxes={POD: SimpleNamespace(containers={MAIN: record})})
        self.updates = PoolUpdates(view, self.allocator, self._read, lambda: None, timeouts)

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
    node = Node(tmp_path / "ledger.json", path, Timeouts(cri_call=120.0, pool_update=0.0))
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
