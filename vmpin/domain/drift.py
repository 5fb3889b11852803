"""Drift: a thread lost the mask that it was given. Its cause.

Pure. A cause is named only where the evidence shows it, as Linux keeps no record of which program set a mask. Loaded
at the first repair, not for the first pass.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ThreadRole


class Cause(enum.StrEnum):
    """The value is the one in metrics and status."""

    #: A CPU of the thread's went offline or came back: Linux then forgets a mask that had no other CPU.
    HOTPLUG = "hotplug"
    #: The thread's cpuset cgroup was written, or is another: before Linux 6.2 that forgets the mask, later it trims.
    CPUSET = "cpuset"
    KATA = "kata"
    LIBVIRT = "libvirt"
    KUBEVIRT = "kubevirt"
    TUNED = "tuned"
    NUMAD = "numad"
    VMM = "vmm"  #: The VMM itself sets masks of its threads, by its command line.
    IRQBALANCE = "irqbalance"  #: It sets masks of interrupts, and of no thread: listed, and never a cause.
    OTHER = "other"  #: Another program or person, without evidence which.


class Rival(NamedTuple):
    """Another program that may set masks of a VM's threads. `evidence` names it and what shows it; `roles` are those
    that it sets, None for all."""

    cause: Cause
    evidence: str
    roles: frozenset[ThreadRole] | None = None

    def sets(self, role: ThreadRole) -> bool:
        return self.roles is None or role in self.roles


#: For irqbalance, which is listed as it may disturb a pinned vCPU by an interrupt.
NO_THREADS: frozenset[ThreadRole] = frozenset()
VCPUS_ONLY = frozenset({ThreadRole.VCPU})


class MaskRepair(NamedTuple):
    """A thread whose mask was set again: it had been given `wanted`, which the kernel then showed as `shown`; `found`
    was there instead, and `left` is what the kernel made of `wanted` now (None: it refused)."""

    role: ThreadRole
    wanted: CpuSet
    shown: CpuSet
    actual: CpuSet
    left: CpuSet | None


class DriftFacts(NamedTuple):
    """The evidence about a VM at the moment of a repair, since its masks were last right."""

    remembers: bool = True  #: The kernel remembers masks over changes of cpuset cgroups (Linux 6.2).
    replugged: CpuSet = EMPTY  #: CPUs that went offline or came back.
    cgroup: str = ""  #: What was done to its cpuset cgroup, as a text; "" when nothing was seen.
    rivals: tuple[Rival, ...] = ()  #: The most likely one first.
    #: The CPUs of the cpuset cgroups of each role's threads at this moment, where they could be read.
    limits: Mapping[ThreadRole, CpuSet] = MappingProxyType({})


class Explanation(NamedTuple):
    cause: Cause
    evidence: str


def explain_drift(change: MaskRepair, facts: DriftFacts) -> Explanation:
    """Why a thread had another mask, as far as `facts` show it."""
    if not change.wanted.isdisjoint(facts.replugged):
        return Explanation(Cause.HOTPLUG, f"CPUs {change.wanted & facts.replugged} went off or came back")
    limit = facts.limits.get(change.role)
    if change.left is None:  # refused: for want of a right, too
        trimmed = limit is not None and change.wanted.isdisjoint(limit)
    else:
        trimmed = not change.shown <= change.left
    if trimmed:
        return Explanation(Cause.CPUSET, facts.cgroup or f"of CPUs {change.wanted} its cpuset cgroup leaves "
                                                       f"{change.left or 'none of them'}")
    # What was found has to be what the cgroup makes of the mask. Before Linux 6.2 a write forgets the mask, and all of
    # the cgroup's CPUs take its place; later it leaves what the cgroup has of it (kernel/cgroup/cpuset.c).
    if facts.cgroup and limit is not None and change.actual == (
            (change.wanted & limit if facts.remembers else limit) or limit):
        return Explanation(Cause.CPUSET, facts.cgroup)
    rival = next((rival for rival in facts.rivals if rival.sets(change.role)), None)
    return Explanation(rival.cause, rival.evidence) if rival else Explanation(
        Cause.OTHER, "nothing known of sets such masks here")
