"""The runtime cannot narrow a shared container when another one gets its CPUs: an update that fails for real."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from real_containerd import Container, Containerd, one_in_ci
from test_watch_allocate import WHOLE, AllocatingNode

pytestmark = pytest.mark.root


@pytest.fixture(params=one_in_ci())
def node(request: pytest.FixtureRequest) -> Iterator[AllocatingNode]:
    with Containerd(request.param) as containerd, AllocatingNode(containerd) as made:
        yield made


def mounted(node: AllocatingNode, *words: str) -> None:
    """Of what runc sees: containerd, its shims and the watcher have these mounts, and no other process has."""
    with node.containerd.enclosure.inside():  # umount reads /proc/self
        subprocess.run([*node.containerd.enclosure.enter, *words], check=True)


def written_no_more(node: AllocatingNode, container: Container) -> None:
    """No process in there can write the CPUs of its cgroup: the file is read-only."""
    file = str(container.cgroup / "cpuset.cpus")
    mounted(node, "mount", "--bind", file, file)
    mounted(node, "mount", "-o", "remount,bind,ro", file)


def test_the_container_starts_and_the_other_is_narrowed_once_that_can_be(node: AllocatingNode) -> None:
    """`ignore_failure` is set, so that no creation depends on another container. The runtime only logs the failure:
    the cgroup that is read back shows it."""
    node.configure(watch={"resync_seconds": 0.3})
    node.connect()
    shared, other = (node.containerd.pod(name).container("main") for name in ("shared", "other"))
    written_no_more(node, shared)
    pod = node.pod()
    own = pod.container("main", **WHOLE)
    assert (own.cgroup_cpus(), shared.cgroup_cpus(), other.cgroup_cpus()) == (node.own, str(node.all), node.rest)
    node.wait_for_log(f"container={shared.id} has the CPUs {node.all} instead of {node.rest}")
    node.wait_for_log(f"container={shared.id}: the runtime does not give it the CPUs {node.rest}: ")
    done = node.cli("verify")
    assert done.returncode == 1
    assert f"tests/shared/main has CPUs {node.all}, and not {node.rest}, which vmpin has given it" in done.stdout
    # Nothing else is held up by it.
    pod.remove()
    node.wait_for(other, node.all)
    again = node.pod("again").container("main", **WHOLE)
    assert (again.cgroup_cpus(), other.cgroup_cpus()) == (node.own, node.rest)
    mounted(node, "umount", str(shared.cgroup / "cpuset.cpus"))
    node.wait_for(shared, node.rest)
