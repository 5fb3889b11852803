"""The state of a node, kept from pass to pass.

Each part has one owner: the desired state this class (only `apply_events` and `forget_ended` change it), ownership and
placements `PlacementCache`, masks `Pinner`, VMs the inventory, files of the runtimes `DiskSources`, guests' maps
`guests.manager`. Everything outside this package reads through `NodeView`.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence, Set
from functools import cached_property, partial
from typing import TYPE_CHECKING

from vmpin import log
from vmpin.authorities.authority import Authorities, Authority
from vmpin.authorities.dra_authority import DraAuthority
from vmpin.authorities.kubelet_authority import KubeletCheckpoint, kubelet_authority
from vmpin.authorities.observed_authority import ObservedAuthority
from vmpin.config.settings import Config
from vmpin.cpuset import CpuSet
from vmpin.domain.assignments import Rank
from vmpin.domain.counters import Counters, NewbornCounts
from vmpin.domain.desired_state import DesiredState, SandboxState, forget_stopped, reduce
from vmpin.domain.events import Event
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import ContainerId, SandboxId, ThreadId, ThreadRole, VmThread
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
from vmpin.placement.ownership import Node
from vmpin.reconcile.kept_topology import KeptTopology
from vmpin.reconcile.placement_cache import PlacementCache
from vmpin.reconcile.pod_lookup import PodLookup
from vmpin.reconcile.runtime_waits import FirstList, RuntimeRequests
from vmpin.reconcile.source_findings import AuthorityRivals, SourceDisagreements, UnknownOwners
from vmpin.reconcile.state_file import StateStore
from vmpin.reconcile.state_format import SavedState
from vmpin.runtime.kata import KataState, named_for_kata
from vmpin.sources.disk import DiskSources
from vmpin.vmm.inventory import VmInventory
from vmpin.vmm.virtual_machine import Vm

if TYPE_CHECKING:
    from vmpin.domain.assignments import AuthorityRival, Rulings
    from vmpin.domain.kubelet_cpus import UnknownOwner
    from vmpin.domain.model import VcpuId
    from vmpin.domain.sandbox_placement import Placement
    from vmpin.feature import NicFinder
    from vmpin.pinning.drift_evidence import History
    from vmpin.pinning.original_masks import OriginalMasks
    from vmpin.placement.ownership import Ownership
    from vmpin.runtime.kata import KataSandbox
    from vmpin.sources.nri.nri_reports import NriCpusetReports
    from vmpin.sources.nri.processes import NriProcesses
    from vmpin.vmm.recognition import Impostor
    from vmpin.vmm.virtual_machine import Process

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
        self._store = StateStore(paths.state_file, paths.notes_file, self.boot_id, paths.originals_file)
        saved = self._store.load(set_aside=acts)
        self.state: DesiredState = saved.state
        self.inventory = VmInventory(self.proc, str(paths.sys), config.watch.pattern, saved.vcpus)
        self.vms: Mapping[SandboxId, Vm] = self.inventory.vms
        processes = self.inventory.process_table
        self.impostors: Collection[Impostor] = processes.impostors.values()
        self.helper_pids: Set[int] = processes.helpers.keys()
        self.checkpoint = KubeletCheckpoint(paths.kubelet, logger.warning,
                                            saved.kubelet if config.watch.kubelet else None)
        #: The kubelet's checkpoint in force; None if it is not read, or there is none.
        self.kubelet: CpuManagerState | None = self.checkpoint.read() if config.watch.kubelet else None
        self.first_list = FirstList.of(config, saved.state, self.sources.lists_containers)
        self._topology = KeptTopology(self.sysfs)
        self._dra = DraAuthority(paths.cdi, paths.kubelet, partial(logger.warning, "claims file=%s"))
        self._dra.read()
        self._pod_lookup = PodLookup(lambda: self.state.sandboxes, lambda: self._dra.pods)
        log.name_pods(self._pod_lookup.pod_of)
        self._observed = ObservedAuthority(lambda: self._topology.last.online)
        self.authorities = Authorities(config.node.shared_pool, [kubelet_authority(self.kubelet)])
        self.authorities.put(self._dra, self._dra.rules)
        self.authorities.put(self._observed, self._every_container_known())
        for authority_of in present(feature.authority for feature in features()):
            if (authority := authority_of(config, self.boot_id)) is not None:
                self.authorities.put(authority)
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
        self.unmanaged: Mapping[SandboxId, str] = self.placement_cache.unmanaged
        self.drift_evidence = DriftEvidence(self.proc, self.sysfs, self.cgroups, self.counters,
                                            f"{self.proc.root}/1/root", self.vms, self.sources.pins_vcpus)
        self.drift_tracker = DriftTracker(self.drift_evidence.explain_repairs, config.contention_rules, self.counters)
        lost = self._store.lost and (lock.of_another(paths.lock_file) if used is None else used)
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
        self.changed = self.kubelet != saved.kubelet
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

        return NriProcesses(self.proc, later=True)

    def look_up_processes(self) -> None:
        """Look up the reported processes of containers that no event needed."""
        if "nri_processes" not in vars(self):
            return
        try:
            self.apply_events(self.nri_processes.postponed(self.state), listed=True)
        except OSError as err:  # out of descriptors, for instance
            logger.error("containers' processes not looked up, the next resync goes on: %s", err)

    @property
    def node(self) -> Node:
        """The node's topology, shared pool and housekeeping CPUs."""
        return self.placement_cache.node

    # For readers (view.NodeView)

    @property
    def sandboxes(self) -> Mapping[SandboxId, SandboxState]:
        return self.state.sandboxes

    @property
    def ownership(self) -> Ownership:
        return self.placement_cache.own

    @property
    def rulings(self) -> Rulings:
        return self.placement_cache.rulings

    @property
    def pod_resources(self) -> Mapping[tuple[str, str, str], CpuSet] | None:
        return self.source_disagreements.resources

    @property
    def disagreements(self) -> Mapping[tuple[SandboxId, ContainerId], str]:
        return self.source_disagreements.lasting

    @property
    def rivals(self) -> Sequence[AuthorityRival]:
        return self.authority_rivals.lasting

    @property
    def unknown_owners(self) -> Mapping[str, UnknownOwner]:
        return self.owner_search.lasting

    @property
    def announced(self) -> Mapping[ContainerId, CpuSet]:
        return self.nri_reports.cpus

    @property
    def nri_listed(self) -> bool:
        return self.sources.nri

    @property
    def list_awaited(self) -> bool:
        return self.first_list.awaited

    def placement_at_exec(self, sandbox: SandboxId) -> Placement | None:
        return self.placement_cache.at_exec(sandbox, self.state)

    def placement_with_vcpu(self, vm: Vm, vcpu: VcpuId) -> Placement | None:
        return self.placement_cache.with_vcpu(vm, vcpu, self.state)

    @property
    def contested(self) -> Mapping[SandboxId, tuple[int, ...]]:
        return self.inventory.contested

    @property
    def followed(self) -> Mapping[int, tuple[Vm, Process]]:
        return self.inventory.followed

    def helped(self) -> set[SandboxId]:
        return self.inventory.process_table.sandboxes_with_helpers()

    def runs(self, process: ThreadId) -> bool:
        return self.inventory.process_table.is_running(process)

    def kata(self, sandbox: SandboxId) -> KataSandbox | None:
        return self.sources.sandboxes.get(sandbox)

    def refusals(self, sandbox: SandboxId, but: Container[ThreadId] = ()) -> list[str]:
        return [*self.pinner.refusals(sandbox, but), *self.pinner.drift_tracker.notes(sandbox)]

    def drift(self, sandbox: SandboxId) -> History | None:
        return self.drift_evidence.histories.get(sandbox)

    @property
    def placement_turns(self) -> int:
        """Counts the passes in which anything that placements depend on had changed."""
        return self.placement_cache.turns

    # Kept over a restart

    @property
    def unsaved(self) -> bool:
        """Whether the state file lacks something that no list of the runtime's repeats."""
        return self.changed or self.original_masks.unsaved or self.placement_cache.unsaved or self.inventory.unsaved

    @property
    def outdated(self) -> bool:
        """Whether the state file is out of date."""
        return self.reports_changed or self.unsaved

    def save_again(self) -> None:
        """Have the state file written again, because it is gone."""
        self.changed = True

    @property
    def save_trouble(self) -> str:
        """Why the last attempt to write the state file failed; "" if it succeeded."""
        return self._store.failing

    @property
    def load_trouble(self) -> str:
        """The reason why files of the last watcher could not be read; "" for none."""
        return self._store.damage

    @property
    def unknown_originals(self) -> int:
        """The number of VMs that run since before the record of the original masks was lost."""
        return sum(self.original_masks.is_unknown(vm.sandbox, vm.vmm.id) for vm in self.vms.values())

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
                self.apply_events(self.sources.cgroup(sandbox, record, init))

    def begin_watching(self) -> None:
        """Note that this process goes on watching, and connects to the runtime (`watch.nri`)."""
        self.watches = True
        if self.config.watch.nri != "off":
            self.first_list.connect(wanted=self.config.watch.nri == "on")

    def checkpoint_doubt(self) -> str:
        """Why a static checkpoint may be out of date, "" for no reason: no kubelet runs to update it. Call it only for
        a finding that depends on the checkpoint, as it may read every process."""
        kubelet = self.kubelet
        if kubelet is None or not kubelet.static or self.source_disagreements.resources is not None:
            return ""  # a kubelet that answers PodResources runs
        return self.owner_search.checkpoint_doubt(kubelet)

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

    def put_authority(self, authority: Authority, rules: bool = True) -> None:
        """Use an authority, or a new decision of one. :param rules: False: it does not rule any more."""
        self.authorities.put(authority, rules)
        self.placement_cache.follow_authorities(self.state)

    @property
    def claimed(self) -> bool:
        """Whether a DRA driver has prepared claims for CPUs of this node."""
        return bool(self._dra.claims)

    def _every_container_known(self) -> bool:
        """Whether ownership may follow from the cpusets of all containers."""
        return (self.config.policy.observed_ownership == "auto" and self.config.watch.nri != "off"
                and self.first_list.complete)

    def observe_ownership(self) -> None:
        """Begin or stop to derive ownership from the cpusets of all containers, from the next pass on."""
        self.authorities.put(self._observed, self._every_container_known())

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

    def read_assignments(self, resync: bool = False) -> None:
        """Read the checkpoint and the claims, which are written before the runtime creates the container.
        :param resync: also find out whether the DRA driver still runs."""
        if self._dra.read(resync):
            self.put_authority(self._dra, self._dra.rules)
        before, self.kubelet = self.kubelet, self.checkpoint.read() if self.config.watch.kubelet else None
        if self.kubelet != before:
            self.changed = True
            self.put_authority(kubelet_authority(self.kubelet))

    def read_node(self) -> None:
        """Read checkpoint and claims, and which CPUs are online and isolated. If the topology cannot be read, the last
        one is used."""
        self.read_assignments(resync=True)
        if self._topology.read():
            self.placement_cache.renew(self.config, self._topology.last, self.state)

    def reconfigure(self, config: Config) -> None:
        """Use another configuration. Its paths are used only after a restart."""
        self.config = config
        self.inventory.only = config.watch.pattern
        self.pinner.drift_tracker.contention.rules = config.contention_rules
        self.sources.kata.use_annotation(config.policy.exclusive_annotation)
        self.read_assignments()
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

    def without_kata(self, sandboxes: Iterable[SandboxId]) -> set[SandboxId]:
        """The VMs among these whose containers are in no file of Kata's."""
        return {sandbox for sandbox in sandboxes if sandbox in self.vms and not self.sources.lists_containers(sandbox)}

    def pods_of_others(self, sandboxes: Iterable[SandboxId]) -> set[SandboxId]:
        """Return those of `sandboxes` with several live containers, where another NRI plugin may decide on their CPUs:
        the kubelet's updates are calls, and vmpin's are its own."""
        if {Rank.KUBELET.label, Rank.LEDGER.label} & set(self.placement_cache.rulings.authorities):
            return set()
        return {sandbox for sandbox in sandboxes
                if (known := self.state.sandboxes.get(sandbox)) is not None
                and sum(not container.pause for container in known.live()) > 1}

    def all_sandboxes(self) -> list[SandboxId]:
        """Every sandbox of the desired state, and every sandbox with original masks."""
        return list(dict.fromkeys([*self.state.sandboxes, *self.original_masks.masks]))

    def has_vm(self, sandbox: SandboxId) -> bool:
        """Whether a sandbox's VMM runs, or Kata has state of it."""
        return sandbox in self.vms or sandbox in self.sources.sandboxes

    def has_ended(self, sandbox: SandboxId) -> bool:
        """Whether a sandbox has ended that the runtime still lists. containerd and CRI-O do so until the kubelet has
        it removed, as late as its finished pod: without containers, and without a pid (containerd
        internal/cri/nri/nri_api_linux.go, CRI-O server/nri-api.go). A resync a minute after its end forgets it."""
        state = self.state.sandboxes.get(sandbox)
        if (not self.sources.nri or state is None or not state.pod_by_nri or state.live()
                or self.has_vm(sandbox) or sandbox in self.helped()):
            return False
        process = self.nri_processes.unrecognized(sandbox)
        return process is None or not self.runs(process)

    def may_get_vm(self, sandbox: SandboxId) -> bool:
        """Whether to look for the VM of a sandbox without one. Where the kernel reports every new program, only if
        there is a sign of a VM: QEMU's -daemonize runs it in a forked child, which no event of a program reports."""
        state = self.state.sandboxes.get(sandbox)
        return not self.inventory.forks_reported or self.has_vm(sandbox) or sandbox in self.helped() or (
            state is not None and (state.vmm is not None or state.runtime == "vmm" or named_for_kata(state.handler)))

    def is_settled(self, sandbox: SandboxId) -> bool:
        vm = self.vms.get(sandbox)
        return (self.inventory.forks_reported and vm is not None and vm.vcpus_identified and vm.found_by == "names"
                and self.pinner.holds(sandbox))

    def vm_sandboxes(self) -> set[SandboxId]:
        """The sandboxes that are VMs, by their VMM, Kata's state, their shim or runtime handler (kata…)."""
        by_handler = {sandbox.id for sandbox in self.state.sandboxes.values() if named_for_kata(sandbox.handler)}
        with_shims = self.inventory.process_table.sandboxes_with_helpers(ThreadRole.SHIM)
        return self.vms.keys() | self.sources.sandboxes.keys() | with_shims | by_handler

    def save(self) -> bool:
        """Write the state file. :returns: False if that failed, which is logged once."""
        state = self.state
        if self.leaving:
            state = DesiredState({name: sandbox._replace(suspended=False) if name in self.leaving else sandbox
                                  for name, sandbox in state.sandboxes.items()})
        kubelet = self.kubelet if self.kubelet is not None and self.kubelet.static else None
        if not self._store.save(SavedState(state, self.placement_cache.previous, self.original_masks.masks,
                                           self.inventory.vcpus, kubelet)):
            return False
        self.changed = self.reports_changed = False
        self.original_masks.unsaved = self.placement_cache.unsaved = self.inventory.unsaved = False
        return True

    def forget_ended(self) -> None:
        """Drop VMs that have ended, sandboxes that are gone, and containers that stopped long ago."""
        vms, helped = self.vms.keys(), self.helped()
        self.drift_evidence.keep_only(vms)
        for sandbox in self.newborn_counts.keys() - vms - helped:
            del self.newborn_counts[sandbox]
        kept = vms | self.state.sandboxes.keys() | helped
        self.pinner.keep_only(vms)
        self.changed |= self.original_masks.keep_only(kept, self.runs)
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
            self._store.note(sandbox, main.id, original)
