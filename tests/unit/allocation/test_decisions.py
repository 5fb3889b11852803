"""Single decisions, with the numbers worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vmpin.allocation.allocation_options import AllocationMode, AllocationOptions, GroupRule, HonouredKeys
from vmpin.allocation.cpu_request import CpuPolicy
from vmpin.allocation.decisions import due_updates, on_create, on_pod_end, on_remove, on_start, on_stop, on_update
from vmpin.allocation.ledger import MAX_REFUSED, GrantState, Ledger
from vmpin.allocation.live_change import release_pool, set_policy
from vmpin.allocation.pool_cpus import pool
from vmpin.allocation.runtime_call import Adjustment, Listed, RequestedContainer, SideUpdate
from vmpin.allocation.synchronizing import on_synchronize
from vmpin.allocation.texts.grant_annotation import GRANT_KEY
from vmpin.allocation.texts.ledger_text import LedgerError, from_data, to_data
from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, ContainerState, SandboxId
from vmpin.domain.topology import Topology

#: 8 CPUs, 4 cores, 2 nodes.
MACHINE = Topology.build(CpuSet(range(8)), cores=[CpuSet((n, n + 1)) for n in range(0, 8, 2)],
                         nodes={0: CpuSet(range(4)), 1: CpuSet(range(4, 8))}, devices={"eth1": 1})
ON = AllocationOptions(AllocationMode.ON, reserved=CpuSet((0,)))
EXCLUSIVE = {"cpu-policy.vmpin.io": "exclusive"}


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def a_container(name: str, size: int = 0, annotations: dict[str, str] | None = None,
                **other: Any) -> RequestedContainer:
    given: dict[str, Any] = {
        "pod_annotations": annotations or {}, "shares": 1024 * size or 2, "quota": 100_000 * size or None,
        "period": 100_000, "namespace": "web", "pod": "pod", "sandbox": SandboxId(f"pod-{name}"), **other}
    return RequestedContainer(ContainerId(name), name=name, **given)


class Played:
    """A ledger that calls are made on, one after another."""

    def __init__(self, options: AllocationOptions = ON, machine: Topology = MACHINE) -> None:
        self.options, self.machine, self.ledger = options, machine, Ledger()
        self.updates: tuple[SideUpdate, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.refusal = ""

    def call(self, function: Any, *given: Any) -> Adjustment | None:
        answer = function(self.machine, self.ledger, *given, self.options)
        self.ledger, self.updates = answer.ledger, answer.updates
        self.notes, self.refusal = answer.notes, answer.refusal
        found: Adjustment | None = answer.adjustment
        return found

    def create(self, name: str, size: int = 0, annotations: dict[str, str] | None = None, **other: Any) -> str | None:
        made = self.call(on_create, a_container(name, size, annotations, **other))
        return None if made is None or made.cpus is None else str(made.cpus)


def test_an_exclusive_container_takes_its_cpus_from_the_shared_ones() -> None:
    node = Played()
    assert node.create("web") == "0-7"
    assert node.create("db", 2, EXCLUSIVE) == "2-3"
    assert list(node.updates) == [SideUpdate(ContainerId("web"), cpus("0-1,4-7"))]
    node.call(on_stop, ContainerId("db"))
    assert node.create("early", 1, EXCLUSIVE) == "1"
    node.call(on_start, a_container("early", cpuset=cpus("1")))
    node.call(on_stop, ContainerId("early"))
    assert node.ledger.grants[ContainerId("early")].state is GrantState.LAPSED
    assert pool(MACHINE, node.ledger, ON) == cpus("0,2-7")
    node.call(on_pod_end, SandboxId("pod-early"))
    assert not node.updates
    assert due_updates(MACHINE, node.ledger, ON) == (SideUpdate(ContainerId("web"), cpus("0-7")),)


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


def test_init_containers_and_restarts_use_the_pods_cpus_again() -> None:
    node, sandbox = Played(), SandboxId("one")
    assert node.create("init", 3, EXCLUSIVE, sandbox=sandbox) == "1-3"
    node.call(on_start, a_container("init", sandbox=sandbox))
    node.call(on_stop, ContainerId("init"))
    assert node.create("main", 2, EXCLUSIVE, sandbox=sandbox) == "2-3"
    assert node.create("side", 2, EXCLUSIVE, sandbox=sandbox) == "1,4", "what is left of them, and one more"
    node.call(on_start, a_container("main", sandbox=sandbox))
    node.call(on_stop, ContainerId("main"))
    node.call(on_remove, ContainerId("init"))
    again = a_container("main", 2, EXCLUSIVE, sandbox=sandbox)._replace(id=ContainerId("main-2"))
    made = node.call(on_create, again)
    assert made is not None
    assert made.cpus == cpus("2-3")


def test_a_vm_gets_as_many_spare_cpus_as_kata_makes_more_vcpus() -> None:
    node, sandbox = Played(), SandboxId("vm")
    vm: dict[str, Any] = {"vm": True, "vm_vcpus": 1, "sandbox": sandbox}
    assert node.create("web") == "0-7"
    assert node.create("a", 2, EXCLUSIVE, **vm) == "1-3", "2 CPUs of its own, 3 vCPUs"
    grant = node.ledger.grants[ContainerId("a")]
    assert (str(grant.cpus), str(grant.spare)) == ("2-3", "1")
    assert node.ledger.shared == cpus("0-1,4-7"), "spare CPUs stay in the pool"
    assert node.create("burst", 1, **vm) is None, "on the pool: no cpuset"
    assert [str(update.cpus) for update in node.updates] == ["1-4"]
    assert node.create("free", **vm) is None
    assert node.create("numa", annotations={"cpu-policy.vmpin.io": "numa"}, **vm) is None, "no quota: no cpuset"
    node.call(on_stop, ContainerId("burst"))
    assert [str(update.cpus) for update in node.updates] == ["1-3"]
    assert node.create("b", 2, EXCLUSIVE, **vm) == "4-5"
    assert node.create("c", 1, EXCLUSIVE) == "1"
    assert [(update.container, str(update.cpus)) for update in node.updates] == [
        ("web", "0,6-7"), ("a", "2-3,6")], "the spare CPU moves"


@pytest.mark.parametrize(("spare", "expected", "left"), [
    ("match", "1-3", "0-1,4-7"), ("0", "2-3", "0-1,4-7"), ("3", "1-5", "0-1,4-7"), ("own", "2-5", "0-1,6-7")])
def test_each_value_of_spare(spare: str, expected: str, left: str) -> None:
    node = Played()
    made = node.create("a", 2, {**EXCLUSIVE, "cpu-spare.vmpin.io": spare}, vm=True, vm_vcpus=1, vm_overhead=2)
    assert made == expected
    assert str(node.ledger.shared) == left


def test_own_spare_cpus_need_an_overhead() -> None:
    node = Played()
    assert node.create("a", 2, {**EXCLUSIVE, "cpu-spare.vmpin.io": "own"}, vm=True, vm_vcpus=1) is None
    assert "cpu-spare.vmpin.io=own" in node.refusal
    assert not node.ledger.grants


def test_with_headroom_a_second_container_updates_no_shared_one() -> None:
    node = Played(ON._replace(pool_headroom=2))
    assert node.create("web") == "0-1,4-7"
    assert node.create("a", 2, EXCLUSIVE) == "2-3"
    assert not node.updates
    assert node.create("b", 1, EXCLUSIVE) == "1"
    assert [str(update.cpus) for update in node.updates] == ["0,6-7"], "and two more out of them"
    assert node.create("c", 2, EXCLUSIVE) == "4-5"
    assert not node.updates


def test_a_resize_keeps_the_cpus_and_a_refused_one_changes_nothing() -> None:
    node = Played()
    node.create("web")
    node.create("a", 2, EXCLUSIVE)
    node.call(on_update, a_container("a", 3))
    assert node.ledger.grants[ContainerId("a")].cpus >= cpus("2-3")
    assert [update.container for update in node.updates] == ["web", "a"], "others first, its own last"
    before = node.ledger
    node.call(on_update, a_container("a", 8))
    assert "free" in node.refusal
    assert node.ledger.grants == before.grants
    node.call(on_update, a_container("a", 2)._replace(shares=512))
    assert "whole CPUs" in node.refusal
    node.call(on_update, a_container("a")._replace(shares=4096))
    assert not node.refusal
    assert not node.updates
    node.call(on_update, a_container("a", 1))
    assert node.ledger.grants[ContainerId("a")].cpus <= before.grants[ContainerId("a")].cpus
    assert [update.container for update in node.updates] == ["a"], "the pool grows later"


def test_updates_with_a_cpuset() -> None:
    """One by vmpin itself comes back: nothing follows. Another program's is replaced."""
    node = Played()
    node.create("a", 2, EXCLUSIVE)
    mine = a_container("a")._replace(shares=None, quota=None, period=None)
    node.call(on_update, mine._replace(cpuset=cpus("2-3")))
    assert (list(node.updates), list(node.notes)) == ([], [])
    node.call(on_update, mine._replace(cpuset=cpus("6")))
    assert list(node.updates) == [SideUpdate(ContainerId("a"), cpus("2-3"))]
    assert "2-3 stays" in node.notes[0]


def test_another_plugins_cpuset_is_left_alone_and_reported() -> None:
    node = Played()
    made = node.call(on_create, a_container("a", 2, EXCLUSIVE, cpuset=cpus("5")))
    assert made is not None
    assert (made.cpus, made.mems) == (None, None)
    assert "another plugin" in node.notes[0]
    assert due_updates(MACHINE, node.ledger, ON) == ()


def test_observe_decides_and_changes_nothing() -> None:
    node = Played(ON._replace(mode=AllocationMode.OBSERVE))
    node.create("web")
    assert node.call(on_create, a_container("a", 2, EXCLUSIVE)) is None
    assert not node.updates
    assert node.ledger.grants[ContainerId("a")].cpus == cpus("2-3")
    assert "gets the CPUs 2-3" in node.notes[0]
    assert node.create("b", 7, EXCLUSIVE) is None
    assert node.refusal == ""
    assert len(node.ledger.refused) == 1
    assert due_updates(MACHINE, node.ledger, node.options) == ()


def test_refusals_are_kept_up_to_a_limit_and_one_for_each_request() -> None:
    node = Played()
    for _ in range(3):
        node.create("a", 9, EXCLUSIVE)
    assert len(node.ledger.refused) == 1
    for number in range(MAX_REFUSED + 5):
        node.create(f"a{number}", 9, EXCLUSIVE)
    assert len(node.ledger.refused) == MAX_REFUSED


def test_the_pool_keeps_a_cpu_and_strict_reserved_cpus_are_none_of_it() -> None:
    node = Played(AllocationOptions(AllocationMode.ON))
    assert node.create("a", 8, EXCLUSIVE) is None
    assert "must keep one" in node.refusal
    assert node.create("a", 7, EXCLUSIVE) is not None
    strict = Played(ON._replace(strict_reserved=True))
    assert strict.create("web") == "1-7"
    assert strict.create("sys", annotations={"cpu-policy.vmpin.io": "infra"}, namespace="kube-system") == "0"


def test_a_shared_container_is_let_in_while_the_pool_is_offline() -> None:
    machine = MACHINE._replace(online=cpus("2-3"))
    node = Played(AllocationOptions(AllocationMode.ON, reserved=CpuSet((0,))), machine)
    node.create("a", 1, EXCLUSIVE)
    node.machine = machine._replace(online=cpus("2"))
    node.create("web")
    assert node.refusal == ""


def test_groups() -> None:
    node = Played(ON._replace(groups={"set": GroupRule(cpus("6-7"))}))
    ours = {"cpu-policy.vmpin.io": "group:x"}
    assert node.create("web") == "0-5"
    assert node.create("a", 1, ours) == "4"
    assert node.create("b", 1, ours) == "4-5"
    assert [(update.container, str(update.cpus)) for update in node.updates] == [("web", "0-3"), ("a", "4-5")]
    assert node.create("c", 1, ours, namespace="other") == "1", "another namespace's group x"
    assert node.create("d", 0, {"cpu-policy.vmpin.io": "group:set"}) == "6-7"


def test_memory_nodes_only_where_alignment_is_required() -> None:
    node = Played()
    for asks, expected in ((EXCLUSIVE, None), ({**EXCLUSIVE, "cpu-align.vmpin.io": "node!"}, "1"),
                                  ({"cpu-policy.vmpin.io": "numa", "cpu-near.vmpin.io": "eth1"}, "1")):
        made = node.call(on_create, a_container(f"a{expected}{len(asks)}", 2, asks))
        assert made is not None
        assert (None if made.mems is None else str(made.mems)) == expected


def test_cmks_variables() -> None:
    """CMK intel/isolate.py and intel/util.py (convert_array2bitmask): its users split the lists at the commas."""
    node = Played(ON._replace(export="cmk", honour=frozenset({HonouredKeys.CMK})))
    made = node.call(on_create, a_container("a", 2, {"cmk.intel.com/mutate": "true"}))
    assert made is not None
    assert made.env == {"CMK_CPUS_ASSIGNED": "2,3", "CMK_CPUS_ASSIGNED_MASK": "C", "CMK_CPUS_SHARED": "0,1,4,5,6,7",
                        "CMK_CPUS_INFRA": "0"}


def test_what_a_peer_passes_over_refuses_no_container() -> None:
    """crane pkg/ensurance/cm/cpumanager/util.go, GetPodCPUPolicy."""
    node = Played()
    assert node.create("a", 2, {"topology.crane.io/cpu-policy": "static"}) == "0-7"
    assert any("topology.crane.io/cpu-policy=static" in note for note in node.notes)


def test_cranes_topology_awareness_does_not_loosen_what_the_configuration_requires() -> None:
    """crane-scheduler pkg/plugins/noderesourcetopology/filter.go: with the key a pod fits in one node, or nowhere."""
    aware = {"topology.crane.io/cpu-policy": "exclusive", "topology.crane.io/topology-awareness": "true"}
    assert Played().create("a", 5, aware) == "1,4-7"
    node = Played(ON._replace(align_required=True))
    assert node.create("a", 5, aware) is None
    assert "node" in node.refusal
    assert node.create("b", 5, {**aware, "cpu-align.vmpin.io": "node"}) == "1,4-7"


def test_isolated_cpus_that_are_preferred_fall_back_and_those_required_do_not() -> None:
    """nri-plugins cmd/plugins/topology-aware/policy/pod-preferences.go: a strict preference, or not."""
    options = ON._replace(honour=frozenset({HonouredKeys.NRI_PLUGINS}), privileged_namespaces=frozenset({"web"}))
    prefer, require = ({f"{word}-isolated-cpus.resource-policy.nri.io": "true"} for word in ("prefer", "require"))
    node = Played(options, MACHINE._replace(isolated=cpus("6-7")))
    assert node.create("other", 2, prefer, namespace="other") == "4-5", "not in a privileged namespace"
    assert node.create("first", 2, prefer) == "6-7"
    assert node.create("second", 2, prefer) == "2-3"
    assert "prefers cannot be had" in node.notes[0]
    assert node.create("third", 2, require) is None
    assert "free" in node.refusal
    assert node.create("shared", 0, prefer) == "0-1", "no whole CPUs: the pool"


def test_a_live_change_moves_as_little_as_possible() -> None:
    node = Played()
    node.create("web")
    node.create("a", 2, EXCLUSIVE)
    before = node.ledger
    node.call(set_policy, ContainerId("a"), {"policy": "fixed"})
    assert node.ledger.grants[ContainerId("a")].cpus == cpus("2-3")
    assert list(node.updates) == [SideUpdate(ContainerId("web"), cpus("0-7"))]
    node.ledger = before
    for changes in ({}, {"policy": "exclusive"}, {"spare": "0"}, {"policy": "fixed"}):
        found = before.grants[ContainerId("a")]._replace(cpus=cpus("3,5"), written=cpus("3,5"))
        node.ledger = before.with_grants(found)
        node.call(set_policy, ContainerId("a"), changes)
        assert node.ledger.grants[ContainerId("a")].cpus == cpus("3,5"), "better CPUs are no reason to move"
    node.ledger = before
    node.call(set_policy, ContainerId("a"), {"near": "eth1"})
    assert node.ledger.grants[ContainerId("a")].cpus == cpus("4-5")
    assert [(update.container, str(update.cpus)) for update in node.updates] == [
        ("web", "0-1,6-7"), ("a", "4-5"), ("web", "0-3,6-7")]
    node.ledger = before
    node.call(set_policy, ContainerId("a"), {"policy": "infra"})
    assert "privileged_namespaces" in node.refusal
    assert node.ledger == before
    node.call(set_policy, ContainerId("web"), {"policy": "exclusive"})
    assert "request = limit" in node.refusal
    node.call(set_policy, ContainerId("gone"), {"policy": "none"})
    assert "gone" in node.refusal


def test_switching_off_gives_shared_containers_all_cpus() -> None:
    node = Played()
    node.create("web")
    node.create("a", 2, EXCLUSIVE)
    assert release_pool(MACHINE, node.ledger) == ((SideUpdate(ContainerId("web"), cpus("0-7")),), ("web/pod/a",))


def listed(*containers: RequestedContainer) -> Listed:
    return Listed(frozenset(one.sandbox for one in containers), containers)


def claim(name: str, size: int, text: str, cpuset: str | None) -> RequestedContainer:
    return a_container(name, size, annotations={}, cpuset=None if cpuset is None else cpus(cpuset),
                       state=ContainerState.RUNNING)._replace(annotations={GRANT_KEY: text})


FORGED = '{"v":1,"policy":"exclusive","since":0,"cpus":"%s"}'


@pytest.mark.parametrize(("forged", "words"), [
    (claim("evil", 2, FORGED % "2-3", "0-7"), "request is 2 CPUs"),
    (claim("evil", 0, FORGED % "4-5", "4-5"), "request = limit"),
    (claim("evil", 1, FORGED % "0", "0"), "reserved"),
    (claim("evil", 2, '{"v":1,"policy":"infra","since":0}', "0"), "privileged_namespaces"),
    (claim("evil", 2, FORGED % "2-3", "2-3"), "another container's"),
    (claim("evil", 2, "{", "4-5"), GRANT_KEY), (claim("evil", 2, "[" * 4000, "4-5"), GRANT_KEY),
    (claim("evil", 2, '{"v":2}', "4-5"), GRANT_KEY), (claim("evil", 2, "x" * 5000, "4-5"), GRANT_KEY),
    (claim("evil", 2, '{"v":1,"policy":"exclusive","since":true}', "4-5"), GRANT_KEY),
    (claim("evil", 2, '{"v":1,"policy":"exclusive","cpus":[1]}', "4-5"), GRANT_KEY),
    (claim("evil", 2, '{"v":1,"policy":"exclusive","cpus":"5-1"}', "4-5"), GRANT_KEY),
    (claim("evil", 2, '{"v":1,"policy":"best"}', "4-5"), GRANT_KEY),
    (claim("evil", 2, '{"v":1,"policy":"none","wish":{"smt":1}}', "4-5"), GRANT_KEY),
])
def test_a_forged_annotation_gives_no_cpus(forged: RequestedContainer, words: str) -> None:
    """A container with CPUs of its own, and one whose author wrote the annotation; the ledger is lost."""
    honest = claim("a", 2, FORGED % "2-3", "2-3")._replace(sandbox=SandboxId("honest"))
    answer = on_synchronize(MACHINE, listed(honest, forged), None, ON)
    assert answer.ledger.grants[honest.id].cpus == cpus("2-3")
    assert not answer.ledger.grants[forged.id].cpus
    assert any(words in note for note in answer.notes), answer.notes
    assert answer.updates == ()


def test_without_a_cpuset_the_annotation_is_no_proof() -> None:
    answer = on_synchronize(MACHINE, listed(claim("evil", 2, FORGED % "2-3", None)), None, ON)
    grant = answer.ledger.grants[ContainerId("evil")]
    assert (grant.policy, str(grant.written)) == (CpuPolicy.NONE, "0-7")


def test_after_a_resize_the_cpuset_proves_the_cpus() -> None:
    answer = on_synchronize(MACHINE, listed(claim("a", 3, FORGED % "2-3", "2-4")), None, ON)
    assert answer.ledger.grants[ContainerId("a")].cpus == cpus("2-4")
    assert answer.updates == ()


def test_what_a_shared_container_runs_on_was_a_vms_spare_cpu() -> None:
    """A VM that grew from CPUs 2-3 to 2-4, with the spare CPU 1; the annotation is of its creation."""
    vm = claim("a", 3, '{"v":1,"policy":"exclusive","since":0,"cpus":"2-3","spare":"4"}', "1-4")._replace(
        vm=True, vm_vcpus=1)
    web = claim("web", 0, '{"v":1,"policy":"none","since":0}', "0-1,5-7")
    answer = on_synchronize(MACHINE, listed(vm, web), None, ON)
    assert (answer.ledger.grants[vm.id].cpus, answer.ledger.grants[vm.id].spare) == (cpus("2-4"), cpus("1"))
    assert answer.updates == ()


def test_what_was_missed_gets_its_cpus_and_the_shared_ones_lose_them_first() -> None:
    node = Played()
    node.create("web")
    web = a_container("web", cpuset=cpus("0-7"), state=ContainerState.RUNNING)
    new = a_container("a", 2, EXCLUSIVE, state=ContainerState.RUNNING)
    node.ledger = on_synchronize(MACHINE, listed(web, new), node.ledger, ON).ledger
    assert node.ledger.grants[ContainerId("a")].cpus == cpus("2-3")
    answer = on_synchronize(MACHINE, listed(web, new), None, ON)
    assert [update.container for update in answer.updates] == ["a"], "without annotation web's cpuset is another's"


def some_ledger() -> dict[str, Any]:
    node = Played()
    node.create("web")
    node.create("a", 2, {**EXCLUSIVE, "cpu-align.vmpin.io": "node!"}, vm=True, vm_vcpus=1)
    node.create("b", 9, EXCLUSIVE)
    data: dict[str, Any] = json.loads(json.dumps(to_data(node.ledger)))
    assert from_data(data) == node.ledger
    return data


@pytest.mark.parametrize(("place", "value", "words"), [
    (("version",), 2, "version=2"), (("shared",), "9-1", "shared"), (("shared",), None, "shared"),
    (("grants",), {}, "grants={}"), (("refused",), 1, "refused=1"), (("extra",), 1, "extra"),
    (("grants", 0), 1, "grant 0"), (("grants", 0, "policy"), "best", "grant 0: 'best'"),
    (("grants", 0, "state"), None, "grant 0"), (("grants", 0, "cpus"), 5, "grant 0: cpus"),
    (("grants", 0, "amount"), [1, 2], "amount=[1, 2]"), (("grants", 0, "vm"), 1, "vm=1"),
    (("grants", 0, "vm_vcpus"), -1, "vm_vcpus=-1"), (("grants", 0, "since_ns"), True, "since_ns=True"),
    (("grants", 0, "container"), "", "container is missing"), (("grants", 0, "node"), "0", "node='0'"),
    (("grants", 0, "wish"), {"smt": "x"}, "smt=x"), (("grants", 0, "wish"), [], "a wish is an object"),
    (("grants", 0, "wish"), {"exclude_reserved": 1}, "exclude_reserved=1"),
    (("grants", 0, "colour"), 1, "colour"), (("grants", 1, "container"), "a", "two grants"),
    (("grants", 1, "cpus"), "2", "CPU 2 is held by"), (("refused", 0), {"pod": 1}, "refused request 0"),
])
def test_a_bad_ledger_is_an_error_that_names_the_place(place: tuple[str | int, ...], value: object,
                                                       words: str) -> None:
    data: Any = some_ledger()
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(LedgerError) as caught:
        from_data(data)
    assert words in str(caught.value)


@pytest.mark.parametrize("data", [None, [], "x", 1])
def test_what_is_no_object_is_no_ledger(data: object) -> None:
    with pytest.raises(LedgerError):
        from_data(data)
