"""A thread's birth: where it goes before anybody knows what it will do, and how long it could run anywhere else.

Pure. A thread inherits its creator's mask, so one whose creator is in its place is born in it. What stays out: who
tells of births (wire/proc_events), and the masks (placer).
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """Where the processes of a sandbox go that has no VM yet: its CPUs as far as its containers are known, else the
    shared pool. None when they are to be left alone: unpinned by hand, or neither is known.

    :param state: what the sources told of the sandbox, None for nothing.
    """
    if state is not None and state.suspended:
        return None
    containers = () if state is None else effective_containers(state, kubelet)
    placement = place(PlacementRequest(sandbox, (), containers, vcpus_identified=False), node, own, policy, previous)
    return None if placement.verdict is Verdict.UNMANAGED else placement


def leaves_sandbox(mask: CpuSet, sandbox: CpuSet, wanted: CpuSet | None) -> bool:
    """Whether a thread may run where neither its sandbox's CPUs are nor those that its role is given."""
    return not mask <= (sandbox | (wanted or EMPTY))


@dataclass
class LatencyAccount:
    """Of one sandbox, since its VMM was first seen. All times in seconds."""

    #: Threads of whose birth the kernel told, main threads at their program's start among them.
    told: int = 0
    #: Of those, the ones that were born in their sandbox's CPUs; and that ended before they could be looked at.
    inside: int = 0
    ended: int = 0
    #: Threads that were allowed outside, however they came to be known, for how long in all and at most.
    outside: int = 0
    outside_sum: float = 0.0
    outside_max: float = 0.0
    #: Threads of which it is known when they were born and when each had its place, how long that took in all and at
    #: most. One that was right from the start counts from its birth until that was seen.
    placed: int = 0
    placed_sum: float = 0.0
    placed_max: float = 0.0

    def leaked(self, seconds: float) -> None:
        """One was allowed outside."""
        self.outside += 1
        self.outside_sum += seconds
        self.outside_max = max(self.outside_max, seconds)

    def in_place(self, seconds: float) -> None:
        """One has its place, so long after its birth."""
        self.placed += 1
        self.placed_sum += seconds
        self.placed_max = max(self.placed_max, seconds)

    def data(self) -> dict[str, object]:
        """For the status; times in milliseconds."""
        return {"told": self.told, "inside": self.inside, "ended": self.ended, "outside": self.outside,
                "outside_ms": {"sum": _ms(self.outside_sum), "max": _ms(self.outside_max)},
                "placed": self.placed,
                "placed_ms": {"mean": _ms(self.placed_sum / self.placed) if self.placed else None,
                              "max": _ms(self.placed_max)}}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
