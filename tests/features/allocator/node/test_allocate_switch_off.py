"""vmpin leaves a node that it gave out the CPUs of, in the order of docs/migrate.md, with real containerds."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from allocating_node import WHOLE, AllocatingNode
from process_masks import by_tid
from real_containerd import VM, Containerd, one_in_ci
from waiting import wait

from vmpin.cpuset import CpuSet

pytestmark = pytest.mark.root


@pytest.fixture(params=one_in_ci())
def node(request: pytest.FixtureRequest) -> Iterator[AllocatingNode]:
    with Containerd(request.param) as containerd, AllocatingNode(containerd) as made:
        yield made


def test_on_off_unpin_uninstalled(node: AllocatingNode) -> None:
    """Shared containers get all CPUs by CRI as soon as it is off. Those with CPUs of their own keep them, through all
    of it, until they end."""
    units, hooks = node.top / "units", node.top / "hooks.d"
    installs = (("install", "service", "--dir", str(units)), ("install", "hook", "--hooks-dir", str(hooks)))
    for words in installs:
        assert node.cli(*words).returncode == 0, words
    node.connect()
    shared = [node.containerd.pod(f"shared-{number}").container("main") for number in range(2)]
    guest = node.containerd.pod("guest", VM)
    before = by_tid(guest.pid)
    guest.container("main")
    pod = node.pod()
    own = pod.container("main", **WHOLE)
    assert [each.cgroup_cpus() for each in (*shared, own)] == [node.rest, node.rest, node.own]
    node.wait_for_all(guest.pid, node.rest)

    # allocate.mode: off, and a restart
    node.stop()
    node.configure(allocate={"mode": "off"})
    node.connect()
    for each in shared:
        node.wait_for(each, node.all)
    wait(lambda: node.ledger() is None, "the ledger is still there")
    node.wait_for_log("allocate: tests/own/main keeps its CPUs until it ends pod=tests/own\n")
    assert (own.cgroup_cpus(), os.sched_getaffinity(own.pid)) == (node.own, set(CpuSet.parse(node.own)))
    late = node.pod("late").container("main", **WHOLE)
    assert late.cgroup_cpus() != node.own, "it still gives CPUs out"
    node.wait_for_all(guest.pid, str(node.all))  # nothing counts what is a container's own any more

    # vmpin unpin --all, once the watcher has been stopped
    node.stop()
    assert node.cli("unpin", "--all").returncode == 0
    after = by_tid(guest.pid)
    assert {tid: mask for tid, mask in after.items() if tid in before} == {
        tid: mask for tid, mask in before.items() if tid in after}
    assert not node.run.exists()

    # Uninstalled
    for words in installs:
        assert node.cli(*words, "--remove").returncode == 0, words
    assert [path for top in (units, hooks) for path in top.rglob("*") if path.is_file()] == []
    assert (own.cgroup_cpus(), os.sched_getaffinity(own.pid)) == (node.own, set(CpuSet.parse(node.own)))
    assert {each.cgroup_cpus() for each in shared} == {str(node.all)}
    pod.remove()
    last = node.pod("last").container("main", **WHOLE)
    assert os.sched_getaffinity(last.pid) == set(node.all)
