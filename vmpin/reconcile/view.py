"""The read-only view of a node, for everything outside this package: its VMs, placements, ownership and state, at the
moment of the call.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Protocol

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
    from vmpin.runtime.kata import KataSandbox
    from vmpin.vmm.recognition import Impostor
    from vmpin.vmm.virtual_machine import Process, Vm


class NodeView(Protocol):
    """`NodeState` for readers. The mappings are the live ones: do not keep them over an `await`."""

    # The node

    @property
    def config(self) -> Config:
        """The configuration in force; another object after a reload."""

    @property
    def boot_id(self) -> str: ...

    @property
    def node(self) -> Node:
        """The node's topology, shared pool and housekeeping CPUs."""

    @property
    def proc(self) -> Procfs: ...

    @property
    def cgroups(self) -> Cgroups: ...

    # Desired state

    @property
    def state(self) -> DesiredState:
        """The desired state of the node: another object after each change."""

    @property
    def sandboxes(self) -> Mapping[SandboxId, SandboxState]:
        """The desired state of every sandbox, runc's too."""

    @property
    def ownership(self) -> Ownership:
        """The CPUs that each container owns."""

    @property
    def placements(self) -> Mapping[SandboxId, Placement]: ...

    @property
    def unmanaged(self) -> Mapping[SandboxId, str]:
        """VMs whose masks are not set, with the reason: no source reports their containers, or no CPU is left."""

    @property
    def kubelet(self) -> CpuManagerState | None:
        """The kubelet's checkpoint in force; None if it is not read, or there is none."""

    @property
    def rulings(self) -> Rulings:
        """The decisions of the authorities on the CPUs of containers."""

    @property
    def checkpoint(self) -> KubeletCheckpoint:
        """The kubelet's checkpoint, with the outcome of its last reading."""

    @property
    def pod_resources(self) -> Mapping[tuple[str, str, str], CpuSet] | None:
        """Exclusive CPUs by namespace, pod and container, as PodResources reports them; None without an answer."""

    @property
    def announced(self) -> Mapping[ContainerId, CpuSet]:
        """The cpusets that the runtime reported as they changed (NRI), by container."""

    @property
    def nri_listed(self) -> bool:
        """Whether the runtime has listed its containers over NRI, and the connection is up."""

    @property
    def list_awaited(self) -> bool:
        """Whether the runtime's first list over NRI is awaited still: what only NRI reports is not known yet."""

    @property
    def disagreements(self) -> Mapping[tuple[SandboxId, ContainerId], str]:
        """Containers on whose CPUs the sources have disagreed for longer than a resync, with what they report."""

    @property
    def unknown_owners(self) -> Mapping[str, UnknownOwner]:
        """The pods with CPUs from the kubelet of which no container has been known for too long, by uid."""

    @property
    def rivals(self) -> Sequence[AuthorityRival]:
        """Two that have decided on the same CPUs for some resyncs."""

    def checkpoint_doubt(self) -> str:
        """Why the kubelet's static checkpoint may be out of date, "" for no reason. Call it only for a finding that
        depends on the checkpoint, as it may read every process."""

    def placement_at_exec(self, sandbox: SandboxId) -> Placement | None:
        """The placement of a sandbox's new processes; None if their masks are not to be set."""

    def placement_with_vcpu(self, vm: Vm, vcpu: VcpuId) -> Placement | None:
        """The placement of a VM with a new vCPU, ahead of the pass that will place it."""

    # Processes

    @property
    def vms(self) -> Mapping[SandboxId, Vm]: ...

    @property
    def contested(self) -> Mapping[SandboxId, tuple[int, ...]]:
        """The pids of VMMs that claim the same sandbox with equal evidence; the first one is placed."""

    @property
    def impostors(self) -> Collection[Impostor]:
        """The processes of unprivileged users that pose as a sandbox's."""

    @property
    def followed(self) -> Mapping[int, tuple[Vm, Process]]:
        """The processes whose threads are followed, by pid."""

    @property
    def helper_pids(self) -> AbstractSet[int]:
        """The pids of helpers (virtiofsd, shims), with or without a VM."""

    def helped(self) -> set[SandboxId]:
        """The sandboxes with helpers, with or without a VM."""

    def runs(self, process: ThreadId) -> bool:
        """Whether a process has not ended."""

    def has_vm(self, sandbox: SandboxId) -> bool:
        """Whether a sandbox's VMM runs, or Kata has state of it. Any thread may call it."""

    def has_ended(self, sandbox: SandboxId) -> bool:
        """Whether a sandbox has ended that the runtime still lists: over NRI it reports no live container of it, and
        no process of it runs."""

    def may_get_vm(self, sandbox: SandboxId) -> bool:
        """Whether a sandbox has a VM, or may get one that no event reports. Any thread may call it."""

    def is_settled(self, sandbox: SandboxId) -> bool:
        """Whether a sandbox's VM has its masks, and the kernel reports each new thread of it, with a name that shows
        whether it is a vCPU. Any thread may call it."""

    def vm_sandboxes(self) -> set[SandboxId]:
        """The sandboxes that are VMs, by their VMM, Kata's state, their shim or runtime handler (kata…)."""

    def all_sandboxes(self) -> list[SandboxId]:
        """Every sandbox of the desired state, and every sandbox with original masks."""

    def kata(self, sandbox: SandboxId) -> KataSandbox | None:
        """Kata's own state of a sandbox, None without one."""

    # Masks

    @property
    def originals(self) -> Mapping[SandboxId, OriginalMasks]:
        """The original masks that are not restored."""

    def refusals(self, sandbox: SandboxId, but: Container[ThreadId] = ()) -> list[str]:
        """Sentences on masks that the kernel refused, and on threads that another writer keeps moving.
        :param but: threads for which another reason is given."""

    def drift(self, sandbox: SandboxId) -> History | None:
        """The history of a sandbox's drift; None without drift."""

    # Counts

    @property
    def counters(self) -> Counters:
        """The counters since the start."""

    @property
    def save_trouble(self) -> str:
        """Why the last attempt to write the state file failed; "" if it succeeded."""

    @property
    def load_trouble(self) -> str:
        """The reason why files of the last watcher could not be read; "" for none."""

    @property
    def unknown_originals(self) -> int:
        """The number of VMs that run since before the record of the original masks was lost."""

    @property
    def newborn_counts(self) -> Mapping[SandboxId, NewbornCounts]:
        """Counts of the new threads of sandboxes that had any."""
