"""Pods with the annotations of other programs, as they are, on real containerds (docs/migrate.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from allocating_node import WHOLE, AllocatingNode
from real_containerd import Container, Containerd, one_in_ci

from vmpin.cpuset import CpuSet

pytestmark = pytest.mark.root


@pytest.fixture(params=one_in_ci())
def node(request: pytest.FixtureRequest) -> Iterator[AllocatingNode]:
    with Containerd(request.param) as containerd, AllocatingNode(containerd) as made:
        yield made


def started(node: AllocatingNode, name: str, annotations: dict[str, str]) -> Container:
    return node.containerd.pod(name, annotations=annotations).container("main", **WHOLE)


def environment(container: Container) -> dict[str, str]:
    text = Path(f"/proc/{container.pid}/environ").read_text()
    return dict(each.split("=", 1) for each in text.split("\0") if "=" in each)


def test_pods_of_crane_and_nri_plugins_get_what_they_ask_for(node: AllocatingNode) -> None:
    node.configure(allocate={"honour": "crane,nri-plugins", "export": "cmk"})
    node.connect()
    result = '[{"name":"node0","type":"Node","resources":{"capacity":{"cpu":"1"}}}]'
    crane = started(node, "crane", {"topology.crane.io/cpu-policy": "exclusive",
                                    "topology.crane.io/topology-awareness": "maybe",
                                    "topology.crane.io/topology-result": result})
    assert crane.cgroup_cpus() == node.own
    node.wait_for_log("topology.crane.io/topology-awareness=maybe")
    shared = started(node, "shared", {"prefer-shared-cpus.resource-policy.nri.io/pod": "t"})
    assert shared.cgroup_cpus() == node.rest
    found = environment(crane)
    assert found["CMK_CPUS_ASSIGNED"] == node.own
    assert int(found["CMK_CPUS_ASSIGNED_MASK"], 16) == 1 << int(node.own)
    assert [int(cpu) for cpu in found["CMK_CPUS_SHARED"].split(",")] == list(CpuSet.parse(node.rest))
    alone = started(node, "alone", {"cpu.preserve.resource-policy.nri.io": "true"})
    assert alone.cgroup_cpus() == str(node.all), "as the runtime makes it"
    assert started(node, "other", {"topology.crane.io/cpu-policy": "static"}).cgroup_cpus() == node.rest
