"""Pods whose end no event has reported. The runtime's list is a stand-in; the ledger is real."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vmpin.allocation.allocation_options import AllocationMode, AllocationOptions
from vmpin.allocation.runtime_call import Listed, RequestedContainer, VmSize
from vmpin.cpuset import CpuSet
from vmpin.daemon.allocator.ended_pods import EndedPods
from vmpin.domain.model import ContainerId, ContainerState, SandboxId
from vmpin.domain.topology import Topology
from vmpin.errors import SourceError
from vmpin.reconcile.cpu_allocator import CpuAllocator
from vmpin.reconcile.ledger_file import LedgerFile
from vmpin.sources import cri
from vmpin.wire.nri_enums import Verb

POD, MAIN = SandboxId("pod"), ContainerId("main")


class Node:
    """A pod with an exclusive container, which stops."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allocator = CpuAllocator(
            Topology.build(CpuSet(range(4))), AllocationOptions(AllocationMode.ON, CpuSet((0,))),
            LedgerFile(path, "boot"), lambda pod: VmSize())
        self.main = RequestedContainer(
            MAIN, POD, "main", "shop", "web", "uid", pod_annotations={"cpu-policy.vmpin.io": "exclusive"},
            shares=2048, quota=200_000, period=100_000, state=ContainerState.RUNNING)
        self.allocator.listed(Listed(frozenset((POD,)), (self.main,)))
        self.ready: frozenset[SandboxId] | SourceError = frozenset()
        self.asked = self.lists = self.ended = 0
        nri: Any = SimpleNamespace(request_list=self._list)
        self.pods = EndedPods(self.allocator, None, self._end, lambda: nri)
        monkeypatch.setattr(cri, "ready_pods", self._ready)

    def _ready(self, servers: Sequence[Path], timeout: float) -> frozenset[SandboxId]:
        self.asked += 1
        if isinstance(self.ready, SourceError):
            raise self.ready
        return self.ready

    def _list(self) -> None:
        self.lists += 1

    def _end(self) -> None:
        self.ended += 1

    def stop(self) -> None:
        self.allocator.asked(Verb.STOP, self.main)

    def refresh(self) -> int:
        """:returns: how many grants there are then."""
        asyncio.run(self.pods.refresh())
        ledger = self.allocator.ledger()
        assert ledger is not None
        return len(ledger.grants)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path / "ledger.json", monkeypatch)


def test_a_pod_that_runs_no_more_is_ended_at_the_second_look(node: Node) -> None:
    assert [node.refresh(), node.refresh(), node.asked] == [1, 1, 0]
    node.stop()
    assert (node.refresh(), node.asked) == (1, 0)
    assert (node.refresh(), node.asked, node.ended) == (0, 1, 1)
    assert node.allocator.idle_pods() == frozenset()
    assert (node.refresh(), node.asked) == (0, 1)


def test_a_pod_that_runs_holds_its_cpus_for_its_next_container(node: Node) -> None:
    node.stop()
    node.ready = frozenset((POD,))
    assert [node.refresh() for _ in range(3)] == [1, 1, 1]
    assert (node.asked, node.ended) == (2, 0)
    node.ready = SourceError("cri.sock", "no answer in time")
    assert (node.refresh(), node.lists) == (1, 0)


def test_a_container_that_comes_meanwhile_keeps_the_pod(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def ready(servers: Sequence[Path], timeout: float) -> frozenset[SandboxId]:
        node.allocator.asked(Verb.CREATE, node.main._replace(id=ContainerId("next")))
        return frozenset()

    node.stop()
    node.refresh()
    monkeypatch.setattr(cri, "ready_pods", ready)
    node.refresh()
    assert (node.ended, node.allocator.idle_pods()) == (0, frozenset())


def test_without_cri_a_list_is_asked_for_and_not_soon_again(node: Node) -> None:
    node.stop()
    node.ready = cri.NoRuntime("CRI", "no socket")
    assert [node.refresh() for _ in range(4)] == [1, 1, 1, 1]
    assert (node.asked, node.lists) == (3, 1)
