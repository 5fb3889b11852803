"""What fails beside the allocator of a node with eight CPUs: creations after its answer, updates of shared containers,
and a second plugin that gives CPUs as well. Nothing leaks, no CPU is in two containers, nothing else is held up."""

from __future__ import annotations

import threading

import pytest
from cri import CriError
from nri_rival import giving, rival
from read_only_cpus import made_read_only, made_writable
from real_containerd import VM, Container, Pod
from waiting import wait

from lab.node_tests import allocating
from lab.node_tests.allocating import NODE, POLICY, RESERVED, AllocatingNode, cgroup_cpus, whole
from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.domain.runtime_call import SideUpdate
from vmpin.sources.nri.nri_events import CpuAnswer

pytestmark = pytest.mark.release  # minutes

node = allocating.node

#: All of the CPUs that can be given away.
MOST = len(NODE - RESERVED)
REFUSING = CpuAnswer(refusal="not in this node")


def wait_for_nothing_given(node: AllocatingNode, shared: Container) -> None:
    """Nothing leaked: no container has CPUs of its own, the shared one is on all, and all can be given at once."""
    wait(lambda: node.given() == {}, lambda: f"{node.given()} are still given\n{node.log()}")
    node.wait_for_cgroup(shared, NODE)
    pod = node.containerd.pod("whole", annotations=POLICY)
    all_of_them = pod.create("main", **whole(MOST))
    assert node.given() == {all_of_them.id: NODE - RESERVED}
    assert cgroup_cpus(shared) == RESERVED
    pod.remove()
    wait(lambda: node.given() == {}, lambda: f"{node.given()} are still given\n{node.log()}")
    node.wait_for_cgroup(shared, NODE)


def fails(pod: Pod, cpus: int) -> str:
    """The error of a creation."""
    with pytest.raises(CriError) as caught:
        pod.create("main", **whole(cpus))
    return str(caught.value)


def test_a_creation_that_fails_after_the_answer_is_undone(node: AllocatingNode) -> None:
    """A plugin after vmpin's refuses it: of a container, and of a VM whose spare set goes as well. The pod stays, as
    the kubelet tries again in it."""
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    pods = [node.containerd.pod("rival", annotations=POLICY),
            node.containerd.pod("rival", VM, vcpus=3, annotations=POLICY)]
    with rival(node.containerd, "99", REFUSING) as other:
        for pod in pods:
            for _ in range(3):
                assert "not in this node" in fails(pod, 4)
                wait(lambda: node.given() == {}, lambda: f"{node.given()} are still given\n{node.log()}")
        assert len(other.asked_for) == 6
        assert node.allocations()["refused"] == [], "vmpin refused none"
    for pod in pods:
        main = pod.container("main", **whole(3))
        assert len(node.given()[main.id]) == 3
    wait(lambda: node.cli("verify").returncode == 0, lambda: node.cli("verify").stdout)
    for pod in pods:
        pod.remove()
    wait_for_nothing_given(node, shared)
    assert node.tap.asked.keys() == {"RegisterPlugin"}


def test_a_container_that_never_starts_gives_its_cpus_to_the_next_one(node: AllocatingNode) -> None:
    """Its program is not there, and the runtime reports no end: the kubelet makes one after the other in the same pod,
    and removes none at first. One that is removed before it was started is undone."""
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    pod = node.containerd.pod("broken", annotations=POLICY)
    held = set()
    for attempt in range(4):  # four of three CPUs would be more than the node has
        broken = pod.create("main", command=("/bin/none",), attempt=attempt, **whole(3))
        assert node.given().keys() == {broken.id}
        held.add(node.given()[broken.id])
        with pytest.raises(CriError):
            broken.start()
    [cpus] = held
    assert len(cpus) == 3
    other = node.containerd.pod("other", annotations=POLICY).container("main", **whole(MOST - 3))
    mended = pod.create("main", attempt=4, **whole(3)).start()
    assert node.given() == {mended.id: cpus, other.id: NODE - RESERVED - cpus}
    node.wait_for_cgroup(mended, cpus)
    other.pod.remove()
    node.wait_for_cgroup(shared, NODE - cpus)
    never = node.containerd.pod("never", annotations=POLICY)
    never.create("main", **whole(2)).remove()
    wait(lambda: node.given().keys() == {mended.id}, lambda: f"{node.given()}\n{node.log()}")
    pod.remove()
    wait_for_nothing_given(node, shared)


def test_a_runtime_that_dies_before_it_made_the_container_leaves_nothing(node: AllocatingNode) -> None:
    """vmpin has answered, and the plugin after it has not: only the ledger has the container. The pod may go on with
    the same CPUs, and with its end they are free."""
    node.configure(watch={"resync_seconds": 0.5})
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    pod = node.containerd.pod("rival", annotations=POLICY)
    with rival(node.containerd, "99", REFUSING) as other:
        other.hold()
        creation = threading.Thread(target=lambda: fails(pod, 4))
        creation.start()
        wait(lambda: other.asked_for, "the second plugin is not asked")
        [given] = node.given().values()
        node.containerd.kill()
        creation.join()
    before = node.nri()["syncs"]
    node.containerd.start()
    node.wait_for_sync(before + 1)
    again = pod.container("main", **whole(4))
    assert node.given()[again.id] == given
    node.wait_for_cgroup(again, given)
    node.wait_for_cgroup(shared, NODE - given)
    pod.remove()
    wait_for_nothing_given(node, shared)


@pytest.mark.parametrize("index", ["05", "99"])
def test_a_second_plugin_that_gives_cpus_as_well(node: AllocatingNode, index: str) -> None:
    """Before vmpin's: its CPUs are left alone and reported. After it: the runtime refuses the creation, and it is
    undone. No other container is held up in either case."""
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    with rival(node.containerd, index, giving(RESERVED)):
        pod = node.containerd.pod("rival", annotations=POLICY)
        if index == "05":
            main = pod.container("main", **whole(2))
            assert cgroup_cpus(main) == RESERVED
            [grant] = [each for each in node.allocations()["grants"] if each["id"] == main.id]
            assert grant["left_alone"]
        else:
            assert "both tried to set" in fails(pod, 2)
        wait(lambda: node.given() == {}, lambda: f"{node.given()} are still given\n{node.log()}")
        own = node.containerd.pod("own", annotations=POLICY).container("main", **whole(4))
        node.wait_for_cgroup(shared, NODE - node.given()[own.id])
        own.pod.remove()
        pod.remove()
    wait_for_nothing_given(node, shared)


def test_a_second_plugin_that_updates_a_shared_container_as_well(node: AllocatingNode) -> None:
    """Both change it in their answers to the same creation. The runtime takes the first one's CPUs, and goes on, as
    vmpin's update may fail: the shared container gets the pool a little later."""
    node.configure(watch={"resync_seconds": 0.5})
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    moving = CpuAnswer(updates=(SideUpdate(ContainerId(shared.id), NODE),))
    with rival(node.containerd, "05", moving) as other:
        own = node.containerd.pod("rival", annotations=POLICY).container("main", **whole(2))
        assert other.asked_for == [own.id]
        cpus = node.given()[own.id]
        node.wait_for_cgroup(own, cpus)
        wait(lambda: cgroup_cpus(shared) == NODE - cpus, lambda: f"{cgroup_cpus(shared)}\n{node.log()}")
    own.pod.remove()
    wait_for_nothing_given(node, shared)


def test_a_side_update_that_fails_is_made_good_once_it_can_be(node: AllocatingNode) -> None:
    """The runtime cannot change one of the shared containers: the new one starts, the other shared one is narrowed,
    and what is wrong is reported. A VM's threads are kept off by their masks."""
    node.configure(watch={"resync_seconds": 0.5})
    node.connect()
    stuck, other = (node.containerd.pod(name).container("main") for name in ("stuck", "other"))
    guest = node.containerd.pod("guest", VM)
    guest.container("main")
    made_read_only(node.containerd, stuck)
    pod = node.containerd.pod("own", annotations=POLICY)
    own = pod.container("main", **whole(3))
    cpus = node.given()[own.id]
    rest = NODE - cpus
    assert (cgroup_cpus(own), cgroup_cpus(other), cgroup_cpus(stuck)) == (cpus, rest, NODE)
    node.wait_for_all(guest.pid, str(rest))
    node.wait_for_log(f"container={stuck.id} has the CPUs {NODE} instead of {rest}")
    done = node.cli("verify")
    assert done.returncode == 1
    assert f"tests/stuck/main has CPUs {NODE}, and not {rest}, which vmpin has given it" in done.stdout
    second = node.containerd.pod("second", annotations=POLICY).container("main", **whole(2))
    both = cpus | node.given()[second.id]
    assert len(both) == 5
    node.wait_for_cgroup(other, NODE - both)
    pod.remove()
    left = CpuSet(node.given()[second.id])
    node.wait_for_cgroup(other, NODE - left)
    made_writable(node.containerd, stuck)
    node.wait_for_cgroup(stuck, NODE - left)
    node.wait_for_all(guest.pid, str(NODE - left))
    wait(lambda: node.cli("verify").returncode == 0, lambda: node.cli("verify").stdout)
