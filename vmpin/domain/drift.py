"""Causes of drift: why a thread no longer has the mask that vmpin set.

Pure. Linux does not record which program set a mask, so a cause is reported only if there is evidence. Imported at the
first repair, so that it does not delay the first pass.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ThreadRole
from vmpin.named_tuple import NamedTuple


class Cause(enum.StrEnum):
    """A cause of drift; the value appears in metrics and status."""

    #: A CPU of the thread went offline or came back: Linux forgets a mask without any other CPU.
    HOTPLUG = "hotplug"
    #: The thread's cpuset cgroup was written or changed: Linux before 6.2 forgets the mask then, later versions trim
    #: it.
    CPUSET = "cpuset"
    KATA = "kata"
    LIBVIRT = "libvirt"
    KUBEVIRT = "kubevirt"
    TUNED = "tuned"
    NUMAD = "numad"
    VMM = "vmm"  #: The VMM itself sets masks of its threads, by its command line.
    IRQBALANCE = "irqbalance"  #: It sets masks of interrupts, not of threads, so it is listed but is never the cause.
    UNKNOWN = "unknown program"  #: Another program or person; there is no evidence which.


NO_EVIDENCE = "nothing known of sets such masks here"
#: Prints each program but vmpin that sets masks, as `COMM[PID]->TID` (0: its own). Linux keeps no record of them.
WRITER_COMMAND = ("bpftrace -e 't:syscalls:sys_enter_sched_setaffinity /comm != \"vmpin\"/ "
                  "{ printf(\"%s[%d]->%d\\n\", comm, pid, args->pid) }'")


class Rival(NamedTuple):
    """Another program that may set masks of a VM's threads. `evidence` names it and how it was found; `roles` are the
    roles of the threads whose masks it sets, None for all."""

    cause: Cause
    evidence: str
    roles: frozenset[ThreadRole] | None = None

    def sets(self, role: ThreadRole) -> bool:
        return self.roles is None or role in self.roles


#: For irqbalance, which is listed because its interrupts may disturb a pinned vCPU.
NO_THREADS: frozenset[ThreadRole] = frozenset()
VCPUS_ONLY = frozenset({ThreadRole.VCPU})


class MaskRepair(NamedTuple):
    """A repaired thread. vmpin had set `wanted`, which the kernel showed as `shown`; before the repair the thread had
    `actual`; after it the kernel shows `left` (None: the mask was refused)."""

    role: ThreadRole
    wanted: CpuSet
    shown: CpuSet
    actual: CpuSet
    left: CpuSet | None


class DriftFacts(NamedTuple):
    """The evidence about a VM at a repair, gathered since its masks were last as placed."""

    remembers: bool = True  #: Whether the kernel remembers masks when a cpuset cgroup changes (Linux 6.2).
    replugged: CpuSet = EMPTY  #: CPUs that went offline or came back.
    cgroup: str = ""  #: Describes a change to its cpuset cgroup; "" for none.
    rivals: tuple[Rival, ...] = ()  #: The most likely one first.
    #: The current CPUs of the cpuset cgroup of each role's threads, if they could be read.
    limits: Mapping[ThreadRole, CpuSet] = MappingProxyType({})


class Explanation(NamedTuple):
    cause: Cause
    evidence: str


def explain_drift(change: MaskRepair, facts: DriftFacts) -> Explanation:
    """Explain why a thread had another mask, as far as the evidence shows."""
    if not change.wanted.isdisjoint(facts.replugged):
        return Explanation(Cause.HOTPLUG, f"CPUs {change.wanted & facts.replugged} went off or came back")
    limit = facts.limits.get(change.role)
    if change.left is None:  # refused, possibly for lack of a right
        trimmed = limit is not None and change.wanted.isdisjoint(limit)
    else:
        trimmed = not change.shown <= change.left
    if trimmed:
        return Explanation(Cause.CPUSET, facts.cgroup or f"of CPUs {change.wanted} its cpuset cgroup leaves "
                                                       f"{change.left or 'none of them'}")
    # The cgroup is the cause only if the actual mask is what it makes of the wanted one. Before Linux 6.2 a write
    # replaces the mask by all CPUs of the cgroup; later it trims the mask to them (kernel/cgroup/cpuset.c).
    if facts.cgroup and limit is not None and change.actual == (
            (change.wanted & limit if facts.remembers else limit) or limit):
        return Explanation(Cause.CPUSET, facts.cgroup)
    rival = next((rival for rival in facts.rivals if rival.sets(change.role)), None)
    return Explanation(rival.cause, rival.evidence) if rival else Explanation(
        Cause.UNKNOWN, NO_EVIDENCE)
