"""Passes over a node: state, placement, operations, system calls, and the masks read back.

`reconcile` is a pass over some sandboxes, `resync` over all, from what the runtimes and the kernel show now.
Synchronous, and usable without a watcher (`vmpin repin`; read-only for `plan`, `status` and `verify`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import partial

from vmpin import log
from vmpin.config.settings import Config
from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import outranks
from vmpin.domain.events import SandboxSeen, SuspensionChanged
from vmpin.domain.model import SandboxId, ThreadId, VmThread
from vmpin.domain.sandbox_placement import Placement
from vmpin.named_tuple import NamedTuple
from vmpin.pinning.apply import Outcome, Result
from vmpin.pinning.plan import Observed, SetAffinity, diff, ordered
from vmpin.placement.ownership import is_counted
from vmpin.reconcile.node_state import NodeState
from vmpin.reconcile.source_findings import RESYNCS
from vmpin.reconcile.view import NodeView
from vmpin.vmm.recognition import Recognized
from vmpin.vmm.virtual_machine import Refresh, Vm

logger = logging.getLogger(__name__)

#: For so long (s) a cgroup may refuse or trim masks before that counts, while the runtime reports changes (NRI).
GRACE = 2.0


class PassReport(NamedTuple):
    """The outcome of a pass: a result for each operation, the number of VMs, and the duration."""

    results: tuple[Result, ...]
    vms: int
    seconds: float

    def count(self, outcome: Outcome) -> int:
        return sum(result.outcome is outcome for result in self.results)


class Reconciler:
    """Makes passes over a node. :param acts, used: see `NodeState`."""

    def __init__(self, config: Config, acts: bool = True, used: bool | None = None) -> None:
        self.node_state = NodeState(config, acts, used)
        self.view = NodeView(self.node_state)  #: The node, for readers outside this package.
        self._failures = Failures(self.node_state.pinner.recheck)
        #: Excluded sandboxes (`watch.only`) that still have masks of vmpin's; each is logged once.
        self._not_restored: set[SandboxId] = set()

    @log.operation()
    def resync(self, act: bool = True, full: bool = False) -> PassReport:
        """A pass over all sandboxes; everything is read again. :param act: whether to set the masks that differ.
        :param full: also classify processes again that were unrelated before."""
        node_state = self.node_state
        started = time.perf_counter()
        node_state.read_node()
        if node_state.first_list.overdue():
            node_state.placement_cache.dirty.update(node_state.state.sandboxes)
        node_state.observe_ownership()
        node_state.look_up_processes()
        node_state.sources.online = self.view.node.online
        node_state.sources.read()
        self._scan(full)
        node_state.apply_events(node_state.sources.events(node_state.state, set(node_state.vms)))
        node_state.apply_events(node_state.requests.expired(node_state.state, time.monotonic()))
        node_state.forget_ended()
        self._failures.next_resync()
        if act:
            self._restore_excluded()
        results = self._pass(list(node_state.vms), act)
        if act:
            node_state.drift_evidence.forget_evidence(self.view.node.topology.all_cpus, node_state.vms.values())
        self._compare_sources()
        return PassReport(results, len(node_state.vms), time.perf_counter() - started)

    def _compare_sources(self) -> None:
        """Look for pods with CPUs of which no container is known, for containers on whose CPUs the sources disagree,
        and for two that decide on the same CPUs."""
        node_state = self.node_state
        nri, resync_seconds = node_state.sources.nri, node_state.config.watch.resync_seconds
        nameless = any(sandbox.pod is None and not any(map(is_counted, sandbox.live()))
                       for sandbox in map(node_state.state.sandboxes.get, node_state.vms) if sandbox is not None)
        patience = RESYNCS * resync_seconds if node_state.watches else 0.0  # a single pass cannot wait
        node_state.owner_search.compare(node_state.state, node_state.authorities.kubelet, nameless, nri, patience,
                                        doubt=self.view.checkpoint_doubt)
        node_state.source_disagreements.compare(node_state.state, self.view.rulings, self.view.node.online,
                                                resync_seconds, nri=nri)
        node_state.authority_rivals.compare(node_state.state, node_state.authorities.listing(node_state.state),
                                            self.view.rulings, self.view.node.online, patience)

    @log.operation()
    def reconcile(self, sandboxes: Iterable[SandboxId], act: bool = True, scan: bool = True) -> PassReport:
        """A pass over some sandboxes, and over others whose placement depends on theirs (the shared pool).
        :param act: whether to set the masks that differ.
        :param scan: whether to look for VMs of sandboxes without one, where they may have one (`may_get_vm`)."""
        node_state = self.node_state
        started = time.perf_counter()
        wanted = set(sandboxes)
        node_state.authorities.read(node_state.config)
        if node_state.sources.kata.unsettled or any(map(node_state.pinner.refused_early, wanted)):
            node_state.sources.read()
            node_state.apply_events(node_state.sources.events(node_state.state, set(node_state.vms)))
        if scan and any(sandbox not in node_state.vms and self.view.may_get_vm(sandbox) for sandbox in wanted):
            self._scan(full=False)
        results = self._pass([sandbox for sandbox in node_state.vms if sandbox in wanted], act)
        return PassReport(results, len(wanted), time.perf_counter() - started)

    def refresh(self) -> None:
        """Read the VMs' threads and place them, for the status. The next pass sets the masks of new threads."""
        self._refreshed(list(self.node_state.vms))
        self.place()

    def inspect_process(self, pid: int) -> Recognized | None:
        """Classify a new process, or one that has just executed a program: (main thread, classification, argv); None
        if unrelated."""
        return self.node_state.inventory.inspect(pid)

    def pin_newborn(self, placement: Placement, thread: VmThread, mask: CpuSet) -> Result | None:
        """Pin one new thread ahead of its VM's next pass, in the same way: compare its mask with the placement, record
        a new process's original mask, set the mask and count the outcome. None if there is nothing to set.
        :param mask: the thread's current mask."""
        node_state = self.node_state
        operations = diff(placement, (Observed(thread, mask),))
        if not operations:
            return None
        if thread.main:
            node_state.keep_mask(placement.sandbox, thread, mask)
        node_state.begin_setting()
        result = node_state.pinner.set_mask_ahead(operations[0])
        node_state.counters.pins[thread.role, result.outcome.value] += 1
        return result

    def assign_processes(self) -> set[SandboxId]:
        """Assign inspected processes to sandboxes. :returns: the sandboxes whose VM changed."""
        node_state = self.node_state
        changed = node_state.inventory.assign(node_state.sources.claims(node_state.state))
        self._changed_vms(changed)
        return changed

    def _scan(self, full: bool) -> None:
        node_state = self.node_state
        self._changed_vms(node_state.inventory.scan(node_state.sources.claims(node_state.state), full))

    def _changed_vms(self, changed: set[SandboxId]) -> None:
        """Place sandboxes again whose VM appeared, ended or changed."""
        node_state = self.node_state
        node_state.placement_cache.dirty |= changed
        for sandbox in changed & node_state.vms.keys():
            # Its threads are compared again even if the placement does not change: a kernel thread (kvm-pit) may be
            # new.
            node_state.pinner.recheck(sandbox)
        node_state.apply_events([SandboxSeen(sandbox, "vmm") for sandbox in node_state.vms
                                 if outranks("vmm", node_state.state.sandboxes.get(sandbox))])

    def _pass(self, sandboxes: list[SandboxId], act: bool) -> tuple[Result, ...]:
        """Read, place and pin the VMs of these sandboxes. :returns: the results; without `act` as if all were done."""
        node_state = self.node_state
        node_state.pinner.grace = GRACE if node_state.sources.nri else 0.0
        vms = self._refreshed(sandboxes)
        seen = {vm.sandbox for vm in vms}
        vms += self._refreshed(sandbox for sandbox in self.place() if sandbox not in seen)
        operations: list[SetAffinity] = []
        for vm in vms:
            try:
                operations += self._operations(vm.sandbox)
            except Exception as err:
                self._failures.record(vm.sandbox, err)
        if not operations:
            return ()
        if not act:
            for operation in operations:
                node_state.pinner.recheck(operation.sandbox)  # not done yet
            return tuple(Result(operation, Outcome.DONE, None) for operation in ordered(operations))
        if node_state.original_masks.unsaved:
            node_state.save()  # before the first mask is set, so that it can be restored after a crash
        node_state.begin_setting()
        results = tuple(node_state.pinner.set_masks(operations, node_state.placements))
        outcomes = Counter([(result.operation.thread.role, result.outcome) for result in results])
        counters = node_state.counters
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
        """Read the threads of sandboxes' VMs. :returns: the VMs whose threads could be read."""
        vms = []
        for sandbox in sandboxes:
            try:
                if (vm := self._refresh(sandbox)) is not None:
                    vms.append(vm)
            except Exception as err:
                self._failures.record(sandbox, err)
        return vms

    def _refresh(self, sandbox: SandboxId) -> Vm | None:
        """Read a VM's threads; it is placed again if they changed. None without a VM, or if it has ended."""
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

    def place(self) -> set[SandboxId]:
        """Place the sandboxes that changed. :returns: those whose placement changed, whose masks a pass has to set."""
        node_state = self.node_state
        node_state.placement_cache.dirty |= node_state.moved_nics()
        return node_state.placement_cache.place_changed(node_state.state, node_state.vms, node_state.pinner.recheck,
                                                        self._failures.record)

    @log.operation()
    def unpin(self, sandboxes: Iterable[SandboxId], leaving: bool = False) -> list[Result]:
        """Restore the original masks of sandboxes' threads, and suspend the sandboxes.
        :param leaving: suspend them only in this process, which is about to end: in the state file the suspension
        would last for good if this process were killed before it has left."""
        node_state = self.node_state
        results: list[Result] = []
        for sandbox in sandboxes:
            state = node_state.state.sandboxes.get(sandbox)
            if leaving and state is not None and not state.suspended:
                node_state.leaving.add(sandbox)
            node_state.apply_events([SuspensionChanged(sandbox, True)])
            results += self.restore(sandbox)
        node_state.save()
        return results

    def restore(self, sandbox: SandboxId) -> list[Result]:
        """Restore the original masks of a sandbox's threads. A sandbox that is neither excluded nor suspended is
        placed again in the next pass."""
        node_state = self.node_state
        node_state.placement_cache.placements.pop(sandbox, None)
        results: list[Result] = []
        try:
            results = node_state.original_masks.restore(
                sandbox, partial(self._owned, sandbox), self.view.node.topology)
        except Exception as err:
            self._failures.record(sandbox, err)
        node_state.pinner.forget(sandbox)
        node_state.placement_cache.previous.pop(sandbox, None)
        node_state.changed = True
        return results

    def _restore_excluded(self) -> None:
        """Restore the original masks of sandboxes that `watch.only` excludes. A refused mask is tried again in the
        next full pass."""
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
        """The operations by which `restore` would change masks now. Sets none."""
        operations: list[SetAffinity] = []
        for sandbox in sandboxes:
            try:
                operations += self.node_state.original_masks.restoring(
                    sandbox, self._owned(sandbox), self.view.node.topology)
            except Exception as err:
                self._failures.record(sandbox, err)
        return operations

    def _owned(self, sandbox: SandboxId) -> list[tuple[VmThread, ThreadId]]:
        """The current threads of a sandbox, each with its process; without a VM those of its helpers."""
        self._refresh(sandbox)
        vm = self.node_state.vms.get(sandbox)
        if vm is not None:
            return [(thread, vm.main_of(thread)) for thread in vm.threads()]
        return [(thread, process.id) for process in self.node_state.inventory.helpers(sandbox)
                for thread in process.threads.values()]

    def take_back(self, sandboxes: Iterable[SandboxId]) -> None:
        """Resume suspended sandboxes, and retry threads that were left to another writer."""
        self.node_state.apply_events([SuspensionChanged(sandbox, False) for sandbox in sandboxes])
        self.node_state.pinner.retry_now()


class Failures:
    """Steps for single sandboxes that failed. A failure never stops the other sandboxes. It is logged when it is new:
    not if the same one occurred since the last resync, or between the last two.
    :param recheck: called for a sandbox whose step failed, so that the next pass compares all of its threads."""

    def __init__(self, recheck: Callable[[SandboxId], None]) -> None:
        self._recheck = recheck
        #: Why steps failed since the last resync, and between the last two.
        self._now: set[tuple[SandboxId, str]] = set()
        self._before: set[tuple[SandboxId, str]] = set()

    def record(self, sandbox: SandboxId, err: Exception) -> None:
        """Record a failed step (called in an except block)."""
        self._recheck(sandbox)
        failure = sandbox, repr(err)
        if failure not in self._now | self._before:
            logger.error("not reconciled sandbox=%s: %s", *failure)
            logger.debug("sandbox=%s", sandbox, exc_info=True)
        self._now.add(failure)

    def next_resync(self) -> None:
        self._before, self._now = self._now, set()
