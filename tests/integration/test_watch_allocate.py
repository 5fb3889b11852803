"""The allocator as an NRI plugin of real containerds: CPUs given, taken back, refused, and kept over every restart."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from cri import CriError
from cri_node import CriNode
from nri_peer import delivering
from real_containerd import VM, Container, Containerd, Pod
from real_node import PATIENCE, seen, two_cpus, wait

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.sources.nri.connect import connect_to
from vmpin.sources.nri.nri_events import NriEvent, NriUpdate, Synced
from vmpin.sources.nri.plugin import NriPlugin

pytestmark = pytest.mark.root

#: One whole CPU, requested and limited to.
WHOLE: dict[str, Any] = {"cpu_shares": 1024, "cpu_quota": 100_000, "cpu_period": 100_000}
POLICY = "cpu-policy.vmpin.io/container.main"


class AllocatingNode(CriNode):
    """One CPU can be given to a container alone; the others are reserved, and stay in the pool."""

    def __init__(self, containerd: Containerd) -> None:
        super().__init__(containerd)
        _, self.own = two_cpus()
        self.all = CpuSet(os.sched_getaffinity(0))
        self.rest = str(self.all - CpuSet.parse(self.own))
        self.configure(allocate={"mode": "on", "reserved": self.rest, "grow_delay_seconds": 0},
                       paths={"cri": str(containerd.top / "cri.sock")})

    def pod(self, name: str = "own", policy: str = "exclusive", handler: str = "") -> Pod:
        """Of whose containers `main` has a policy."""
        return self.containerd.pod(name, handler, annotations={POLICY: policy} if policy else {})

    def ledger(self) -> Any:
        """The file's content, None without one."""
        try:
            return json.loads((self.run / "ledger.json").read_text())["body"]["ledger"]
        except FileNotFoundError:
            return None

    def wait_for(self, container: Container, cpus: object) -> None:
        wait(lambda: container.cgroup_cpus() == str(cpus),
             lambda: f"{container.name} has {container.cgroup_cpus()}, not {cpus}\n{self.log()}")


@pytest.fixture(params=["trixie", "sid"])
def node(request: pytest.FixtureRequest) -> Iterator[AllocatingNode]:
    with Containerd(request.param) as containerd, AllocatingNode(containerd) as made:
        yield made


def owners(node: AllocatingNode) -> list[tuple[str, str]]:
    return [(each["container"], each["cpus"]) for each in node.status()["node"]["owners"]]


def test_a_cpu_is_given_the_pool_shrinks_before_and_grows_afterwards(node: AllocatingNode) -> None:
    before = node.containerd.pod("before").container("main")  # created without a plugin: without a cpuset
    node.connect()
    node.wait_for(before, node.all)
    shared = node.containerd.pod("shared").container("main")
    node.wait_for(shared, node.all)
    pod = node.pod()
    created = pod.create("main", **WHOLE)
    # It does not exist yet for the kernel: runc makes its cgroup when it is started.
    assert (shared.cgroup_cpus(), before.cgroup_cpus()) == (node.rest, node.rest)
    own = created.start()
    assert own.cgroup_cpus() == node.own
    wait(lambda: owners(node) == [(own.id, node.own)], lambda: f"{node.status()['node']}")
    with pytest.raises(CriError) as caught:
        node.pod("second").create("main", **WHOLE)
    assert "CPU" in str(caught.value)
    assert own.cgroup_cpus() == node.own
    pod.remove()
    for each in (shared, before):
        node.wait_for(each, node.all)
    wait(lambda: owners(node) == [], lambda: f"{node.status()['node']}")
    again = node.pod("third").container("main", **WHOLE)
    assert (again.cgroup_cpus(), shared.cgroup_cpus()) == (node.own, node.rest)


def test_a_container_that_is_refused_leaves_the_ledger_as_it_was(node: AllocatingNode) -> None:
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    wait(lambda: "running" in json.dumps(node.ledger()), lambda: f"not seen to run: {node.ledger()}")
    before = node.ledger()
    with pytest.raises(CriError) as caught:
        node.pod().create("main", cpu_shares=1500, cpu_quota=150_000, cpu_period=100_000)
    assert "whole" in str(caught.value)
    assert node.ledger()["grants"] == before["grants"]
    assert shared.cgroup_cpus() == str(node.all)


def test_kills_of_the_watcher_and_of_the_runtime_move_nothing(node: AllocatingNode) -> None:
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    own = node.pod().container("main", **WHOLE)
    files = {each: each.cgroup / "cpuset.cpus" for each in (shared, own)}
    written = {each: file.stat().st_mtime_ns for each, file in files.items()}
    for killed in ("watcher", "runtime", "both"):
        if killed != "runtime":
            node.kill()
        if killed != "watcher":
            node.containerd.restart()
        if killed == "runtime":
            node.wait_for_sync(2)
        else:
            node.connect()
        assert (own.cgroup_cpus(), shared.cgroup_cpus()) == (node.own, node.rest), killed
        wait(lambda: owners(node) == [(own.id, node.own)], lambda: f"{node.status()['node']}")
        with pytest.raises(CriError):
            node.pod(f"after-{killed}").create("main", **WHOLE)
    assert {each: file.stat().st_mtime_ns for each, file in files.items()} == written
    (node.run / "ledger.json").unlink()
    node.kill()
    node.connect()
    wait(lambda: owners(node) == [(own.id, node.own)], lambda: f"{node.status()['node']}\n{node.log()}")
    assert (own.cgroup_cpus(), shared.cgroup_cpus()) == (node.own, node.rest)


def test_containers_made_and_removed_while_it_was_away_are_adopted(node: AllocatingNode) -> None:
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    pod = node.pod()
    pod.container("main", **WHOLE)
    assert shared.cgroup_cpus() == node.rest
    node.kill()
    pod.remove()
    unseen = node.pod("unseen").container("main", **WHOLE)
    node.connect()
    node.wait_for(unseen, node.own)
    assert shared.cgroup_cpus() == node.rest
    wait(lambda: owners(node) == [(unseen.id, node.own)], lambda: f"{node.status()['node']}")


def test_a_resize_that_does_not_fit_keeps_the_cpus(node: AllocatingNode) -> None:
    """The kubelet sends shares and quota alone."""
    node.connect()
    own = node.pod().container("main", **WHOLE)
    with contextlib.suppress(CriError):
        own.update(cpu_shares=2048, cpu_quota=200_000, cpu_period=100_000)
    assert own.cgroup_cpus() == node.own
    own.update(cpu_shares=1024)
    assert own.cgroup_cpus() == node.own


def test_observing_changes_nothing(node: AllocatingNode) -> None:
    node.configure(allocate={"mode": "observe"})
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    default = shared.cgroup_cpus()
    own = node.pod().container("main", **WHOLE)
    assert (own.cgroup_cpus(), shared.cgroup_cpus()) == (default, default)
    node.pod("second").container("main", **WHOLE)
    assert node.ledger() is None
    assert owners(node) == []
    node.wait_for_log("would")


def test_beside_the_static_policy_nothing_is_allocated(node: AllocatingNode) -> None:
    node.checkpoint(str(node.all))
    node.connect()
    own = node.pod().container("main", **WHOLE)
    assert own.cgroup_cpus() != node.own
    assert node.ledger() is None
    node.wait_for_log("nothing is allocated: the kubelet's CPU manager policy is static")


def test_a_cpuset_of_another_programs_is_left_alone(node: AllocatingNode) -> None:
    node.connect()
    other = node.pod("other").container("main", cpus=node.rest, **WHOLE)
    assert other.cgroup_cpus() == node.rest
    own = node.pod().container("main", **WHOLE)
    assert (own.cgroup_cpus(), other.cgroup_cpus()) == (node.own, node.rest)


def test_a_side_update_that_was_lost_is_made_good(node: AllocatingNode) -> None:
    """As if it had failed: another plugin gives a shared container CPUs that are not the pool's any more."""
    node.configure(watch={"resync_seconds": 0.3})
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    node.pod().container("main", **WHOLE)
    node.wait_for(shared, node.rest)
    reported: list[NriEvent] = []
    other = NriPlugin(connect_to(node.containerd.nri_socket), delivering(reported.append), name="other", index="10")
    other.reconnect({ContainerId(shared.id): NriUpdate(node.all)})
    other.start()
    try:
        wait(lambda: any(isinstance(event, Synced) and event.updated for event in reported),
             lambda: f"not moved: {reported}")
    finally:
        other.stop(PATIENCE)
    node.wait_for(shared, node.rest)
    node.wait_for_log("is given its own again")


def test_a_vm_is_pinned_on_what_it_was_given_and_others_are_kept_off(node: AllocatingNode) -> None:
    node.connect()
    guest = node.containerd.pod("pool", VM, vcpus=1)
    guest.container("main")
    node.wait_for_all(guest.pid, str(node.all))
    pod = node.pod("vm", handler=VM)
    pod.container("main", **WHOLE)
    node.wait_for_all(guest.pid, node.rest)
    wait(lambda: node.own in seen(pod.pid).all(), lambda: f"{seen(pod.pid)}\n{node.log()}")
    pod.remove()
    node.wait_for_all(guest.pid, str(node.all))
