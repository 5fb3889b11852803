"""Makes the machine what it should be: events → state → placement → plan → system calls → read back.

One pass does it for what an event touched, a resync for everything, from what the runtimes and the kernel have now.
Synchronous, and usable without a watcher (`vmpin reconcile`, and read-only for `plan`, `status` and `verify`). What
stays out: when passes happen and who asks (watcher, cli).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from vmpin import statefile
from vmpin.apply import Outcome, Result, carry_out
from vmpin.before import Before
from vmpin.config import Config
from vmpin.cpuset import CpuSet, union
from vmpin.errors import SourceError, StateFileError
from vmpin.events import Event, Held, SandboxSeen
from vmpin.host import affinity
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import Sysfs
from vmpin.model import SandboxId, ThreadId, VmThread
from vmpin.observe import Observer, Vm
from vmpin.ownership import Claims, Node, Ownership, claims, ownership
from vmpin.placement import Placement, Previous, Request, place
from vmpin.plan import Observed, SetAffinity, diff, ordered
from vmpin.policy import Policy
from vmpin.runtime.kata import KataState
from vmpin.runtime.oci import HookMessage
from vmpin.source.disk import DiskSources
from vmpin.source.hook_state import events_of
from vmpin.state import DesiredState, SandboxState, forget_stopped, reduce

logger = logging.getLogger(__name__)


@dataclass
class Masks:
    """What vmpin knows of the masks of one VM's threads."""

    #: By thread: the mask set last, and what the kernel showed then.
    asked: dict[ThreadId, tuple[CpuSet, CpuSet]] = field(default_factory=dict)
    #: What the kernel is to show as long as nothing changes, in the form in which it is read.
    expected: list[tuple[int, frozenset[int]]] = field(default_factory=list)
    #: What was refused, by thread, so that it is told once.
    refused: dict[ThreadId, str] = field(default_factory=dict)
    #: Not everything is as wanted, or not yet known to be.
    open: bool = True


@dataclass(frozen=True)
class Report:
    """What a pass did."""

    results: tuple[Result, ...]
    vms: int
    seconds: float

    def count(self, outcome: Outcome) -> int:
        return sum(result.outcome is outcome for result in self.results)


class Reconciler:
    """The state of the node and the hands that change it. Made once; `resync` makes it true."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.proc = Procfs(config.path("proc"))
        self.sysfs = Sysfs(config.path("sys"))
        self.cgroups = Cgroups(config.path("cgroup"), self.proc)
        self.observer = Observer(self.proc, str(config.path("sys")), config.only)
        self.sources = DiskSources(self.proc, self.cgroups,
                                   KataState(config.path("kata_go"), config.path("kata_rs"), logger.warning))
        self.boot_id = self.proc.boot_id()
        kept, trouble = statefile.load(config.state_file, self.boot_id)
        if trouble:
            logger.warning("%s", trouble)
        self.state: DesiredState = kept.state
        self.previous: dict[SandboxId, Previous] = dict(kept.previous)
        self.before: dict[SandboxId, Before] = dict(kept.before)
        self.node = Node(self.sysfs.topology(), config.shared_pool, config.housekeeping)
        self.claims: dict[SandboxId, Claims] = {}
        self.own: Ownership = ownership({}, self.node)
        self.placements: dict[SandboxId, Placement] = {}
        self.masks: dict[SandboxId, Masks] = {}
        #: Whether the state file is behind.
        self.unsaved = False
        self._dirty: set[SandboxId] = set(self.state.sandboxes)
        #: Masks from before vmpin were learned that are not in the state file.
        self._met = False
        self._failing: str = ""

    # What the sources say

    def reduce(self, events: Iterable[Event]) -> None:
        """Take events in."""
        for event in events:
            state = reduce(self.state, event)
            if state is not self.state:
                self.state = state
                self._dirty.add(event.sandbox)
                self.unsaved = True

    def hook(self, message: HookMessage) -> set[SandboxId]:
        """Take a hook's message in. :returns: the sandboxes it is about. :raises SourceError:"""
        events = events_of(message, self.state, self.proc, self.config.exclusive_annotation)
        self.reduce(events)
        return {event.sandbox for event in events}

    def reconfigure(self, config: Config) -> None:
        """Go on with another configuration. What is set from paths stays as it was until a restart."""
        self.config = config
        self.observer.only = config.only
        self.node = Node(self.node.topology, config.shared_pool, config.housekeeping)
        self._dirty |= set(self.state.sandboxes)

    # Passes

    def resync(self, act: bool = True, full: bool = False) -> Report:
        """Read everything again, and make it true if `act`.

        :param full: also look again at processes that were found to be nothing to us.
        """
        started = time.perf_counter()
        self._read_node()
        self.sources.read()
        self._scan(full)
        self.reduce(self.sources.events(self.state, set(self.observer.vms)))
        self._tidy()
        found = self._pass(list(self.observer.vms), act)
        return Report(found, len(self.observer.vms), time.perf_counter() - started)

    def settle(self, sandboxes: Iterable[SandboxId], act: bool = True) -> Report:
        """Make true what concerns some sandboxes, and whatever others follow from it (the shared pool)."""
        started = time.perf_counter()
        wanted = set(sandboxes)
        if any(sandbox not in self.observer.vms for sandbox in wanted):
            self._scan(full=False)
        found = self._pass([sandbox for sandbox in self.observer.vms if sandbox in wanted], act)
        return Report(found, len(wanted), time.perf_counter() - started)

    def _scan(self, full: bool) -> None:
        self._dirty |= self.observer.scan(self.sources.claims(self.state), full)
        self.reduce([SandboxSeen(sandbox, "vmm") for sandbox in self.observer.vms])

    def _read_node(self) -> None:
        try:
            if self.sysfs.online() == self.node.online:
                return
            topology = self.sysfs.topology()
        except SourceError as err:
            logger.error("%s: the topology known before is used", err)
            return
        logger.info("online CPUs changed from %s to %s", self.node.online, topology.online)
        self.node = Node(topology, self.config.shared_pool, self.config.housekeeping)
        self._dirty |= set(self.state.sandboxes)

    def _tidy(self) -> None:
        """Forget what is over: VMs' masks, sandboxes nobody knows, containers stopped long ago."""
        vms = self.observer.vms
        for table in (self.masks, self.placements):
            for sandbox in [sandbox for sandbox in table if sandbox not in vms]:
                del table[sandbox]
        for kept in (self.previous, self.before):
            for sandbox in [sandbox for sandbox in kept if sandbox not in vms and sandbox not in self.state.sandboxes]:
                del kept[sandbox]
                self.unsaved = True
        horizon = time.time_ns() - 600 * 10**9
        for sandbox, known in self.state.sandboxes.items():
            shorter = forget_stopped(known, horizon)
            if shorter is not known:
                self.state = DesiredState({**self.state.sandboxes, sandbox: shorter})
                self.unsaved = True

    def _pass(self, sandboxes: list[SandboxId], act: bool) -> tuple[Result, ...]:
        vms = [vm for sandbox in sandboxes if (vm := self._refresh(sandbox)) is not None]
        seen = {vm.sandbox for vm in vms}
        for sandbox in self._place():
            if sandbox not in seen and (vm := self._refresh(sandbox)) is not None:
                vms.append(vm)
        operations = [operation for vm in vms for operation in self._operations(vm)]
        if not operations:
            return ()
        if not act:
            for operation in operations:
                self.masks[operation.sandbox].open = True  # still to be done
            return tuple(Result(operation, Outcome.DONE, None) for operation in ordered(operations))
        if self._met:
            self.save()  # before the first mask is changed: whatever happens then, it can be given back
            self._met = False
        results = carry_out(self.proc, ordered(operations))
        self._note(results)
        return tuple(results)

    def _refresh(self, sandbox: SandboxId) -> Vm | None:
        """Read a VM's threads; what changed is to be placed again."""
        vm = self.observer.vms.get(sandbox)
        if vm is None:
            return None
        changed = self.observer.refresh(vm)
        if changed is None:
            self._dirty.add(sandbox)
            return None
        masks = self.masks.setdefault(sandbox, Masks())
        if changed:
            masks.open = True
            self._dirty.add(sandbox)
        return vm

    def _place(self) -> set[SandboxId]:
        """Place again what is dirty. :returns: the sandboxes whose placement is another than before."""
        dirty, self._dirty = self._dirty, set()
        if not dirty:
            return set()
        owned = False
        for sandbox in dirty:
            known = self.state.sandboxes.get(sandbox)
            new = claims(known.live(), self.node) if known is not None else None
            old = self.claims.get(sandbox)
            if new is None:
                self.claims.pop(sandbox, None)
            else:
                self.claims[sandbox] = new
            owned = owned or (old and old.exclusive) != (new and new.exclusive)
        before = self.own
        self.own = ownership(self.claims, self.node)
        if owned or self.own.pool != before.pool:
            dirty.update(self._concerned(before))
        changed = set()
        for sandbox in dirty:
            vm, known = self.observer.vms.get(sandbox), self.state.sandboxes.get(sandbox)
            if vm is None or known is None or known.held:
                self.placements.pop(sandbox, None)
                continue
            new_place = place(Request(sandbox, vm.vcpus, known.live(), vm.known), self.node, self.own,
                              self.config.policy, self.previous.get(sandbox))
            if new_place != self.placements.get(sandbox):
                self.placements[sandbox] = new_place
                previous = new_place.previous()
                if previous != self.previous.get(sandbox):
                    self.previous[sandbox] = previous
                    self.unsaved = True
                self.masks.setdefault(sandbox, Masks()).open = True
                changed.add(sandbox)
        return changed

    def _concerned(self, before: Ownership) -> Iterable[SandboxId]:
        """The sandboxes whose placement may be another now that CPUs have another owner: one container's exclusive
        CPUs are no reason to place hundreds of sandboxes again."""
        named = union([self.node.housekeeping, self.own.pool, *_lists(self.config.policy)])
        moved = before.exclusive ^ self.own.exclusive
        vms = self.observer.vms.keys()
        if self.own.pool != before.pool or not moved.isdisjoint(named):
            return vms
        bits = moved.bits
        # One with something to complain of may have been driven off the very CPUs that are free now.
        return ({sandbox for sandbox, known in self.placements.items() if known.reasons or known.mask.bits & bits}
                | (vms - self.placements.keys()))

    def _operations(self, vm: Vm) -> tuple[SetAffinity, ...]:
        masks, placement = self.masks[vm.sandbox], self.placements.get(vm.sandbox)
        if placement is None or (not masks.open and _holds(masks.expected)):
            return ()
        drifted = not masks.open
        observed = [seen for seen in self.observed(vm, masks, placement) if seen is not None]
        self._remember(vm, observed)
        operations = diff(placement, observed)
        changing = {operation.thread.id for operation in operations}
        masks.expected = [(seen.thread.id.tid, seen.actual.frozen()) for seen in observed
                          if seen.thread.id not in changing
                          and placement.cpus_for(seen.thread.role, seen.thread.vcpu) is not None]
        alive = {seen.thread.id for seen in observed}
        for table in (masks.asked, masks.refused):
            for thread in [thread for thread in table if thread not in alive]:
                del table[thread]
        if drifted and operations:
            logger.info("repairing sandbox=%s threads=%d: another hand or the kernel changed their masks",
                        vm.sandbox, len(operations))
        masks.open = False
        return operations

    def observed(self, vm: Vm, masks: Masks, placement: Placement | None) -> Iterable[Observed]:
        """The threads with the masks they have now; those that ended meanwhile are left out."""
        for thread in vm.threads():
            mask = affinity.get(thread.id.tid)
            if mask is None:
                masks.open = True
                continue
            actual = _cpuset(mask)
            asked, shown = masks.asked.get(thread.id, (None, None))
            limit = None
            if asked is None and placement is not None:
                wanted = placement.cpus_for(thread.role, thread.vcpu)
                if wanted is not None and wanted != actual and actual <= wanted:
                    # Nobody knows what was asked for; is it what the cpuset cgroup leaves of it?
                    cgroup = self.cgroups.cpuset_of(thread.pid, thread.id.tid)
                    limit = cgroup.effective if cgroup is not None else None
            yield Observed(thread, actual, asked, shown, limit)

    def _remember(self, vm: Vm, observed: Iterable[Observed]) -> None:
        """Keep the masks of processes met for the first time: what a thread has then is what it had before vmpin."""
        before = self.before.get(vm.sandbox, Before())
        known = before.only([*(process.id for process in vm.processes()), *(thread.id for thread in vm.kernel)])
        mains = {process.pid: process.id for process in vm.processes()}
        met: dict[ThreadId, list[tuple[VmThread, CpuSet]]] = {}
        for seen in observed:
            main = mains.get(seen.thread.pid, seen.thread.id)  # a kernel thread is a process of its own
            if main not in known.processes:
                met.setdefault(main, []).append((seen.thread, seen.actual))
        for main, masks in met.items():
            known = known.remember(main, masks)
        if known is not before:
            self.before[vm.sandbox] = known
            self.unsaved = self._met = True

    def _note(self, results: Iterable[Result]) -> None:
        """Keep what the kernel made of each operation, and say once what went wrong."""
        done: dict[SandboxId, int] = {}
        for result in results:
            operation = result.operation
            masks = self.masks[operation.sandbox]
            thread = operation.thread
            if result.outcome is Outcome.GONE:
                masks.open = True
                continue
            if result.outcome is Outcome.REFUSED:
                masks.open = True  # tried again at every resync
                if masks.refused.get(thread.id) != result.why:
                    masks.refused[thread.id] = result.why
                    logger.error("sandbox=%s: %s thread %d wanted=%s has=%s: %s", operation.sandbox, thread.role,
                                 thread.id.tid, operation.cpus, result.got, result.why)
                continue
            assert result.got is not None
            masks.refused.pop(thread.id, None)
            if result.outcome is Outcome.TRIMMED and masks.asked.get(thread.id) != (operation.cpus, result.got):
                logger.warning("sandbox=%s: cannot honour %s for %s thread %d: its cpuset cgroup leaves %s",
                               operation.sandbox, operation.cpus, thread.role, thread.id.tid, result.got)
            masks.asked[thread.id] = (operation.cpus, result.got)
            masks.expected.append((thread.id.tid, result.got.frozen()))
            done[operation.sandbox] = done.get(operation.sandbox, 0) + 1
        for sandbox, count in done.items():
            placement = self.placements[sandbox]
            logger.info("pinned sandbox=%s threads=%d mask=%s verdict=%s", sandbox, count, placement.mask,
                        placement.verdict)

    # Giving back

    def unpin(self, sandboxes: Iterable[SandboxId]) -> list[Result]:
        """Give threads the masks they had before vmpin, and leave the sandboxes alone until they are given back."""
        results: list[Result] = []
        for sandbox in sandboxes:
            self.reduce([Held(sandbox, True)])
            self._refresh(sandbox)
            vm, before = self.observer.vms.get(sandbox), self.before.get(sandbox)
            self.placements.pop(sandbox, None)
            if vm is not None and before is not None:
                results += carry_out(self.proc, ordered(self._restoring(vm, before)))
                self.before.pop(sandbox)
            self.masks.pop(sandbox, None)
            self.previous.pop(sandbox, None)
            self.unsaved = True
        self.save()
        return results

    def _restoring(self, vm: Vm, before: Before) -> Iterable[SetAffinity]:
        for thread in vm.threads():
            mask = before.mask(thread, vm.main_of(thread))
            actual = affinity.get(thread.id.tid)
            if mask is None or actual is None:
                continue
            if mask >= self.node.online:
                # It was free to run anywhere: so it shall be on CPUs that come online later, too.
                mask |= self.node.topology.known
            yield SetAffinity(vm.sandbox, thread, mask, CpuSet(actual))

    def take_back(self, sandboxes: Iterable[SandboxId]) -> None:
        """Take sandboxes that were unpinned into vmpin's hands again."""
        self.reduce([Held(sandbox, False) for sandbox in sandboxes])

    # Keeping

    def save(self) -> bool:
        """Write the state file; a failure is told once, and everything else goes on."""
        try:
            statefile.save(self.config.state_file, self.boot_id,
                           statefile.Kept(self.state, self.previous, self.before))
        except StateFileError as err:
            if str(err) != self._failing:
                logger.error("%s (%s)", err, err.hint)
            self._failing = str(err)
            return False
        if self._failing:
            logger.info("%s: the state can be saved again", self.config.state_file)
        self._failing = ""
        self.unsaved = False
        return True

    def sandbox(self, sandbox: SandboxId) -> SandboxState:
        return self.state.sandboxes.get(sandbox) or SandboxState(sandbox)


@lru_cache(maxsize=1024)
def _cpuset(mask: frozenset[int]) -> CpuSet:
    """A mask as read: thousands of threads have a few different ones."""
    return CpuSet(mask)


def _lists(policy: Policy) -> Iterable[CpuSet]:
    """The CPU lists a policy names."""
    return [rule for rule in vars(policy).values() if isinstance(rule, CpuSet)]


def _holds(expected: Iterable[tuple[int, frozenset[int]]]) -> bool:
    """Whether the kernel shows just what it did: the whole cost of a pass in which nothing changed."""
    get = os.sched_getaffinity
    try:
        for tid, shown in expected:
            if get(tid) != shown:
                return False
    except ProcessLookupError:
        return False
    return True
