"""The read-only view of a node that everything outside this package gets: its VMs, placements, ownership and state.

It shows what is so at the moment of the call, and nothing can be changed through it.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from vmpin.config.settings import Config
    from vmpin.cpuset import CpuSet
    from vmpin.domain.assignments import Rulings
    from vmpin.domain.counters import Counters, NewbornCounts
    from vmpin.domain.desired_state import DesiredState, SandboxState
    from vmpin.domain.kubelet_cpus import CpuManagerState, UnknownOwner
    from vmpin.domain.model import ContainerId, SandboxId, ThreadId, VcpuId
    from vmpin.domain.proof import ResidencyLedger
    from vmpin.domain.vm_nic import NearNic
    from vmpin.host.cgroup import Cgroups
    from vmpin.host.procfs import Procfs
    from vmpin.pinning.drift_evidence import History
    from vmpin.pinning.original_masks import OriginalMasks
    from vmpin.placement.ownership import Node, Ownership
    from vmpin.placement.rules import Placement
    from vmpin.reconcile.node_state import NodeState
    from vmpin.runtime.kata import KataSandbox
    from vmpin.vmm.recognition import Impostor
    from vmpin.vmm.virtual_machine import Process, Vm


class CheckpointFile(NamedTuple):
    """How the kubelet's checkpoint was last read. `trouble` is why it cannot be used ("" if it can), `bad` how often
    that became so; `stale`: the last good content is used; `written` is its time, ns of CLOCK_REALTIME."""

    trouble: str
    bad: int
    stale: bool
    written: int


class NodeView:
    """Made once, by `NodeState`. Mappings are its own, and live: readers must not keep them over an `await`."""

    __slots__ = ("_node_state",)

    def __init__(self, node_state: NodeState) -> None:
        self._node_state = node_state

    # The node

    @property
    def config(self) -> Config:
        """The configuration in force; another object after a reload."""
        return self._node_state.config

    @property
    def boot_id(self) -> str:
        return self._node_state.boot_id

    @property
    def node(self) -> Node:
        """The node's topology, shared pool and housekeeping CPUs."""
        return self._node_state.node

    @property
    def proc(self) -> Procfs:
        return self._node_state.proc

    @property
    def cgroups(self) -> Cgroups:
        return self._node_state.cgroups

    # What should be

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
    def placements(self) -> Mapping[SandboxId, Placement]:
        return self._node_state.placements

    @property
    def nics(self) -> Mapping[ThreadId, NearNic]:
        """The NUMA nodes of VMs' NICs by the VMM's main thread, with policy.vhost: near; {} with any other."""
        return self._node_state.nics.found

    @property
    def unmanaged(self) -> Mapping[SandboxId, str]:
        """VMs that are left as they are, as no source reports where they belong or no CPU is left for them; with the
        reason."""
        return self._node_state.placement_cache.unmanaged

    @property
    def kubelet(self) -> CpuManagerState | None:
        """The kubelet's checkpoint; None where it is not read, or cannot be."""
        return self._node_state.kubelet

    @property
    def rulings(self) -> Rulings:
        """The decisions of the authorities on the CPUs of containers."""
        return self._node_state.placement_cache.rulings

    @property
    def checkpoint(self) -> CheckpointFile:
        file = self._node_state.checkpoint
        return CheckpointFile(file.trouble, file.bad, file.stale, file.written)

    @property
    def pod_resources(self) -> Mapping[tuple[str, str, str], CpuSet] | None:
        """Exclusive CPUs by namespace, pod and container, as PodResources reports them; None without an answer."""
        return self._node_state.disagreements.resources

    @property
    def announced(self) -> Mapping[ContainerId, CpuSet]:
        """The cpusets that the runtime reported as it happened (NRI), by container."""
        return self._node_state.reports.cpus

    @property
    def nri_listed(self) -> bool:
        """Whether the runtime has listed its containers over NRI, and the connection is up."""
        return self._node_state.sources.nri

    @property
    def disagreements(self) -> Mapping[tuple[SandboxId, ContainerId], str]:
        """Containers on whose CPUs the sources have disagreed for longer than a resync, with what they report."""
        return self._node_state.disagreements.lasting

    @property
    def unknown_owners(self) -> Mapping[str, UnknownOwner]:
        """The pods that the kubelet gives CPUs, and of which no container has been known for too long, by uid."""
        return self._node_state.unknown_owners.lasting

    def checkpoint_doubt(self) -> str:
        """Why the kubelet's static checkpoint may be out of date, "" for no reason. For a finding that rests on it:
        the answer may take a look at every process."""
        return self._node_state.checkpoint_doubt()

    def placement_at_exec(self, sandbox: SandboxId) -> Placement | None:
        """Return the placement of the processes of a sandbox that has just begun; None when they are left alone."""
        return self._node_state.placement_cache.at_exec(sandbox, self._node_state.state)

    def placement_with_vcpu(self, vm: Vm, vcpu: VcpuId) -> Placement | None:
        """Return the placement that a VM will have with a vCPU that it has just got, ahead of the pass that decides
        it."""
        return self._node_state.placement_cache.with_vcpu(vm, vcpu, self._node_state.state)

    # What runs

    @property
    def vms(self) -> Mapping[SandboxId, Vm]:
        return self._node_state.inventory.vms

    @property
    def contested(self) -> Mapping[SandboxId, tuple[int, ...]]:
        """The pids of VMMs that name the same sandbox with equal evidence; the first is placed."""
        return self._node_state.inventory.contested

    @property
    def impostors(self) -> Collection[Impostor]:
        """The processes of unprivileged users that pose as a sandbox's."""
        return self._node_state.inventory.process_table.impostors.values()

    @property
    def followed(self) -> Mapping[int, tuple[Vm, Process]]:
        """The processes whose threads are followed, by pid."""
        return self._node_state.inventory.followed

    @property
    def helper_pids(self) -> AbstractSet[int]:
        """The processes beside VMMs (virtiofsd, shims), their VM there or not."""
        return self._node_state.inventory.process_table.helpers.keys()

    def helped(self) -> set[SandboxId]:
        """The sandboxes that have helpers, their VM there or not."""
        return self._node_state.inventory.process_table.sandboxes_with_helpers()

    def runs(self, process: ThreadId) -> bool:
        """Whether a process has not ended."""
        return self._node_state.inventory.process_table.is_running(process)

    def has_vm(self, sandbox: SandboxId) -> bool:
        """Whether a sandbox's VMM runs, or Kata has state of it. It looks up and lists nothing, so any thread may
        ask."""
        return self._node_state.has_vm(sandbox)

    def vm_sandboxes(self) -> set[SandboxId]:
        """The sandboxes that are VMs, by their VMM, Kata's state, their shim or runtime handler (kata…)."""
        return self._node_state.vm_sandboxes()

    def all_sandboxes(self) -> list[SandboxId]:
        """Every sandbox of the desired state, and those of whose threads original masks are kept."""
        return self._node_state.all_sandboxes()

    def kata(self, sandbox: SandboxId) -> KataSandbox | None:
        """Kata's own state of a sandbox, None where it has none."""
        return self._node_state.sources.sandboxes.get(sandbox)

    # Masks

    @property
    def originals(self) -> Mapping[SandboxId, OriginalMasks]:
        """The original masks that are not given back."""
        return self._node_state.originals.masks

    def refusals(self, sandbox: SandboxId, but: Container[ThreadId] = ()) -> list[str]:
        """Describe what the kernel refused, and threads that another writer keeps moving, as sentences.
        :param but: threads of which another reason is given."""
        return self._node_state.pinner.refusals(sandbox, but)

    def drift(self, sandbox: SandboxId) -> History | None:
        """A sandbox's drift since it was met; None for none."""
        return self._node_state.drift_evidence.histories.get(sandbox)

    # Counts

    @property
    def counters(self) -> Counters:
        """The counts since the start."""
        return self._node_state.counters

    @property
    def ledger(self) -> ResidencyLedger:
        """Where threads ran, as far as samples are taken."""
        return self._node_state.ledger

    @property
    def saved(self) -> bool:
        """Whether the state file could be written when that was last tried."""
        return self._node_state.saved

    def newborn_counts(self, sandbox: SandboxId) -> NewbornCounts | None:
        """How soon the new threads of a sandbox were placed; None where none was reported or found."""
        return self._node_state.newborn_counts.get(sandbox)
