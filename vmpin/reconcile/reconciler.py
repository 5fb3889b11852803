"""Makes the machine what it should be: events → state → placement → plan → system calls → read back.

One pass does it for what an event touched, a resync for everything, from what the runtimes and the kernel have now.
Synchronous, and usable without a watcher (`vmpin reconcile`, and read-only for `plan`, `status` and `verify`). What
stays out: when passes happen and who asks (watcher, cli).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from vmpin.config.settings import Config
from vmpin.cpuset import CpuSet
from vmpin.domain.counters import Counters
from vmpin.domain.desired_state import DesiredState, forget_stopped, reduce
from vmpin.domain.drift import Explanation, MaskRepair
from vmpin.domain.events import ContainerMisplaced, Event, SandboxSeen, SuspensionChanged
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import ContainerId, SandboxId, ThreadId, VmThread
from vmpin.domain.proof import ResidencyLedger
from vmpin.domain.topology import Topology
from vmpin.errors import SourceError
from vmpin.host import boottime
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import Sysfs
from vmpin.pinning.apply import Outcome, Result
from vmpin.pinning.drift_evidence import DriftEvidence
from vmpin.pinning.drift_tracker import DriftTracker
from vmpin.pinning.pinner import Pinner
from vmpin.pinning.plan import SetAffinity, ordered
from vmpin.placement.newborn import LatencyAccount
from vmpin.placement.ownership import Node
from vmpin.reconcile.disagreements import SourceDisagreements
from vmpin.reconcile.exclusion import Exclusion
from vmpin.reconcile.keeper import StateStore
from vmpin.reconcile.placement_cache import PlacementCache
from vmpin.reconcile.requests import RuntimeRequests
from vmpin.reconcile.state_file import SavedState
from vmpin.reconcile.view import NodeView
from vmpin.runtime.kata import KataState
from vmpin.runtime.oci import HookMessage
from vmpin.sources.disk import DiskSources
from vmpin.sources.hook_state import events_of
from vmpin.sources.kubelet_checkpoint import KubeletCheckpoint
from vmpin.sources.nri.cpuset_reports import NriCpusetReports
from vmpin.vmm.inventory import Observer, Vm
from vmpin.vmm.process_table import Found

if TYPE_CHECKING:
    from vmpin.sources.nri.translation import NriEvent

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: While the runtime reports what happens (NRI): for so long (s) a cgroup may refuse or trim masks before that counts.
GRACE = 2.0


class PassReport(NamedTuple):
    """What a pass did."""

    results: tuple[Result, ...]
    vms: int
    seconds: float

    def count(self, outcome: Outcome) -> int:
        return sum(result.outcome is outcome for result in self.results)


class NriOutcome(NamedTuple):
    """What became of the runtime's events: the sandboxes they are about, and whether some could not be used, so that
    everything has to be listed again."""

    sandboxes: set[SandboxId]
    lost: bool


class Reconciler:
    """The state of the node and the hands that change it. Made once; `resync` makes it true.

    :param acts: whether the lock is held. Without it the run directory is left as it is.
    """

    def __init__(self, config: Config, acts: bool = True) -> None:
        self.config = config
        self.tally = Counters()
        self.proc = Procfs(config.paths.proc)
        self.sysfs = Sysfs(config.paths.sys)
        self.cgroups = Cgroups(config.paths.cgroup, self.proc)
        self.sources = DiskSources(self.proc, self.cgroups,
                                   KataState(config.paths.kata_go, config.paths.kata_rs,
                                             logger.warning))
        self.sources.kata.use_annotation(config.policy.exclusive_annotation)
        self.boot_id = self.proc.boot_id()
        self._keeper = StateStore(config.paths.state_file, config.paths.notes_file, self.boot_id)
        kept = self._keeper.load(set_aside=acts)
        self.state: DesiredState = kept.state
        self.observer = Observer(self.proc, str(config.paths.sys), config.watch.pattern, kept.vcpus)
        self.checkpoint = KubeletCheckpoint(config.paths.kubelet, logger.warning,
                                       kept.kubelet if config.watch.kubelet else None)
        self.disagreements = SourceDisagreements()
        self._requests = RuntimeRequests()
        self.reports = NriCpusetReports()
        self.placement_cache = PlacementCache(
            config, self.sysfs.topology(), self.checkpoint.read() if config.watch.kubelet else None, kept.previous)
        self.placement_cache.dirty.update(self.state.sandboxes)
        #: Those of `places`.
        self.placements = self.placement_cache.placements
        #: Where threads ran, as far as samples are taken.
        self.ledger = ResidencyLedger()
        self.drift_evidence = DriftEvidence(self.proc, self.sysfs, self.cgroups, self.tally, self.ledger,
                                           f"{self.proc.root}/1/root")
        self.drift_tracker = DriftTracker(self._explain, config.contention_rules)
        self.pinner = Pinner(self.proc, self.cgroups, kept.before, self.drift_tracker)
        #: The cpuset.cpus of the cgroups that container processes and VMMs are in.
        self._cgroup_of: dict[ThreadId, Path | None] = {}
        self._changed = self.kubelet != kept.kubelet
        #: How the threads of each sandbox were born, by the word of whoever is told of births.
        self.births: dict[SandboxId, LatencyAccount] = {}
        #: What is held because this process leaves.
        self._left: set[SandboxId] = set()
        self._exclusion = Exclusion()
        #: What went wrong with a VM, so that it is told once.
        self._odd: dict[SandboxId, str] = {}
        #: For all that only reads.
        self.view = NodeView(self)

    @property
    def node(self) -> Node:
        """The CPUs there are, and whose they are by configuration."""
        return self.placement_cache.node

    @property
    def kubelet(self) -> CpuManagerState | None:
        """The kubelet's checkpoint; None where it is not read, or cannot be."""
        return self.placement_cache.kubelet

    @property
    def unsaved(self) -> bool:
        """Whether the state file is behind."""
        return self._changed or self.pinner.learned or self.placement_cache.learned or self.observer.learned

    def save_again(self) -> None:
        """The state file is gone: everything is to be written once more."""
        self._changed = True

    @property
    def saved(self) -> bool:
        """Whether the state file could be written when it was last tried."""
        return not self._keeper.failing

    # What the sources say

    def reduce(self, events: Iterable[Event]) -> None:
        """Take events in."""
        for event in events:
            state = reduce(self.state, event)
            if state is not self.state:
                self.state = state
                self.placement_cache.dirty.add(event.sandbox)
                self._changed = True

    def hook(self, message: HookMessage) -> set[SandboxId]:
        """Take a hook's message in. :returns: the sandboxes it is about. :raises SourceError:"""
        events = events_of(message, self.state, self.proc, self.config.policy.exclusive_annotation, self.tally)
        self.reduce(events)
        return {event.sandbox for event in events}

    def nri(self, events: Iterable[NriEvent]) -> NriOutcome:
        """Take in what the runtime reported."""
        from vmpin.sources.nri import translation  # not at the top: the first pass of a starting watcher has no events

        touched: set[SandboxId] = set()
        lost = False
        for told in events:
            try:
                found = translation.events_of(self.reports.take(told), self.state, self.proc,
                                            self.config.policy.exclusive_annotation)
            except OSError as err:  # out of descriptors, as it may be: the other events count all the same
                logger.error("what the runtime told cannot be looked up: %s", err)
                lost = True
                continue
            for event in found:
                if isinstance(event, ContainerMisplaced):
                    self.tally.disputed += 1
                    logger.warning("sandbox=%s had container=%s by an annotation; the runtime has it in another",
                                   event.sandbox, event.container)
            self.reduce(found)
            touched.update(event.sandbox for event in found)
        return NriOutcome(touched, lost)

    def cpuset_files(self) -> Iterable[Path]:
        """Where the CPUs of the followed containers, and of the VMMs' cgroups, are written by whoever changes them."""
        processes = [known.init for sandbox in self.state.sandboxes.values() for known in sandbox.containers.values()
                     if known.init is not None]
        found: dict[ThreadId, Path | None] = {}
        for process in [*processes, *(vm.vmm.id for vm in self.observer.vms.values())]:
            # Which cgroup a process is in is read when it comes, and then in one of sixteen passes.
            if process in self._cgroup_of and (process.tid ^ self.observer.census.round) & 15:
                found[process] = self._cgroup_of[process]
            else:
                path = self.cgroups.cpuset_path(process.tid)
                found[process] = None if path is None or self.cgroups.is_top(path) else path / "cpuset.cpus"
        self._cgroup_of = found
        return {path for path in found.values() if path is not None}

    def moves(self, sandboxes: Iterable[SandboxId]) -> None:
        """The runtime is at work on sandboxes: their VMMs may be in other cgroups now, or soon."""
        for sandbox in sandboxes:
            if (vm := self.observer.vms.get(sandbox)) is not None:
                self._cgroup_of.pop(vm.vmm.id, None)

    def written(self, files: Collection[Path]) -> set[SandboxId]:
        """Read again what some of the `cpuset_files` say. :returns: the sandboxes whose they are."""
        touched: set[SandboxId] = set()
        for sandbox in self.state.sandboxes.values():
            for known in sandbox.containers.values():
                if known.init is not None and self._cgroup_of.get(known.init) in files:
                    touched.add(sandbox.id)
                    self.reduce(self.sources.cgroup(sandbox.id, known, known.init))
        for vm in self.observer.vms.values():
            if self._cgroup_of.get(vm.vmm.id) in files:
                touched.add(vm.sandbox)
                self.drift_evidence.written(vm.sandbox)
                self.pinner.recheck(vm.sandbox)
        return touched

    def read_cgroups(self, containers: Container[ContainerId]) -> None:
        """Read the CPUs of some containers' cgroups into the state."""
        for sandbox in self.state.sandboxes.values():
            for record in sandbox.containers.values():
                if record.container.id in containers and record.init is not None:
                    self.reduce(self.sources.cgroup(sandbox.id, record, record.init))

    def nri_connected(self, listed: bool) -> None:
        """Take in whether the runtime has listed its containers over NRI, and the connection is up."""
        self.sources.nri = listed

    def births_reported(self, reported: bool) -> None:
        """Take in whether every fork event arrives: a process with as many threads as before is not listed then."""
        self.observer.told = reported

    def pod_resources(self, resources: Mapping[tuple[str, str, str], CpuSet] | None) -> None:
        """Take in the answer of PodResources, None without one."""
        self.disagreements.set_pod_resources(resources)

    def report_strays(self, stray: Callable[[SandboxId, VmThread, int, CpuSet], None] | None) -> None:
        """Have each thread that is put back reported with the CPU that it was on outside its place; None ends that."""
        self.drift_tracker.strayed = stray

    def birth_account(self, sandbox: SandboxId) -> LatencyAccount:
        """A sandbox's account of births, opened at the first call."""
        return self.births.setdefault(sandbox, LatencyAccount())

    def wanting_qmp(self) -> list[Vm]:
        """The VMs whose threads only QMP can identify, and that were not asked as they are; none if QMP is off."""
        return self.observer.wanting_qmp() if self.config.watch.qmp else []

    def inspect_process(self, pid: int) -> Found | None:
        """Classify a process that has just executed a program, or appeared: (main thread, classification, argv); None
        if unrelated."""
        return self.observer.look(pid)

    def pin_newborn(self, sandbox: SandboxId, thread: VmThread, cpus: CpuSet, mask: CpuSet) -> Result:
        """Set the mask of a thread that has just appeared (`mask` until now), ahead of its VM's next pass. A main
        thread's mask is kept first."""
        if thread.main:
            self.keep_mask(sandbox, thread, mask)
        result = self.pinner.place_now(sandbox, thread, cpus, mask)
        self.tally.pins[thread.role, result.outcome.value] += 1
        return result

    def recheck(self, sandbox: SandboxId) -> None:
        """Have a VM's threads compared one by one in its next pass."""
        self.pinner.recheck(sandbox)

    def without_kata(self, sandboxes: Iterable[SandboxId]) -> set[SandboxId]:
        """Those that are VMs whose containers' CPUs no file of Kata's has."""
        return {sandbox for sandbox in sandboxes if sandbox in self.observer.vms
                and ((kata := self.sources.sandboxes.get(sandbox)) is None or kata.containers is None)}

    def all_sandboxes(self) -> list[SandboxId]:
        """Every sandbox that is known, or of whose threads masks from before are kept."""
        return list(dict.fromkeys([*self.state.sandboxes, *self.pinner.before]))

    def vm_sandboxes(self) -> set[SandboxId]:
        """The sandboxes that are VMs, as their VMM, Kata's state, their shim or runtime handler (kata…) tells."""
        by_handler = {sandbox.id for sandbox in self.state.sandboxes.values() if sandbox.handler.startswith("kata")}
        return self.observer.vms.keys() | self.sources.sandboxes.keys() | self.observer.census.shims() | by_handler

    def reconfigure(self, config: Config) -> None:
        """Go on with another configuration. What is set from paths stays as it was until a restart."""
        self.config = config
        self.observer.only = config.watch.pattern
        self.pinner.drift_tracker.fights.rules = config.contention_rules
        self.sources.kata.use_annotation(config.policy.exclusive_annotation)
        self._renew(self.node.topology, self.checkpoint.read() if config.watch.kubelet else None)

    # Passes

    def resync(self, act: bool = True, full: bool = False) -> PassReport:
        """Read everything again, and make it true if `act`.

        :param full: also look again at processes that were found to be nothing to us.
        """
        started = time.perf_counter()
        self._read_node()
        self.sources.online = self.node.online
        self.sources.read()
        self._scan(full)
        self.reduce(self.sources.events(self.state, set(self.observer.vms)))
        self.reduce(self._requests.over(self.state, time.monotonic()))
        self._tidy()
        if act:
            self._exclusion.restore(self)
        # What a full pass reads is mostly new: the files of its threads are kept open for the masks that follow.
        with self.proc.keeping_stat_files() if act and full else contextlib.nullcontext():
            found = self._pass(list(self.observer.vms), act)
        if act:
            self.drift_evidence.settled(self.node.topology.known, self.observer.vms.values())
        self.disagreements.compare(self.state, self.kubelet, self.node.online, self.config.watch.resync_seconds,
                            nri=self.sources.nri)
        return PassReport(found, len(self.observer.vms), time.perf_counter() - started)

    def reconcile(self, sandboxes: Iterable[SandboxId], act: bool = True, scan: bool = True) -> PassReport:
        """Make true what concerns some sandboxes, and whatever others follow from it (the shared pool).

        :param scan: whether to look for VMs of those sandboxes that have none.
        """
        started = time.perf_counter()
        wanted = set(sandboxes)
        self._read_kubelet()
        if any(map(self.pinner.doubts, wanted)):
            self.sources.read()
            self.reduce(self.sources.events(self.state, set(self.observer.vms)))
        if scan and any(sandbox not in self.observer.vms for sandbox in wanted):
            self._scan(full=False)
        found = self._pass([sandbox for sandbox in self.observer.vms if sandbox in wanted], act)
        return PassReport(found, len(wanted), time.perf_counter() - started)

    def refresh(self) -> None:
        """See which threads the known VMs have at this moment, so that status speaks of no others. Sets no mask: what
        is new is placed, and set in the next pass."""
        for sandbox in list(self.observer.vms):
            self._safely(sandbox, self._refresh)
        self._place()

    def _scan(self, full: bool) -> None:
        self._came(self.observer.scan(self.sources.claims(self.state), full))

    def assign_processes(self) -> set[SandboxId]:
        """Give sandboxes the processes that `observer.look` has found. :returns: those whose VM is another now."""
        changed = self.observer.assign(self.sources.claims(self.state))
        self._came(changed)
        return changed

    def _came(self, changed: set[SandboxId]) -> None:
        self.placement_cache.dirty |= changed
        for sandbox in changed & self.observer.vms.keys():
            # A kernel thread that came late (kvm-pit) changes neither the VMM's own threads nor the placement.
            self.pinner.recheck(sandbox)
        self.reduce([SandboxSeen(sandbox, "vmm") for sandbox in self.observer.vms])

    def _read_kubelet(self) -> None:
        """The checkpoint as it is now: who was given CPUs stands there before the container is created."""
        if not self.config.watch.kubelet:
            return
        found = self.checkpoint.read()
        if found != self.kubelet:
            self._changed = True
            self._renew(self.node.topology, found)

    def _read_node(self) -> None:
        self._read_kubelet()
        try:
            if self.sysfs.online() == self.node.online:
                return
            topology = self.sysfs.topology()
        except SourceError as err:
            logger.error("%s: the topology known before is used", err)
            return
        logger.info("online CPUs changed from %s to %s", self.node.online, topology.online)
        self._renew(topology, self.kubelet)

    def _renew(self, topology: Topology, kubelet: CpuManagerState | None) -> None:
        self.placement_cache.renew(self.config, topology, kubelet, self.state.sandboxes)

    def _tidy(self) -> None:
        """Forget what is over: VMs' masks, sandboxes nobody knows, containers stopped long ago."""
        vms = self.observer.vms
        self.pinner.keep_only(vms)
        self.drift_evidence.keep_only(vms)
        for sandbox in self.placements.keys() - vms.keys():
            del self.placements[sandbox]
        self.placement_cache.unmanaged &= vms.keys()
        for sandbox in self._odd.keys() - vms.keys():
            del self._odd[sandbox]
        helped = self.observer.census.helped()
        for sandbox in self.births.keys() - vms.keys() - helped:
            del self.births[sandbox]
        before = self.pinner.before
        for kept in (self.placement_cache.previous, self.observer.vcpus, before):
            for sandbox in kept.keys() - vms.keys() - self.state.sandboxes.keys() - helped:
                had = before.get(sandbox)
                if kept is not before or had is None or not any(map(self.observer.census.runs, had.processes)):
                    del kept[sandbox]  # else it is nobody's now (watch.only), and is to be given back all the same
                    self._changed = True
        horizon = boottime.now() - 600 * 10**9
        for sandbox, known in self.state.sandboxes.items():
            shorter = forget_stopped(known, horizon)
            if shorter is not known:
                self.state = DesiredState({**self.state.sandboxes, sandbox: shorter})
                self._changed = True

    def _pass(self, sandboxes: list[SandboxId], act: bool) -> tuple[Result, ...]:
        self.pinner.grace = GRACE if self.sources.nri else 0.0
        vms = [vm for sandbox in sandboxes if (vm := self._safely(sandbox, self._refresh)) is not None]
        seen = {vm.sandbox for vm in vms}
        for sandbox in self._place():
            if sandbox not in seen and (vm := self._safely(sandbox, self._refresh)) is not None:
                vms.append(vm)
        operations = [operation for vm in vms for operation in self._safely(vm.sandbox, self._operations) or ()]
        self.tally.contentions = self.pinner.drift_tracker.fought
        if not operations:
            return ()
        if not act:
            for operation in operations:
                self.pinner.recheck(operation.sandbox)  # still to be done
            return tuple(Result(operation, Outcome.DONE, None) for operation in ordered(operations))
        if self.pinner.learned:
            self.save()  # before the first mask is changed: whatever happens then, it can be given back
        results = tuple(self.pinner.carry_out(operations, self.placements))
        outcomes = Counter((operation.thread.role, outcome) for operation, outcome, *_ in results)
        self.tally.pins.update({(role, outcome.value): count for (role, outcome), count in outcomes.items()})
        return results

    def _explain(self, changes: Mapping[SandboxId, Counter[MaskRepair]]) -> Mapping[SandboxId, Sequence[Explanation]]:
        """Why threads had to be put back, as far as can be known."""
        found = {}
        replugged = self.drift_evidence.replugged()
        for sandbox, changed in changes.items():
            vm, kata = self.observer.vms.get(sandbox), self.sources.sandboxes.get(sandbox)
            if vm is not None:
                found[sandbox] = self.drift_evidence.explain(vm, changed, replugged,
                                                            kata is not None and kata.pins_vcpus)
        return found

    def _operations(self, sandbox: SandboxId) -> tuple[SetAffinity, ...]:
        placement = self.placements.get(sandbox)
        return () if placement is None else self.pinner.operations(self.observer.vms[sandbox], placement)

    def _safely(self, sandbox: SandboxId, step: Callable[[SandboxId], T]) -> T | None:
        """One VM's step; whatever goes wrong with it, the rest of the node goes on."""
        try:
            return step(sandbox)
        except Exception as err:
            self._failed(sandbox, err)
            return None

    def _failed(self, sandbox: SandboxId, err: Exception) -> None:
        """A step for one sandbox failed (in an except block): it is done again in the next pass."""
        self.pinner.recheck(sandbox)
        if self._odd.get(sandbox) != repr(err):
            logger.error("sandbox=%s cannot be looked after: %r", sandbox, err)
            logger.debug("sandbox=%s", sandbox, exc_info=True)
        self._odd[sandbox] = repr(err)

    def _refresh(self, sandbox: SandboxId) -> Vm | None:
        """Read a VM's threads; what changed is to be placed again."""
        vm = self.observer.vms.get(sandbox)
        if vm is None:
            return None
        changed = self.observer.refresh(vm)
        if changed is None:
            self.placement_cache.dirty.add(sandbox)
            return None
        if changed:
            self.pinner.recheck(sandbox)
            self.placement_cache.dirty.add(sandbox)
        return vm

    def _place(self) -> set[SandboxId]:
        """Place again what is to be. :returns: the sandboxes whose placement is another than before."""
        return self.placement_cache.place(self.state, self.observer.vms, self.pinner.recheck, self._failed)

    # Giving back

    def unpin(self, sandboxes: Iterable[SandboxId], leaving: bool = False) -> list[Result]:
        """Give threads the masks they had before vmpin, and leave the sandboxes alone until they are taken back.

        :param leaving: for as long as this process lives only. Were it kept, and this process killed before it has
            left, the next one would leave them alone for good.
        """
        results: list[Result] = []
        for sandbox in sandboxes:
            known = self.state.sandboxes.get(sandbox)
            if leaving and known is not None and not known.suspended:
                self._left.add(sandbox)
            self.reduce([SuspensionChanged(sandbox, True)])
            results += self.restore(sandbox)
        self.save()
        return results

    def restore(self, sandbox: SandboxId) -> list[Result]:
        """Give a sandbox's threads the masks they had before vmpin. A sandbox that is followed and not held is placed
        again in the next pass."""
        self.placements.pop(sandbox, None)
        results = self._safely(sandbox, self._restore) or []
        self.pinner.forget(sandbox)
        self.placement_cache.previous.pop(sandbox, None)
        self._changed = True
        return results

    def restoring(self, sandboxes: Iterable[SandboxId]) -> list[SetAffinity]:
        """The operations of `restore` that would change a mask now. Sets none."""
        return [operation for sandbox in sandboxes for operation in self._safely(
            sandbox, lambda each: self.pinner.restoring(each, self._owned(each), self.node.topology)) or ()]

    def _restore(self, sandbox: SandboxId) -> list[Result]:
        return self.pinner.restore(sandbox, partial(self._owned, sandbox), self.node.topology)

    def _owned(self, sandbox: SandboxId) -> list[tuple[VmThread, ThreadId]]:
        """The threads of a sandbox at this moment, each with its process; without a VM those of its helpers."""
        self._refresh(sandbox)
        vm = self.observer.vms.get(sandbox)
        if vm is not None:
            return [(thread, vm.main_of(thread)) for thread in vm.threads()]
        return [(thread, process.id) for process in self.observer.helpers(sandbox)
                for thread in process.threads.values()]

    def take_back(self, sandboxes: Iterable[SandboxId]) -> None:
        """Take sandboxes that were unpinned into vmpin's hands again."""
        self.reduce([SuspensionChanged(sandbox, False) for sandbox in sandboxes])
        self.pinner.retry_now()

    # Keeping

    def save(self) -> bool:
        """Write the state file; a failure is told once, and everything else goes on."""
        state = self.state
        if self._left:
            state = DesiredState({name: replace(known, suspended=False) if name in self._left else known
                                  for name, known in state.sandboxes.items()})
        kubelet = self.kubelet if self.kubelet is not None and self.kubelet.static else None
        if not self._keeper.save(SavedState(state, self.placement_cache.previous, self.pinner.before,
                                            self.observer.vcpus, kubelet)):
            return False
        self._changed = self.pinner.learned = self.placement_cache.learned = self.observer.learned = False
        return True

    def keep_mask(self, sandbox: SandboxId, main: VmThread, mask: CpuSet) -> None:
        """Keep the mask of a process that has just come, before it is changed: the state file can wait then."""
        had = self.pinner.met(sandbox, main, mask)
        if had is None:
            return
        self._changed = True
        self._keeper.note(sandbox, main.id, had)
