"""A hundred shared containers beside one that comes and goes with a CPU of its own."""

from __future__ import annotations

import pytest
from allocating_node import WHOLE, AllocatingNode
from real_containerd import Containerd, one_in_ci

pytestmark = [pytest.mark.root, pytest.mark.release]

PODS, EACH, ROUNDS = 10, 10, 3


@pytest.mark.parametrize("suite", one_in_ci())
def test_all_of_them_follow_the_pool(suite: str) -> None:
    with Containerd(suite) as containerd, AllocatingNode(containerd) as node:
        node.connect()
        shared = []
        for number in range(PODS):
            pod = containerd.pod(f"shared-{number}")
            shared += [pod.container(f"c{each}") for each in range(EACH)]
        for number in range(ROUNDS):
            pod = node.pod(f"own-{number}")
            created = pod.create("main", **WHOLE)
            # In the answer: before it exists, each of them is off its CPU.
            assert {each.cgroup_cpus() for each in shared} == {node.rest}
            assert created.start().cgroup_cpus() == node.own
            pod.remove()
            for each in shared:
                node.wait_for(each, node.all)
        found = node.data("alloc")
        assert len(found["grants"]) == PODS * EACH
        assert [each for each in found["grants"] if each["cpus"]] == []
        assert "ERROR" not in node.log()
