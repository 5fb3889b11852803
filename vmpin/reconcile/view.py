"""The read-only view of a node that everything outside this package gets: its VMs, placements, ownership and state.

It shows what is so at the moment of the call, and nothing can be changed through it.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vmpin.config.settings import Config
    from vmpin.cpuset import CpuSet
    from vmpin.domain.assignments import Rulings
    from vmpin.domain.counters import Counters, NewbornCounts
    from vmpin.domain.desired_state import DesiredState, SandboxState
    from vmpin.domain.kubelet_cpus import CpuManagerState, UnknownOwner
    from vmpin.domain.model import ContainerId, SandboxId, ThreadId, VcpuId
    from vmpin.domain.proof import ResidencyLedger
    from vmpin.domain.sandbox_placement import Placement
    from vmpin.host.cgroup import Cgroups
    from vmpin.host.procfs import Procfs
    from vmpin.pinning.drift_evidence import History
    from vmpin.pinning.original_masks import OriginalMasks
    from vmpin.placement.ownership import Node, Ownership
    from vmpin.runtime.kata import KataSandbox
    from vmpin.vmm.recognition import Impostor
    from vmpin.vmm.virtual_machine import Process, Vm


class CheckpointFile(Protocol):
    """How the kubelet's checkpoint was last read."""

    @property
    def trouble(self) -> str:
        """Why it cannot be used, "" if it can."""

    @property
    def bad(self) -> int:
        """How often it became so."""

    @property
    def stale(self) -> bool:
        """Whether it is gone, and its last good content is used."""

    @property
    def written(self) -> int:
        """When it was written, ns of CLOCK_REALTIME."""


class NodeView(Protocol):
    """`NodeState`, as its readers have it. Mappings are its own, and live: readers must not keep them over an `await`.
    """

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

    # What should be

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
        """VMs that are left as they are, as no source reports where they belong or no CPU is left for them; with the
        reason."""

    @property
    def kubelet(self) -> CpuManagerState | None:
        """The kubelet's checkpoint; None where it is not read, or cannot be."""

    @property
    def rulings(self) -> Rulings:
        """The decisions of the authorities on the CPUs of containers."""

    @property
    def checkpoint(self) -> CheckpointFile: ...

    @property
    def pod_resources(self) -> Mapping[tuple[str, str, str], CpuSet] | None:
        """Exclusive CPUs by namespace, pod and container, as PodResources reports them; None without an answer."""

    @property
    def announced(self) -> Mapping[ContainerId, CpuSet]:
        """The cpusets that the runtime reported as it happened (NRI), by container."""

    @property
    def nri_listed(self) -> bool:
        """Whether the runtime has listed its containers over NRI, and the connection is up."""

    @property
    def disagreements(self) -> Mapping[tuple[SandboxId, ContainerId], str]:
        """Containers on whose CPUs the sources have disagreed for longer than a resync, with what they report."""

    @property
    def unknown_owners(self) -> Mapping[str, UnknownOwner]:
        """The pods that the kubelet gives CPUs, and of which no container has been known for too long, by uid."""

    def checkpoint_doubt(self) -> str:
        """Why the kubelet's static checkpoint may be out of date, "" for no reason. For a finding that rests on it:
        the answer may take a look at every process."""

    def placement_at_exec(self, sandbox: SandboxId) -> Placement | None:
        """Return the placement of the processes of a sandbox that has just begun; None when they are left alone."""

    def placement_with_vcpu(self, vm: Vm, vcpu: VcpuId) -> Placement | None:
        """Return the placement that a VM will have with a vCPU that it has just got, ahead of the pass that decides
        it."""

    # What runs

    @property
    def vms(self) -> Mapping[SandboxId, Vm]: ...

    @property
    def contested(self) -> Mapping[SandboxId, tuple[int, ...]]:
        """The pids of VMMs that name the same sandbox with equal evidence; the first is placed."""

    @property
    def impostors(self) -> Collection[Impostor]:
        """The processes of unprivileged users that pose as a sandbox's."""

    @property
    def followed(self) -> Mapping[int, tuple[Vm, Process]]:
        """The processes whose threads are followed, by pid."""

    @property
    def helper_pids(self) -> AbstractSet[int]:
        """The processes beside VMMs (virtiofsd, shims), their VM there or not."""

    def helped(self) -> set[SandboxId]:
        """The sandboxes that have helpers, their VM there or not."""

    def runs(self, process: ThreadId) -> bool:
        """Whether a process has not ended."""

    def has_vm(self, sandbox: SandboxId) -> bool:
        """Whether a sandbox's VMM runs, or Kata has state of it. It looks up and lists nothing, so any thread may
        ask."""

    def vm_sandboxes(self) -> set[SandboxId]:
        """The sandboxes that are VMs, by their VMM, Kata's state, their shim or runtime handler (kata…)."""

    def all_sandboxes(self) -> list[SandboxId]:
        """Every sandbox of the desired state, and those of whose threads original masks are kept."""

    def kata(self, sandbox: SandboxId) -> KataSandbox | None:
        """Kata's own state of a sandbox, None where it has none."""

    # Masks

    @property
    def originals(self) -> Mapping[SandboxId, OriginalMasks]:
        """The original masks that are not given back."""

    def refusals(self, sandbox: SandboxId, but: Container[ThreadId] = ()) -> list[str]:
        """Describe what the kernel refused, and threads that another writer keeps moving, as sentences.
        :param but: threads of which another reason is given."""

    def drift(self, sandbox: SandboxId) -> History | None:
        """A sandbox's drift since it was met; None for none."""

    # Counts

    @property
    def counters(self) -> Counters:
        """The counts since the start."""

    @property
    def ledger(self) -> ResidencyLedger:
        """Where threads ran, as far as samples are taken."""

    @property
    def saved(self) -> bool:
        """Whether the state file could be written when that was last tried."""

    @property
    def newborn_counts(self) -> Mapping[SandboxId, NewbornCounts]:
        """How soon the new threads of sandboxes were placed, by those of which one was reported or found."""
