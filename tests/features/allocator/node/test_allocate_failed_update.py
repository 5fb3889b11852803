"""The runtime cannot narrow a shared container when another one gets its CPUs: an update that fails for real."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from allocating_node import WHOLE, AllocatingNode
from read_only_cpus import made_read_only, made_writable
from real_containerd import Containerd, one_in_ci

pytestmark = pytest.mark.root


@pytest.fixture(params=one_in_ci())
def node(request: pytest.FixtureRequest) -> Iterator[AllocatingNode]:
    with Containerd(request.param) as containerd, AllocatingNode(containerd) as made:
        yield made


def test_the_container_starts_and_the_other_is_narrowed_once_that_can_be(node: AllocatingNode) -> None:
    """`ignore_failure` is set, so that no creation depends on another container. The runtime only logs the failure:
    the cgroup that is read back shows it."""
    node.configure(watch={"resync_seconds": 0.3})
    node.connect()
    shared, other = (node.containerd.pod(name).container("main") for name in ("shared", "other"))
    made_read_only(node.containerd, shared)
    pod = node.pod()
    own = pod.container("main", **WHOLE)
    assert (own.cgroup_cpus(), shared.cgroup_cpus(), other.cgroup_cpus()) == (node.own, str(node.all), node.rest)
    node.wait_for_log(f"other CPUs container={shared.id} has={node.all} granted={node.rest}")
    node.wait_for_log(f"CPUs not given container={shared.id} by=CRI cpus={node.rest}: ")
    done = node.cli("verify")
    assert done.returncode == 1
    assert f"tests/shared/main has CPUs {node.all}, and not {node.rest}, which vmpin has given it" in done.stdout
    # Nothing else is held up by it.
    pod.remove()
    node.wait_for(other, node.all)
    again = node.pod("again").container("main", **WHOLE)
    assert (again.cgroup_cpus(), other.cgroup_cpus()) == (node.own, node.rest)
    made_writable(node.containerd, shared)
    node.wait_for(shared, node.rest)
