"""CPUs near a container's own devices."""

from __future__ import annotations

import json
from typing import Any

import pytest
from played_calls import EXCLUSIVE, MACHINE, ON, Played, a_container, cpus

from vmpin.domain.model import ContainerId
from vmpin.domain.runtime_call import Listed
from vmpin.features.allocator.grants.decisions import on_create, on_update
from vmpin.features.allocator.grants.live_change import set_policy
from vmpin.features.allocator.grants.synchronizing import on_synchronize
from vmpin.features.allocator.texts.grant_data import GRANT_KEY, from_data, to_data

NEAR = {**EXCLUSIVE, "cpu-near.vmpin.io": "devices"}
NEAR_DEVICE = {**EXCLUSIVE, "cpu-near.vmpin.io": "0000:3b:00.0"}
#: Two devices of a container: what `device_nodes` finds of them, and one that has no node.
DEVICES = {"0000:3b:00.0": "PCIDEVICE_X", "c10:229": "/dev/fuse"}
DEVICE_MACHINE = MACHINE._replace(devices={"0000:3b:00.0": 1})


def near_devices(**more: Any) -> Played:
    """A node on which a container has CPUs near its devices. Later calls do not show the devices."""
    node = Played(machine=DEVICE_MACHINE)
    assert node.create("db", 2, NEAR, devices=DEVICES, **more) == "4-5"
    node.machine = MACHINE._replace(devices={})
    return node


def test_cpus_are_given_near_the_containers_own_devices() -> None:
    node = near_devices()
    assert node.notes == (
        "web/pod/db: cpu-near.vmpin.io=devices: PCIDEVICE_X (0000:3b:00.0) node 1; ignored, without a NUMA node: "
        "/dev/fuse", "web/pod/db gets the CPUs 4-5 (exclusive)")


def test_devices_without_a_node_leave_the_choice_free() -> None:
    for asked, devices in ((EXCLUSIVE, DEVICES), (NEAR, {"c10:229": "/dev/fuse"}), (NEAR, {})):
        node = Played(machine=DEVICE_MACHINE)
        assert node.create("db", 2, asked, devices=devices) == "2-3"
    assert node.notes[0] == "web/pod/db: cpu-near.vmpin.io=devices: the container has no devices"
    assert node.create("many", 1, NEAR, devices={f"c4:{n}": f"/dev/tty{n}\x1b" for n in range(20)}) == "1"
    assert node.notes[0].endswith("/dev/tty6\\x1b, /dev/tty7\\x1b and 12 more")


def test_a_vm_has_its_cpus_and_its_spare_set_near_the_devices() -> None:
    """VFIO: the group's device node is the container's, also where the runtime passes the device into a VM."""
    node = Played(machine=MACHINE._replace(devices={"c511:0": 1}))
    made = node.create("db", 2, NEAR, devices={"c511:0": "/dev/vfio/12", "c10:196": "/dev/vfio/vfio"}, vm=True,
                       vm_vcpus=1)
    grant = node.ledger.grants[ContainerId("db")]
    assert (made, str(grant.cpus), str(grant.spare)) == ("4-6", "4-5", "6")


def test_devices_on_several_nodes_are_all_near() -> None:
    """`away` counts CPUs on other nodes than those: with both near there are none, and the lowest numbers are best."""
    node = Played(machine=MACHINE._replace(devices={"c226:0": 0, "c226:1": 1}))
    assert node.create("db", 2, NEAR, devices={"c226:0": "/dev/a", "c226:1": "/dev/b"}) == "2-3"
    assert node.ledger.grants[ContainerId("db")].near == cpus("0-1")


@pytest.mark.parametrize(("annotations", "shrunk"), [(NEAR, "4-6"), (NEAR_DEVICE, "4-6"), (EXCLUSIVE, "1-3")])
def test_a_resize_goes_on_near_the_devices(annotations: dict[str, str], shrunk: str) -> None:
    """Node 0 would be better: with its reserved CPU it is broken already."""
    node = Played(machine=DEVICE_MACHINE)
    assert node.create("db", 7, annotations, devices=DEVICES) == "1-7"
    node.machine = MACHINE._replace(devices={})  # an update's call shows no devices
    assert from_data(json.loads(json.dumps(to_data(node.ledger)))) == node.ledger
    node.call(on_update, a_container("db", 3))
    assert str(node.ledger.grants[ContainerId("db")].cpus) == shrunk


def test_a_changed_wish_goes_on_near_the_devices() -> None:
    node = near_devices()
    for changes in ({"policy": "none"}, {"policy": "exclusive", "smt": "prefer"}):
        node.call(set_policy, ContainerId("db"), changes)
    assert node.ledger.grants[ContainerId("db")].cpus == cpus("4-5")


@pytest.mark.parametrize("annotated", [True, False])
def test_a_lost_ledger_goes_on_near_the_devices(annotated: bool) -> None:
    node = near_devices()
    made = node.call(on_create, a_container("db", 2, NEAR, devices=DEVICES))
    assert made is not None
    assert json.loads(made.annotations[GRANT_KEY])["devices"] == "1"
    listed = a_container("db", 2, NEAR, cpuset=cpus("4-5"))._replace(annotations=made.annotations)
    if not annotated:  # created while vmpin was away: the list shows its devices
        listed = a_container("db", 2, NEAR, devices=DEVICES)
        node.machine = DEVICE_MACHINE
    node.ledger = on_synchronize(node.machine, Listed(frozenset({listed.sandbox}), (listed,)), None, ON).ledger
    grant = node.ledger.grants[ContainerId("db")]
    assert (grant.near, grant.devices, grant.cpus) == (cpus("1"), cpus("1"), cpus("4-5"))


def test_the_annotation_of_a_container_names_no_node_that_is_not_there() -> None:
    """A pod's author may have written it, and nodes guide a choice alone."""
    text = '{"v":1,"policy":"exclusive","cpus":"2-3","near":"1,7,99","devices":"0-40","wish":{"near":"devices"}}'
    listed = a_container("db", 2, cpuset=cpus("2-3"))._replace(annotations={GRANT_KEY: text})
    ledger = on_synchronize(MACHINE, Listed(frozenset({listed.sandbox}), (listed,)), None, ON).ledger
    grant = ledger.grants[ContainerId("db")]
    assert (grant.cpus, grant.near, grant.devices) == (cpus("2-3"), cpus("1"), cpus("0-1"))


def test_a_running_container_may_ask_for_cpus_near_its_devices() -> None:
    node = Played(machine=DEVICE_MACHINE)
    assert node.create("db", 2, EXCLUSIVE, devices=DEVICES) == "2-3"
    node.machine = MACHINE
    node.call(set_policy, ContainerId("db"), {"near": "devices"})
    assert node.ledger.grants[ContainerId("db")].cpus == cpus("4-5")
    node.call(set_policy, ContainerId("db"), {"near": "eth1"})
    node.call(set_policy, ContainerId("db"), {"near": "nodes:0"})
    assert node.ledger.grants[ContainerId("db")].cpus == cpus("2-3")


def test_policy_numa_is_on_the_node_of_the_devices() -> None:
    node = Played(machine=DEVICE_MACHINE)
    assert node.create("db", 0, {**NEAR, "cpu-policy.vmpin.io": "numa"}, devices=DEVICES) == "4-7"
    node.machine = MACHINE._replace(devices={})
    node.call(set_policy, ContainerId("db"), {"policy": "none"})
    node.call(set_policy, ContainerId("db"), {"policy": "numa"})
    assert node.ledger.grants[ContainerId("db")].node == 1
