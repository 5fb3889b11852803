"""Single decisions of the allocator, by call."""

from __future__ import annotations

from typing import Any

import pytest
from played_calls import EXCLUSIVE, MACHINE, ON, Played, a_container, cpus

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.domain.runtime_call import SideUpdate
from vmpin.features.allocator.grants.allocation_options import (
    AllocationMode,
    AllocationOptions,
    GroupRule,
    HonouredKeys,
)
from vmpin.features.allocator.grants.decisions import (
    due_updates,
    on_create,
    on_pod_end,
    on_remove,
    on_start,
    on_stop,
    on_update,
)
from vmpin.features.allocator.grants.ledger import MAX_REFUSED, GrantState
from vmpin.features.allocator.grants.live_change import release_pool, set_policy
from vmpin.features.allocator.grants.pool_cpus import pool


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


def test_a_container_that_never_started_gives_its_cpus_to_the_next_of_its_name() -> None:
    """containerd reports no end of one whose program is not there; the kubelet removes it minutes later."""
    node, sandbox = Played(), SandboxId("one")
    assert node.create("main", 4, EXCLUSIVE, sandbox=sandbox) == "4-7"
    assert node.create("side", 1, EXCLUSIVE, sandbox=sandbox) == "1"
    for attempt in range(3):
        again = a_container("main", 4, EXCLUSIVE, sandbox=sandbox)._replace(id=ContainerId(f"main-{attempt}"))
        made = node.call(on_create, again)
        assert made is not None
        assert made.cpus == cpus("4-7")
        assert set(node.ledger.grants) == {again.id, "side"}
    node.call(on_start, again)
    node.call(on_remove, ContainerId("main"))
    assert node.ledger.grants[again.id].state is GrantState.RUNNING
    # Of another pod it is no restart.
    assert node.create("main", 2, EXCLUSIVE, sandbox=SandboxId("two")) == "2-3"


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


@pytest.mark.parametrize(("most", "expected"), [(0, "2-5"), (3, "1-3"), (2, "2-3")], ids=["any", "static", "full"])
def test_a_vm_has_no_more_vcpus_than_it_has_slots(most: int, expected: str) -> None:
    """Static sizing: it boots with all of its vCPUs, and its containers' CPUs make it no larger."""
    assert Played().create("a", 2, EXCLUSIVE, vm=True, vm_vcpus=3 if most == 3 else 2, vm_most=most) == expected


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


def test_own_spare_cpus_that_a_vm_gives_up_are_free_for_another_at_once() -> None:
    node = Played()
    for name, sandbox, spare in ("first", "a", "0"), ("second", "a", "own"), ("third", "b", "own"):
        given = {**EXCLUSIVE, "cpu-spare.vmpin.io": spare}
        node.create(name, 1, given, sandbox=SandboxId(sandbox), vm=True, vm_vcpus=1, vm_overhead=2)
        node.call(on_start, a_container(name, 1, given, sandbox=SandboxId(sandbox), vm=True, vm_overhead=2))
    node.create("full", 1, EXCLUSIVE)
    node.call(on_stop, ContainerId("first"))
    assert not node.ledger.grants[ContainerId("second")].spare, "the pool has no CPU to spare"
    node.call(on_stop, ContainerId("third"))
    assert (str(node.ledger.grants[ContainerId("second")].spare), str(node.ledger.shared)) == ("4-5", "0,7")


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
    assert node.ledger.grants[ContainerId("a")].written == cpus("5")
    node.call(on_update, a_container("a", 2, EXCLUSIVE, cpuset=cpus("6")))  # it moves its container
    assert (node.ledger.grants[ContainerId("a")].written, list(node.updates), list(node.notes)) == (cpus("6"), [], [])
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
    assert (node.refusal, list(node.notes)) == ("", ["web/pod/web gets no cpuset: no CPU of the pool is online"])


def test_groups() -> None:
    node = Played(ON._replace(groups={"set": GroupRule(cpus("6-7"))}))
    ours = {"cpu-policy.vmpin.io": "group:x"}
    assert node.create("web") == "0-5"
    assert node.create("a", 1, ours) == "1", "its core is not wholly free"
    assert node.create("b", 1, ours) == "1-2"
    assert [(update.container, str(update.cpus)) for update in node.updates] == [("web", "0,3-5"), ("a", "1-2")]
    assert node.create("c", 1, ours, namespace="other") == "3", "another namespace's group x"
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


def test_a_change_to_a_device_that_is_not_there_is_noted() -> None:
    node = Played()
    node.create("a", 2, EXCLUSIVE)
    changed = set_policy(MACHINE, node.ledger, ContainerId("a"), {"near": "eht0"}, ON)
    assert changed.notes[-1] == "web/pod/a: cpu-near.vmpin.io=eht0 is in no known NUMA node"


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


def test_a_vms_container_from_the_pool_gets_no_cpu_that_another_one_has_yet_to_lose() -> None:
    """It becomes the oldest with CPUs of its own, which takes the spare set over; on the pool it had no cpuset."""
    node = Played()
    vm: dict[str, Any] = {"sandbox": SandboxId("vm"), "vm": True, "vm_vcpus": 1}
    node.create("old", **vm, time_ns=1)
    assert node.create("new", 1, EXCLUSIVE, **vm, time_ns=2) == "1-2"
    node.call(on_update, a_container("old", 1, **vm))
    assert node.updates == (SideUpdate(ContainerId("new"), cpus("1-3")),)
    node.call(set_policy, ContainerId("old"), {"policy": "exclusive"})
    assert [(container, str(added)) for container, added in node.updates] == [("new", "1"), ("old", "2-3")]


def test_of_sets_as_good_the_one_that_keeps_most_of_the_present_cpus_is_moved_to() -> None:
    caches = [CpuSet((n, n + 1)) for n in range(0, 10, 2)]
    node = Played(AllocationOptions(AllocationMode.ON), MACHINE.build(CpuSet(range(10)), caches=caches))
    node.create("a", 4, EXCLUSIVE)
    apart = node.ledger.grants[ContainerId("a")]._replace(cpus=cpus("2,4,6,8"))
    node.ledger = node.ledger.with_grants(apart)
    node.call(set_policy, ContainerId("a"), {"align": "cache"})
    assert node.ledger.grants[ContainerId("a")].cpus == cpus("2-5"), "two caches, and two of its CPUs in them"


def test_switching_off_gives_shared_containers_all_cpus() -> None:
    node = Played()
    node.create("web")
    node.create("a", 2, EXCLUSIVE)
    assert release_pool(MACHINE, node.ledger) == ((SideUpdate(ContainerId("web"), cpus("0-7")),), ("web/pod/a",))
