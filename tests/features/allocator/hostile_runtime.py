"""A container runtime, its pods' authors and its operator at their worst, around a real allocator with its file.

The runtime asks the allocator as NRI does, applies what is answered, and goes on without it where it is away. It keeps
cpusets and annotations, and lists what is not stopped. Names and uids repeat, annotations are hostile, updates fail,
vmpin is killed between any two steps, and its ledger is lost or damaged. What each container has been given stands in
`own`, apart from the ledger: that is what must not be given to another while it runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ContainerId, ContainerState, SandboxId
from vmpin.domain.runtime_call import Listed, RequestedContainer, SideUpdate
from vmpin.domain.topology import Topology
from vmpin.features.allocator.cpu_allocator import CpuAllocator
from vmpin.features.allocator.grants.allocation_options import AllocationOptions
from vmpin.features.allocator.grants.cpu_request import CpuPolicy
from vmpin.features.allocator.grants.ledger import Ledger
from vmpin.features.allocator.grants.pool_cpus import pool, target
from vmpin.features.allocator.ledger_file import LedgerFile
from vmpin.features.allocator.texts.grant_data import from_data, to_data
from vmpin.features.allocator.vm_size import VmSize
from vmpin.sources.nri.nri_events import ContainerEvent, NriContainer, NriPod, PodEvent
from vmpin.wire.nri_enums import RUNNING, Verb

_OWN = frozenset({CpuPolicy.EXCLUSIVE, CpuPolicy.FIXED})


class PodMade(NamedTuple):
    """A pod sandbox: names and uid may be those of others."""

    id: SandboxId
    namespace: str
    name: str
    uid: str
    vm: VmSize = VmSize()
    overhead: int = 0
    guaranteed: bool = False


@dataclass
class Kill:
    """vmpin is killed before it decides on a call, or after its decision and before its answer; or the runtime, after
    so many updates of the answer."""

    at: str = ""  #: "", "before", "after" or "runtime"
    updates: int = 0


@dataclass
class HostileRuntime:
    """:param machine: all of its CPUs are online at first."""

    machine: Topology
    options: AllocationOptions
    path: Path
    allocator: CpuAllocator | None = None  #: None: vmpin is away.
    pods: dict[SandboxId, PodMade] = field(default_factory=dict)
    containers: dict[ContainerId, RequestedContainer] = field(default_factory=dict)
    own: dict[ContainerId, CpuSet] = field(default_factory=dict)
    failing: int = 0  #: So many of the next updates fail, of which the runtime reports nothing.
    lost: bool = False
    #: By `vmpin alloc set` or another annotation: the container's own annotation does not have it.
    changed: set[ContainerId] = field(default_factory=set)
    superseded: set[ContainerId] = field(default_factory=set)  #: Never started, and never will be.
    made: int = 0

    # vmpin

    @property
    def ledger(self) -> Ledger:
        found = None if self.allocator is None else self.allocator.ledger()
        return found or Ledger()

    def kill(self) -> None:
        self.allocator = None

    def connect(self) -> None:
        """vmpin starts, where it is away, and the runtime lists what there is."""
        if self.allocator is None:
            self.allocator = CpuAllocator(self.machine, self.options, LedgerFile(self.path, "boot"),
                                          lambda pod: VmSize(), lambda names: dict.fromkeys(names, 0))
            self.lost = self.allocator.ledger() is None
        else:
            self.lost = False
        if self.lost:
            for container in self.changed & self.own.keys():
                del self.own[container]
        listed = Listed(frozenset(self.pods), tuple(self.containers.values()))
        answer = self.allocator.synchronize(listed)
        self._apply(answer.updates)
        self.learn()

    def learn(self) -> None:
        """Take down what vmpin gives containers that live, once it has been held against what they had."""
        self.check_own()
        grants = self.ledger.grants
        for key in self.containers:
            grant = grants.get(key)
            if grant is None or grant.left_alone:
                continue
            has_them = grant.live and grant.policy in _OWN and self.effective(self.containers[key]) <= (
                grant.cpus | grant.spare)
            if has_them:
                self.own[key] = grant.cpus
            else:  # on the pool, or its update has failed
                self.own.pop(key, None)

    # What happens

    def create(self, asked: RequestedContainer, kill: Kill) -> None:
        self.made += 1
        asked = asked._replace(time_ns=self.made)
        if self.allocator is None or kill.at == "before":
            self.kill()
            self.containers[asked.id] = asked
            return
        before = self.ledger.grants
        answer = self.allocator.decide(Verb.CREATE, asked)
        if kill.at == "after":
            self.kill()
            self.containers[asked.id] = asked
            return
        if answer.refusal:
            assert self.ledger.grants == before
            return
        for key, one in self.containers.items():
            if (one.sandbox, one.name, one.state) == (asked.sandbox, asked.name, ContainerState.CREATED):
                # It could not be started, and the next one has its CPUs.
                self.own.pop(key, None)
                self.superseded.add(key)
        if self._apply(answer.updates, kill):
            made = answer.adjustment
            assert made is not None
            self.containers[asked.id] = asked._replace(annotations={**asked.annotations, **made.annotations},
                                                       cpuset=made.cpus or asked.cpuset, mems=made.mems)
        self.learn()

    def start(self, container: ContainerId) -> None:
        if container in self.superseded:
            return
        self.containers[container] = self.containers[container]._replace(state=ContainerState.RUNNING)
        self._event(Verb.POST_START, self.containers[container])
        self.learn()

    def resize(self, container: ContainerId, resources: Mapping[str, int | None], kill: Kill) -> None:
        new = self.containers[container]._replace(**resources)  # type: ignore[arg-type]
        if self.allocator is None or kill.at == "before":
            self.kill()
        else:
            answer = self.allocator.decide(Verb.UPDATE, new._replace(cpuset=None))
            if kill.at == "after":
                self.own.pop(container, None)  # the ledger has it resized, the runtime does not
                self.kill()
            elif answer.refusal:
                return
            elif not self._apply(answer.updates, kill):
                self.learn()
                return
            new = new._replace(cpuset=self.containers[container].cpuset)
        self.containers[container] = new
        self.learn()

    def stop(self, container: ContainerId, removed: bool, kill: Kill) -> None:
        gone = self.containers.pop(container)
        self.own.pop(container, None)
        if self.allocator is None or kill.at == "before":
            self.kill()
            return
        answer = self.allocator.decide(Verb.STOP, gone._replace(state=ContainerState.STOPPED))
        if kill.at == "after":
            self.kill()
            return
        self._apply(answer.updates, kill)
        if removed:
            self._event(Verb.REMOVE, gone)
        self.learn()

    def end(self, sandbox: SandboxId, reported: bool, kill: Kill) -> None:
        for container in [key for key, one in self.containers.items() if one.sandbox == sandbox]:
            self.stop(container, reported, kill)
        gone = self.pods.pop(sandbox)
        if reported and self.allocator is not None:
            for verb in (Verb.STOP_POD, Verb.REMOVE_POD):
                self.allocator.record(PodEvent(verb, _nri_pod(gone), 1))
        self.learn()

    def end_unreported(self) -> None:
        """What vmpin does about pods that the runtime no longer has."""
        if self.allocator is not None:
            for sandbox in self.allocator.idle_pods() - self.pods.keys():
                self.allocator.end_idle(sandbox)
            self.learn()

    def change(self, container: ContainerId, changes: Mapping[str, str], dry_run: bool) -> None:
        if self.allocator is not None:
            before = self.ledger
            answer = self.allocator.change(container, changes, dry_run)
            if answer.refusal or dry_run:
                assert self.ledger == before
            else:
                self._changed(container)

    def follow(self, container: ContainerId, annotations: Mapping[str, str]) -> None:
        if self.allocator is not None:
            before = self.ledger.grants.get(container)
            self.allocator.follow(container, {self.containers[container].pod_uid: annotations})
            after = self.ledger.grants.get(container)
            if before is not None and after is not None and before._replace(annotated="") != after._replace(
                    annotated=""):
                self._changed(container)

    def _changed(self, container: ContainerId) -> None:
        """Its own CPUs may be others now: nothing else has changed."""
        self.own.pop(container, None)
        self.changed.add(container)
        self.learn()

    def renew(self, online: CpuSet) -> None:
        """Other CPUs are online. The kernel takes those that are offline out of the cgroups by itself."""
        self.machine = self.machine._replace(online=online)
        if self.allocator is not None:
            self.allocator.renew(self.machine)
            self.learn()

    def settle(self) -> None:
        """The cgroups are read back, and what is due is given by CRI calls, each of which comes back as an update."""
        if self.allocator is None:
            return
        self.failing = 0
        for key, cpus in self.allocator.expected().items():
            one = self.containers.get(key)
            if one is not None and self.effective(one) != cpus & self.machine.online:
                self.allocator.read_back(key, self.effective(one))
        for _ in range(4 * len(self.containers) + 4):
            self.allocator.postpone(0.0)
            update = self.allocator.next_update(())
            if update is None:
                break
            one = self.containers.get(update.container)
            if one is not None:
                asked = one._replace(shares=None, quota=None, period=None, cpuset=update.cpus)
                answer = self.allocator.decide(Verb.UPDATE, asked)
                self._write(SideUpdate(update.container, update.cpus))
                self._apply(answer.updates)
            self.allocator.given(update)
        else:
            raise AssertionError(f"updates without end: {self.allocator.next_update(())}")
        self.learn()
        self.check_settled()

    def _event(self, verb: Verb, one: RequestedContainer) -> None:
        if self.allocator is not None:
            self.allocator.record(ContainerEvent(verb, _nri_pod(self.pods[one.sandbox]), NriContainer(
                one.id, one.sandbox, one.name, RUNNING, None, {}, 0), 1))

    def _apply(self, updates: Sequence[SideUpdate], kill: Kill | None = None) -> bool:
        """The updates of an answer. :returns: False where the runtime was killed meanwhile, and vmpin's connection
        with it."""
        for number, update in enumerate(updates):
            if kill is not None and kill.at == "runtime" and number == kill.updates:
                self.connect()
                return False
            if self.failing:
                self.failing -= 1
            else:
                self._write(update)
        return True

    def _write(self, update: SideUpdate) -> None:
        assert update.cpus
        assert update.cpus <= self.machine.online, update
        one = self.containers.get(update.container)
        if one is not None:
            self.containers[update.container] = one._replace(cpuset=update.cpus)

    def effective(self, one: RequestedContainer) -> CpuSet:
        """The CPUs that its cgroup leaves a container."""
        return (one.cpuset or EMPTY) & self.machine.online or self.machine.online

    # What holds

    def check_own(self) -> None:
        """What a container that lives has been given is no other pod's, unless its grant is another now: that has
        been asked for."""
        grants = self.ledger.grants
        shared = self.ledger.shared & self.machine.online
        for key, cpus in self.own.items():
            if self.allocator is None or key not in self.containers:
                continue
            mine = grants.get(key)
            if mine is not None and mine.live and not mine.left_alone:
                # Resized: it grew, or kept a part. Or it is on the pool, and is being moved there.
                assert mine.policy not in _OWN or mine.cpus <= cpus or cpus <= mine.cpus, (key, cpus, mine)
                continue
            if mine is not None and mine.left_alone and shared <= self.effective(self.containers[key]):
                continue  # a VM without vmpin's annotation: its own CPUs cannot be told from the pool's
            for other in grants.values():
                if other.sandbox != self.containers[key].sandbox:
                    assert cpus.isdisjoint(other.held), f"{key} runs on {cpus}, of which {other} was given some"

    def check(self) -> None:
        """What holds after each step."""
        if self.allocator is None:
            return
        ledger = self.ledger
        assert from_data(json.loads(json.dumps(to_data(ledger)))) == ledger  # no two pods hold one CPU, among others
        assert LedgerFile(self.path, "boot").load() == ledger
        # One that was refused too, after its creation: it is on the pool (check_settled).
        assert self.containers.keys() - self.superseded <= ledger.grants.keys()
        by_pod: dict[SandboxId, CpuSet] = {}
        for key, one in self.containers.items():
            grant = ledger.grants.get(key)
            if grant is not None and grant.live and grant.policy in _OWN:
                for other, cpus in by_pod.items():
                    assert other == one.sandbox or cpus.isdisjoint(grant.cpus)
                by_pod[one.sandbox] = by_pod.get(one.sandbox, EMPTY) | grant.cpus
                assert grant.held.isdisjoint(self.options.reserved)
        whole = pool(self.machine._replace(online=self.machine.all_cpus), ledger, self.options)
        assert whole
        assert whole.isdisjoint(ledger.out_of_pool())
        assert whole.isdisjoint(self.machine.isolated)

    def check_settled(self) -> None:
        """Once all that is due has been written: each container has its cpuset, and none another pod's own CPUs."""
        ledger = self.ledger
        for key, one in self.containers.items():
            grant = ledger.grants.get(key)
            if grant is None or grant.left_alone or not grant.live:
                continue
            wanted = target(self.machine, ledger, grant, self.options)
            if wanted:
                assert self.effective(one) == wanted, (key, one.cpuset, grant)
            for other in ledger.grants.values():
                if other.container != key and other.sandbox != grant.sandbox and wanted and (
                        not grant.group or grant.group != other.group):
                    assert other.out_of_pool.isdisjoint(wanted), (key, wanted, other)


def _nri_pod(made: PodMade) -> NriPod:
    return NriPod(made.id, made.name, made.namespace, made.uid, "", 0, {}, "", made.overhead)


