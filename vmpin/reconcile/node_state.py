"""The state of a node, kept from pass to pass.

Each part has one owner: the desired state this class (only `apply_events` and `forget_ended` change it), authorities
`NodeAuthorities`, ownership and placements `PlacementCache`, masks `Pinner`, VMs the inventory, files of the runtimes
`DiskSources`, guests' maps `guests.manager`. Everything outside this package reads through `NodeView`.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Set
from functools import cached_property, partial
from typing import TYPE_CHECKING

from vmpin import log
from vmpin.authorities.authority import Authority
from vmpin.authorities.node_authorities import NodeAuthorities
from vmpin.config.settings import Config
from vmpin.cpuset import CpuSet
from vmpin.domain.counters import Counters, NewbornCounts
from vmpin.domain.desired_state import DesiredState, forget_stopped, reduce
from vmpin.domain.events import Event
from vmpin.domain.model import ContainerId, SandboxId, VmThread
from vmpin.domain.policy import ThreadPolicy
from vmpin.feature import features, present
from vmpin.host import boottime, lock
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import Sysfs
from vmpin.pinning.drift_evidence import DriftEvidence
from vmpin.pinning.drift_tracker import DriftTracker
from vmpin.pinning.original_mask_store import OriginalMaskStore
from vmpin.pinning.pinner import Pinner
from vmpin.reconcile.kept_topology import KeptTopology
from vmpin.reconcile.placement_cache import PlacementCache
from vmpin.reconcile.pod_lookup import PodLookup
from vmpin.reconcile.runtime_waits import FirstList, RuntimeRequests
from vmpin.reconcile.source_findings import AuthorityRivals, SourceDisagreements, UnknownOwners
from vmpin.reconcile.state_file import StateStore
from vmpin.reconcile.state_format import SavedState
from vmpin.runtime.kata import KataState
from vmpin.sources.disk import DiskSources
from vmpin.vmm.inventory import VmInventory
from vmpin.vmm.virtual_machine import Vm

if TYPE_CHECKING:
    from vmpin.domain.sandbox_placement import Placement
    from vmpin.feature import NicFinder
    from vmpin.pinning.original_masks import OriginalMasks
    from vmpin.sources.nri.nri_reports import NriCpusetReports
    from vmpin.sources.nri.processes import NriProcesses

logger = logging.getLogger(__name__)

#: A stopped container is kept for so long (ns), so that a late report of its creation has no effect.
STOPPED_FOR = 600 * 10**9


class NodeState:
    """The state of a node.
    :param acts: whether the lock is held. Without it nothing in the run directory is changed.
    :param used: whether vmpin may have set masks in this boot already; None: if another process made the lock file.
    :raises SourceError: if the topology or the boot id cannot be read."""

    def __init__(self, config: Config, acts: bool = True, used: bool | None = None) -> None:
        self.config = config
        self.counters = Counters()
        paths = config.paths
        self.proc, self.sysfs = Procfs(paths.proc), Sysfs(paths.sys)
        self.boot_id, self.cgroups = self.proc.boot_id(), Cgroups(paths.cgroup, self.proc)
        self.sources = DiskSources(self.proc, self.cgroups, KataState(
            paths.kata_go, paths.kata_rs, partial(logger.warning, "Kata's state file=%s"),
            config.policy.exclusive_annotation))
        self.store = StateStore(paths.state_file, paths.notes_file, self.boot_id, paths.originals_file)
        saved = self.store.load(set_aside=acts)
        self.state: DesiredState = saved.state
        self.inventory = VmInventory(self.proc, str(paths.sys), config.watch.pattern, saved.vcpus)
        self.vms: Mapping[SandboxId, Vm] = self.inventory.vms
        self.first_list = FirstList.of(config, saved.state, self.sources.lists_containers)
        self._topology = KeptTopology(self.sysfs)
        self.authorities = NodeAuthorities(config, self.boot_id, saved.kubelet, lambda: self._topology.last.online,
                                           self.first_list.complete)
        self._pod_lookup = PodLookup(lambda: self.state.sandboxes, lambda: self.authorities.dra.pods)
        log.name_pods(self._pod_lookup.pod_of)
        self.source_disagreements = SourceDisagreements()
        self.authority_rivals = AuthorityRivals()
        self.owner_search = UnknownOwners(self.proc, paths.kubelet / "pods")
        self.watches = False  #: Whether this process goes on watching.
        self.requests = RuntimeRequests()
        self._nic_finder: NicFinder | None = None  #: None before policy.vhost is near.
        self.placement_cache = PlacementCache(
            config, self._topology.last, self.authorities, self.state, saved.previous, self.first_list)
        self.placement_cache.dirty.update(self.state.sandboxes)
        self.placements: Mapping[SandboxId, Placement] = self.placement_cache.placements
        self.drift_evidence = DriftEvidence(self.proc, self.sysfs, self.cgroups, self.counters,
                                            f"{self.proc.root}/1/root", self.vms, self.sources.pins_vcpus)
        self.drift_tracker = DriftTracker(self.drift_evidence.explain_repairs, config.contention_rules, self.counters)
        lost = self.store.lost and (lock.of_another(paths.lock_file) if used is None else used)
        if lost and acts:
            logger.warning("the record of the original masks was lost: threads that run already may have masks of "
                           "vmpin's; `vmpin unpin` will give them all CPUs that their cgroup allows")
        self.original_masks = OriginalMaskStore(self.proc, self.cgroups, saved.originals, lost)
        self.originals: Mapping[SandboxId, OriginalMasks] = self.original_masks.masks
        self.pinner = Pinner(self.proc, self.cgroups, self.original_masks, self.drift_tracker)
        #: Counts of each sandbox's new threads, counted up by the placement-latency book.
        self.newborn_counts: defaultdict[SandboxId, NewbornCounts] = defaultdict(NewbornCounts)
        #: Sandboxes suspended only because this process leaves the node: the state file has them as they were.
        self.leaving: set[SandboxId] = set()
        #: Whether the state file is gone, or lacks a change of the desired state or of the original masks.
        self.changed = False
        #: Whether the state file lacks reports that the runtime's next list repeats.
        self.reports_changed = False
        self._sets = False  #: Whether this process has set a mask.

    # What the runtime reports over NRI: loading these would take 3 ms of a starting watcher's first pass.

    @cached_property
    def nri_reports(self) -> NriCpusetReports:
        """The CPUs of containers as the runtime has reported them."""
        from vmpin.sources.nri.nri_reports import NriCpusetReports

        return NriCpusetReports()

    @cached_property
    def nri_processes(self) -> NriProcesses:
        """The processes whose pids the runtime has reported."""
        from vmpin.sources.nri.processes import NriProcesses

        return NriProcesses(self.proc)

    def look_up_processes(self) -> None:
        """Look up the reported processes of containers that no event needed."""
        if "nri_processes" not in vars(self):
            return
        try:
            self.apply_events(self.nri_processes.postponed(self.state), listed=True)
        except OSError as err:  # out of descriptors, for instance
            logger.error("containers' processes not looked up, the next resync goes on: %s", err)

    # Kept over a restart

    @property
    def unsaved(self) -> bool:
        """Whether the state file lacks something that no list of the runtime's repeats."""
        return (self.changed or self.original_masks.unsaved or self.placement_cache.unsaved or self.inventory.unsaved
                or self.authorities.unsaved)

    @property
    def outdated(self) -> bool:
        """Whether the state file is out of date."""
        return self.reports_changed or self.unsaved

    def apply_events(self, events: Iterable[Event], listed: bool = False) -> None:
        """Apply events to the desired state; the sandboxes that they change are placed again.
        :param listed: whether the runtime's next list repeats them, so that the state file can wait."""
        for event in events:
            state = reduce(self.state, event)
            if state is not self.state:
                if event.sandbox not in state.sandboxes:
                    self._pod_lookup.keep(self.state.sandboxes[event.sandbox])
                self.state = state
                self.placement_cache.dirty.add(event.sandbox)
                if listed:
                    self.reports_changed = True
                else:
                    self.changed = True

    def read_cgroups(self, containers: Container[ContainerId]) -> None:
        """Read the cgroups of some containers, and apply their CPUs to the state."""
        for sandbox, record, init in self.state.with_processes():
            if record.container.id in containers:
                self.apply_events(self.sources.cgroup_events(sandbox, record, init))

    def begin_watching(self) -> None:
        """Note that this process goes on watching, and connects to the runtime (`watch.nri`)."""
        self.watches = True
        if self.config.watch.nri != "off":
            self.first_list.connect(wanted=self.config.watch.nri == "on")

    def nri_list_came(self) -> None:
        """Record that the runtime has listed its containers over NRI. If that was awaited, every sandbox is placed."""
        self.sources.nri = True
        if self.first_list.came():
            self.placement_cache.dirty.update(self.state.sandboxes)
        self.observe_ownership()

    def nri_connection_lost(self) -> None:
        """Record that the connection to the runtime has ended: it reports nothing until its next list."""
        self.sources.nri = False
        self.first_list.connection_lost()
        self.observe_ownership()

    def put_authority(self, authority: Authority) -> None:
        """Use an authority, or a new decision of one."""
        self.authorities.put(authority)
        self.placement_cache.follow_authorities(self.state)

    def observe_ownership(self) -> None:
        """Begin or stop to derive ownership from the cpusets of all containers, from the next pass on."""
        self.authorities.observe(self.config, self.first_list.complete)

    def forks_reported(self, reported: bool) -> None:
        """Record whether every fork and exec event reaches us: an unchanged thread count then means an unchanged
        thread set, and a sandbox without a sign of a VM has none."""
        self.inventory.forks_reported = reported

    def take_pod_resources(self, resources: Mapping[tuple[str, str, str], CpuSet] | None) -> None:
        """Record the answer of PodResources, None without one."""
        self.source_disagreements.resources = resources

    def report_strays(self, stray: Callable[[SandboxId, VmThread, CpuSet], None] | None) -> None:
        """Have `stray` called for each drifted thread before it is put back, with its mask; None ends that."""
        self.drift_tracker.strayed = stray

    def judge_drift_after(self, unread: Callable[[], Set[SandboxId]]) -> None:
        """Have drift of a sandbox repaired only when its reports are read: they may show a change by the runtime.
        :param unread: returns the sandboxes with unread reports."""
        self.drift_tracker.unread = unread

    def read_node(self) -> None:
        """Read checkpoint and claims, and which CPUs are online and isolated. If the topology cannot be read, the last
        one is used."""
        self.authorities.read(self.config, resync=True)
        if self._topology.read():
            self.placement_cache.renew(self.config, self._topology.last, self.state)

    def reconfigure(self, config: Config) -> None:
        """Use another configuration. Its paths are used only after a restart."""
        self.config = config
        self.inventory.only = config.watch.pattern
        self.pinner.drift_tracker.contention.rules = config.contention_rules
        self.sources.kata.use_annotation(config.policy.exclusive_annotation)
        self.authorities.read(config)
        self.authorities.use_pool(config.node.shared_pool)
        self.observe_ownership()
        self.placement_cache.renew(config, self._topology.last, self.state)

    def moved_nics(self) -> set[SandboxId]:
        """Read the NICs of VMs that are due, which only policy.vhost: near needs. A feature finds them; without one no
        NIC's node is known, and near places as apart does. :returns: as `NicFinder.refresh`."""
        wanted = self.config.policy.vhost is ThreadPolicy.NEAR
        if wanted and self._nic_finder is None:
            make = next(present(feature.nic_finder for feature in features()), None)
            self._nic_finder = make and make(self.proc, str(self.config.paths.sys))
        if self._nic_finder is None:
            return set()
        return self._nic_finder.refresh(self.vms, self.inventory.process_table.round, wanted)

    def needing_qmp(self) -> list[Vm]:
        """The VMs to query over QMP: only that can identify their threads. None if QMP is off."""
        return self.inventory.needing_qmp() if self.config.watch.qmp else []

    def save(self) -> bool:
        """Write the state file. :returns: False if that failed, which is logged once."""
        state = self.state
        if self.leaving:
            state = DesiredState({name: sandbox._replace(suspended=False) if name in self.leaving else sandbox
                                  for name, sandbox in state.sandboxes.items()})
        kubelet = self.authorities.kubelet
        if not self.store.save(SavedState(state, self.placement_cache.previous, self.original_masks.masks,
                                          self.inventory.vcpus,
                                          kubelet if kubelet is not None and kubelet.static else None)):
            return False
        self.changed = self.reports_changed = False
        for part in self.original_masks, self.placement_cache, self.inventory, self.authorities:
            part.unsaved = False
        return True

    def forget_ended(self) -> None:
        """Drop VMs that have ended, sandboxes that are gone, and containers that stopped long ago."""
        processes = self.inventory.process_table
        vms, helped = self.vms.keys(), processes.sandboxes_with_helpers()
        self.drift_evidence.keep_only(vms)
        for sandbox in self.newborn_counts.keys() - vms - helped:
            del self.newborn_counts[sandbox]
        kept = vms | self.state.sandboxes.keys() | helped
        self.pinner.keep_only(vms)
        self.changed |= self.original_masks.keep_only(kept, processes.is_running)
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

    def begin_setting(self) -> None:
        """Note, before the first mask is set, that original masks can be lost from now on."""
        if not self._sets:
            self._sets = True
            lock.note_use(self.config.paths.lock_file)

    def keep_mask(self, sandbox: SandboxId, main: VmThread, mask: CpuSet) -> None:
        """Record the original mask of a new process before it is changed; in the notes, so that the state file can be
        written later."""
        original = self.original_masks.record_early(sandbox, main, mask)
        if original is not None:
            self.changed = True
            self.store.note(sandbox, main.id, original)
