"""What scheduling does in a watcher: after each pass it decides on the sandboxes that changed, after each resync on
all, and has the classes set and given back."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, VcpuId, VmThread
from vmpin.domain.sandbox_placement import Placement
from vmpin.feature import WatcherPart
from vmpin.features.scheduling.class_plan import LoneVcpu
from vmpin.features.scheduling.class_setter import ClassSetter, Vcpus, vcpus_of
from vmpin.features.scheduling.lone_vcpus import why_not_alone
from vmpin.features.scheduling.pod_choices import PodChoices
from vmpin.features.scheduling.sched_class import SchedClass, parse_class
from vmpin.features.scheduling.scheduling_settings import SchedulingSettings
from vmpin.features.scheduling.thread_class import class_of, kernel_release, why_unlimited
from vmpin.host import affinity
from vmpin.named_tuple import NamedTuple
from vmpin.placement.ownership import Ownership, find_collisions
from vmpin.reconcile.view import NodeView
from vmpin.sources.nri.nri_events import NriEvent, Synced

logger = logging.getLogger(__name__)


class LoneVcpus(NamedTuple):
    """The threads of a sandbox's vCPUs that are alone, and why others are not, "" for none. The first four are what
    that was decided by."""

    placement: Placement
    vm_threads: Mapping[int, VmThread]
    wanted: SchedClass | None
    refused: str  #: Why a mask of the VM is not as placed, "" if all are.
    threads: Mapping[ThreadId, LoneVcpu]
    whys: Mapping[VcpuId, str]


class NodeScheduling:
    """:param setter: sets the classes, and keeps the records."""

    def __init__(self, view: NodeView, settings: SchedulingSettings, setter: ClassSetter) -> None:
        self._view, self._settings, self._setter = view, settings, setter
        privileged = frozenset(filter(None, settings.privileged_namespaces.split(",")))
        self.choices = PodChoices(parse_class(settings.vcpu_class), privileged)
        #: Whether the runtime may not have listed yet which pods chose a class.
        self._unlisted = bool(privileged)
        self._decided: dict[SandboxId, LoneVcpus] = {}
        #: Sandboxes to look at in the next pass, whether they change or not.
        self._open: set[SandboxId] = set()
        self._ownership: Ownership | None = None
        self._collided = EMPTY
        #: Why no class is set on this node, and why the last pass failed; "" for no reason.
        self._stopped, self._failure = "", ""
        self._release = kernel_release(view.proc)

    def part(self) -> WatcherPart:
        return WatcherPart(begin=self._begin, after_pass=self._after_pass, after_resync=self._after_resync,
                           after_events=self._take_events if self._unlisted else None, settle=self._unpinned,
                           retry=self._retry, status=self.data, members=self._members,
                           planned=self._planned)

    def _take_events(self, events: Sequence[NriEvent]) -> None:
        self._unlisted = self._unlisted and not any(isinstance(event, Synced) for event in events)
        self.choices.take(events)

    # Decisions

    def _read_limit(self) -> None:
        stopped = "" if self._settings.without_throttling else why_unlimited(
            self._view.proc, self._view.config.paths.sys, self._release)
        if stopped != self._stopped:
            logger.log(logging.ERROR if stopped else logging.INFO, "classes of vCPUs are %s",
                       f"not set: {stopped}" if stopped else "set again")
        self._stopped = stopped

    def _decide(self, everything: bool) -> set[SandboxId]:
        """Decide on the sandboxes that changed.
        :param everything: whether collisions and refused masks may have changed, too.
        :returns: these sandboxes, and those that are gone."""
        view, ownership = self._view, self._view.ownership
        anew = ownership is not self._ownership
        if everything or anew:
            collided = self._owned_twice(ownership) | CpuSet(
                collision.cpu for collision in find_collisions(ownership, view.vms.keys()))
            anew |= collided != self._collided
            self._ownership, self._collided = ownership, collided
        decided, changed = {}, set()
        for sandbox, placement in view.placements.items():
            if (vm := view.vms.get(sandbox)) is None:
                continue
            threads, wanted, lone = vm.vmm.threads, self.choices.of(sandbox).wanted, self._decided.get(sandbox)
            same = (lone is not None and not anew and lone.placement is placement and lone.vm_threads is threads
                    and lone.wanted == wanted)
            refused = lone.refused if lone is not None and same and not everything else next(
                iter(view.refusals(sandbox)), "")
            if lone is None or not same or lone.refused != refused:
                lone = self._lone(sandbox, placement, threads, wanted, refused)
                changed.add(sandbox)
            decided[sandbox] = lone
        changed |= self._decided.keys() - decided.keys()
        self._decided = decided
        return changed

    def _owned_twice(self, ownership: Ownership) -> CpuSet:
        """The exclusive CPUs of more than one VM: a pod whose sandbox is created again has two for a while."""
        owned = twice = EMPTY
        for sandbox in self._view.vms.keys() & ownership.claims.keys():
            cpus = ownership.claims[sandbox].cpus
            owned, twice = owned | cpus, twice | owned & cpus
        return twice

    def _lone(self, sandbox: SandboxId, placement: Placement, vm_threads: Mapping[int, VmThread],
              wanted: SchedClass | None, refused: str) -> LoneVcpus:
        view, claim = self._view, self._view.ownership.claims.get(sandbox)
        of_vcpu: dict[VcpuId, list[ThreadId]] = {}
        for thread in vm_threads.values():
            if thread.role is ThreadRole.VCPU and thread.vcpu is not None:
                of_vcpu.setdefault(thread.vcpu, []).append(thread.id)
        threads, whys = dict[ThreadId, LoneVcpu](), dict[VcpuId, str]()
        for place in placement.vcpus if wanted is not None else ():
            why = why_not_alone(place, placement, EMPTY if claim is None else claim.cpus, self._collided,
                                view.config.rules)
            if not why and refused:
                why = f"masks of its VM are not as placed: {refused}"
            if not why and len(of_vcpu.get(place.id, ())) != 1:
                why = "its thread is not identified"
            whys[place.id] = why
            if not why and wanted is not None and place.cpus is not None:
                threads[of_vcpu[place.id][0]] = LoneVcpu(
                    sandbox, view.vms[sandbox].vmm.id, place.id, place.cpus.first, wanted)
        return LoneVcpus(placement, vm_threads, wanted, refused, threads, whys)

    def _wanted(self) -> dict[ThreadId, LoneVcpu]:
        return {} if self._stopped else {
            thread: lone for decided in self._decided.values() for thread, lone in decided.threads.items()}

    def _keeps(self, sandbox: SandboxId, thread: ThreadId) -> bool:
        """Whether a thread of a sandbox of which nothing is known yet keeps its class, as it keeps its mask: where
        that is one CPU, and no other pod's."""
        unknown = self._unlisted and not self.choices.annotated(sandbox)
        if self._stopped or not (unknown or sandbox in self._view.unmanaged):
            return False
        mask = None
        with contextlib.suppress(OSError):  # then its class cannot be read either
            mask = affinity.get(thread.tid)
        return mask is not None and len(mask) == 1 and not self._view.ownership.foreign(sandbox) & CpuSet(mask)

    # Passes

    def _begin(self) -> None:
        self._read_limit()
        self._settle(everything=True, unseen=vcpus_of(self._view.vms))

    def _after_pass(self) -> None:
        self._settle(everything=False)

    def _after_resync(self) -> None:
        self._unlisted = self._unlisted and self._view.list_awaited
        self._read_limit()
        self._settle(everything=True)

    def _settle(self, everything: bool, unseen: Vcpus = MappingProxyType({})) -> None:
        """Have the setter set classes and give them back.
        :param unseen: threads that may have a class of vmpin's without a record."""
        changed = self._decide(everything) | self._open
        if not changed and not everything:
            return
        self._setter.contention.rules = self._view.config.contention_rules
        wanted, failure = self._wanted(), ""
        looked = [thread for thread, lone in wanted.items() if everything or lone.sandbox in changed]
        try:
            self._setter.record_lost(unseen)
            self._setter.settle(wanted, looked, self._keeps)
            self._open = {wanted[thread].sandbox for thread in self._setter.waiting}
        except OSError as err:
            failure, self._open = f"{err.filename or 'their classes'}: {err.strerror}", changed
        if failure and failure != self._failure:
            logger.error("classes of vCPUs are not set: %s", failure)
        self._failure = failure

    def _unpinned(self, sandboxes: Collection[SandboxId]) -> bool:
        self._decide(everything=False)
        return self._setter.give_back(lambda sandbox: sandbox in sandboxes)

    def _retry(self) -> None:
        self._setter.retry_now()
        self._open |= self._decided.keys()

    def _planned(self) -> list[str]:
        self._decide(everything=True)  # by placements that were made for the plan alone, perhaps
        self._open |= self._decided.keys()
        try:
            decided = self._setter.planned(self._wanted(), self._keeps)
        except OSError as err:
            return [f"the classes of vCPUs cannot be read: {err.strerror}"]
        return [change.describe() for change in (*decided.sets, *decided.backs)]

    # Status

    def data(self) -> dict[str, object]:
        """The feature's member of the status document."""
        return {"vcpu_class": self._settings.vcpu_class, "trouble": self._stopped or self._failure,
                "set": len(self._wanted().keys() - self._setter.why.keys())}

    def by_records(self) -> dict[SandboxId, Mapping[str, Any]]:
        """The members of sandboxes' entries without a watcher. The choices of pods are not known then: a pod with
        records counts as having chosen their class, and where pods may choose, one without as having chosen other.
        :raises OSError: the records cannot be read."""
        self._setter.record_lost(vcpus_of(self._view.vms), save=False)
        self.choices = self.choices.by_classes({
            record.sandbox: record.written[-1] for record in self._setter.records.values() if record.written})
        self._decide(everything=True)
        return {sandbox.id: self._members(sandbox) for sandbox in self._view.sandboxes.values()}

    def _members(self, state: SandboxState) -> Mapping[str, Any]:
        choice, decided = self.choices.of(state.id), self._decided.get(state.id)
        if choice.wanted is None and not choice.ignored:
            return {}
        return {"scheduling": {"class": "other" if choice.wanted is None else str(choice.wanted),
                               "annotated": self.choices.annotated(state.id), "ignored": choice.ignored,
                               "vcpus": [*self._vcpus(decided)] if decided else []}}

    def _left(self, decided: LoneVcpus) -> dict[VcpuId, SchedClass]:
        """The classes of vmpin's that vCPUs have which are not alone: the kernel refused to give the former one back.
        """
        left = dict[VcpuId, SchedClass]()
        with contextlib.suppress(OSError):
            records = self._setter.records
            for thread in decided.vm_threads.values():
                record = records.get(thread.id)
                if record is None or thread.vcpu is None or thread.id in decided.threads:
                    continue
                its = class_of(thread.id.tid)
                if its in record.written and its is not None and its != record.original:
                    left[thread.vcpu] = its
        return left

    def _vcpus(self, decided: LoneVcpus) -> Iterator[dict[str, object]]:
        threads = {lone.vcpu: thread for thread, lone in decided.threads.items()}
        left = self._left(decided)
        for vcpu, why in decided.whys.items():
            thread = threads.get(vcpu)
            if vcpu in left:
                yield {"vcpu": vcpu, "class": str(left[vcpu]), "ok": False,
                       "why": f"its former class is not given back yet, although {why}"}
                continue
            actual, unread = None, ""
            if thread is not None:
                try:
                    actual = class_of(thread.tid)
                except OSError as err:
                    unread = f"its class cannot be read: {err.strerror}"
                why = self._stopped or unread or self._setter.why.get(thread, "")
            good = not unread and (thread is None or actual in (None, decided.wanted))
            yield {"vcpu": vcpu, "class": None if actual is None else str(actual), "ok": bool(self._stopped) or good,
                   "why": why}
