"""Pods whose end no event has reported. The runtime is a CRI server on a socket; the ledger is real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from cri_peer import CriServer

from vmpin.config import loading
from vmpin.config.timeouts import Timeouts
from vmpin.cpuset import CpuSet
from vmpin.daemon.feeds import NriFeed
from vmpin.domain.model import ContainerId, ContainerState, SandboxId
from vmpin.domain.runtime_call import Listed, RequestedContainer, VmSize
from vmpin.domain.topology import Topology
from vmpin.features.allocator.cpu_allocator import CpuAllocator
from vmpin.features.allocator.cri_calls import EndedPods
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions
from vmpin.features.allocator.ledger_file import LedgerFile
from vmpin.wire.nri_enums import Verb

POD, MAIN = SandboxId("pod"), ContainerId("main")
PATIENT = Timeouts(cri_call=120.0)


class Runtime(CriServer):
    """Counts the requests for its list. `meanwhile` is called during each."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked = 0
        self.meanwhile: Callable[[], object] = lambda: None

    def list_pods(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        self.asked += 1
        self.meanwhile()
        return super().list_pods(raw, context)


class Node:
    """A pod with an exclusive container, which stops. `lists` counts the connections that NRI is to make again."""

    def __init__(self, path: Path) -> None:
        self.allocator = CpuAllocator(
            Topology.build(CpuSet(range(4))), AllocationOptions(AllocationMode.ON, CpuSet((0,))),
            LedgerFile(path / "ledger.json", "boot"), lambda pod: VmSize())
        self.main = RequestedContainer(
            MAIN, POD, "main", "shop", "web", "uid", pod_annotations={"cpu-policy.vmpin.io": "exclusive"},
            shares=2048, quota=200_000, period=100_000, state=ContainerState.RUNNING)
        self.allocator.synchronize(Listed(frozenset((POD,)), (self.main,)))
        self.runtime = Runtime(path / "cri.sock")
        self.lists = self.ended = 0
        nri = NriFeed(loading.load(None, {}, {}), lambda events, since: None, lambda: None)
        plugin: Any = SimpleNamespace(can_reconnect=True, reconnect=self._reconnect)
        nri.plugin = plugin
        self.pods = EndedPods(self.allocator, self.runtime.path, self._end, lambda: nri, PATIENT)

    def _reconnect(self) -> None:
        self.lists += 1

    def _end(self) -> None:
        self.ended += 1

    @property
    def asked(self) -> int:
        return self.runtime.asked

    def stop(self) -> None:
        self.allocator.decide(Verb.STOP, self.main)

    def refresh(self) -> int:
        """:returns: how many grants there are then."""
        asyncio.run(self.pods.refresh())
        ledger = self.allocator.ledger()
        assert ledger is not None
        return len(ledger.grants)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.runtime.stop()


def test_a_pod_that_runs_no_more_is_ended_at_the_second_look(node: Node) -> None:
    assert [node.refresh(), node.refresh(), node.asked] == [1, 1, 0]
    node.stop()
    assert (node.refresh(), node.asked) == (1, 0)
    assert (node.refresh(), node.asked, node.ended) == (0, 1, 1)
    assert node.allocator.idle_pods() == frozenset()
    assert (node.refresh(), node.asked) == (0, 1)


def test_a_pod_that_runs_holds_its_cpus_for_its_next_container(node: Node) -> None:
    node.stop()
    node.runtime.pods = {POD: True}
    assert [node.refresh() for _ in range(3)] == [1, 1, 1]
    assert (node.asked, node.ended) == (2, 0)
    node.runtime.failure = (grpc.StatusCode.UNAVAILABLE, "it starts")
    assert (node.refresh(), node.lists) == (1, 0)


def test_a_container_that_comes_meanwhile_keeps_the_pod(node: Node) -> None:
    node.stop()
    node.refresh()
    node.runtime.meanwhile = lambda: node.allocator.decide(Verb.CREATE, node.main._replace(id=ContainerId("next")))
    node.refresh()
    assert (node.ended, node.allocator.idle_pods()) == (0, frozenset())


def test_without_cri_a_list_is_asked_for_and_not_soon_again(node: Node) -> None:
    node.stop()
    node.runtime.failure = (grpc.StatusCode.UNIMPLEMENTED, "unknown service")
    assert [node.refresh() for _ in range(4)] == [1, 1, 1, 1]
    assert (node.asked, node.lists) == (3, 1)
