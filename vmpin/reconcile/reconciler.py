"""Passes over a node: state, placement, operations, system calls, and the masks read back.

`reconcile` makes true what concerns some sandboxes, `resync` everything, from what the runtimes and the kernel have
now. Synchronous, and usable without a watcher (`vmpin reconcile`; read-only for `plan`, `status` and `verify`).
"""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import partial
from typing import NamedTuple

from vmpin import log
from vmpin.config.settings import Config
from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import DesiredState, forget_stopped, outranks
from vmpin.domain.events import SandboxSeen, SuspensionChanged
from vmpin.domain.model import SandboxId, ThreadId, VmThread
from vmpin.host import boottime
from vmpin.pinning.apply import Outcome, Result
from vmpin.pinning.plan import Observed, SetAffinity, diff, ordered
from vmpin.pinning.restoration import Restoration
from vmpin.placement.policy import ThreadPolicy
from vmpin.placement.rules import Placement
from vmpin.reconcile.adapters import Adapters
from vmpin.reconcile.node_state import NodeState
from vmpin.vmm.recognition import Found
from vmpin.vmm.virtual_machine import Refresh, Vm

logger = logging.getLogger(__name__)

#: While the runtime reports what happens (NRI): for so long (s) a cgroup may refuse or trim masks before that counts.
GRACE = 2.0
#: A stopped container is remembered for so long (ns): a late report of its creation must find its end.
STOPPED_FOR = 600 * 10**9


class PassReport(NamedTuple):
    """What a pass did. `vms` is how many it was about, `results` what became of each operation."""

    results: tuple[Result, ...]
    vms: int
    seconds: float

    def count(self, outcome: Outcome) -> int:
        return sum(result.outcome is outcome for result in self.results)


class Reconciler(NodeState):
    """The state of a node, and the passes that make it true.
    :param acts: whether the lock is held. Without it the run directory is left as it is.
    :param adapters: None for those at the configuration's paths.
    :param used: as `NodeState` has it."""

    def __init__(self, config: Config, acts: bool = True, adapters: Adapters | None = None,
                 used: bool | None = None) -> None:
        super().__init__(config, acts, adapters, used)
        #: Sandboxes that `watch.only` excludes and that still have masks of vmpin's; each is logged once.
        self._not_restored: set[SandboxId] = set()
        self._restoration = Restoration(self.proc, self.originals, cgroups=self.cgroups)

    @log.operation()
    def resync(self, act: bool = True, full: bool = False) -> PassReport:
        """Read everything again, and set the masks that differ if `act`.
        :param full: also classify again processes that were found to be unrelated."""
        started = time.perf_counter()
        self.read_node()
        if self.first_list.overdue():
            self.placement_cache.dirty.update(self.state.sandboxes)
        self.sources.online = self.node.online
        self.sources.read()
        self._scan(full)
        self.reduce(self.sources.events(self.state, set(self.inventory.vms)))
        self.reduce(self.requests.over(self.state, time.monotonic()))
        self._forget_ended()
        if act:
            self._restore_excluded()
        # What a full pass reads is mostly new: the files of its threads are kept open for the masks that follow.
        with self.proc.keeping_stat_files() if act and full else contextlib.nullcontext():
            found = self._pass(list(self.inventory.vms), act)
        if act:
            self.drift_evidence.forget_evidence(self.node.topology.all_cpus, self.inventory.vms.values())
        self.compare_owners()
        self.disagreements.compare(self.state, self.placement_cache.rulings, self.node.online,
                                   self.config.watch.resync_seconds, nri=self.sources.nri)
        return PassReport(found, len(self.inventory.vms), time.perf_counter() - started)

    @log.operation()
    def reconcile(self, sandboxes: Iterable[SandboxId], act: bool = True, scan: bool = True) -> PassReport:
        """Set the masks of some sandboxes' threads that differ, and of others whose placement follows from theirs (the
        shared pool).
        :param scan: whether to look for VMs of those sandboxes that have none."""
        started = time.perf_counter()
        wanted = set(sandboxes)
        self.read_kubelet()
        if self.sources.unsettled or any(map(self.pinner.doubts, wanted)):
            self.sources.read()
            self.reduce(self.sources.events(self.state, set(self.inventory.vms)))
        if scan and any(sandbox not in self.inventory.vms for sandbox in wanted):
            self._scan(full=False)
        found = self._pass([sandbox for sandbox in self.inventory.vms if sandbox in wanted], act)
        return PassReport(found, len(wanted), time.perf_counter() - started)

    def refresh(self) -> None:
        """Read which threads the VMs have, so that status shows no others. Sets no mask: a new thread is placed, and
        set in the next pass."""
        self._refreshed(list(self.inventory.vms))
        self._place()

    def inspect_process(self, pid: int) -> Found | None:
        """Classify a process that has just executed a program, or appeared: (main thread, classification, argv); None
        if unrelated."""
        return self.inventory.inspect(pid)

    def pin_newborn(self, placement: Placement, thread: VmThread, mask: CpuSet) -> Result | None:
        """Do for one new thread, ahead of its VM's next pass, what a pass does: compare its mask with the placement,
        keep a new process's mask, set it and count the outcome. None if nothing is to be set.
        :param mask: the thread's mask now."""
        operations = diff(placement, (Observed(thread, mask),))
        if not operations:
            return None
        if thread.main:
            self.keep_mask(placement.sandbox, thread, mask)
        result = self.pinner.carry_out_ahead(operations[0])
        self.counters.pins[thread.role, result.outcome.value] += 1
        return result

    def assign_processes(self) -> set[SandboxId]:
        """Give sandboxes the processes that were inspected. :returns: those whose VM is another now."""
        changed = self.inventory.assign(self.sources.claims(self.state))
        self._changed_vms(changed)
        return changed

    def _scan(self, full: bool) -> None:
        self._changed_vms(self.inventory.scan(self.sources.claims(self.state), full))

    def _changed_vms(self, changed: set[SandboxId]) -> None:
        """Have sandboxes placed again whose VM appeared, ended or is another."""
        self.placement_cache.dirty |= changed
        for sandbox in changed & self.inventory.vms.keys():
            # A kernel thread that came late (kvm-pit) changes neither the VMM's own threads nor the placement.
            self.pinner.recheck(sandbox)
        self.reduce([SandboxSeen(sandbox, "vmm") for sandbox in self.inventory.vms
                     if outranks("vmm", self.state.sandboxes.get(sandbox))])

    def _forget_ended(self) -> None:
        """Have each owner drop VMs that have ended, sandboxes that are gone, and containers stopped long ago."""
        vms, helped = self.inventory.vms.keys(), self.inventory.process_table.sandboxes_with_helpers()
        self.drift_evidence.keep_only(vms)
        self.failures.keep_only(vms)
        for sandbox in self.newborn_counts.keys() - vms - helped:
            del self.newborn_counts[sandbox]
        kept = vms | self.state.sandboxes.keys() | helped
        self.pinner.keep_only(vms)
        self.changed |= self.originals.keep_only(kept, self.inventory.process_table.is_running)
        self.changed |= self.placement_cache.keep_only(vms, kept)
        self.counters.keep_only(self.state.sandboxes)
        for sandbox in self.inventory.vcpus.keys() - kept:
            del self.inventory.vcpus[sandbox]
            self.changed = True
        horizon = boottime.now() - STOPPED_FOR
        for sandbox, state in self.state.sandboxes.items():
            shorter = forget_stopped(state, horizon)
            if shorter is not state:
                self.state = DesiredState({**self.state.sandboxes, sandbox: shorter})
                self.changed = True

    def _pass(self, sandboxes: list[SandboxId], act: bool) -> tuple[Result, ...]:
        """Read, place and pin the VMs of these sandboxes. :returns: results; without `act` as if all were done."""
        self.pinner.grace = GRACE if self.sources.nri else 0.0
        vms = self._refreshed(sandboxes)
        seen = {vm.sandbox for vm in vms}
        vms += self._refreshed(sandbox for sandbox in self._place() if sandbox not in seen)
        operations: list[SetAffinity] = []
        for vm in vms:
            with self.failures.recorded(vm.sandbox):
                operations += self._operations(vm.sandbox)
        self.counters.contentions = self.drift_tracker.contended
        self.counters.contentions_by = self.drift_tracker.contended_by
        if not operations:
            return ()
        if not act:
            for operation in operations:
                self.pinner.recheck(operation.sandbox)  # still to be done
            return tuple(Result(operation, Outcome.DONE, None) for operation in ordered(operations))
        if self.originals.unsaved:
            self.save()  # before the first mask is changed: whatever happens then, it can be given back
        results = tuple(self.pinner.carry_out(operations, self.placements))
        outcomes = Counter([(result.operation.thread.role, result.outcome) for result in results])
        self.counters.pins.update({(role, outcome.value): count for (role, outcome), count in outcomes.items()})
        self.counters.refused_by.update(each.operation.sandbox for each in results if each.outcome is Outcome.REFUSED)
        return results

    def _operations(self, sandbox: SandboxId) -> tuple[SetAffinity, ...]:
        placement = self.placements.get(sandbox)
        if placement is None:
            self.pinner.leave_alone(sandbox)
            return ()
        return self.pinner.operations(self.inventory.vms[sandbox], placement)

    def _refreshed(self, sandboxes: Iterable[SandboxId]) -> list[Vm]:
        """Read the threads of sandboxes' VMs. :returns: the VMs that could be read."""
        vms = []
        for sandbox in sandboxes:
            with self.failures.recorded(sandbox):
                if (vm := self._refresh(sandbox)) is not None:
                    vms.append(vm)
        return vms

    def _refresh(self, sandbox: SandboxId) -> Vm | None:
        """Read a VM's threads; it is placed again if they changed. None when there is no VM, or it has ended."""
        vm = self.inventory.vms.get(sandbox)
        if vm is None:
            return None
        match self.inventory.refresh(vm):
            case Refresh.ENDED:
                self.placement_cache.dirty.add(sandbox)
                return None
            case Refresh.CHANGED:
                self.pinner.recheck(sandbox)
                self.placement_cache.dirty.add(sandbox)
        return vm

    def _place(self) -> set[SandboxId]:
        """Place the sandboxes that changed. :returns: those whose placement is another than before."""
        self.placement_cache.dirty |= self.nics.refresh(
            self.inventory.vms, self.inventory.process_table.round, self.config.policy.vhost is ThreadPolicy.NEAR)
        return self.placement_cache.place(self.state, self.inventory.vms, self.pinner.recheck, self.failures.record)

    @log.operation()
    def unpin(self, sandboxes: Iterable[SandboxId], leaving: bool = False) -> list[Result]:
        """Give threads the masks they had before vmpin, and leave the sandboxes alone until they are taken back.
        :param leaving: for as long as this process lives only. Were it kept, and this process killed before it has
            left, the next one would leave them alone for good."""
        results: list[Result] = []
        for sandbox in sandboxes:
            state = self.state.sandboxes.get(sandbox)
            if leaving and state is not None and not state.suspended:
                self.leaving.add(sandbox)
            self.reduce([SuspensionChanged(sandbox, True)])
            results += self.restore(sandbox)
        self.save()
        return results

    def restore(self, sandbox: SandboxId) -> list[Result]:
        """Give a sandbox's threads their original masks. One that is followed and not suspended is placed
        again in the next pass."""
        self.placements.pop(sandbox, None)
        results: list[Result] = []
        with self.failures.recorded(sandbox):
            results = self._restoration.restore(sandbox, partial(self._owned, sandbox), self.node.topology)
        self.pinner.forget(sandbox)
        self.placement_cache.previous.pop(sandbox, None)
        self.changed = True
        return results

    def _restore_excluded(self) -> None:
        """Give back the masks of sandboxes that vmpin placed and that `watch.only` excludes since. A mask that the
        kernel refuses is tried again in the next full pass."""
        only = self.inventory.only
        excluded = [sandbox for sandbox in self.originals.masks if not fnmatchcase(sandbox, only)]
        self._not_restored &= set(excluded)
        for sandbox in excluded:
            results = self.restore(sandbox)
            if sandbox not in self.originals.masks:
                logger.info("excluded sandbox=%s only=%s: original masks restored, changed=%d",
                            sandbox, only, sum(result.got != result.operation.was for result in results
                                               if result.outcome is not Outcome.GONE))
            elif sandbox not in self._not_restored:
                self._not_restored.add(sandbox)
                why = next((result.why for result in results if result.outcome is Outcome.REFUSED), "not all were met")
                logger.error("excluded sandbox=%s only=%s: not all original masks restored: %s", sandbox, only, why)

    def restoring(self, sandboxes: Iterable[SandboxId]) -> list[SetAffinity]:
        """The operations of `restore` that would change a mask now. Sets none."""
        operations: list[SetAffinity] = []
        for sandbox in sandboxes:
            with self.failures.recorded(sandbox):
                operations += self._restoration.plan(sandbox, self._owned(sandbox), self.node.topology)
        return operations

    def _owned(self, sandbox: SandboxId) -> list[tuple[VmThread, ThreadId]]:
        """The threads of a sandbox at this moment, each with its process; without a VM those of its helpers."""
        self._refresh(sandbox)
        vm = self.inventory.vms.get(sandbox)
        if vm is not None:
            return [(thread, vm.main_of(thread)) for thread in vm.threads()]
        return [(thread, process.id) for process in self.inventory.helpers(sandbox)
                for thread in process.threads.values()]

    def take_back(self, sandboxes: Iterable[SandboxId]) -> None:
        """Follow sandboxes again that were unpinned, and retry threads that were left to another writer."""
        self.reduce([SuspensionChanged(sandbox, False) for sandbox in sandboxes])
        self.pinner.retry_now()
