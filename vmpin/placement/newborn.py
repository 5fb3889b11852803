"""Newborn threads: where they go before their role is certain, and how long they could run anywhere else.

Pure. A thread inherits its creator's mask, so a thread whose creator is placed is born in its place. What stays out:
the
proc connector's events (wire, host), and setting masks (procevents, which calls this).
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
    """Where the processes of a sandbox go that has no VM yet: on the CPUs of the containers that were reported, else
    on
    the shared pool. None when they are left alone: the sandbox is suspended, or there is neither.

    :param state: the sandbox as its sources reported it, None when none did.
    """
    if state is not None and state.suspended:
        return None
    containers = () if state is None else effective_containers(state, kubelet)
    placement = place(PlacementRequest(sandbox, (), containers, vcpus_identified=False), node, own, policy, previous)
    return None if placement.verdict is Verdict.UNMANAGED else placement


def leaves_sandbox(mask: CpuSet, sandbox: CpuSet, wanted: CpuSet | None) -> bool:
    """Whether a mask has CPUs that are neither in the sandbox's mask nor in that of the thread's role."""
    return not mask <= (sandbox | (wanted or EMPTY))


@dataclass
class LatencyAccount:
    """The threads of one sandbox since its VMM was first seen. All times in seconds."""

    #: Threads whose creation the kernel reported, main threads at their program's start among them.
    reported: int = 0
    #: Of those, the ones that were born on their sandbox's CPUs; and that ended before they could be read.
    born_inside: int = 0
    ended: int = 0
    #: Threads that were allowed outside, whether reported or found at a resync; for how long in all, and at most.
    outside: int = 0
    outside_sum: float = 0.0
    outside_max: float = 0.0
    #: Threads whose creation and placement both have a time; how long that took in all, and at most. A thread that was
    #: right from the start counts from its creation until that was read.
    placed: int = 0
    placed_sum: float = 0.0
    placed_max: float = 0.0

    def add_leak(self, seconds: float) -> None:
        """Count a thread that was allowed outside for `seconds`."""
        self.outside += 1
        self.outside_sum += seconds
        self.outside_max = max(self.outside_max, seconds)

    def add_placed(self, seconds: float) -> None:
        """Count a thread that was placed `seconds` after its creation."""
        self.placed += 1
        self.placed_sum += seconds
        self.placed_max = max(self.placed_max, seconds)

    def data(self) -> dict[str, object]:
        """For the status; times in milliseconds."""
        return {"told": self.reported, "inside": self.born_inside, "ended": self.ended, "outside": self.outside,
                "outside_ms": {"sum": _ms(self.outside_sum), "max": _ms(self.outside_max)},
                "placed": self.placed,
                "placed_ms": {"mean": _ms(self.placed_sum / self.placed) if self.placed else None,
                              "max": _ms(self.placed_max)}}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
