"""Drift: a thread that was where it should be and is not any more. What it came from, and when two writers fight.

Pure. A cause is what the facts allow to say, and `OTHER` is said where they do not: Linux keeps no record of who set a
mask. What stays out: gathering the facts (circumstances, host/writers), and putting threads back (pinner).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ThreadId, ThreadRole

#: A fight is looked for within this time (seconds), or within as many resyncs as it takes to see one.
MINUTE = 60.0
#: A thread that is moved again after its rest rests twice as long, up to this (seconds).
LONGEST_REST = 3600.0


class Cause(enum.StrEnum):
    """The value is what metrics and status say."""

    #: A CPU of the thread's went off or came back: Linux then forgets a mask that had no other CPU.
    HOTPLUG = "hotplug"
    #: The thread's cpuset cgroup was written, or is another: before Linux 6.2 that forgets the mask, later it trims.
    CPUSET = "cpuset"
    KATA = "kata"
    LIBVIRT = "libvirt"
    KUBEVIRT = "kubevirt"
    TUNED = "tuned"
    NUMAD = "numad"
    #: The VMM was told to set masks of its own threads.
    VMM = "vmm"
    #: Interrupts' masks, and no thread's: seen, and never to blame.
    IRQBALANCE = "irqbalance"
    #: Another hand, and nothing tells whose.
    OTHER = "other"


class Rival(NamedTuple):
    """Another program that may set masks of a VM's threads. `evidence` names it and how it is known.

    `roles` are those that it sets, None for all.
    """

    cause: Cause
    evidence: str
    roles: frozenset[ThreadRole] | None = None

    def sets(self, role: ThreadRole) -> bool:
        return self.roles is None or role in self.roles


#: What it never touches: irqbalance is listed for who looks at all that may disturb a pinned vCPU.
NO_THREADS: frozenset[ThreadRole] = frozenset()
VCPUS_ONLY = frozenset({ThreadRole.VCPU})


class MaskRepair(NamedTuple):
    """A thread that was put back: it was given `wanted`, which then showed as `shown`; `found` was there instead, and
    `left` is what the kernel made of `wanted` now (None: it refused)."""

    role: ThreadRole
    wanted: CpuSet
    shown: CpuSet
    found: CpuSet
    left: CpuSet | None


@dataclass(frozen=True)
class DriftFacts:
    """What is known of a VM at the moment of a repair, since its threads were last seen in their place."""

    #: The kernel remembers masks over changes of cpuset cgroups (Linux 6.2).
    remembers: bool = True
    #: CPUs that went off or came back.
    replugged: CpuSet = EMPTY
    #: What was done to its cpuset cgroup, in words; "" for nothing that was seen.
    cgroup: str = ""
    #: The most likely one first.
    rivals: tuple[Rival, ...] = ()
    #: What the cpuset cgroups of the threads of each role have at this moment, as far as that is known.
    limits: Mapping[ThreadRole, CpuSet] = field(default_factory=dict)


class Explanation(NamedTuple):
    cause: Cause
    evidence: str


def explain_drift(change: MaskRepair, facts: DriftFacts) -> Explanation:
    """Why a thread had another mask, as far as `facts` tell."""
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
    if facts.cgroup and limit is not None and change.found == (
            (change.wanted & limit if facts.remembers else limit) or limit):
        return Explanation(Cause.CPUSET, facts.cgroup)
    for rival in facts.rivals:
        if rival.sets(change.role):
            return Explanation(rival.cause, rival.evidence)
    return Explanation(Cause.OTHER, "nothing known of sets such masks here")


class OnContention(enum.StrEnum):
    """What is done about a thread that somebody else moves again and again."""

    #: Left alone for some minutes, then tried again.
    REST = "rest"
    #: Left alone until it is to be somewhere else, or `vmpin reconcile` is called.
    LEAVE = "leave"
    #: Put back all the same.
    PERSIST = "persist"


class ContentionRules(NamedTuple):
    """A thread that is put back more than `repairs` times a minute is fought over. Seconds."""

    on_contention: OnContention = OnContention.REST
    repairs: int = 3
    rest: float = 300.0
    #: How often everything is looked at: with few looks a minute as many repairs take longer.
    resync: float = 10.0

    @property
    def within(self) -> float:
        return max(MINUTE, self.resync * 2 * self.repairs)


@dataclass
class _Bout:
    """A thread that is or was fought over: what it was to have when it was given up, until when it is left alone (0
    when it is not), and how often it was given up."""

    wanted: CpuSet = EMPTY
    until: float = 0.0
    fights: int = 0


class Contention:
    """Which threads somebody else keeps moving. Times are of one steady clock, in seconds."""

    def __init__(self, rules: ContentionRules) -> None:
        self.rules = rules
        #: When each thread was put back of late.
        self._times: dict[ThreadId, list[float]] = {}
        self._bouts: dict[ThreadId, _Bout] = {}

    def __bool__(self) -> bool:
        """Whether any thread was put back of late."""
        return bool(self._times) or bool(self._bouts)

    def add_repairs(self, threads: Iterable[ThreadId], now: float) -> None:
        """Threads were put back."""
        known = self._times
        for thread in threads:
            if thread in known:
                known[thread].append(now)
            else:
                known[thread] = [now]

    def resting(self, thread: ThreadId, wanted: CpuSet, now: float) -> bool:
        """Whether a thread is to be left as it is. One that is to be somewhere else than when it was given up is
        not: that is a new decision."""
        bout = self._bouts.get(thread)
        return bout is not None and now < bout.until and bout.wanted == wanted

    def retry_due(self, thread: ThreadId, wanted: CpuSet, now: float) -> bool:
        """Whether a thread was given up, and is to be tried again."""
        bout = self._bouts.get(thread)
        return bout is not None and 0 < bout.until <= now and bout.wanted == wanted and thread not in self._times

    def starts(self, thread: ThreadId, wanted: CpuSet, now: float) -> bool:
        """Whether a thread that has drifted (again) is fought over as of now: it then rests, as the rules say."""
        over = now - self.rules.within
        times = [time for time in self._times.get(thread, ()) if time > over]
        bout = self._bouts.get(thread)
        # One that was given up before is tried once: until it has stayed for as long, the first drift is enough.
        if len(times) < (1 if bout is not None and bout.until else self.rules.repairs):
            if times:
                self._times[thread] = times
            return False
        if bout is None:
            bout = self._bouts[thread] = _Bout()
        bout.fights += 1
        bout.wanted = wanted
        del self._times[thread]
        match self.rules.on_contention:
            case OnContention.REST:
                bout.until = now + min(self.rules.rest * 2 ** min(bout.fights - 1, 16), LONGEST_REST)
            case OnContention.LEAVE:
                bout.until = float("inf")
            case OnContention.PERSIST:
                bout.until = 0.0
        return True

    def count(self, thread: ThreadId) -> int:
        """How often a thread was found to be fought over."""
        bout = self._bouts.get(thread)
        return 0 if bout is None else bout.fights

    def next_retry(self, threads: Iterable[ThreadId], now: float) -> float | None:
        """When the first of `threads` has rested, None when none rests."""
        ends = [bout.until for thread in threads if (bout := self._bouts.get(thread)) is not None and bout.until > now]
        return min(ends, default=None)

    def retry_now(self) -> None:
        """Take up all that was given up."""
        self._times.clear()
        self._bouts.clear()

    def keep_only(self, threads: set[ThreadId], now: float) -> None:
        """Forget threads that have ended, and what is long over."""
        over = now - self.rules.within
        self._times = {thread: times for thread, times in self._times.items()
                       if thread in threads and times[-1] > over}
        self._bouts = {thread: bout for thread, bout in self._bouts.items()
                       if thread in threads and (bout.until > over or thread in self._times)}
