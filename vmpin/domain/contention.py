"""Contention: another program moves the same threads again and again.

Pure.
"""

import enum
from collections.abc import Iterable
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ThreadId

#: Repairs count as contention within this time (seconds), or within as many resyncs as that many repairs take.
MINUTE = 60.0
LONGEST_REST = 3600.0  #: A thread that is moved again after its rest rests twice as long, up to this (seconds).


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
