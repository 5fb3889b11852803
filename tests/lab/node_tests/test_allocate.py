"""vmpin gives out the CPUs of a node that has eight of them, beside a real containerd. What two CPUs can show of it is
in tests/integration/test_watch_allocate*.py."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cri import CriError
from cri_node import CriNode
from real_containerd import Container, Containerd, Pod
from real_node import talk
from waiting import wait

from vmpin.cpuset import CpuSet, union

pytestmark = pytest.mark.release  # minutes

NODE = CpuSet.parse("0-7")
#: In the pool always.
RESERVED = CpuSet.parse("0")
POLICY = {"cpu-policy.vmpin.io": "exclusive"}
STEPS = 30
_CPU = Path("/sys/devices/system/cpu")


def whole(cpus: int) -> dict[str, Any]:
    return {"cpu_shares": 1024 * cpus, "cpu_quota": 100_000 * cpus, "cpu_period": 100_000}


class AllocatingNode(CriNode):
    def __init__(self, containerd: Containerd) -> None:
        super().__init__(containerd)
        self.configure(allocate={"mode": "on", "reserved": str(RESERVED), "grow_delay_seconds": 0},
                       paths={"cri": str(containerd.top / "cri.sock")})

    def allocations(self) -> Any:
        """By the watcher's own answer: for the command a Python has to start, which takes seconds in the node."""
        return json.loads(talk(self.run / "vmpin.sock", b'{"op":"allocations"}\n'))

    def given(self) -> dict[str, CpuSet]:
        """The CPUs of its own by container id."""
        return {each["id"]: CpuSet.parse(each["cpus"]) for each in self.allocations()["grants"] if each["cpus"]}


@pytest.fixture
def node() -> Iterator[AllocatingNode]:
    with Containerd() as containerd, AllocatingNode(containerd) as made:
        yield made


def cgroup_cpus(container: Container) -> CpuSet:
    return CpuSet.parse(container.cgroup_cpus())


class Story:
    """Twelve pods that come and go, in random order; each has a container that asks for one or two CPUs of its own."""

    def __init__(self, node: AllocatingNode, seed: int) -> None:
        self.node, self.random = node, random.Random(seed)
        self.shared = [node.containerd.pod(f"shared-{number}").container("main") for number in range(3)]
        self.running: dict[str, tuple[Pod, Container, int]] = {}
        self.refused = 0

    def step(self, number: int) -> None:
        name = f"own-{self.random.randrange(12)}"
        if name in self.running:
            self.running.pop(name)[0].remove()
        else:
            self._create(name, number, self.random.choice((1, 1, 2)))
        self.check()

    def _create(self, name: str, number: int, cpus: int) -> None:
        pod = self.node.containerd.pod(f"{name}-{number}", annotations=POLICY)
        free = len(NODE - RESERVED) - sum(size for _, _, size in self.running.values())
        if cpus > free:
            with pytest.raises(CriError):
                pod.create("main", **whole(cpus))
            pod.remove()
            self.refused += 1
        else:
            self.running[name] = pod, pod.container("main", **whole(cpus)), cpus

    def check(self) -> None:
        """Ledger, cgroups and masks are one, and no CPU is in two of them."""
        own = {container.id: cgroup_cpus(container) for _, container, _ in self.running.values()}
        wait(lambda: self.node.given() == own, lambda: f"{self.node.given()} are given, {own} are there")
        taken = union(own.values())
        assert [len(cpus) for cpus in own.values()] == [size for _, _, size in self.running.values()]
        assert len(taken) == sum(map(len, own.values()))
        assert not taken & RESERVED
        for _, container, _ in self.running.values():
            assert CpuSet(os.sched_getaffinity(container.pid)) == own[container.id]
        for each in self.shared:
            wait(lambda: cgroup_cpus(each) == NODE - taken,  # noqa: B023
                 lambda: f"a shared container has {cgroup_cpus(each)}, not {NODE - taken}\n{self.node.log()}")  # noqa: B023
            assert CpuSet(os.sched_getaffinity(each.pid)) == NODE - taken


def test_twelve_that_come_and_go_never_share_a_cpu(node: AllocatingNode) -> None:
    seed = random.randrange(10 ** 9)
    print(f"seed {seed}")
    node.connect()
    story = Story(node, seed)
    for number in range(STEPS):
        story.step(number)
    for pod, _, _ in story.running.values():
        pod.remove()
    story.running.clear()
    story.check()


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
