"""A second NRI plugin that gives CPUs in its own answer to a creation, before vmpin's and after it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from cri import CriError
from nri_peer import delivering
from real_containerd import Containerd, one_in_ci
from test_watch_allocate import WHOLE, AllocatingNode
from waiting import PATIENCE, wait

from vmpin.allocation.runtime_call import Adjustment, Listed, RequestedContainer, VmSize
from vmpin.cpuset import CpuSet
from vmpin.sources.nri.call_answers import CpuAnswer
from vmpin.sources.nri.connect import connect_to
from vmpin.sources.nri.nri_events import ContainerEvent, NriEvent, NriPod, PodEvent, Synced
from vmpin.sources.nri.plugin import NriPlugin
from vmpin.wire.nri_enums import Verb

pytestmark = pytest.mark.root


class Rival:
    """Gives each new container of a pod CPUs, whatever it asks for."""

    def __init__(self, pod: str, cpus: CpuSet) -> None:
        self._pod, self._cpus = pod, cpus

    def vcpus_of(self, pod: NriPod) -> VmSize:
        return VmSize()

    def asked(self, verb: Verb, container: RequestedContainer) -> CpuAnswer:
        if verb is Verb.CREATE and container.pod == self._pod:
            return CpuAnswer(Adjustment(self._cpus, None, {}, {}))
        return CpuAnswer()

    def listed(self, listed: Listed) -> CpuAnswer:
        return CpuAnswer()

    def happened(self, event: PodEvent | ContainerEvent) -> None:
        """It keeps no account."""


@pytest.fixture(params=one_in_ci())
def node(request: pytest.FixtureRequest) -> Iterator[AllocatingNode]:
    with Containerd(request.param) as containerd, AllocatingNode(containerd) as made:
        made.connect()
        yield made


@contextlib.contextmanager
def rival(node: AllocatingNode, index: str) -> Iterator[None]:
    """It gives the containers of pod `rival` the CPUs that are always in the pool."""
    events: list[NriEvent] = []
    made = NriPlugin(connect_to(node.containerd.nri_socket), delivering(events.append), name="rival", index=index,
                     decisions=Rival("rival", CpuSet.parse(node.rest)))
    made.start()
    try:
        wait(lambda: any(isinstance(event, Synced) for event in events), lambda: f"not connected: {events}")
        yield
    finally:
        made.stop(PATIENCE)


def given(node: AllocatingNode) -> dict[str, str]:
    """The CPUs by pod, of all that the ledger has as a container's own."""
    return {each["pod"]: each["cpus"] for each in node.data("allocations")["grants"] if each["cpus"]}


def test_cpus_of_a_plugin_before_it_are_left_alone_and_reported(node: AllocatingNode) -> None:
    with rival(node, "05"):
        other = node.pod("rival").container("main", **WHOLE)
        assert other.cgroup_cpus() == node.rest
        assert given(node) == {}
        [grant] = [each for each in node.data("allocations")["grants"] if each["pod"] == "rival"]
        assert grant["left_alone"]
        assert "another program's cpuset" in node.cli("allocations", "-o", "wide").stdout
        own = node.pod("own").container("main", **WHOLE)
        assert (own.cgroup_cpus(), other.cgroup_cpus()) == (node.own, node.rest)
    assert given(node) == {"own": node.own}


def test_a_conflict_with_a_plugin_after_it_leaves_nothing_in_the_ledger(node: AllocatingNode) -> None:
    """The runtime refuses a creation for which two plugins give CPUs."""
    with rival(node, "99"):
        pod = node.pod("rival")
        with pytest.raises(CriError):
            pod.create("main", **WHOLE)
        pod.remove()
        wait(lambda: given(node) == {}, lambda: f"still given: {node.data('allocations')}")
        own = node.pod("own").container("main", **WHOLE)
        assert own.cgroup_cpus() == node.own
    assert given(node) == {"own": node.own}
