"""Contention: another program repeatedly changes the masks of the same threads, or of what else has one. Pure."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.named_tuple import NamedTuple

#: Seconds within which repairs count as contention; longer if the resyncs for so many repairs take longer.
MINUTE = 60.0
LONGEST_REST = 3600.0  #: The longest rest in seconds. Each further rest of a thread is twice as long.


class OnContention(enum.StrEnum):
    """The reaction to a thread whose mask another program changes repeatedly."""

    REST = "rest"  #: Left alone for some minutes, then repaired again.
    LEAVE = "leave"  #: Left alone until its placement changes, or `vmpin repin` is called.
    PERSIST = "persist"  #: Repaired each time.


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
    """A thread that is or was contested: its wanted mask when repairs stopped, the end of its rest (0: not resting),
    and how often repairs were stopped."""

    __slots__ = ("count", "until", "wanted")  # a dataclass would delay the first pass (test_loaded_modules)

    def __init__(self) -> None:
        self.wanted, self.until, self.count = EMPTY, 0.0, 0


class Turn(NamedTuple):
    """The decision on a thread that has not the mask that it should have: whether it `rests`; else whether the mask is
    set as a repair; and whether contention `begins`."""

    rests: bool
    repairs: bool
    begins: bool


#: What identifies a thread, or what else has a mask.
Key = TypeVar("Key", bound=Hashable)


class Contention(Generic[Key]):
    """The threads in contention, by their identities. Times are of one monotonic clock, in seconds."""

    def __init__(self, rules: ContentionRules) -> None:
        self.rules = rules
        #: The times of each thread's recent repairs.
        self._times: dict[Key, list[float]] = {}
        self._contests: dict[Key, _Contest] = {}

    def __bool__(self) -> bool:
        """Whether any thread was repaired or in contention recently."""
        return bool(self._times) or bool(self._contests)

    def add_repairs(self, threads: Iterable[Key], now: float) -> None:
        """Record a repair of each of these threads."""
        for thread in threads:
            self._times.setdefault(thread, []).append(now)

    def resting(self, thread: Key, wanted: CpuSet, now: float) -> bool:
        """Whether a thread rests now. A thread whose wanted mask has changed since then does not rest."""
        contest = self._contests.get(thread)
        return contest is not None and now < contest.until and contest.wanted == wanted

    def retry_due(self, thread: Key, wanted: CpuSet, now: float) -> bool:
        """Whether a thread's rest is over, so that it is due for a retry."""
        contest = self._contests.get(thread)
        return (contest is not None and 0 < contest.until <= now and contest.wanted == wanted
                and thread not in self._times)

    def starts(self, thread: Key, wanted: CpuSet, now: float) -> bool:
        """Whether contention starts with this drift of a thread. If so, the thread's rest begins, by the rules."""
        over = now - self.rules.within
        times = [time for time in self._times.get(thread, ()) if time > over]
        contest = self._contests.get(thread)
        # After a rest a single drift suffices, until the thread has kept its mask for `rules.within` (keep_only).
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

    def turn(self, thread: Key, wanted: CpuSet, drifted: bool, now: float) -> Turn:
        """Decide on a thread whose mask is to be set. :param drifted: whether it had the wanted mask before."""
        if self.resting(thread, wanted, now):
            return Turn(rests=True, repairs=drifted, begins=False)
        if drifted and self.starts(thread, wanted, now):
            return Turn(self.resting(thread, wanted, now), repairs=True, begins=True)
        return Turn(rests=False, repairs=drifted or self.retry_due(thread, wanted, now), begins=False)

    def count(self, thread: Key) -> int:
        """How often contention was detected for a thread."""
        return self._contests[thread].count if thread in self._contests else 0

    def next_retry(self, threads: Iterable[Key], now: float) -> float | None:
        """The earliest end of a rest among `threads`; None if none rests."""
        ends = [contest.until for thread in threads if (contest := self._contests.get(thread)) is not None
                and contest.until > now]
        return min(ends, default=None)

    def retry_now(self) -> None:
        """End all rests: all threads are repaired again."""
        self._times.clear()
        self._contests.clear()

    def keep_only(self, threads: set[Key], now: float) -> None:
        """Forget ended threads and old rests."""
        over = now - self.rules.within
        self._times = {thread: times for thread, times in self._times.items()
                       if thread in threads and times[-1] > over}
        self._contests = {thread: contest for thread, contest in self._contests.items()
                          if thread in threads and (contest.until > over or thread in self._times)}
