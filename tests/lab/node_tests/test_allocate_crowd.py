"""A hundred shared containers on a node of eight CPUs, beside containers with CPUs of their own that come and go."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from file_writes import FileWrites
from real_containerd import VM, Container, suites
from waiting import wait

from lab.node_tests import allocating
from lab.node_tests.allocating import NODE, POLICY, RESERVED, AllocatingNode, cgroup_cpus, whole
from vmpin.cpuset import CpuSet, union

pytestmark = pytest.mark.release  # minutes

PODS, EACH = 10, 10
#: CPUs of the containers of a round, which are all there at the same time.
ROUNDS = ((2, 1), (4,))
#: Seconds for a hundred updates by CRI, one after the other, in an emulated node.
ALL_OF_THEM = 600.0
#: Pods that are made at the same time.
AT_ONCE = 4


@pytest.fixture(params=suites())
def node(request: pytest.FixtureRequest) -> Iterator[AllocatingNode]:
    """Its containers are crun's: runc takes seconds for each start and for each update in the node."""
    with allocating.with_containerd(request.param, runtime="crun") as made:
        yield made


@contextlib.contextmanager
def timed(what: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - begun:.1f} s")


def on(containers: list[Container]) -> set[CpuSet]:
    return {cgroup_cpus(each) for each in containers}


def crowd(node: AllocatingNode, pods: int) -> list[Container]:
    """EACH shared containers in each pod."""
    def one(number: int) -> list[Container]:
        pod = node.containerd.pod(f"shared-{number}")
        return [pod.container(f"c{each}") for each in range(EACH)]

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return [each for pod in threads.map(one, range(pods)) for each in pod]


def test_a_hundred_shared_containers_follow_the_pool(node: AllocatingNode) -> None:
    """Before a container with CPUs of its own exists, each of them is off these; one of these is a VM.
    When they are gone, each has them back."""
    node.connect()
    with timed(f"{PODS * EACH} containers created"):
        shared = crowd(node, PODS)
    assert on(shared) == {NODE}
    made = 0
    for sizes in ROUNDS:
        running = []
        for size in sizes:
            made += 1
            vm = made == 2
            pod = node.containerd.pod(f"own-{made}", VM if vm else "", 2, POLICY)
            with timed(f"container {made} of {size} CPUs created, the pool shrunk"):
                main = pod.create("main", **whole(size))
            # In the answer: each shared one is off its CPUs before it exists.
            taken = union(node.given().values())
            assert len(node.given()[main.id]) == size
            assert on(shared) == {NODE - taken}, f"{node.log()}\n{node.containerd.log()[-8000:]}"
            main.start()
            running.append(pod)
        assert len(union(node.given().values())) == sum(sizes)
        with timed(f"{len(running)} pods removed, the pool grown"):
            for pod in running:
                pod.remove()
            for each in shared:  # one after the other: reading all at every look would take a CPU of the node's
                _wait_for(node, each, NODE)
        assert node.given() == {}
    assert on(shared) == {NODE}
    assert len(node.allocations()["grants"]) == PODS * EACH
    assert node.cli("verify").returncode == 0
    assert "ERROR" not in node.log()
    assert node.tap.asked.keys() == {"RegisterPlugin"}


def _wait_for(node: AllocatingNode, container: Container, cpus: CpuSet) -> None:
    wait(lambda: cgroup_cpus(container) == cpus,
         lambda: f"{container.pod.name} {container.name} has {cgroup_cpus(container)}, not {cpus}\n{node.log()}",
         ALL_OF_THEM)


def test_a_creation_within_the_headroom_updates_no_shared_container(node: AllocatingNode) -> None:
    """The next one does, and takes as much headroom out of the pool again."""
    node.configure(allocate={"pool_headroom": 2, "grow_delay_seconds": 3600})  # it does not return meanwhile
    node.connect()
    shared = crowd(node, 2)
    [before] = on(shared)
    assert before >= RESERVED
    assert len(before) == len(NODE) - 2
    files = {each.cgroup / "cpuset.cpus" for each in shared}
    with FileWrites(files) as writes:
        main = node.containerd.pod("within", annotations=POLICY).container("main", **whole(2))
        node.wait_for_cgroup(main, NODE - before)
        assert on(shared) == {before}
        assert writes.read() == set()
        one = node.containerd.pod("beyond", annotations=POLICY).container("main", **whole(1))
        assert writes.read() == files
        [after] = on(shared)
    assert len(after) == len(before) - 3
    assert after <= before - cgroup_cpus(one)
    assert node.cli("verify").returncode == 0
