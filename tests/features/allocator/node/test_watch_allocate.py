"""The allocator as an NRI plugin of real containerds: CPUs given, taken back, refused, and kept over every restart."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from allocating_node import POLICY, WHOLE, AllocatingNode
from cri import CriError
from file_writes import FileWrites
from nri_peer import delivering
from process_masks import seen
from real_containerd import VM, Container, Containerd, one_in_ci
from typed_shell import PATIENT, offered
from waiting import PATIENCE, wait

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.sources.nri.connection import connect_to
from vmpin.sources.nri.nri_events import NriEvent, NriUpdate, Synced
from vmpin.sources.nri.plugin import NriPlugin

pytestmark = pytest.mark.root


@pytest.fixture(params=one_in_ci())
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
    for name in "own", "tests/own/main":
        (sentence,) = node.data("status", "--explain", name)["sentences"]
        assert sentence.startswith("Container main of tests/own was refused at "), sentence
        assert "whole" in sentence
    for part in "tests", "/tests/own", "tests/own/mai":
        assert node.cli("status", "--explain", part).returncode == 2, "a part of a name names no pod"


def test_a_vm_whose_only_container_is_refused_is_explained_by_its_pods_name(node: AllocatingNode,
                                                                            tmp_path: Path) -> None:
    node.connect()
    pod = node.pod("vm", handler=VM)
    with pytest.raises(CriError, match="whole"):
        pod.create("main", cpu_shares=1500, cpu_quota=150_000, cpu_period=100_000)
    wait(lambda: pod.id in node.cli("status", "-o", "json").stdout, node.log)
    for name in "vm", "tests/vm", pod.id[:12], "tests/vm/main":
        explained = node.data("status", "--explain", name)
        assert explained["sandbox"] == pod.id
        assert explained["sentences"][-1].startswith("Container main of tests/vm was refused at "), explained
        assert (len(explained["sentences"]) > 1) == (not name.endswith("main")), "of the VM's threads, too"
    for typed, names in ("v", ["vm"]), ("tests/vm/", ["tests/vm/main"]):
        with node.containerd.enclosure.inside():
            line = f"vmpin --config {node.config} status --explain {typed}"
            assert offered(tmp_path, line, {**node.environment, **PATIENT}) == names


def test_a_container_that_never_starts_gives_its_cpu_to_the_next_one(node: AllocatingNode) -> None:
    """Its program is not there, of which containerd reports no end. The kubelet tries again and again in the same pod,
    and removes the old ones later."""
    node.connect()
    pod = node.pod()
    for attempt in range(3):
        broken = pod.create("main", command=("/bin/none",), attempt=attempt, **WHOLE)
        with pytest.raises(CriError, match="/bin/none"):
            broken.start()
    assert pod.create("main", attempt=3, **WHOLE).start().cgroup_cpus() == node.own


def test_kills_of_the_watcher_and_of_the_runtime_move_nothing(node: AllocatingNode) -> None:
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    own = node.pod().container("main", **WHOLE)
    with FileWrites(each.cgroup / "cpuset.cpus" for each in (shared, own)) as writes:
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
        assert writes.read() == set()
        shared.update(cpus=node.rest)  # the same again: that a write is seen
        assert writes.read() == {shared.cgroup / "cpuset.cpus"}
    (node.run / "ledger.json").unlink()
    node.kill()
    node.connect()
    wait(lambda: owners(node) == [(own.id, node.own)], lambda: f"{node.status()['node']}\n{node.log()}")
    assert (own.cgroup_cpus(), shared.cgroup_cpus()) == (node.own, node.rest)


def test_a_pod_that_ends_after_the_runtime_was_started_again_gives_its_cpus_back(node: AllocatingNode) -> None:
    """containerd reports the end of its container, and not the pod's (containerd#8426)."""
    node.configure(watch={"resync_seconds": 0.3})
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    pod, idle = node.pod(), node.pod("idle", "")
    pod.container("main", **WHOLE)
    idle.container("main")
    assert shared.cgroup_cpus() == node.rest
    node.containerd.restart()
    node.wait_for_sync(2)
    pod.remove()
    node.wait_for(shared, node.all)
    again = node.pod("again").container("main", **WHOLE)
    assert (again.cgroup_cpus(), shared.cgroup_cpus()) == (node.own, node.rest)
    # A pod that runs and waits for its next container holds its CPUs.
    again.remove()
    node.resyncs(5)
    assert owners(node) == []
    assert [each["state"] for each in node.data("alloc")["grants"] if each["cpus"]] == ["lapsed"]
    assert shared.cgroup_cpus() == node.rest


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


def test_one_made_while_it_was_away_whose_cpu_is_not_there_goes_to_the_pool(node: AllocatingNode) -> None:
    node.connect()
    own = node.pod().container("main", **WHOLE)
    node.kill()
    late = node.pod("late").container("main", **WHOLE)
    node.connect()
    node.wait_for(late, node.rest)
    assert own.cgroup_cpus() == node.own
    (refused,) = node.data("alloc")["refused"]
    assert (refused["pod"], "on the pool" in refused["reason"]) == ("late", True)


def test_a_lost_ledger_gives_the_cpu_to_the_one_that_runs_not_to_the_one_that_never_started(
        node: AllocatingNode) -> None:
    node.connect()
    pod = node.pod()
    broken = pod.create("main", command=("/bin/none",), **WHOLE)
    with pytest.raises(CriError):
        broken.start()
    runs = pod.create("main", attempt=1, **WHOLE).start()
    (node.run / "ledger.json").unlink()
    node.kill()
    node.connect()
    wait(lambda: owners(node) == [(runs.id, node.own)], lambda: f"{node.status()['node']}\n{node.log()}")
    broken.remove()
    with pytest.raises(CriError):
        node.pod("other").create("main", **WHOLE)
    assert runs.cgroup_cpus() == node.own


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
    node.wait_for_log("vmpin gives it its own again")


def near_devices(node: AllocatingNode, *devices: str, **env: str) -> Container:
    """A container of its own pod with devices of this machine, with a CPU near them."""
    pod = node.containerd.pod("near", annotations={POLICY: "exclusive", "cpu-near.vmpin.io": "devices"})
    return pod.container("main", devices=devices, env=env, **WHOLE)


def nodes_near(node: AllocatingNode) -> str:
    """The NUMA nodes of the devices, as `vmpin alloc` shows them."""
    [grant] = node.data("alloc")["grants"]
    return str(grant["near"])


def test_devices_of_this_machine_are_looked_up(node: AllocatingNode) -> None:
    """Which of them has a NUMA node is the machine's: most virtual machines say -1 of theirs."""
    node.connect()
    disks = [str(path) for path in sorted(Path("/dev").iterdir()) if path.is_block_device()]
    addresses = sorted(path.name for path in Path("/sys/bus/pci/devices").glob("*"))
    main = near_devices(node, "/dev/null", *disks, PCIDEVICE_SOME=",".join([*addresses, "0000:ff:1f.7", "/etc"]))
    assert main.cgroup_cpus() == node.own
    ways = [Path("/sys/bus/pci/devices", address) for address in addresses]
    for disk in disks:
        number = os.stat(disk).st_rdev
        way = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
        ways += [above for above in (way, *way.parents) if (above / "numa_node").exists()][:1]
    numbers = {int((way / "numa_node").read_text()) for way in ways}
    assert nodes_near(node) == str(CpuSet(number for number in numbers if number >= 0))
    node.wait_for_log("tests/near/main: cpu-near.vmpin.io=devices: ")
    node.wait_for_log("ignored, without a NUMA node: ")


def test_the_nodes_of_devices_are_kept_over_every_restart(node: AllocatingNode) -> None:
    """In a /sys of the test's own, where /dev/null and a PCI device are in node 0, and the rest is this machine's."""
    made = node.top / "sys"
    card = made / "devices" / "pci0000:00" / "0000:3b:00.0"
    for directory in (card / "null", made / "dev" / "char", made / "bus" / "pci" / "devices"):
        directory.mkdir(parents=True)
    (made / "devices" / "system").symlink_to("/sys/devices/system")
    (made / "dev" / "char" / "1:3").symlink_to("../../devices/pci0000:00/0000:3b:00.0/null")
    (card / "numa_node").write_text("0\n")
    node.configure(paths={"sys": str(made)})
    node.connect()
    main = near_devices(node, "/dev/null", "/dev/zero")
    assert (main.cgroup_cpus(), nodes_near(node)) == (node.own, "0")
    node.wait_for_log("cpu-near.vmpin.io=devices: /dev/null (c1:3) node 0; ignored, without a NUMA node: /dev/zero")
    assert "near=devices (NUMA node 0)" in node.cli("alloc").stdout
    assert "near=devices (NUMA node 0)" in node.cli("status", "--explain", "tests/near").stdout
    shutil.rmtree(card)  # from now on only what was kept shows the node
    for lost in (False, True):
        node.kill()
        if lost:
            (node.run / "ledger.json").unlink()
        node.connect()
        main.update(cpu_shares=1024)
        assert (main.cgroup_cpus(), nodes_near(node)) == (node.own, "0")


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
