"""The authority `kubelet`: it rules where the CPU manager's policy is static, by its checkpoint, on every container.

The static policy writes its checkpoint first (at admission), and the cpusets of running containers up to its reconcile
period later (pkg/kubelet/cm/cpumanager: cpuManagerReconcilePeriod, 10 s).
"""

from __future__ import annotations

from vmpin.authorities.kubelet_checkpoint import KubeletCheckpoint
from vmpin.domain.assignments import Assignments, Rank
from vmpin.domain.desired_state import DesiredState
from vmpin.domain.kubelet_cpus import CpuManagerState


def assignments_of(kubelet: CpuManagerState | None) -> Assignments | None:
    """Return what a checkpoint decides; None without one, and where the policy assigns no CPUs. The shared pool is the
    default set, even if that is empty."""
    if kubelet is None or not kubelet.static:
        return None
    return Assignments({**kubelet.entries, **{(uid, ""): cpus for uid, cpus in kubelet.pods.items()},
                        **{("", container): cpus for container, cpus in kubelet.by_id.items()}},
                       kubelet.default, complete=True, since=kubelet.since)


class KubeletAuthority:
    """:param used: whether the checkpoint is read at all (`watch.kubelet`)."""

    name = "kubelet"
    rank = Rank.KUBELET
    follows_containers = False

    def __init__(self, checkpoint: KubeletCheckpoint, used: bool) -> None:
        self.checkpoint = checkpoint
        #: The contents of the checkpoint; None where it is not read, or cannot be.
        self.state: CpuManagerState | None = None
        self._assignments: Assignments | None = None
        self.read(used)

    def read(self, used: bool) -> bool:
        """Read the checkpoint if it has changed. :returns: whether its contents are others."""
        before, self.state = self.state, self.checkpoint.read() if used else None
        if self.state is not before:
            self._assignments = assignments_of(self.state)
        return self.state != before

    def assignments(self, state: DesiredState) -> Assignments | None:
        """Return the decision of the checkpoint as it was read last."""
        return self._assignments
