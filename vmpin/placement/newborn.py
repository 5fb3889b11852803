"""The placement of processes that have just executed their program, before a pass has found their VM.

Pure. A thread inherits its creator's mask, so every thread of a process that is in place is created in place. What
stays out: events (wire.proc_events) and setting masks. Called by reconcile.placement_cache and procevents.latency.
"""

from __future__ import annotations

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.kubelet_cpus import CpuManagerState, effective_containers
from vmpin.domain.model import SandboxId
from vmpin.placement.ownership import Node, Ownership
from vmpin.placement.policy import Policy
from vmpin.placement.rules import Placement, PlacementRequest, Verdict, place
from vmpin.placement.vcpus import Previous


def place_before_vm(sandbox: SandboxId, state: SandboxState | None, node: Node, own: Ownership, policy: Policy,
                    kubelet: CpuManagerState | None = None, previous: Previous | None = None) -> Placement | None:
    """The placement of a sandbox without a VM: the CPUs of its containers that were reported, else the shared pool.
    None if its processes are left alone: it was unpinned, or there are neither CPUs nor a pool.

    :param state: what the sources reported of the sandbox, None for nothing.
    """
    if state is not None and state.suspended:
        return None
    containers = () if state is None else effective_containers(state, kubelet)
    placement = place(PlacementRequest(sandbox, (), containers, vcpus_identified=False), node, own, policy, previous)
    return None if placement.verdict is Verdict.UNMANAGED else placement


def leaves_sandbox(mask: CpuSet, sandbox: CpuSet, wanted: CpuSet | None) -> bool:
    """Whether a mask has CPUs that are neither its sandbox's nor those of the thread's role (`wanted`)."""
    return not mask <= (sandbox | (wanted or EMPTY))
