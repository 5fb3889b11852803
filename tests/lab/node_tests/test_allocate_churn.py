"""Twelve pods come and go on a node of eight CPUs, each with CPUs of its own; the watcher and the runtime are killed
in between."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from cri import CriError
from process_masks import seen
from real_containerd import VM, Container, Pod
from waiting import wait

from lab.node_tests import allocating
from lab.node_tests.allocating import NODE, POLICY, RESERVED, AllocatingNode, cgroup_cpus, whole
from vmpin.cpuset import CpuSet, union

pytestmark = pytest.mark.release  # minutes

node = allocating.node

PODS = 12
STEPS = 30


class Running(NamedTuple):
    pod: Pod
    container: Container
    size: int
    vm: bool


class Story:
    """In each step one of twelve comes or goes, each once in twelve steps, in random order; each third is a VM. They
    ask for one or two CPUs: all twelve do not fit, and those that do not are refused."""

    def __init__(self, node: AllocatingNode, seed: int) -> None:
        self.node, self.random = node, random.Random(seed)
        self.shared = [node.containerd.pod(f"shared-{number}").container("main") for number in range(3)]
        self.guest = node.containerd.pod("shared-vm", VM)
        self.guest.container("main")
        self.running: dict[int, Running] = {}
        self._next: list[int] = []
        #: Which of the twelve have run and ended, and how many times there were too few CPUs.
        self.gone: set[int] = set()
        self.refused = self.steps = self.most = 0

    @property
    def complete(self) -> bool:
        """Whether each of them has come and gone, some were refused, and it was long enough."""
        return self.steps >= STEPS and len(self.gone) == PODS and self.refused > 0

    def step(self) -> None:
        self.steps += 1
        self._next = self._next or self.random.sample(range(PODS), PODS)
        number = self._next.pop()
        away = self.steps % 10 == 5
        if away:
            self.node.kill()
        if number in self.running:
            self._end(number)
        else:
            self._begin(number, self.random.choice((1, 1, 2)), away)
        if away:
            self.node.connect()
        if self.steps % 10 == 0:
            self.node.restart_runtime()
        self.check()

    def _end(self, number: int) -> None:
        self.running.pop(number).pod.remove()
        self.gone.add(number)

    def _begin(self, number: int, cpus: int, away: bool) -> None:
        """With vmpin away the creation goes on without it, and its CPUs come with the runtime's list: where there are
        none, it would stay as it is."""
        free = len(NODE - RESERVED) - sum(each.size for each in self.running.values())
        vm = number % 3 == 0 and not away
        if away and cpus > free:
            return
        pod = self.node.containerd.pod(f"own-{number}-{self.steps}", VM if vm else "", cpus + 1, POLICY)
        if cpus > free:
            with pytest.raises(CriError, match="CPU"):
                pod.create("main", **whole(cpus))
            pod.remove()
            self.refused += 1
        else:
            self.running[number] = Running(pod, pod.container("main", **whole(cpus)), cpus, vm)
            self.most = max(self.most, len(self.running))

    def check(self) -> None:
        """Ledger, cgroups and masks are one, and no CPU is in two of them."""
        node, live = self.node, list(self.running.values())
        sizes = {each.container.id: each.size for each in live}
        wait(lambda: {name: len(cpus) for name, cpus in node.given().items()} == sizes,
             lambda: f"{node.given()} are given; there are {sizes}\n{node.log()}")
        grants, given = node.grants(), node.given()
        taken = union(given.values())
        assert len(taken) == sum(sizes.values()), f"a CPU is given twice: {given}"
        assert not taken & RESERVED
        pool = NODE - taken
        for each in live:
            own, spare = given[each.container.id], CpuSet.parse(grants[each.container.id]["spare"])
            if each.vm:
                assert len(spare) == 1
                assert spare <= pool
                node.wait_for_vm(each.pod, own, spare)
            else:
                node.wait_for_cgroup(each.container, own)
        for container in self.shared:
            node.wait_for_cgroup(container, pool)
        node.wait_for_all(self.guest.pid, str(pool))

    def end(self) -> None:
        for number in list(self.running):
            self._end(number)
        self.check()
        assert {str(cgroup_cpus(each)) for each in self.shared} == {str(NODE)}
        assert seen(self.guest.pid).all() == {str(NODE)}


def test_twelve_that_come_and_go_never_share_a_cpu(node: AllocatingNode) -> None:
    """STEPS and more, until each of them came and went: nine minutes of nothing else in the node, where the build
    machine's two cores had other work besides. Nothing but its registrations is ever asked of the runtime over NRI."""
    seed = random.randrange(10 ** 9)
    print(f"seed {seed}")
    node.configure(watch={"resync_seconds": 2})  # the end of pods is looked for then, once containerd was killed
    node.connect()
    story = Story(node, seed)
    while not story.complete:
        story.step()
    story.end()
    print(f"{story.steps} steps, {story.most} at the same time, {story.refused} refused")
    assert node.tap.asked.keys() == {"RegisterPlugin"}
