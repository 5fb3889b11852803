"""A second NRI plugin that gives CPUs in its own answer to a creation, before vmpin's and after it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from allocating_node import WHOLE, AllocatingNode
from cri import CriError
from nri_rival import giving, rival
from real_containerd import Containerd, one_in_ci
from waiting import wait

from vmpin.cpuset import CpuSet

pytestmark = pytest.mark.root


@pytest.fixture(params=one_in_ci())
def node(request: pytest.FixtureRequest) -> Iterator[AllocatingNode]:
    with Containerd(request.param) as containerd, AllocatingNode(containerd) as made:
        made.connect()
        yield made


def given(node: AllocatingNode) -> dict[str, str]:
    """The CPUs by pod, of all that the ledger has as a container's own."""
    return {each["pod"]: each["cpus"] for each in node.data("allocations")["grants"] if each["cpus"]}


def test_cpus_of_a_plugin_before_it_are_left_alone_and_reported(node: AllocatingNode) -> None:
    with rival(node.containerd, "05", giving(CpuSet.parse(node.rest))):
        other = node.pod("rival").container("main", **WHOLE)
        assert other.cgroup_cpus() == node.rest
        assert given(node) == {}
        [grant] = [each for each in node.data("allocations")["grants"] if each["pod"] == "rival"]
        assert grant["left_alone"]
        assert "another program's cpuset" in node.cli("allocations", "-o", "wide").stdout
        (named,) = node.data("status")["features"]["allocator"]["foreign"]
        assert named.endswith("/rival/main")
        found = json.loads(node.cli("doctor", "allocation", "-o", "json").stdout)["findings"]
        assert [(each["level"], "CPUs as well" in each["what"]) for each in found] == [("bad", True)]
        own = node.pod("own").container("main", **WHOLE)
        assert (own.cgroup_cpus(), other.cgroup_cpus()) == (node.own, node.rest)
    assert given(node) == {"own": node.own}


def test_a_conflict_with_a_plugin_after_it_leaves_nothing_in_the_ledger(node: AllocatingNode) -> None:
    """The runtime refuses a creation for which two plugins give CPUs."""
    with rival(node.containerd, "99", giving(CpuSet.parse(node.rest))):
        pod = node.pod("rival")
        with pytest.raises(CriError):
            pod.create("main", **WHOLE)
        pod.remove()
        wait(lambda: given(node) == {}, lambda: f"still given: {node.data('allocations')}")
        own = node.pod("own").container("main", **WHOLE)
        assert own.cgroup_cpus() == node.own
    assert given(node) == {"own": node.own}
