"""A node whose eight CPUs vmpin gives out: a real containerd with runc pods and VMs under KVM, a watcher, and what
each of them has of a container. A test module takes the fixture as its own: `node = allocating.node`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from cri_node import CriNode
from nri_tap import Tap
from process_masks import seen
from real_containerd import Container, Containerd, Pod, suites
from real_node import talk
from waiting import wait

from lab.node_tests.guest import Guest
from vmpin.cpuset import CpuSet
from vmpin.sources.nri.connection import connect_to

NODE = CpuSet.parse("0-7")
#: In the pool always.
RESERVED = CpuSet.parse("0")
POLICY = {"cpu-policy.vmpin.io": "exclusive"}


def whole(cpus: int) -> dict[str, Any]:
    """Request and limit."""
    return {"cpu_shares": 1024 * cpus, "cpu_quota": 100_000 * cpus, "cpu_period": 100_000}


def cgroup_cpus(container: Container) -> CpuSet:
    return CpuSet.parse(container.cgroup_cpus())


class AllocatingNode(CriNode):
    """`tap.asked` has what the watcher ever asked of the runtime over NRI."""

    def __init__(self, containerd: Containerd) -> None:
        super().__init__(containerd)
        self.tap = Tap(connect_to(containerd.nri_socket))
        self.tap.listen(self.top / "nri-tap.sock")
        self.configure(allocate={"mode": "on", "reserved": str(RESERVED), "grow_delay_seconds": 0},
                       paths={"cri": str(containerd.top / "cri.sock"), "nri": str(self.top / "nri-tap.sock")})

    def __exit__(self, *what: Any) -> None:
        super().__exit__(*what)
        self.tap.close()

    def allocations(self) -> Any:
        """By the watcher's own answer: for the command a Python has to start, which takes seconds in the node."""
        return json.loads(talk(self.run / "vmpin.sock", b'{"op":"allocations"}\n'))

    def grants(self) -> dict[str, dict[str, Any]]:
        """Of the containers with CPUs of their own, by container id."""
        return {each["id"]: each for each in self.allocations()["grants"] if each["cpus"]}

    def given(self) -> dict[str, CpuSet]:
        """The CPUs of its own by container id."""
        return {container: CpuSet.parse(each["cpus"]) for container, each in self.grants().items()}

    def wait_for_cgroup(self, container: Container, cpus: CpuSet) -> None:
        """The cgroup has these CPUs, and so has the process in it."""
        assert container.cgroup.is_dir(), (
            f"{container.pod.name}, {container.id}, has ended\n{self.log()}\n{self.containerd.log()[-8000:]}")
        wait(lambda: cgroup_cpus(container) == cpus,
             lambda: f"{container.pod.name} has {cgroup_cpus(container)}, not {cpus}\n{self.log()}")
        assert CpuSet(os.sched_getaffinity(container.pid)) == cpus

    def wait_for_vm(self, pod: Pod, own: CpuSet, spare: CpuSet) -> None:
        """One vCPU on each CPU of its own; the others, and every other thread, on the spare set."""
        def placed() -> bool:
            found = seen(pod.pid)
            alone = sorted(cpus for cpus in found.vcpus.values() if CpuSet.parse(cpus) <= own)
            others = {*found.vcpus.values(), *found.other} - set(alone)
            return alone == sorted(map(str, own)) and others == {str(spare)}

        wait(placed, lambda: f"{pod.name}: wanted vCPUs on {own}, others on {spare}; have {seen(pod.pid)}")

    def restart_runtime(self) -> None:
        """kill -9 of containerd; the watcher connects to the next one by itself."""
        before = self.nri()["syncs"]
        self.containerd.restart()
        self.wait_for_sync(before + 1)


@contextlib.contextmanager
def with_containerd(suite: str, **more: Any) -> Iterator[AllocatingNode]:
    """:param more: of the Containerd."""
    with Containerd(suite, accel="kvm", bios=Guest.IDLE.rom(), **more) as containerd, AllocatingNode(
            containerd) as made:
        yield made


@pytest.fixture(params=suites())
def node(request: pytest.FixtureRequest) -> Iterator[AllocatingNode]:
    with with_containerd(request.param) as made:
        yield made
