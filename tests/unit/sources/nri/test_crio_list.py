"""CRI-O lists the CPUs of creation after its own restart (1.37, with real pods): what vmpin makes of it."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from pathlib import Path

import pytest
from nri_peer import PATIENCE, NriRuntime, NriRuntimes, container, delivering, pod

from vmpin.config import loading as settings
from vmpin.cpuset import CpuSet
from vmpin.domain.events import CpusetSeen, Source
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.reconcile.intake import take_nri
from vmpin.reconcile.reconciler import Reconciler
from vmpin.sources.nri.nri_events import Disconnected, NriEvent, Synced
from vmpin.sources.nri.plugin import NriPlugin
from vmpin.wire.nri_enums import Verb

CREATED, UPDATED = "4-5", "6-7"


class Node:
    """A reconciler that receives a runtime's events, without a process of its own to inspect."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pid = 100
        self.name = "cri-o"
        (path / "run").mkdir()
        self.runtimes = NriRuntimes()
        self._events: queue.Queue[NriEvent] = queue.Queue()
        self.plugin = NriPlugin(self.runtimes.connect, delivering(self._events.put))
        self.begin()
        self.plugin.start()

    def begin(self) -> None:
        """The watcher, new or again."""
        paths = {f"paths.{key}": str(self.path / key) for key in (
            "run", "kata_go", "kata_rs", "kubelet", "nri", "cri")}
        self.reconciler = Reconciler(settings.load(None, {}, {**paths, "watch.only": "none"}))
        self.node_state = self.reconciler.node_state
        self.node_state.nri_list_came()

    def receive(self) -> NriEvent:
        event = self._events.get(timeout=PATIENCE)
        if isinstance(event, Synced):  # the peer of every connection is this process
            assert event.runtime == os.getpid()
            event = event._replace(runtime=self.pid)
        take_nri(self.reconciler.node_state, [event])
        return event

    def connected(self, cpus: str | None = None) -> NriRuntime:
        """The runtime lists the container with these CPUs; None: it is not there yet."""
        runtime = self.runtimes.next()
        runtime.begin([pod()], [container(cpus=cpus)] if cpus else [], self.name)
        self.receive()
        return runtime

    def restarted(self, runtime: NriRuntime, cpus: str) -> NriRuntime:
        self.pid += 1
        return self.reconnected(runtime, cpus)

    def reconnected(self, runtime: NriRuntime, cpus: str) -> NriRuntime:
        """The connection was lost, and the runtime is the same process."""
        runtime.close()
        assert self.receive() == Disconnected()
        return self.connected(cpus)

    def cpus(self) -> str:
        return str(self.node_state.state.sandboxes[SandboxId("pod1")].containers[ContainerId("c1")].container.cpuset)

    def announced(self) -> dict[ContainerId, str]:
        return {container: str(cpus) for container, cpus in self.reconciler.view.announced.items()}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.plugin.stop(PATIENCE)
    made.runtimes.close()


def updated(node: Node) -> NriRuntime:
    """A container that was created with some CPUs, and updated to others."""
    runtime = node.connected()
    for event, cpus in (Verb.POST_START, CREATED), (Verb.POST_UPDATE, UPDATED):
        assert runtime.state_change(event, pod(), container(cpus=cpus)).code == 0
        node.receive()
        assert node.cpus() == cpus
    return runtime


def test_a_list_of_old_cpus_does_not_undo_an_update(node: Node) -> None:
    node.restarted(updated(node), CREATED)
    assert node.cpus() == UPDATED


def test_a_list_of_containerds_has_what_was_updated_while_it_was_not_connected(node: Node) -> None:
    """containerd stores updates: CPUs that it had before are those that it was updated back to."""
    node.name = "containerd"
    node.restarted(updated(node), CREATED)
    assert node.cpus() == CREATED


def test_nor_does_it_over_a_restart_of_the_watcher(node: Node) -> None:
    runtime = updated(node)
    assert node.node_state.save()
    node.begin()
    assert node.cpus() == UPDATED
    node.restarted(runtime, CREATED)
    assert node.cpus() == UPDATED


def test_an_update_that_was_missed_is_taken_from_the_list(node: Node) -> None:
    runtime = node.restarted(updated(node), "2-3")
    assert node.cpus() == "2-3"
    node.restarted(runtime, CREATED)
    assert node.cpus() == "2-3"


def test_a_runtime_that_was_not_restarted_lists_what_is_so(node: Node) -> None:
    """Such as what another plugin changed in its answer to Synchronize, there and back."""
    runtime = updated(node)
    for cpus in CREATED, "2-3", UPDATED, CREATED:
        runtime = node.reconnected(runtime, cpus)
        assert node.cpus() == cpus


def test_the_cpus_of_a_list_are_not_announced(node: Node) -> None:
    """With the watcher's own state file lost as well: the cgroup is right, and the list is all that NRI says."""
    runtime = node.connected(CREATED)
    node.node_state.apply_events([CpusetSeen(SandboxId("pod1"), ContainerId("c1"), CpuSet.parse(UPDATED),
                                             Source.CGROUP, 1 << 62)])
    assert (node.cpus(), node.announced()) == (UPDATED, {})
    # What the runtime reports as it happens is another matter.
    assert runtime.state_change(Verb.POST_UPDATE, pod(), container(cpus="2-3")).code == 0
    node.receive()
    assert node.announced() == {ContainerId("c1"): "2-3"}
