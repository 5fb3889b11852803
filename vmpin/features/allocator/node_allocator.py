"""The allocator of a watcher's node, with its readers of the machine: suspended while another program gives out the
CPUs, and its ledger handed to the reconciler.

Beside another program the mode is refused: a second NRI plugin that sets the cpuset of a container makes its creation
fail (NRI: pkg/adaptation/result.go). The watcher goes on, because the VMs that run need it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from vmpin.domain.assignments import Assignments
from vmpin.domain.model import ContainerId
from vmpin.features.allocator.allocate_settings import ledger_path, settings_of
from vmpin.features.allocator.allocation_report import AllocatorView, brief
from vmpin.features.allocator.allocator_topology import allocator_topology, device_nodes
from vmpin.features.allocator.cpu_allocator import CpuAllocator
from vmpin.features.allocator.cri_calls import EndedPods, PoolUpdates, RuntimeLists
from vmpin.features.allocator.grants.admission import about
from vmpin.features.allocator.grants.allocation_options import AllocationMode
from vmpin.features.allocator.grants.ledger import Answer, Grant, Ledger
from vmpin.features.allocator.grants.pool_cpus import pool
from vmpin.features.allocator.ledger_file import LedgerFile, ledger_authority
from vmpin.features.allocator.vm_size import vm_size_of
from vmpin.features.common import cri
from vmpin.features.common.finding import several
from vmpin.features.common.other_allocators import OtherAllocatorSearch
from vmpin.host.daemons import programs
from vmpin.host.files import Files
from vmpin.host.sysfs import Sysfs
from vmpin.reconcile.reconciler import Reconciler
from vmpin.runtime.kata_default_vcpus import KataDefaultVcpus
from vmpin.sources.nri.nri_events import ContainerEvent, NriEvent
from vmpin.wire.nri_enums import Verb

if TYPE_CHECKING:
    from vmpin.features.allocator.live_annotations import LiveAnnotations

logger = logging.getLogger(__name__)

_STATIC = ("the kubelet's CPU manager policy is static: it gives out the CPUs, and vmpin follows (set "
           "cpuManagerPolicy: none, or allocate.mode: off)")
_CLAIMS = ("dra-driver-cpu has prepared claims: it gives out the CPUs, and vmpin follows (remove the driver from this "
           "node, or set allocate.mode: off)")
#: The most containers with a cpuset of another plugin that the status names.
_FOREIGN = 10


class NodeAllocator:
    """:param runtime: None without NRI. :param deadline: seconds for a CRI call.
    :raises SourceError: when the topology cannot be read."""

    def __init__(self, reconciler: Reconciler, runtime: Callable[[], RuntimeLists | None], deadline: float) -> None:
        view, node_state = reconciler.view, reconciler.node_state
        self._node_state, self._view = node_state, view
        self._topology, self._runtime = view.node.topology, runtime
        self._sysfs = Sysfs(view.config.paths.sys)
        settings = settings_of(view.config)
        # The node's files: a pod's own root has no configuration of Kata's.
        files, paths = Files(f"{view.proc.root}/1/root"), view.config.paths
        self._others = OtherAllocatorSearch(view.proc, files, (paths.nri, *cri.sockets(paths.cri)), paths.kubelet)
        #: The other program beside which nothing is given out, until the watcher is restarted; "" for none.
        self._beside = ""
        kata = KataDefaultVcpus(files, len(view.node.online),
                                partial(programs, view.proc, ("containerd", "crio")))
        self.allocator = CpuAllocator(
            allocator_topology(self._sysfs), settings.options,
            LedgerFile(ledger_path(view.config), view.boot_id),
            partial(vm_size_of, proc=view.proc, configured=kata.of, known=view.has_vm,
                    overhead=kata.overhead),
            partial(device_nodes, self._sysfs))
        #: The assignments that the reconciler has; at first none of this object's.
        self._handed: Assignments | None = Assignments()
        self.updates = PoolUpdates(view, self.allocator, node_state.read_cgroups, runtime, deadline)
        self.ended = EndedPods(self.allocator, view.config.paths.cri, self.take, runtime, deadline)
        self.live: LiveAnnotations | None = None
        if settings.live_annotations:
            from vmpin.features.allocator.live_annotations import LiveAnnotations

            self.live = LiveAnnotations(self.allocator, self.take)

    def check(self) -> None:
        """Suspend the allocator while another program gives out CPUs, resume it when the kubelet's policy or the
        claims end, and hand the reconciler the ledger. To be called before any source reports, and after each
        resync."""
        kubelet = self._view.kubelet
        suspended = (_STATIC if kubelet is not None and kubelet.static else
                     _CLAIMS if self._view.claimed else self._other_program())
        if suspended != self.allocator.suspended:
            self.allocator.suspend(suspended)
            if suspended:
                logger.error("allocate: nothing is allocated: %s", suspended)
            else:
                logger.info("allocate: no other program gives out CPUs any more: CPUs are allocated")
                if (lists := self._runtime()) is not None:
                    lists.request_list()
        self.take()

    def _other_program(self) -> str:
        """Why nothing is given out beside another program, "" for no reason. That lasts until the watcher is
        restarted: a program that is being updated is away for some seconds."""
        if not self._beside and self.allocator.options.mode is AllocationMode.ON:
            others = [other for other in self._others.find() if other.is_rival(self.allocator.options.reserved)]
            if others:
                names = several([*dict.fromkeys(other.name for other in others)])
                way = ("add those CPUs to allocate.reserved" if all(other.cpus for other in others) else
                       "let only one decide")
                self._beside = (f"{names} may give out CPUs, too, and vmpin follows "
                                f"({'; '.join(other.evidence for other in others)}): {way}, and restart vmpin, or set "
                                "allocate.mode: off")
        return self._beside

    def take(self) -> None:
        """Hand the reconciler the ledger, if it gives other CPUs than before; CPUs may wait for an update."""
        assignments = self.allocator.assignments()
        if assignments is not self._handed:
            self._handed = assignments
            self._node_state.put_authority(ledger_authority(assignments))
        self.updates.touch()
        if self.live is not None:
            self.live.touch()

    def started(self, events: Iterable[NriEvent]) -> None:
        """Read back the cgroups of containers that have started. The state has taken the events in."""
        self.updates.started((event.container.pod, event.container.id) for event in events
                             if isinstance(event, ContainerEvent) and event.verb is Verb.POST_START)

    def resynced(self) -> None:
        """Called after a resync. Read the allocator's topology again if the node's has changed: other CPUs are online,
        or isolated."""
        topology = self._view.node.topology
        if topology != self._topology:
            self._topology = topology
            self.allocator.renew(allocator_topology(self._sysfs))
        self.check()
        self.updates.compare()
        self.ended.touch()

    def view(self) -> AllocatorView | None:
        """Return the allocator's present state; None before the runtime's first list, which a suspended one does not
        wait for."""
        ledger, why = self.allocator.ledger(), self.allocator.suspended
        if ledger is None and not why:
            return None
        machine, options, ledger = self.allocator.machine, self.allocator.options, ledger or Ledger()
        return AllocatorView("off" if why else str(options.mode), why, machine, options, ledger,
                             pool(machine, ledger, options), self.allocator.refusals, self.allocator.pool_changes)

    def actual_cpus(self, grant: Grant) -> str | None:
        """Return the CPUs that a container's cgroup leaves it now; None where that cannot be read, and for a container
        in a VM: the VMM is in the sandbox's cgroups."""
        state = self._view.sandboxes.get(grant.sandbox)
        record = None if state is None else state.containers.get(grant.container)
        if grant.vm or record is None or record.init is None:
            return None
        cpuset = self._view.cgroups.container_cpuset(record.init.tid, grant.container)
        return None if cpuset is None else str(cpuset.effective)

    def brief(self) -> dict[str, object] | None:
        """Return the summary for followers; None while nothing is given out."""
        if self.allocator.suspended or self.allocator.options.mode is not AllocationMode.ON:
            return None
        view = self.view()
        cpus = {"why": "the container runtime has not listed its containers yet"} if view is None else brief(view)
        return {**cpus, **({} if self.live is None else {"refused": self.live.refused()})}

    def change(self, container: ContainerId, changes: Mapping[str, str], dry_run: bool) -> Answer:
        """Change a container's CPUs, as `CpuAllocator.change` does."""
        answer = self.allocator.change(container, changes, dry_run)
        if not dry_run:
            self.take()
        return answer

    def data(self) -> dict[str, object]:
        """Return the allocator's part of the status."""
        known = self.allocator.ledger()
        ledger = known or Ledger()
        return {"mode": str(self.allocator.options.mode), "suspended": self.allocator.suspended,
                "pool": None if known is None else str(ledger.shared), "grants": len(ledger.grants),
                "foreign": sorted({about(grant) for grant in ledger.grants.values()
                                   if grant.live and grant.left_alone and grant.written})[:_FOREIGN],
                "refused": [refused._asdict() for refused in ledger.refused]}
