"""The read-only view of a node, for everything outside this package: its VMs, placements, ownership and state, at the
moment of the call.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Final

from vmpin.domain.assignments import Rank
from vmpin.domain.model import ThreadRole
from vmpin.runtime.kata import named_for_kata

if TYPE_CHECKING:
    from vmpin.authorities.kubelet_authority import KubeletCheckpoint
    from vmpin.config.settings import Config
    from vmpin.cpuset import CpuSet
    from vmpin.domain.assignments import AuthorityRival, Rulings
    from vmpin.domain.counters import Counters, NewbornCounts
    from vmpin.domain.desired_state import DesiredState, SandboxState
    from vmpin.domain.kubelet_cpus import CpuManagerState, UnknownOwner
    from vmpin.domain.model import ContainerId, SandboxId, ThreadId, VcpuId
    from vmpin.domain.sandbox_placement import Placement
    from vmpin.host.cgroup import Cgroups
    from vmpin.host.procfs import Procfs
    from vmpin.pinning.drift_evidence import History
    from vmpin.pinning.original_masks import OriginalMasks
    from vmpin.placement.ownership import Node, Ownership
    from vmpin.reconcile.node_state import NodeState
    from vmpin.runtime.kata import KataSandbox
    from vmpin.vmm.recognition import Impostor
    from vmpin.vmm.virtual_machine import Process, Vm


class NodeView:
    """A `NodeState` for readers. The mappings are the live ones: do not keep them over an `await`."""

    def __init__(self, node_state: NodeState) -> None:
        self._node_state = node_state
        self.boot_id: Final[str] = node_state.boot_id
        self.proc: Final[Procfs] = node_state.proc
        self.cgroups: Final[Cgroups] = node_state.cgroups
        #: The counters since the start.
        self.counters: Final[Counters] = node_state.counters
        #: Counts of the new threads of sandboxes that had any.
        self.newborn_counts: Final[Mapping[SandboxId, NewbornCounts]] = node_state.newborn_counts
        #: The kubelet's checkpoint, with the outcome of its last reading.
        self.checkpoint: Final[KubeletCheckpoint] = node_state.authorities.checkpoint
        self.placements: Final[Mapping[SandboxId, Placement]] = node_state.placements
        #: VMs whose masks are not set, with the reason: no source reports their containers, or no CPU is left.
        self.unmanaged: Final[Mapping[SandboxId, str]] = node_state.placement_cache.unmanaged
        self.vms: Final[Mapping[SandboxId, Vm]] = node_state.vms
        processes = node_state.inventory.process_table
        #: The processes of unprivileged users that pose as a sandbox's.
        self.impostors: Final[Collection[Impostor]] = processes.impostors.values()
        #: The pids of helpers (virtiofsd, shims), with or without a VM.
        self.helper_pids: Final[Set[int]] = processes.helpers.keys()
        #: The original masks that are not restored.
        self.originals: Final[Mapping[SandboxId, OriginalMasks]] = node_state.originals

    # The node

    @property
    def config(self) -> Config:
        """The configuration in force; another object after a reload."""
        return self._node_state.config

    @property
    def node(self) -> Node:
        """The node's topology, shared pool and housekeeping CPUs."""
        return self._node_state.placement_cache.node

    @property
    def save_trouble(self) -> str:
        """Why the last attempt to write the state file failed; "" if it succeeded."""
        return self._node_state.store.failing

    @property
    def load_trouble(self) -> str:
        """The reason why files of the last watcher could not be read; "" for none."""
        return self._node_state.store.damage

    # Desired state

    @property
    def state(self) -> DesiredState:
        """The desired state of the node: another object after each change."""
        return self._node_state.state

    @property
    def sandboxes(self) -> Mapping[SandboxId, SandboxState]:
        """The desired state of every sandbox, runc's too."""
        return self._node_state.state.sandboxes

    @property
    def ownership(self) -> Ownership:
        """The CPUs that each container owns."""
        return self._node_state.placement_cache.own

    @property
    def kubelet(self) -> CpuManagerState | None:
        """The kubelet's checkpoint in force; None if it is not read, or there is none."""
        return self._node_state.authorities.kubelet

    @property
    def rulings(self) -> Rulings:
        """The decisions of the authorities on the CPUs of containers."""
        return self._node_state.placement_cache.rulings

    @property
    def claimed(self) -> bool:
        """Whether a DRA driver has prepared claims for CPUs of this node."""
        return bool(self._node_state.authorities.dra.claims)

    @property
    def pod_resources(self) -> Mapping[tuple[str, str, str], CpuSet] | None:
        """Exclusive CPUs by namespace, pod and container, as PodResources reports them; None without an answer."""
        return self._node_state.source_disagreements.resources

    @property
    def announced(self) -> Mapping[ContainerId, CpuSet]:
        """The cpusets that the runtime reported as they changed (NRI), by container."""
        return self._node_state.nri_reports.cpus

    @property
    def nri_listed(self) -> bool:
        """Whether the runtime has listed its containers over NRI, and the connection is up."""
        return self._node_state.sources.nri

    @property
    def list_awaited(self) -> bool:
        """Whether the runtime's first list over NRI is awaited still: what only NRI reports is not known yet."""
        return self._node_state.first_list.awaited

    @property
    def disagreements(self) -> Mapping[tuple[SandboxId, ContainerId], str]:
        """Containers on whose CPUs the sources have disagreed for longer than a resync, with what they report."""
        return self._node_state.source_disagreements.lasting

    @property
    def unknown_owners(self) -> Mapping[str, UnknownOwner]:
        """The pods with CPUs from the kubelet of which no container has been known for too long, by uid."""
        return self._node_state.owner_search.lasting

    @property
    def rivals(self) -> Sequence[AuthorityRival]:
        """The pairs of authorities that have decided on the same CPUs for some resyncs."""
        return self._node_state.authority_rivals.lasting

    def checkpoint_doubt(self) -> str:
        """Why a static checkpoint may be out of date, "" for no reason: no kubelet runs to update it. Call it only for
        a finding that depends on the checkpoint, as it may read every process."""
        kubelet = self.kubelet
        if kubelet is None or not kubelet.static or self.pod_resources is not None:
            return ""  # a kubelet that answers PodResources runs
        return self._node_state.owner_search.checkpoint_doubt(kubelet)

    @property
    def placement_turns(self) -> int:
        """Counts the passes in which anything that placements depend on had changed."""
        return self._node_state.placement_cache.turns

    def placement_at_exec(self, sandbox: SandboxId) -> Placement | None:
        """The placement of a sandbox's new processes; None if their masks are not to be set."""
        return self._node_state.placement_cache.at_exec(sandbox, self._node_state.state)

    def placement_with_vcpu(self, vm: Vm, vcpu: VcpuId) -> Placement | None:
        """The placement of a VM with a new vCPU, ahead of the pass that will place it."""
        return self._node_state.placement_cache.with_vcpu(vm, vcpu, self._node_state.state)

    # Processes

    @property
    def contested(self) -> Mapping[SandboxId, tuple[int, ...]]:
        """The pids of VMMs that claim the same sandbox with equal evidence; the first one is placed."""
        return self._node_state.inventory.contested

    @property
    def followed(self) -> Mapping[int, tuple[Vm, Process]]:
        """The processes whose threads are followed, by pid."""
        return self._node_state.inventory.followed

    def helped(self) -> set[SandboxId]:
        """The sandboxes with helpers, with or without a VM."""
        return self._node_state.inventory.process_table.sandboxes_with_helpers()

    def runs(self, process: ThreadId) -> bool:
        """Whether a process has not ended."""
        return self._node_state.inventory.process_table.is_running(process)

    # Masks

    def refusals(self, sandbox: SandboxId, but: Container[ThreadId] = ()) -> list[str]:
        """Sentences on masks that the kernel refused, and on threads that another writer keeps moving.
        :param but: threads for which another reason is given."""
        pinner = self._node_state.pinner
        return [*pinner.refusals(sandbox, but), *pinner.drift_tracker.notes(sandbox)]

    def drift(self, sandbox: SandboxId) -> History | None:
        """The history of a sandbox's drift; None without drift."""
        return self._node_state.drift_evidence.histories.get(sandbox)

    @property
    def unknown_originals(self) -> int:
        """The number of VMs that run since before the record of the original masks was lost."""
        return sum(self._node_state.original_masks.is_unknown(vm.sandbox, vm.vmm.id) for vm in self.vms.values())

    # Sandboxes

    def all_sandboxes(self) -> list[SandboxId]:
        """Every sandbox of the desired state, and every sandbox with original masks."""
        return list(dict.fromkeys([*self.sandboxes, *self.originals]))

    def vm_sandboxes(self) -> set[SandboxId]:
        """The sandboxes that are VMs, by their VMM, Kata's state, their shim or runtime handler (kata…)."""
        by_handler = {sandbox.id for sandbox in self.sandboxes.values() if named_for_kata(sandbox.handler)}
        with_shims = self._node_state.inventory.process_table.sandboxes_with_helpers(ThreadRole.SHIM)
        return self.vms.keys() | self._node_state.sources.kata_sandboxes.keys() | with_shims | by_handler

    def kata(self, sandbox: SandboxId) -> KataSandbox | None:
        """Kata's own state of a sandbox, None without one."""
        return self._node_state.sources.kata_sandboxes.get(sandbox)

    def has_vm(self, sandbox: SandboxId) -> bool:
        """Whether a sandbox's VMM runs, or Kata has state of it. Any thread may call it."""
        return sandbox in self.vms or sandbox in self._node_state.sources.kata_sandboxes

    def has_ended(self, sandbox: SandboxId) -> bool:
        """Whether a sandbox has ended that the runtime still lists: over NRI it reports no live container of it, and
        no process of it runs. containerd and CRI-O list it until the kubelet has it removed, as late as its finished
        pod: without containers, and without a pid (containerd internal/cri/nri/nri_api_linux.go, CRI-O
        server/nri-api.go). A resync a minute after its end forgets it."""
        state = self.sandboxes.get(sandbox)
        if (not self.nri_listed or state is None or not state.pod_by_nri or state.live()
                or self.has_vm(sandbox) or sandbox in self.helped()):
            return False
        process = self._node_state.nri_processes.unrecognized(sandbox)
        return process is None or not self.runs(process)

    def may_get_vm(self, sandbox: SandboxId) -> bool:
        """Whether a sandbox has a VM, or may get one that no event reports. Where the kernel reports every new
        program, only with a sign of a VM: QEMU's -daemonize runs it in a forked child, which no event of a program
        reports. Any thread may call it."""
        state = self.sandboxes.get(sandbox)
        return not self._node_state.inventory.forks_reported or self.has_vm(sandbox) or sandbox in self.helped() or (
            state is not None and (state.vmm is not None or state.runtime == "vmm" or named_for_kata(state.handler)))

    def is_settled(self, sandbox: SandboxId) -> bool:
        """Whether a sandbox's VM has its masks, and the kernel reports each new thread of it, with a name that shows
        whether it is a vCPU. Any thread may call it."""
        vm = self.vms.get(sandbox)
        return (self._node_state.inventory.forks_reported and vm is not None and vm.vcpus_identified
                and vm.found_by == "names" and self._node_state.pinner.holds(sandbox))

    def without_kata(self, sandboxes: Iterable[SandboxId]) -> set[SandboxId]:
        """The VMs among these whose containers are in no file of Kata's."""
        lists_containers = self._node_state.sources.lists_containers
        return {sandbox for sandbox in sandboxes if sandbox in self.vms and not lists_containers(sandbox)}

    def pods_of_others(self, sandboxes: Iterable[SandboxId]) -> set[SandboxId]:
        """Return those of `sandboxes` with several live containers, where another NRI plugin may decide on their CPUs:
        the kubelet's updates are calls, and vmpin's are its own."""
        if {Rank.KUBELET.label, Rank.LEDGER.label} & set(self.rulings.authorities):
            return set()
        return {sandbox for sandbox in sandboxes if (known := self.sandboxes.get(sandbox)) is not None
                and sum(not container.pause for container in known.live()) > 1}
