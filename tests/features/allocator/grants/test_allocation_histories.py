"""What must hold in every history of a node: calls of the runtime, with crashes and replays at every step."""

from __future__ import annotations

from typing import Any

import pytest
from allocation_model import MACHINES as MODEL_MACHINES
from allocation_model import Crash, ModelNode, option_sets
from hypothesis import event, given, settings
from hypothesis import strategies as st

from vmpin.cpuset import CpuSet, union
from vmpin.domain.model import ContainerId, ContainerState, SandboxId
from vmpin.domain.runtime_call import RequestedContainer
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions, GroupRule
from vmpin.features.allocator.grants.cpu_request import CpuPolicy
from vmpin.features.allocator.grants.decisions import due_updates
from vmpin.features.allocator.grants.ledger import GrantState
from vmpin.features.allocator.grants.pool_cpus import pool, target, with_written
from vmpin.features.allocator.grants.synchronizing import on_online_changed

MACHINES = [*MODEL_MACHINES, Topology.build(CpuSet(range(5)))]
POLICIES = ["none", "exclusive", "exclusive", "exclusive", "fixed", "numa", "infra", "group:a", "group:set"]


def drawn_container(draw: Any, node: ModelNode, number: int, name: str = "") -> RequestedContainer:
    sandbox = draw(st.sampled_from(sorted(node.sandboxes)))
    cpus = draw(st.sampled_from([0, 1, 1, 2, 3, 5]))
    name = name or f"c{number % 3}"
    annotations = drawn_annotations(draw, f"container.{name}")
    vm = node.sandboxes[sandbox]
    return RequestedContainer(
        ContainerId(f"id{number}"), sandbox, name, sandbox[0], sandbox, f"uid-{sandbox}", {}, annotations,
        shares=1024 * cpus or 2, quota=100_000 * cpus or None, period=100_000, vm=vm, vm_vcpus=1 if vm else None,
        vm_overhead=int(vm))


def drawn_annotations(draw: Any, whose: str) -> dict[str, str]:
    found = {f"cpu-policy.vmpin.io/{whose}": draw(st.sampled_from(POLICIES))}
    found["cpu-align.vmpin.io"] = draw(st.sampled_from(["node", "cache", "node!", "core"]))
    found["cpu-kind.vmpin.io"] = draw(st.sampled_from(["any", "any", "any", "isolated"]))
    found["cpu-spare.vmpin.io"] = draw(st.sampled_from(["match", "match", "0", "2", "own"]))
    return found


def one_step(draw: Any, node: ModelNode, number: int) -> str:
    """Draw a step and carry it out. :returns: its name."""
    steps = ["pod"] if not node.sandboxes else ["pod", "create", "create", "create", "create", "end", "synchronize"]
    if node.containers:
        steps += ["start", "start", "update", "stop", "cri", "change", "annotate", "fail"]
    step = str(draw(st.sampled_from(steps)))
    container = draw(st.sampled_from(sorted(node.containers))) if node.containers else ContainerId("")
    match step:
        case "pod":
            node.sandboxes[SandboxId(f"{'ab'[number % 2]}{number}")] = draw(st.booleans())
        case "create":
            node.create(drawn_container(draw, node, number), replay=draw(st.booleans()))
        case "end":
            node.end(draw(st.sampled_from(sorted(node.sandboxes))))
        case "synchronize":
            node.synchronize(lost=False)
        case "start":
            node.start(container)
        case "fail":
            node.failing.add(container)
        case "update":
            node.update(container, draw(st.integers(1, 4)))
        case "stop":
            node.stop(container, remove=draw(st.booleans()))
        case "cri":
            node.by_cri()
        case "change":
            node.change(container, {"policy": draw(st.sampled_from(POLICIES))})
        case "annotate":
            node.annotate(container, drawn_annotations(draw, "pod"))
    return step


@settings(max_examples=120)
@given(st.data(), st.sampled_from(MACHINES), option_sets())
def test_whatever_happens_no_cpu_is_two_containers_own(data: st.DataObject, machine: Topology,
                                                       chosen: AllocationOptions) -> None:
    node = ModelNode(machine, chosen)
    node.crowd(data.draw(st.sampled_from([0, 0, 8])))
    for number in range(data.draw(st.integers(1, 25))):
        event(one_step(data.draw, node, number))
        if node.ledger.grants:
            node.check()


def test_one_of_the_pool_leaves_before_its_cpus_become_anothers_own() -> None:
    """Also where the only CPUs that are left to it are those which the other one is yet to leave: a found history."""
    node = ModelNode(MACHINES[0], AllocationOptions(
        AllocationMode.ON, reserved=CpuSet((0, 1)), privileged_namespaces=frozenset({"a"}),
        groups={"set": GroupRule(CpuSet((3,)))}))
    node.sandboxes[SandboxId("a0")] = False
    for name, cpus, policy in (("gone", 1, "exclusive"), ("stays", 0, "numa"), ("moves", 0, "infra")):
        assert node.create(RequestedContainer(
            ContainerId(name), SandboxId("a0"), name, "a", "a0", "uid", {},
            {f"cpu-policy.vmpin.io/container.{name}": policy}, shares=1024 * cpus or 2, quota=100_000 * cpus or None,
            period=100_000)) == ""
        if name == "gone":
            node.start(ContainerId(name))
            node.stop(ContainerId(name), remove=False)
    node.update(ContainerId("moves"), 4)
    node.change(ContainerId("moves"), {"policy": "exclusive"})
    assert {str(key): str(one.cpuset) for key, one in node.containers.items()} == {"stays": "0-1", "moves": "4-7"}


@settings(max_examples=120)
@given(st.data(), st.sampled_from(MACHINES), option_sets())
def test_killed_at_any_step_vmpin_leaves_no_overlap_and_no_leak(data: st.DataObject, machine: Topology,
                                                                chosen: AllocationOptions) -> None:
    """Where vmpin dies before it answers a creation, the runtime creates the container without it."""
    node = ModelNode(machine, chosen)
    node.crowd(data.draw(st.sampled_from([0, 0, 8])))
    for number in range(data.draw(st.integers(1, 15))):
        node.crash_at = data.draw(st.sampled_from([0, 0, 1, 2, 3, 4]))
        try:
            one_step(data.draw, node, number)
        except Crash:
            node.crash_at = 0
            for key, grant in node.ledger.grants.items():
                if grant.live and key not in node.containers and grant.sandbox in node.sandboxes and grant.state is (
                        GrantState.RESERVED) and data.draw(st.booleans()):
                    node.containers[key] = RequestedContainer(
                        key, grant.sandbox, grant.name, grant.namespace, grant.pod, grant.pod_uid,
                        shares=grant.amount.request * 1024 // 1000, quota=grant.amount.limit * 100 or None,
                        period=100_000, vm=grant.vm, vm_vcpus=grant.vm_vcpus)
            node.synchronize(lost=False)
        node.crash_at = 0
        if node.ledger.grants:
            node.check()
    for sandbox in sorted(node.sandboxes):
        node.end(sandbox)
    assert not node.ledger.grants
    node.synchronize(lost=False)
    node.check_headroom(pool(machine, node.ledger, chosen))


@settings(max_examples=120)
@given(st.data(), st.sampled_from(MACHINES), option_sets())
def test_a_lost_ledger_is_rebuilt_and_nothing_moves(data: st.DataObject, machine: Topology,
                                                    chosen: AllocationOptions) -> None:
    node = ModelNode(machine, chosen)
    for number in range(data.draw(st.integers(1, 20))):
        step = one_step(data.draw, node, number)
        if step in ("change", "annotate"):  # The container's annotation has the old policy then.
            return
    if node.containers:
        node.by_cri()
    before = node.ledger
    cpusets = {key: one.cpuset for key, one in node.containers.items()}
    lapsed = any(not grant.live for grant in before.grants.values())
    node.synchronize(lost=True)
    for key, grant in before.grants.items():
        if grant.live:
            assert node.ledger.grants[key].cpus == grant.cpus or grant.vm or grant.group
            assert node.ledger.grants[key].policy is grant.policy
            assert len(node.ledger.grants[key].cpus) == len(grant.cpus)
    if not lapsed:
        node.check()
        same = {key: one.cpuset for key, one in node.containers.items()
                if before.grants[key].policy not in (CpuPolicy.NONE, CpuPolicy.NUMA)}
        assert same == {key: cpusets[key] for key in same}


@pytest.mark.parametrize("steps", [
    ["create id1 5", "update id1 2", "create id5 3"],  # A found history: id1's annotation has the CPUs of both.
    ["create id1 1", "create id2 1", "update id1 3"],
    ["create id1 3", "create id2 3", "create id3 1", "update id1 1", "update id2 4"],
])
def test_a_lost_ledger_leaves_the_members_of_a_group_as_they_are(steps: list[str]) -> None:
    """Also where the CPUs in their annotations are other members' by now."""
    node = ModelNode(MODEL_MACHINES[0], AllocationOptions(AllocationMode.ON))
    node.sandboxes[SandboxId("a0")] = False
    node.create(RequestedContainer(ContainerId("shared"), SandboxId("a0"), "shared", "a", shares=2))
    for step, name, cpus in (line.split() for line in steps):
        container, size = ContainerId(name), int(cpus)
        if step == "update":
            node.update(container, size)
        else:
            assert not node.create(RequestedContainer(
                container, SandboxId("a0"), name, "a", "a0", "uid", {}, {
                    f"cpu-policy.vmpin.io/container.{name}": "group:a"}, 1024 * size, 100_000 * size, 100_000))
    node.by_cri()
    before, containers = node.ledger, dict(node.containers)
    node.synchronize(lost=True)
    node.check()
    assert node.containers == containers
    assert node.ledger.shared == before.shared
    for key, grant in before.grants.items():
        again = node.ledger.grants[key]
        assert (again.group, again.left_alone, len(again.cpus)) == (grant.group, False, len(grant.cpus))


def test_a_lost_ledger_leaves_a_fixed_container_its_cpu_in_a_vms_spare_set() -> None:
    """A found history: the VM's own CPUs and its spare one have changed since its annotation was written."""
    node = ModelNode(MODEL_MACHINES[0], AllocationOptions(AllocationMode.ON))
    for name, size, policy in (("vm", 1, "exclusive"), ("pod", 1, "fixed")):
        node.sandboxes[SandboxId(name)] = name == "vm"
        vm = node.sandboxes[SandboxId(name)]
        assert not node.create(RequestedContainer(
            ContainerId(name), SandboxId(name), name, "a", name, name, {}, {"cpu-policy.vmpin.io": policy},
            1024 * size, 100_000 * size, 100_000, vm=vm, vm_vcpus=1 if vm else None))
        if vm:
            node.start(ContainerId(name))
            node.update(ContainerId(name), 2)
    node.by_cri()
    before = {key: (grant.policy, str(grant.cpus), str(grant.spare)) for key, grant in node.ledger.grants.items()}
    assert before == {ContainerId("vm"): ("exclusive", "0-1", "2"), ContainerId("pod"): ("fixed", "2", "")}
    node.synchronize(lost=True)
    assert before == {key: (grant.policy, str(grant.cpus), str(grant.spare))
                      for key, grant in node.ledger.grants.items()}


def test_a_lost_ledger_leaves_two_vms_their_fixed_cpus_where_spare_sets_cross() -> None:
    """A found history: each has a CPU of the other's as a spare one, and both have grown since they were created."""
    node = ModelNode(MODEL_MACHINES[0], AllocationOptions(AllocationMode.ON))
    for name, size, spare in ("one", 2, "match"), ("two", 3, "1"):
        node.sandboxes[SandboxId(name)] = True
        assert not node.create(RequestedContainer(
            ContainerId(name), SandboxId(name), name, "a", name, name, {},
            {"cpu-policy.vmpin.io": "fixed", "cpu-spare.vmpin.io": spare}, 1024 * size, 100_000 * size, 100_000,
            vm=True, vm_vcpus=1))
    for name in "two", "one":
        node.update(ContainerId(name), 4)
    node.by_cri()
    assert [str(grant.cpus) for grant in node.ledger.grants.values()] == ["0-3", "4-7"]
    cpusets = {key: one.cpuset for key, one in node.containers.items()}
    node.synchronize(lost=True)
    assert [(str(grant.policy), len(grant.cpus)) for grant in node.ledger.grants.values()] == [("fixed", 4)] * 2
    assert cpusets == {key: one.cpuset for key, one in node.containers.items()}


def test_a_lost_ledger_leaves_a_fixed_container_its_cpus_beside_its_predecessor() -> None:
    """The runtime still lists one of the same name, with the same CPUs, that could not be started."""
    node = ModelNode(MODEL_MACHINES[0], AllocationOptions(AllocationMode.ON))
    node.sandboxes[SandboxId("vm")] = True
    new, old = ContainerId("new"), ContainerId("old")
    assert not node.create(RequestedContainer(
        new, SandboxId("vm"), "web", "a", "vm", "vm", {}, {
            "cpu-policy.vmpin.io": "fixed", "cpu-spare.vmpin.io": "1"}, 2048, 200_000, 100_000, vm=True, vm_vcpus=1))
    node.start(new)
    node.by_cri()
    before = node.ledger.grants[new]
    node.containers[old] = node.containers[new]._replace(id=old, state=ContainerState.CREATED)
    node.synchronize(lost=True)
    after = node.ledger.grants[new]
    assert (after.cpus, after.spare) == (before.cpus, before.spare)
    assert [len(cpus) for cpus in (before.cpus, before.spare)] == [2, 1]


def test_a_set_that_leaves_the_pool_is_chosen_before_the_sets_of_the_pool() -> None:
    """The container that carries a set says whose it is; here another one of its VM wishes for one outside, too."""
    node = ModelNode(Topology.build(CpuSet(range(16))), AllocationOptions(
        AllocationMode.ON, groups={"set": GroupRule(CpuSet((3,)))}, privileged_namespaces=frozenset("a")))
    for pod, name, size, policy, spare in (("a", "one", 3, "exclusive", "2"), ("a", "two", 2, "group:set", "own"),
                                           ("b", "three", 2, "exclusive", "own")):
        node.sandboxes[SandboxId(pod)] = True
        assert not node.create(RequestedContainer(
            ContainerId(name), SandboxId(pod), name, "a", pod, pod, {},
            {"cpu-policy.vmpin.io": policy, "cpu-spare.vmpin.io": spare}, 1024 * size, 100_000 * size, 100_000,
            vm=True, vm_vcpus=1, vm_overhead=1))
    node.by_cri()
    grants = node.ledger.grants
    assert grants[ContainerId("three")].own_spare
    assert grants[ContainerId("one")].spare.isdisjoint(grants[ContainerId("three")].out_of_pool)


@settings(max_examples=120)
@given(st.data(), st.sampled_from(MACHINES), option_sets())
def test_a_ledger_lost_with_a_resize_gives_no_cpu_to_two(data: st.DataObject, machine: Topology,
                                                         chosen: AllocationOptions) -> None:
    node = ModelNode(machine, chosen)
    for number in range(data.draw(st.integers(1, 20))):
        if one_step(data.draw, node, number) in ("change", "annotate"):
            return
    if not node.containers or any(not grant.live for grant in node.ledger.grants.values()):
        return
    node.by_cri()
    for container in data.draw(st.lists(st.sampled_from(sorted(node.containers)), max_size=3)):
        node.miss(container, data.draw(st.integers(1, 4)))
    node.synchronize(lost=True)
    node.check()


@pytest.mark.parametrize(("policy", "steps", "cpus"), [
    ("group:a", ["create id1 1", "create id2 1", "miss id1 3"], {"id1": 3, "id2": 1}),
    ("group:a", ["create id1 1", "create id2 5", "miss id1 2"], {"id1": 2, "id2": 5}),
    ("group:a", ["create id1 1", "create id2 1", "update id1 3", "miss id2 2", "miss id1 1"], {"id1": 1, "id2": 2}),
    ("group:a", ["create id1 1", "update id1 2", "miss id1 4"], {"id1": 4}),
    ("exclusive", ["create id1 1", "create id2 1", "update id1 3", "miss id1 2"], {"id1": 2, "id2": 1}),
    ("exclusive", ["create id1 1", "update id1 2", "miss id1 4"], {"id1": 4}),
    ("exclusive", ["create id1 1", "update id1 2", "miss id1 8"], {"id1": 2}),  # refused, as CPU 0 is reserved
    ("fixed", ["create id1 1", "update id1 3", "miss id1 1"], {"id1": 1}),
])
def test_a_ledger_lost_with_a_resize_leaves_its_containers_their_cpus(policy: str, steps: list[str],
                                                                      cpus: dict[str, int]) -> None:
    node = ModelNode(MODEL_MACHINES[0], AllocationOptions(AllocationMode.ON, reserved=CpuSet((0,))))
    node.sandboxes[SandboxId("a0")] = False
    node.create(RequestedContainer(ContainerId("shared"), SandboxId("a0"), "shared", "a", shares=2))
    for step, name, size in (line.split() for line in steps):
        match step:
            case "create":
                assert not node.create(RequestedContainer(
                    ContainerId(name), SandboxId("a0"), name, "a", "a0", "uid", {}, {
                        f"cpu-policy.vmpin.io/container.{name}": policy},
                    1024 * int(size), 100_000 * int(size), 100_000))
            case "update":
                node.update(ContainerId(name), int(size))
            case "miss":
                node.miss(ContainerId(name), int(size))
    node.by_cri()
    before = node.ledger
    node.synchronize(lost=True)
    node.check()
    for name, number in cpus.items():
        was, now = before.grants[ContainerId(name)], node.ledger.grants[ContainerId(name)]
        assert (now.policy, now.group, now.left_alone, len(now.cpus)) == (was.policy, was.group, False, number)
    own = [union(grant.cpus for grant in ledger.grants.values()) for ledger in (before, node.ledger)]
    assert own[0] <= own[1] or own[1] <= own[0], "what they have grows or shrinks in place"


@given(st.data(), st.sampled_from(MACHINES), option_sets())
def test_creating_and_removing_leaves_everything_as_before(data: st.DataObject, machine: Topology,
                                                           chosen: AllocationOptions) -> None:
    node = ModelNode(machine, chosen)
    for number in range(data.draw(st.integers(1, 12))):
        one_step(data.draw, node, number)
    if not node.sandboxes:
        return
    before = node.ledger
    requested = drawn_container(data.draw, node, 99, "new")
    if node.create(requested):
        return
    node.stop(requested.id, remove=True)
    own = {key: (grant.cpus, grant.state, grant.policy) for key, grant in before.grants.items()}
    assert own == {key: (grant.cpus, grant.state, grant.policy) for key, grant in node.ledger.grants.items()}
    assert pool(machine, before, chosen) == pool(machine, node.ledger, chosen)
    for key, grant in before.grants.items():
        assert len(grant.spare) == len(node.ledger.grants[key].spare)


@given(st.data(), st.sampled_from(MACHINES), option_sets())
def test_a_cpu_that_goes_offline_stays_its_containers_own(data: st.DataObject, machine: Topology,
                                                          chosen: AllocationOptions) -> None:
    node = ModelNode(machine, chosen)
    for number in range(data.draw(st.integers(1, 15))):
        one_step(data.draw, node, number)
    if node.containers:
        node.by_cri()
    before = node.ledger
    cpu = data.draw(st.sampled_from(sorted(machine.online)))
    less = machine._replace(online=machine.online - CpuSet((cpu,)))
    gone = on_online_changed(less, before, chosen).ledger
    for update in due_updates(less, gone, chosen):
        assert cpu not in update.cpus
        gone = with_written(gone, update.container, update.cpus)
    back = on_online_changed(machine, gone, chosen).ledger
    for update in due_updates(machine, back, chosen):
        back = with_written(back, update.container, update.cpus)
    for key, grant in before.grants.items():
        assert gone.grants[key].cpus == grant.cpus == back.grants[key].cpus
        if grant.policy in (CpuPolicy.EXCLUSIVE, CpuPolicy.FIXED) and not grant.vm:
            assert target(machine, back, back.grants[key], chosen) == target(machine, before, grant, chosen)
    if not chosen.pool_headroom:
        assert back.shared == (before.shared or back.shared)


@pytest.mark.parametrize("machine", MACHINES)
def test_twelve_containers_come_and_go(machine: Topology) -> None:
    chosen = AllocationOptions(mode=AllocationMode.ON, reserved=CpuSet((0,)))
    node = ModelNode(machine, chosen)
    node.sandboxes[SandboxId("shared")] = False
    node.create(RequestedContainer(ContainerId("shared"), SandboxId("shared"), "shared", shares=2))
    for number in range(12):
        sandbox = SandboxId(f"pod{number}")
        node.sandboxes[sandbox] = False
        refused = node.create(RequestedContainer(
            ContainerId(f"id{number}"), sandbox, "c", "ns", sandbox, sandbox, {},
            {"cpu-policy.vmpin.io": "exclusive"}, 1024, 100_000, 100_000))
        node.check()
        if refused:
            assert "0 are free" in refused
            for gone in [one for one in sorted(node.sandboxes) if one != "shared"][:2]:
                node.end(gone)
                node.by_cri()
                node.check()
    for sandbox in [one for one in sorted(node.sandboxes) if one != "shared"]:
        node.end(sandbox)
    node.by_cri()
    assert node.containers[ContainerId("shared")].cpuset == machine.online - machine.isolated
