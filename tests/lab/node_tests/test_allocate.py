"""vmpin gives out the CPUs of a node that has eight of them on two NUMA nodes, beside real containerds with runc pods
and VMs under KVM. What two CPUs can show of it is in tests/integration/test_watch_allocate*.py."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from cri import CriError
from real_containerd import VM
from waiting import wait

from lab.node_tests import allocating
from lab.node_tests.allocating import NODE, POLICY, RESERVED, AllocatingNode, cgroup_cpus, whole
from vmpin.cpuset import EMPTY, CpuSet

pytestmark = pytest.mark.release  # minutes

node = allocating.node

#: The node's NUMA nodes, and its cores of two threads.
NUMA = (CpuSet.parse("0-3"), CpuSet.parse("4-7"))
CORES = {CpuSet((cpu, cpu + 1)) for cpu in range(0, 8, 2)}
_CPU = Path("/sys/devices/system/cpu")


def test_a_granted_cpu_that_goes_offline_comes_back(node: AllocatingNode) -> None:
    node.configure(watch={"resync_seconds": 0.5})
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    own = node.containerd.pod("own", annotations=POLICY).container("main", **whole(2))
    cpus = node.given()[own.id]
    gone = max(cpus)
    switch = _CPU / f"cpu{gone}" / "online"
    switch.write_text("0")
    try:
        wait(lambda: CpuSet.parse(node.allocations()["online"]) == NODE - CpuSet((gone,)), "it is still online")
        assert node.given() == {own.id: cpus}
        assert CpuSet(os.sched_getaffinity(own.pid)) == cpus - CpuSet((gone,))
        other = node.containerd.pod("other", annotations=POLICY).container("main", **whole(1))
        assert not cgroup_cpus(other) & cpus
    finally:
        switch.write_text("1")
    wait(lambda: CpuSet.parse(node.allocations()["online"]) == NODE, "it is not online again")
    wait(lambda: CpuSet(os.sched_getaffinity(own.pid)) == cpus, lambda: f"{os.sched_getaffinity(own.pid)}")
    assert node.given() == {own.id: cpus, other.id: cgroup_cpus(other)}
    wait(lambda: cgroup_cpus(shared) == NODE - cpus - cgroup_cpus(other), lambda: f"{cgroup_cpus(shared)}")


def test_a_vm_has_a_vcpu_on_each_cpu_of_its_own_and_a_spare_one_nearby(node: AllocatingNode) -> None:
    """The spare set gives way when the VM's second container gets CPUs of its own."""
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    guest = node.containerd.pod("guest", VM)
    guest.container("main")
    pod = node.containerd.pod("vm", VM, vcpus=3, annotations=POLICY)
    main = pod.container("main", **whole(2))
    cpus = node.given()[main.id]
    assert cpus in CORES - {CpuSet((0, 1))}
    spare = CpuSet.parse(node.grants()[main.id]["spare"])
    assert len(spare) == 1
    assert any(cpus | spare <= numa for numa in NUMA), "the spare CPU is on another node"
    assert not spare & cpus
    node.wait_for_vm(pod, cpus, spare)
    node.wait_for_all(guest.pid, str(NODE - cpus))
    node.wait_for_cgroup(shared, NODE - cpus)
    side = pod.container("side", **whole(1))
    both = cpus | node.given()[side.id]
    assert len(both) == 3
    wait(lambda: node.grants()[main.id]["spare"] == "", lambda: f"{node.grants()}")
    wait(lambda: node.cli("verify").returncode == 0, lambda: node.cli("verify").stdout)
    node.wait_for_cgroup(shared, NODE - both)
    pod.remove()
    node.wait_for_cgroup(shared, NODE)
    node.wait_for_all(guest.pid, str(NODE))


def test_a_resize_grows_and_shrinks_around_the_cpus(node: AllocatingNode) -> None:
    """The kubelet sends shares and quota alone."""
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    own = node.containerd.pod("own", annotations=POLICY).container("main", **whole(2))
    before = node.given()[own.id]
    own.update(**whole(4))
    grown = node.given()[own.id]
    assert before < grown
    assert [core for core in CORES if core & grown and not core <= grown] == []
    for container, cpus in ((own, grown), (shared, NODE - grown)):
        node.wait_for_cgroup(container, cpus)
    with contextlib.suppress(CriError):  # containerd 1.7 goes on with the resize, and vmpin keeps the CPUs
        own.update(**whole(8))
    node.wait_for_cgroup(own, grown)
    assert node.allocations()["refused"][0]["reason"].startswith(
        "needs 4 CPUs more than the 4 that are kept, 3 are free: node 0 has ")
    own.update(**whole(1))
    shrunk = node.given()[own.id]
    assert shrunk < grown
    assert len(shrunk) == 1
    for container, cpus in ((own, shrunk), (shared, NODE - shrunk)):
        node.wait_for_cgroup(container, cpus)


def test_a_running_container_is_changed_as_the_plan_says(node: AllocatingNode) -> None:
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    main = node.containerd.pod("web", annotations={"cpu-policy.vmpin.io": "none"}).container("main", **whole(4))
    for words, numa, alone in ((["policy=exclusive", "align=node!"], 1, True), (["policy=fixed"], 1, False),
                               (["policy=exclusive", "smt=require"], 1, True)):
        plan = node.data("alloc", "set", "tests/web", *words, "--dry-run")
        done = node.cli("alloc", "set", "tests/web", *words)
        assert done.returncode == 0, done
        cpus = node.given()[main.id]
        assert (str(cpus), cpus) == (plan["cpus"], NUMA[numa])
        node.wait_for_cgroup(main, cpus)
        node.wait_for_cgroup(shared, NODE - cpus if alone else NODE)
    refused = node.cli("alloc", "set", "tests/web", "align=cache!", "near=nodes:0", "kind=isolated")
    assert refused.returncode == 2
    assert "kind" in refused.stderr
    node.wait_for_cgroup(main, NUMA[1])
    assert node.cli("alloc", "set", "tests/web", "policy=none").returncode == 0
    node.wait_for_cgroup(shared, NODE)
    wait(lambda: node.given() == {}, lambda: f"{node.given()}")


def test_what_was_made_while_vmpin_was_away_gets_its_cpus_and_nothing_else_moves(node: AllocatingNode) -> None:
    """The watcher, the runtime and both are killed; the ledger is lost at last."""
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    own = node.containerd.pod("own", annotations=POLICY).container("main", **whole(2))
    vm = node.containerd.pod("vm", VM, vcpus=2, annotations=POLICY)
    inner = vm.container("main", **whole(1))
    given = node.given()
    node.kill()
    unseen = node.containerd.pod("unseen", annotations=POLICY).container("main", **whole(2))
    for killed in ("watcher", "both", "the ledger"):
        if killed != "watcher":
            node.kill()
        if killed == "both":
            node.containerd.restart()
        if killed == "the ledger":
            (node.run / "ledger.json").unlink()
        node.connect()
        wait(lambda: unseen.id in node.given(), lambda: f"{node.given()}\n{node.log()}")
        now = node.given()
        assert {name: cpus for name, cpus in now.items() if name != unseen.id} == given, killed
        new = now[unseen.id]
        assert new & (given[own.id] | given[inner.id] | RESERVED) == EMPTY
        node.wait_for_cgroup(own, given[own.id])
        node.wait_for_cgroup(unseen, new)
        # It may be new: the spare CPU was of the pool, and may be a container's own now.
        node.wait_for_vm(vm, given[inner.id], CpuSet.parse(node.grants()[inner.id]["spare"]))
        node.wait_for_cgroup(shared, NODE - given[own.id] - given[inner.id] - new)
    assert node.tap.asked.keys() == {"RegisterPlugin"}
