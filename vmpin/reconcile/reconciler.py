"""Passes over a node: state, placement, operations, system calls, and the masks read back.

`reconcile` makes true what concerns some sandboxes, `resync` everything, from what the runtimes and the kernel have
now. Synchronous, and usable without a watcher (`vmpin reconcile`; read-only for `plan`, `status` and `verify`).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from vmpin import log
from vmpin.config.settings import Config
from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import outranks
from vmpin.domain.events import SandboxSeen, SuspensionChanged
from vmpin.domain.model import SandboxId, ThreadId, VmThread
from vmpin.domain.policy import ThreadPolicy
from vmpin.domain.sandbox_placement import Placement
from vmpin.pinning.apply import Outcome, Result
from vmpin.pinning.original_mask_store import Restoration
from vmpin.pinning.plan import Observed, SetAffinity, diff, ordered
from vmpin.reconcile.adapters import Adapters
from vmpin.reconcile.node_state import NodeState
from vmpin.vmm.recognition import Recognized
from vmpin.vmm.virtual_machine import Refresh, Vm

if TYPE_CHECKING:
    from vmpin.reconcile.view import NodeView

logger = logging.getLogger(__name__)

#: While the runtime reports what happens (NRI): for so long (s) a cgroup may refuse or trim masks before that counts.
GRACE = 2.0


class PassReport(NamedTuple):
    """What a pass did. `vms` is how many it was about, `results` what became of each operation."""

    results: tuple[Result, ...]
    vms: int
    seconds: float

    def count(self, outcome: Outcome) -> int:
        return sum(result.outcome is outcome for result in self.results)


class Reconciler:
    """The passes that make the state of a node true.
    :param acts: whether the lock is held. Without it the run directory is left as it is.
    :param adapters: None for those at the configuration's paths.
    :param used: as `NodeState` has it."""

    def __init__(self, config: Config, acts: bool = True, adapters: Adapters | None = None,
                 used: bool | None = None) -> None:
        self.node_state = NodeState(config, acts, adapters, used)
        #: Sandboxes that `watch.only` excludes and that still have masks of vmpin's; each is logged once.
        self._not_restored: set[SandboxId] = set()
        self._restoration = Restoration(self.node_state.proc, self.node_state.cgroups, self.node_state.original_masks)

    @property
    def view(self) -> NodeView:
        """The state of the node, for every reader outside this package."""
        return self.node_state

    @log.operation()
    def resync(self, act: bool = True, full: bool = False) -> PassReport:
        """Read everything again, and set the masks that differ if `act`.
        :param full: also classify again processes that were found to be unrelated."""
        node_state = self.node_state
        started = time.perf_counter()
        node_state.read_node()
        if node_state.first_list.overdue():
            node_state.placement_cache.dirty.update(node_state.sandboxes)
            node_state.observe_ownership()
        node_state.sources.online = node_state.node.online
        node_state.sources.read()
        self._scan(full)
        node_state.apply_events(node_state.sources.events(node_state.state, set(node_state.vms)))
        node_state.apply_events(node_state.requests.over(node_state.state, time.monotonic()))
        node_state.forget_ended()
        if act:
            self._restore_excluded()
        # What a full pass reads is mostly new: the files of its threads are kept open for the masks that follow.
        with node_state.proc.keeping_stat_files() if act and full else contextlib.nullcontext():
            found = self._pass(list(node_state.vms), act)
        if act:
            node_state.drift_evidence.forget_evidence(node_state.node.topology.all_cpus, node_state.vms.values())
        node_state.compare_owners()
        node_state.source_disagreements.compare(node_state.state, node_state.rulings, node_state.node.online,
                                                node_state.config.watch.resync_seconds, nri=node_state.sources.nri)
        return PassReport(found, len(node_state.vms), time.perf_counter() - started)

    @log.operation()
    def reconcile(self, sandboxes: Iterable[SandboxId], act: bool = True, scan: bool = True) -> PassReport:
        """Set the masks of some sandboxes' threads that differ, and of others whose placement follows from theirs (the
        shared pool).
        :param scan: whether to look for VMs of those sandboxes that have none."""
        node_state = self.node_state
        started = time.perf_counter()
        wanted = set(sandboxes)
        node_state.read_assignments()
        if node_state.sources.unsettled or any(map(node_state.pinner.doubts, wanted)):
            node_state.sources.read()
            node_state.apply_events(node_state.sources.events(node_state.state, set(node_state.vms)))
        if scan and any(sandbox not in node_state.vms for sandbox in wanted):
            self._scan(full=False)
        found = self._pass([sandbox for sandbox in node_state.vms if sandbox in wanted], act)
        return PassReport(found, len(wanted), time.perf_counter() - started)

    def refresh(self) -> None:
        """Read which threads the VMs have, so that status shows no others. Sets no mask: a new thread is placed, and
        set in the next pass."""
        self._refreshed(list(self.node_state.vms))
        self._place()

    def inspect_process(self, pid: int) -> Recognized | None:
        """Classify a process that has just executed a program, or appeared: (main thread, classification, argv); None
        if unrelated."""
        return self.node_state.inventory.inspect(pid)

    def pin_newborn(self, placement: Placement, thread: VmThread, mask: CpuSet) -> Result | None:
        """Do for one new thread, ahead of its VM's next pass, what a pass does: compare its mask with the placement,
        keep a new process's mask, set it and count the outcome. None if nothing is to be set.
        :param mask: the thread's mask now."""
        node_state = self.node_state
        operations = diff(placement, (Observed(thread, mask),))
        if not operations:
            return None
        if thread.main:
            node_state.keep_mask(placement.sandbox, thread, mask)
        result = node_state.pinner.set_mask_ahead(operations[0])
        node_state.counters.pins[thread.role, result.outcome.value] += 1
        return result

    def assign_processes(self) -> set[SandboxId]:
        """Give sandboxes the processes that were inspected. :returns: those whose VM is another now."""
        node_state = self.node_state
        changed = node_state.inventory.assign(node_state.sources.claims(node_state.state))
        self._changed_vms(changed)
        return changed

    def _scan(self, full: bool) -> None:
        node_state = self.node_state
        self._changed_vms(node_state.inventory.scan(node_state.sources.claims(node_state.state), full))

    def _changed_vms(self, changed: set[SandboxId]) -> None:
        """Have sandboxes placed again whose VM appeared, ended or is another."""
        node_state = self.node_state
        node_state.placement_cache.dirty |= changed
        for sandbox in changed & node_state.vms.keys():
            # A kernel thread that came late (kvm-pit) changes neither the VMM's own threads nor the placement.
            node_state.pinner.recheck(sandbox)
        node_state.apply_events([SandboxSeen(sandbox, "vmm") for sandbox in node_state.vms
                                 if outranks("vmm", node_state.sandboxes.get(sandbox))])

    def _pass(self, sandboxes: list[SandboxId], act: bool) -> tuple[Result, ...]:
        """Read, place and pin the VMs of these sandboxes. :returns: results; without `act` as if all were done."""
        node_state = self.node_state
        node_state.pinner.grace = GRACE if node_state.sources.nri else 0.0
        vms = self._refreshed(sandboxes)
        seen = {vm.sandbox for vm in vms}
        vms += self._refreshed(sandbox for sandbox in self._place() if sandbox not in seen)
        operations: list[SetAffinity] = []
        for vm in vms:
            with node_state.failures.recorded(vm.sandbox):
                operations += self._operations(vm.sandbox)
        counters = node_state.counters
        counters.contentions = node_state.drift_tracker.contended
        counters.contentions_by = node_state.drift_tracker.contended_by
        if not operations:
            return ()
        if not act:
            for operation in operations:
                node_state.pinner.recheck(operation.sandbox)  # still to be done
            return tuple(Result(operation, Outcome.DONE, None) for operation in ordered(operations))
        if node_state.original_masks.unsaved:
            node_state.save()  # before the first mask is changed: whatever happens then, it can be given back
        results = tuple(node_state.pinner.set_masks(operations, node_state.placements))
        outcomes = Counter([(result.operation.thread.role, result.outcome) for result in results])
        counters.pins.update({(role, outcome.value): count for (role, outcome), count in outcomes.items()})
        counters.refused_by.update(result.operation.sandbox for result in results
                                   if result.outcome is Outcome.REFUSED)
        return results

    def _operations(self, sandbox: SandboxId) -> tuple[SetAffinity, ...]:
        node_state = self.node_state
        placement = node_state.placements.get(sandbox)
        if placement is None:
            node_state.pinner.leave_alone(sandbox)
            return ()
        return node_state.pinner.operations(node_state.vms[sandbox], placement)

    def _refreshed(self, sandboxes: Iterable[SandboxId]) -> list[Vm]:
        """Read the threads of sandboxes' VMs. :returns: the VMs that could be read."""
        vms = []
        for sandbox in sandboxes:
            with self.node_state.failures.recorded(sandbox):
                if (vm := self._refresh(sandbox)) is not None:
                    vms.append(vm)
        return vms

    def _refresh(self, sandbox: SandboxId) -> Vm | None:
        """Read a VM's threads; it is placed again if they changed. None when there is no VM, or it has ended."""
        node_state = self.node_state
        vm = node_state.vms.get(sandbox)
        if vm is None:
            return None
        match node_state.inventory.refresh(vm):
            case Refresh.ENDED:
                node_state.placement_cache.dirty.add(sandbox)
                return None
            case Refresh.CHANGED:
                node_state.pinner.recheck(sandbox)
                node_state.placement_cache.dirty.add(sandbox)
        return vm

    def _place(self) -> set[SandboxId]:
        """Place the sandboxes that changed. :returns: those whose placement is another than before."""
        node_state = self.node_state
        node_state.placement_cache.dirty |= node_state.nic_nodes.refresh(
            node_state.vms, node_state.inventory.process_table.round,
            node_state.config.policy.vhost is ThreadPolicy.NEAR)
        return node_state.placement_cache.place_changed(node_state.state, node_state.vms, node_state.pinner.recheck,
                                                        node_state.failures.record)

    @log.operation()
    def unpin(self, sandboxes: Iterable[SandboxId], leaving: bool = False) -> list[Result]:
        """Give threads the masks they had before vmpin, and leave the sandboxes alone until they are taken back.
        :param leaving: for as long as this process lives only. Were it kept, and this process killed before it has
            left, the next one would leave them alone for good."""
        node_state = self.node_state
        results: list[Result] = []
        for sandbox in sandboxes:
            state = node_state.sandboxes.get(sandbox)
            if leaving and state is not None and not state.suspended:
                node_state.leaving.add(sandbox)
            node_state.apply_events([SuspensionChanged(sandbox, True)])
            results += self.restore(sandbox)
        node_state.save()
        return results

    def restore(self, sandbox: SandboxId) -> list[Result]:
        """Give a sandbox's threads their original masks. One that is followed and not suspended is placed
        again in the next pass."""
        node_state = self.node_state
        node_state.placement_cache.placements.pop(sandbox, None)
        results: list[Result] = []
        with node_state.failures.recorded(sandbox):
            results = self._restoration.restore(sandbox, partial(self._owned, sandbox), node_state.node.topology)
        node_state.pinner.forget(sandbox)
        node_state.placement_cache.previous.pop(sandbox, None)
        node_state.changed = True
        return results

    def _restore_excluded(self) -> None:
        """Give back the masks of sandboxes that vmpin placed and that `watch.only` excludes since. A mask that the
        kernel refuses is tried again in the next full pass."""
        node_state = self.node_state
        only = node_state.inventory.only
        excluded = [sandbox for sandbox in node_state.originals if not fnmatchcase(sandbox, only)]
        self._not_restored &= set(excluded)
        for sandbox in excluded:
            results = self.restore(sandbox)
            if sandbox not in node_state.originals:
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
            with self.node_state.failures.recorded(sandbox):
                operations += self._restoration.plan(sandbox, self._owned(sandbox), self.node_state.node.topology)
        return operations

    def _owned(self, sandbox: SandboxId) -> list[tuple[VmThread, ThreadId]]:
        """The threads of a sandbox at this moment, each with its process; without a VM those of its helpers."""
        self._refresh(sandbox)
        vm = self.node_state.vms.get(sandbox)
        if vm is not None:
            return [(thread, vm.main_of(thread)) for thread in vm.threads()]
        return [(thread, process.id) for process in self.node_state.inventory.helpers(sandbox)
                for thread in process.threads.values()]

    def take_back(self, sandboxes: Iterable[SandboxId]) -> None:
        """Follow sandboxes again that were unpinned, and retry threads that were left to another writer."""
        self.node_state.apply_events([SuspensionChanged(sandbox, False) for sandbox in sandboxes])
        self.node_state.pinner.retry_now()
