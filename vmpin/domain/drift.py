"""Drift: a thread lost the mask that it was given. Its cause, and contention with another program that sets masks.

Pure. A cause is named only where the evidence shows it, as Linux keeps no record of which program set a mask. What
stays out: gathering the evidence (pinning.drift_evidence, pinning.rival_writers), and setting masks again (pinning).
Called by pinning.drift_tracker, which owns the one `Contention`.
"""

import enum
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ThreadId, ThreadRole

#: Repairs count as contention within this time (seconds), or within as many resyncs as that many repairs take.
MINUTE = 60.0
LONGEST_REST = 3600.0  #: A thread that is moved again after its rest rests twice as long, up to this (seconds).


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
    found: CpuSet
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
    if facts.cgroup and limit is not None and change.found == (
            (change.wanted & limit if facts.remembers else limit) or limit):
        return Explanation(Cause.CPUSET, facts.cgroup)
    rival = next((rival for rival in facts.rivals if rival.sets(change.role)), None)
    return Explanation(rival.cause, rival.evidence) if rival else Explanation(
        Cause.OTHER, "nothing known of sets such masks here")


class OnContention(enum.StrEnum):
    """What is done about a thread that another program moves again and again."""

    REST = "rest"  #: Left alone for some minutes, then tried again.
    LEAVE = "leave"  #: Left alone until its placement changes, or `vmpin reconcile` is called.
    PERSIST = "persist"  #: Set again all the same.


class ContentionRules(NamedTuple):
    """A thread whose mask is set again more than `repairs` times a minute is contested. Durations in seconds."""

    on_contention: OnContention = OnContention.REST
    repairs: int = 3
    rest: float = 300.0
    resync: float = 10.0  #: The resync interval: with few resyncs a minute as many repairs take longer.

    @property
    def within(self) -> float:
        """The time within which repairs are counted."""
        return max(MINUTE, self.resync * 2 * self.repairs)


class _Contest:
    """A thread that is or was contested: the mask it was to have when it was given up, until when it is left alone (0
    when it is not), and how often it was given up."""

    __slots__ = ("count", "until", "wanted")  # a dataclass would keep the first pass waiting (test_floors)

    def __init__(self) -> None:
        self.wanted, self.until, self.count = EMPTY, 0.0, 0


class Contention:
    """Which threads another program keeps moving. Times are of one steady clock, in seconds."""

    def __init__(self, rules: ContentionRules) -> None:
        self.rules = rules
        #: When each thread was repaired lately.
        self._times: dict[ThreadId, list[float]] = {}
        self._contests: dict[ThreadId, _Contest] = {}

    def __bool__(self) -> bool:
        """Whether any thread was repaired lately."""
        return bool(self._times) or bool(self._contests)

    def add_repairs(self, threads: Iterable[ThreadId], now: float) -> None:
        """Count a repair of each of `threads`."""
        for thread in threads:
            self._times.setdefault(thread, []).append(now)

    def resting(self, thread: ThreadId, wanted: CpuSet, now: float) -> bool:
        """Whether a thread is left alone now. A thread whose placement changed since it was given up is not."""
        contest = self._contests.get(thread)
        return contest is not None and now < contest.until and contest.wanted == wanted

    def retry_due(self, thread: ThreadId, wanted: CpuSet, now: float) -> bool:
        """Whether a thread was given up, and it is time to try it again."""
        contest = self._contests.get(thread)
        return (contest is not None and 0 < contest.until <= now and contest.wanted == wanted
                and thread not in self._times)

    def starts(self, thread: ThreadId, wanted: CpuSet, now: float) -> bool:
        """Whether a thread that has drifted (again) is contested as of now. It then rests, by the rules."""
        over = now - self.rules.within
        times = [time for time in self._times.get(thread, ()) if time > over]
        contest = self._contests.get(thread)
        # One that was given up before is tried once: until it has stayed for as long, the first drift is enough.
        if len(times) < (1 if contest is not None and contest.until else self.rules.repairs):
            if times:
                self._times[thread] = times
            return False
        contest = self._contests.setdefault(thread, _Contest())
        contest.count += 1
        contest.wanted = wanted
        del self._times[thread]
        rest = min(self.rules.rest * 2 ** min(contest.count - 1, 16), LONGEST_REST)
        contest.until = {OnContention.REST: now + rest, OnContention.LEAVE: float("inf"),
                         OnContention.PERSIST: 0.0}[self.rules.on_contention]
        return True

    def count(self, thread: ThreadId) -> int:
        """How often a thread was found to be contested."""
        return self._contests[thread].count if thread in self._contests else 0

    def next_retry(self, threads: Iterable[ThreadId], now: float) -> float | None:
        """When the first of `threads` has rested, None when none rests."""
        ends = [contest.until for thread in threads if (contest := self._contests.get(thread)) is not None
                and contest.until > now]
        return min(ends, default=None)

    def retry_now(self) -> None:
        """Forget all rests: every thread is repaired again."""
        self._times.clear()
        self._contests.clear()

    def keep_only(self, threads: set[ThreadId], now: float) -> None:
        """Forget threads that have ended, and rests that are long over."""
        over = now - self.rules.within
        self._times = {thread: times for thread, times in self._times.items()
                       if thread in threads and times[-1] > over}
        self._contests = {thread: contest for thread, contest in self._contests.items()
                       if thread in threads and (contest.until > over or thread in self._times)}
