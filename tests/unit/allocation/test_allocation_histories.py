"""What must hold in every history of a node: calls of the runtime, with crashes and replays at every step.

The node here is a plain model of a container runtime: it asks vmpin at each call, applies what is answered in NRI's
order, keeps cpusets and annotations over restarts, and lists them at Synchronize.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from vmpin.allocation.allocation_options import AllocationMode, AllocationOptions, GroupRule
from vmpin.allocation.cpu_request import CpuPolicy
from vmpin.allocation.decisions import due_updates, on_create, on_pod_end, on_remove, on_start, on_stop, on_update
from vmpin.allocation.ledger import Grant, GrantState, Ledger
from vmpin.allocation.live.annotation_changes import follow_annotations
from vmpin.allocation.live_change import set_policy
from vmpin.allocation.pool_cpus import pool, target, with_written
from vmpin.allocation.runtime_call import Answer, Listed, RequestedContainer, SideUpdate
from vmpin.allocation.spare_set import vcpus_of
from vmpin.allocation.synchronizing import on_online_changed, on_synchronize
from vmpin.allocation.texts.ledger_text import from_data, to_data
from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import ContainerId, ContainerState, SandboxId
from vmpin.domain.topology import Topology

_SHARED = (CpuPolicy.NONE, CpuPolicy.NUMA, CpuPolicy.INFRA)
_CREATED, _RUNNING = ContainerState.CREATED, ContainerState.RUNNING


class Crash(Exception):
    """vmpin or the runtime is killed at this point."""


class ModelNode:
    """A runtime and vmpin. `crash_at`: the number of the step within a call at which vmpin or the runtime is killed; 0
    for never."""

    def __init__(self, machine: Topology, options: AllocationOptions) -> None:
        self.machine, self.options = machine, options
        self.ledger = Ledger()
        self.containers: dict[ContainerId, RequestedContainer] = {}
        self.sandboxes: dict[SandboxId, bool] = {}
        self.clock = 0
        self.crash_at = 0
        #: Containers whose next side update fails, as containerd then only logs.
        self.failing: set[ContainerId] = set()
        #: Those whose update has failed since they were read back.
        self.lagging: set[ContainerId] = set()

    def _step(self) -> None:
        self.crash_at -= 1
        if self.crash_at == 0:
            raise Crash

    def keep(self, ledger: Ledger) -> None:
        self._step()
        data = json.loads(json.dumps(to_data(ledger)))
        self.ledger = from_data(data)
        assert self.ledger == ledger
        self._step()

    def write(self, updates: Iterable[SideUpdate], failing: bool = True) -> None:
        for update in updates:
            self._step()
            assert update.cpus
            assert update.cpus <= self.machine.online
            if failing and update.container in self.failing:
                self.failing.discard(update.container)
                self.lagging.add(update.container)
                continue
            if update.container in self.containers:
                self._set(update.container, update.cpus)

    def _set(self, container: ContainerId, cpus: CpuSet) -> None:
        had = self.containers[container].cpuset
        self.containers[container] = self.containers[container]._replace(cpuset=cpus)
        self.check_added(container, cpus - had if had else cpus)

    def check_added(self, container: ContainerId, added: CpuSet) -> None:
        """With each single write no container gets a CPU that is another's own, or that is to be its own while
        another still has it. A container that was created without vmpin is on all CPUs until it has a cpuset."""
        mine = self.ledger.grants.get(container)
        for other, theirs in self.containers.items():
            grant = self.ledger.grants.get(other)
            if other == container or not theirs.cpuset or other in self.lagging or grant is None:
                continue
            if mine is None or (mine.group and mine.group == grant.group):
                continue
            assert added.isdisjoint(grant.out_of_pool), (container, str(added), other, str(grant.out_of_pool))
            assert (added & mine.out_of_pool).isdisjoint(theirs.cpuset), (container, str(added), other)

    def check_written(self) -> None:
        """Once every update is done, no container's cpuset has another's own CPUs."""
        for one in self.containers:
            grant = self.ledger.grants.get(one)
            for other, theirs in self.containers.items():
                known = self.ledger.grants.get(other)
                if grant is None or known is None or other == one or (grant.group and known.group == grant.group):
                    continue
                assert grant.out_of_pool.isdisjoint(theirs.cpuset or EMPTY), (one, str(grant.out_of_pool), other)

    def check(self) -> None:
        """What holds after every call."""
        ledger, machine = self.ledger, self.machine
        live = [grant for grant in ledger.grants.values() if grant.live]
        for number, grant in enumerate(live):
            for other in live[number + 1:]:
                assert grant.held.isdisjoint(other.held)
        by_pod: dict[SandboxId, CpuSet] = {}
        for grant in ledger.grants.values():
            by_pod[grant.sandbox] = by_pod.get(grant.sandbox, EMPTY) | grant.held
        assert sum(map(len, by_pod.values())) == len(union(by_pod.values()))
        whole = pool(machine, ledger, self.options)
        assert whole
        assert whole.isdisjoint(machine.isolated)
        assert whole.isdisjoint(ledger.out_of_pool())
        assert ledger.shared
        assert ledger.shared <= whole
        assert len(whole - ledger.shared) <= self.options.pool_headroom
        for grant in ledger.grants.values():
            if grant.policy in (CpuPolicy.EXCLUSIVE, CpuPolicy.FIXED) and not grant.left_alone:
                assert len(grant.cpus) == grant.amount.size
                assert grant.held.isdisjoint(self.options.reserved)
            if not grant.own_spare:
                assert grant.spare <= whole
        self._check_spare_sets(live, whole)

    def _check_spare_sets(self, live: list[Grant], whole: CpuSet) -> None:
        for sandbox in {grant.sandbox for grant in live if grant.vm}:
            grants = [grant for grant in live if grant.sandbox == sandbox]
            own = union(grant.cpus for grant in grants if grant.policy in (CpuPolicy.EXCLUSIVE, CpuPolicy.FIXED))
            spare = union(grant.spare for grant in grants)
            carriers = [grant for grant in grants if grant.spare]
            assert len(carriers) <= 1
            assert spare.isdisjoint(own)
            if not own:
                assert not spare
            elif {grant.wish.spare for grant in grants} == {"match"}:
                assert len(own | spare) == max(len(own), min(vcpus_of(grants), len(own | whole)))
            if carriers and carriers[0].own_spare:
                assert len(spare) == carriers[0].vm_overhead
                assert spare.isdisjoint(whole)

    # What happens.

    def create(self, requested: RequestedContainer, replay: bool = False) -> str:
        """The runtime's CreateContainer; its failure is undone with StopContainer and RemoveContainer."""
        self.clock += 1
        requested = requested._replace(time_ns=self.clock)
        before = self.ledger
        answer = on_create(self.machine, before, requested, self.options)
        self.check_pure(answer, on_create(self.machine, shuffled(before), requested, self.options))
        if answer.refusal:
            assert answer.ledger.grants == before.grants
            self.keep(answer.ledger)
            return answer.refusal
        self.keep(answer.ledger)
        if replay:
            again = on_create(self.machine, self.ledger, requested, self.options)
            assert again.ledger == self.ledger
            assert again.adjustment == answer.adjustment
        self.write(answer.updates)
        assert answer.adjustment is not None
        made = requested._replace(annotations=answer.adjustment.annotations, cpuset=answer.adjustment.cpus,
                                  mems=answer.adjustment.mems)
        if made.vm and made.quota is None:
            assert made.cpuset is None
        self.containers[made.id] = made
        self.check_added(made.id, made.cpuset or EMPTY)
        return ""

    def check_pure(self, one: Answer, other: Answer) -> None:
        """The same input, its maps in another order, gives the same answer."""
        assert one == other

    def start(self, container: ContainerId) -> None:
        self.containers[container] = self.containers[container]._replace(state=_RUNNING)
        self.keep(on_start(self.machine, self.ledger, self.containers[container], self.options).ledger)

    def update(self, container: ContainerId, cpus: int) -> None:
        old = self.containers[container]
        new = old._replace(shares=1024 * cpus, quota=100_000 * cpus, cpuset=None)
        before = self.ledger
        answer = on_update(self.machine, before, new, self.options)
        if answer.refusal:
            assert answer.ledger.grants == before.grants
            self.keep(answer.ledger)
            return
        was, now = before.grants[container], answer.ledger.grants[container]
        assert was.cpus <= now.cpus or now.cpus <= was.cpus
        # Should vmpin be killed now, the runtime goes on without it.
        self.containers[container] = new._replace(cpuset=old.cpuset)
        self.keep(answer.ledger)
        self.write(answer.updates)

    def stop(self, container: ContainerId, remove: bool) -> None:
        sandbox = self.containers.pop(container).sandbox
        answer = on_stop(self.machine, self.ledger, container, self.options)
        own = [other for other in answer.ledger.grants.values() if other.own_spare]
        assert answer.ledger.held() <= self.ledger.held() | union(other.spare for other in own)
        grant = self.ledger.grants.get(container)
        if grant is not None and grant.state is GrantState.RUNNING:
            held = union(grant.cpus for grant in answer.ledger.grants.values() if grant.sandbox == sandbox)
            assert grant.cpus <= held, "the pod keeps its CPUs"
        self.keep(answer.ledger)
        self.write(answer.updates)
        if remove:
            self.keep(on_remove(self.machine, self.ledger, container, self.options).ledger)

    def end(self, sandbox: SandboxId) -> None:
        for container in [key for key, one in self.containers.items() if one.sandbox == sandbox]:
            self.stop(container, remove=True)
        del self.sandboxes[sandbox]
        self.keep(on_pod_end(self.machine, self.ledger, sandbox, self.options).ledger)
        assert not self.ledger.of_sandbox(sandbox)

    def by_cri(self) -> None:
        """The cgroups are read back, and then come the later updates, one by one; each comes back as
        UpdateContainer."""
        self.read_back()
        for update in due_updates(self.machine, self.ledger, self.options):
            one = self.containers.get(update.container)
            if one is None:
                continue
            asked = one._replace(shares=None, quota=None, cpuset=update.cpus)
            answer = on_update(self.machine, self.ledger, asked, self.options)
            assert not answer.refusal
            own = [each.cpus for each in answer.updates if each.container == update.container]
            self.write([each for each in answer.updates if each.container != update.container])
            self._set(update.container, own[-1] if own else update.cpus)
            self.keep(with_written(answer.ledger, update.container, self.containers[update.container].cpuset))
        assert due_updates(self.machine, self.ledger, self.options) == ()
        self.check_written()

    def change(self, container: ContainerId, changes: Mapping[str, str]) -> None:
        answer = set_policy(self.machine, self.ledger, container, changes, self.options)
        if answer.refusal:
            assert answer.ledger == self.ledger
            return
        self.keep(answer.ledger)
        self.by_cri()

    def annotate(self, container: ContainerId, annotations: Mapping[str, str]) -> None:
        """The pod's annotations were changed."""
        before = self.ledger
        answer = follow_annotations(self.machine, before, container, annotations, self.options, self.clock)
        self.check_pure(answer, follow_annotations(self.machine, shuffled(before), container, annotations,
                                                   self.options, self.clock))
        if answer.refusal:
            assert not answer.updates
            assert self.without_digests(answer.ledger) == self.without_digests(before)
        again = follow_annotations(self.machine, answer.ledger, container, annotations, self.options, self.clock)
        assert again == Answer(answer.ledger), "the same text acts once"
        self.keep(answer.ledger)
        self.by_cri()

    @staticmethod
    def without_digests(ledger: Ledger) -> object:
        return {key: grant._replace(annotated="") for key, grant in ledger.grants.items()}, ledger.shared

    def synchronize(self, lost: bool) -> None:
        """vmpin starts, and the runtime lists its containers: with the ledger's file, or without it."""
        listed = Listed(frozenset(self.sandboxes), tuple(self.containers.values()))
        before = self.ledger
        answer = on_synchronize(self.machine, listed, None if lost else before, self.options)
        again = Listed(listed.sandboxes, tuple(reversed(listed.containers)))
        self.check_pure(answer, on_synchronize(self.machine, again, None if lost else shuffled(before), self.options))
        for key, grant in answer.ledger.grants.items():
            if key in before.grants and before.grants[key].live and grant.live and not lost:
                # A resize that vmpin missed grows or shrinks in place.
                was, size = before.grants[key], before.grants[key].amount.size
                assert grant.cpus == was.cpus if grant.amount.size == size else (
                    grant.cpus <= was.cpus if grant.amount.size < size else grant.cpus >= was.cpus)
        self.lagging = set()
        self.keep(answer.ledger)
        self.write(answer.updates, failing=False)
        self.check_written()
        for _ in range(2):  # After a lost update and a lost call, the list cannot be told from an old one at first.
            again = Listed(listed.sandboxes, tuple(self.containers.values()))
            second = on_synchronize(self.machine, again, self.ledger, self.options)
            same, self.ledger = second.ledger == self.ledger and not second.updates, second.ledger
            if same:
                break
            assert not lost
            self.write(second.updates, failing=False)
        else:
            raise AssertionError("the same list changes the ledger again and again")

    def read_back(self) -> None:
        for key, one in self.containers.items():
            if key in self.ledger.grants and not self.ledger.grants[key].left_alone:
                self.ledger = with_written(self.ledger, key, one.cpuset)
        self.lagging = set()


def shuffled(ledger: Ledger) -> Ledger:
    return ledger._replace(grants=dict(reversed(list(ledger.grants.items()))))


MACHINES = [
    Topology.build(CpuSet(range(8)), cores=[CpuSet((n, n + 1)) for n in range(0, 8, 2)],
                   nodes={0: CpuSet(range(4)), 1: CpuSet(range(4, 8))},
                   distances={0: {0: 10, 1: 21}, 1: {0: 21, 1: 10}}),
    Topology.build(CpuSet(range(12)), cores=[CpuSet((n, n + 6)) for n in range(6)],
                   caches=[CpuSet((0, 1, 2, 6, 7, 8)), CpuSet((3, 4, 5, 9, 10, 11))],
                   nodes={0: CpuSet((0, 1, 2, 6, 7, 8)), 1: CpuSet((3, 4, 5, 9, 10, 11))}, isolated=CpuSet((5, 11))),
    Topology.build(CpuSet(range(5))),
]
POLICIES = ["none", "exclusive", "exclusive", "exclusive", "fixed", "numa", "infra", "group:a", "group:set"]


@st.composite
def options(draw: st.DrawFn) -> AllocationOptions:
    reserved = draw(st.sampled_from([EMPTY, CpuSet((0,)), CpuSet((0, 1))]))
    return AllocationOptions(
        mode=AllocationMode.ON, reserved=reserved, strict_reserved=bool(reserved) and draw(st.booleans()),
        pool_headroom=draw(st.sampled_from([0, 0, 1, 3])), privileged_namespaces=frozenset({"a"}),
        groups={"set": GroupRule(CpuSet((3,)))} if draw(st.booleans()) else {})


def drawn_container(draw: Any, node: ModelNode, number: int) -> RequestedContainer:
    sandbox = draw(st.sampled_from(sorted(node.sandboxes)))
    cpus = draw(st.sampled_from([0, 1, 1, 2, 3, 5]))
    name = f"c{number % 3}"
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
@given(st.data(), st.sampled_from(MACHINES), options())
def test_whatever_happens_no_cpu_is_two_containers_own(data: st.DataObject, machine: Topology,
                                                       chosen: AllocationOptions) -> None:
    node = ModelNode(machine, chosen)
    for number in range(data.draw(st.integers(1, 25))):
        event(one_step(data.draw, node, number))
        if node.ledger.grants:
            node.check()


@settings(max_examples=120)
@given(st.data(), st.sampled_from(MACHINES), options())
def test_killed_at_any_step_vmpin_leaves_no_overlap_and_no_leak(data: st.DataObject, machine: Topology,
                                                                chosen: AllocationOptions) -> None:
    """Where vmpin dies before it answers a creation, the runtime creates the container without it."""
    node = ModelNode(machine, chosen)
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
    assert len(pool(machine, node.ledger, chosen) - node.ledger.shared) <= chosen.pool_headroom


@settings(max_examples=120)
@given(st.data(), st.sampled_from(MACHINES), options())
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


@given(st.data(), st.sampled_from(MACHINES), options())
def test_creating_and_removing_leaves_everything_as_before(data: st.DataObject, machine: Topology,
                                                           chosen: AllocationOptions) -> None:
    node = ModelNode(machine, chosen)
    for number in range(data.draw(st.integers(1, 12))):
        one_step(data.draw, node, number)
    if not node.sandboxes:
        return
    before = node.ledger
    requested = drawn_container(data.draw, node, 99)
    if node.create(requested):
        return
    node.stop(requested.id, remove=True)
    own = {key: (grant.cpus, grant.state, grant.policy) for key, grant in before.grants.items()}
    assert own == {key: (grant.cpus, grant.state, grant.policy) for key, grant in node.ledger.grants.items()}
    assert pool(machine, before, chosen) == pool(machine, node.ledger, chosen)
    for key, grant in before.grants.items():
        assert len(grant.spare) == len(node.ledger.grants[key].spare)


@given(st.data(), st.sampled_from(MACHINES), options())
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
