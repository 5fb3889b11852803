"""A plain model of a container runtime, with vmpin's allocator.

The runtime asks vmpin at each call, applies what is answered in NRI's order, keeps cpusets and annotations over
restarts, and lists them at Synchronize.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from hypothesis import strategies as st

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import ContainerId, ContainerState, SandboxId
from vmpin.domain.runtime_call import Listed, RequestedContainer, SideUpdate
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants import decisions
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions, GroupRule
from vmpin.features.allocator.grants.cpu_request import CpuPolicy
from vmpin.features.allocator.grants.ledger import Answer, Grant, GrantState, Ledger
from vmpin.features.allocator.grants.live_change import follow_annotations, set_policy
from vmpin.features.allocator.grants.placing import kata_vcpus
from vmpin.features.allocator.grants.pool_cpus import due, pool, with_written
from vmpin.features.allocator.grants.synchronizing import on_synchronize
from vmpin.features.allocator.texts.grant_data import from_data, to_data

_RUNNING = ContainerState.RUNNING
#: Cores of two threads on two nodes; and with caches, and isolated CPUs.
MACHINES = [
    Topology.build(CpuSet(range(8)), cores=[CpuSet((n, n + 1)) for n in range(0, 8, 2)],
                   nodes={0: CpuSet(range(4)), 1: CpuSet(range(4, 8))},
                   distances={0: {0: 10, 1: 21}, 1: {0: 21, 1: 10}}),
    Topology.build(CpuSet(range(12)), cores=[CpuSet((n, n + 6)) for n in range(6)],
                   caches=[CpuSet((0, 1, 2, 6, 7, 8)), CpuSet((3, 4, 5, 9, 10, 11))],
                   nodes={0: CpuSet((0, 1, 2, 6, 7, 8)), 1: CpuSet((3, 4, 5, 9, 10, 11))}, isolated=CpuSet((5, 11))),
    Topology.build(CpuSet(range(16)), nodes={0: CpuSet(range(8)), 1: CpuSet(range(8, 16))}),
]


@st.composite
def option_sets(draw: st.DrawFn) -> AllocationOptions:
    reserved = draw(st.sampled_from([EMPTY, CpuSet((0,)), CpuSet((0, 1))]))
    return AllocationOptions(
        mode=AllocationMode.ON, reserved=reserved, strict_reserved=bool(reserved) and draw(st.booleans()),
        pool_headroom=draw(st.sampled_from([0, None, 1, 3])), privileged_namespaces=frozenset({"a"}),
        groups={"set": GroupRule(CpuSet((3,)))} if draw(st.booleans()) else {})


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
        anew = shuffled(ledger)
        assert ledger.version.holdings == anew.version.holdings
        assert ledger.version.pool_load == anew.version.pool_load
        assert due(machine, ledger, self.options) == due(machine, anew, self.options)
        whole = pool(machine, ledger, self.options)
        assert whole
        assert whole.isdisjoint(machine.isolated)
        assert whole.isdisjoint(ledger.out_of_pool())
        assert ledger.shared
        assert ledger.shared <= whole
        self.check_headroom(whole)
        for grant in ledger.grants.values():
            if grant.policy in (CpuPolicy.EXCLUSIVE, CpuPolicy.FIXED) and not grant.left_alone:
                assert len(grant.cpus) == grant.amount.size
                assert grant.held.isdisjoint(self.options.reserved)
            if not grant.own_spare:
                assert grant.spare <= whole
        self._check_spare_sets(live, whole)

    def check_headroom(self, whole: CpuSet) -> None:
        """No more than configured, and with `auto` none that the pool's containers request."""
        most, live = self.options.pool_headroom, [grant for grant in self.ledger.grants.values() if grant.live]
        if most is None:
            requested = sum(grant.amount.request for grant in live if not grant.out_of_pool
                            and grant.policy in (CpuPolicy.NONE, CpuPolicy.NUMA, CpuPolicy.FIXED))
            most = max(0, min(len(self.machine.online) // 8, len(whole) // 4, (1000 * len(whole) - requested) // 1000))
        assert len(whole - self.ledger.shared) <= most

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
                assert len(own | spare) == max(len(own), min(kata_vcpus(grants), len(own | whole)))
            if carriers and carriers[0].own_spare:
                assert len(spare) == carriers[0].vm_overhead
                assert spare.isdisjoint(whole)

    # What happens.

    def crowd(self, count: int) -> None:
        """A pod with so many shared containers that run."""
        self.sandboxes[SandboxId("a-crowd")] = False
        for number in range(count):
            name = ContainerId(f"crowd{number}")
            assert not self.create(RequestedContainer(name, SandboxId("a-crowd"), name, "a", "crowd", "uid-crowd",
                                                      shares=2))
            self.start(name)

    def create(self, requested: RequestedContainer, replay: bool = False) -> str:
        """The runtime's CreateContainer; its failure is undone with StopContainer and RemoveContainer."""
        self.clock += 1
        requested = requested._replace(time_ns=self.clock)
        before = self.ledger
        answer = decisions.on_create(self.machine, before, requested, self.options)
        self.check_pure(answer, decisions.on_create(self.machine, shuffled(before), requested, self.options))
        if answer.refusal:
            assert answer.ledger.grants == before.grants
            self.keep(answer.ledger)
            return answer.refusal
        for key in before.grants.keys() - answer.ledger.grants.keys():
            # It was made before it, as the same container of the pod, and has not started: it is gone before the next
            # one is asked for.
            never = before.grants[key]
            assert (never.sandbox, never.name) == (requested.sandbox, requested.name)
            assert never.state is GrantState.RESERVED
            self.containers.pop(key, None)
        self.keep(answer.ledger)
        if replay:
            again = decisions.on_create(self.machine, self.ledger, requested, self.options)
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
        self.keep(decisions.on_start(self.machine, self.ledger, self.containers[container], self.options).ledger)

    def update(self, container: ContainerId, cpus: int) -> None:
        old = self.containers[container]
        new = old._replace(shares=1024 * cpus, quota=100_000 * cpus, cpuset=None)
        before = self.ledger
        answer = decisions.on_update(self.machine, before, new, self.options)
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

    def miss(self, container: ContainerId, cpus: int) -> None:
        """The container is resized while vmpin does not run."""
        self.containers[container] = self.containers[container]._replace(shares=1024 * cpus, quota=100_000 * cpus)

    def stop(self, container: ContainerId, remove: bool) -> None:
        sandbox = self.containers.pop(container).sandbox
        answer = decisions.on_stop(self.machine, self.ledger, container, self.options)
        own = [other for other in answer.ledger.grants.values() if other.own_spare]
        assert answer.ledger.held() <= self.ledger.held() | union(other.spare for other in own)
        grant = self.ledger.grants.get(container)
        if grant is not None and grant.state is GrantState.RUNNING:
            held = union(grant.cpus for grant in answer.ledger.grants.values() if grant.sandbox == sandbox)
            assert grant.cpus <= held, "the pod keeps its CPUs"
        self.keep(answer.ledger)
        self.write(answer.updates)
        if remove:
            self.keep(decisions.on_remove(self.machine, self.ledger, container, self.options).ledger)

    def end(self, sandbox: SandboxId) -> None:
        for container in [key for key, one in self.containers.items() if one.sandbox == sandbox]:
            self.stop(container, remove=True)
        del self.sandboxes[sandbox]
        self.keep(decisions.on_pod_end(self.machine, self.ledger, sandbox, self.options).ledger)
        assert not self.ledger.of_sandbox(sandbox)

    def by_cri(self) -> None:
        """The cgroups are read back, and then come the later updates, one by one; each comes back as
        UpdateContainer."""
        self.read_back()
        for update in decisions.due_updates(self.machine, self.ledger, self.options):
            one = self.containers.get(update.container)
            if one is None:
                continue
            asked = one._replace(shares=None, quota=None, cpuset=update.cpus)
            answer = decisions.on_update(self.machine, self.ledger, asked, self.options)
            assert not answer.refusal
            own = [each.cpus for each in answer.updates if each.container == update.container]
            self.write([each for each in answer.updates if each.container != update.container])
            self._set(update.container, own[-1] if own else update.cpus)
            self.keep(with_written(answer.ledger, update.container, self.containers[update.container].cpuset))
        assert decisions.due_updates(self.machine, self.ledger, self.options) == ()
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
        for _ in range(2):  # After a lost update and a lost call, the list looks like an old one at first.
            again = Listed(listed.sandboxes, tuple(self.containers.values()))
            second = on_synchronize(self.machine, again, self.ledger, self.options)
            # What is refused again may have other numbers in its reason.
            same = second.ledger._replace(refused=self.ledger.refused) == self.ledger and not second.updates
            self.ledger = second.ledger
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
