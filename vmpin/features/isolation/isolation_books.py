"""The books of isolation: of each owner of exclusive CPUs, by the minute of the last 24 hours, how its CPUs' time was
spent, and the foreign time of each CPU.

Pure. Booked in nanoseconds, kept in milliseconds: what is left of a millisecond goes to the next minute. Minutes are
those since boot (CLOCK_BOOTTIME), which no step of the system's clock changes. A minute without a reading is 0 in
`watched`: not seen, and not clean.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.features.isolation.cpu_intervals import Interval

MINUTE = 60 * 10**9
_MS = 10**6
#: Minutes that are kept, and how many more there are before the oldest are dropped together.
MINUTES, _SPARE = 1440, 60
#: Owners that are kept, those that have ended among them.
MAX_OWNERS = 512
#: Cells of all their columns, of four bytes each: 16 MB. An owner has 12 columns, and one for each of its CPUs. So it
#: is a whole day of 170 owners with 4 CPUs each or of 5 with 512; where there is more, the day gets shorter.
MAX_CELLS = 4 << 20
MAX_THIEVES = 64
#: Of each minute, in milliseconds of CPU time but where another unit is given.
COLUMNS = (
    "watched",  # elapsed time that readings cover, whatever the number of CPUs
    "seen",  # time of all the CPUs
    "foreign",  # that the owner's threads did not have, nor the hypervisor
    "less", "more",  # how much smaller and larger it may be, as it is unknown where threads of the owner's ran
    "slack",  # and by what readings are imprecise: once for every series of them
    "interrupts", "steal", "kernel", "others",  # of which interrupts; the hypervisor's; threads that were met
    "theft", "thief")  # what the thread that was met most had, and its number in `thieves` (0: none)
#: The key of `by_cpu` for CPUs that are not the owner's any more.
FORMER = -1


class Thief(NamedTuple):
    """Foreign work that was met on exclusive CPUs. `kind`: see isolation_advice. `name` is the thread's or process's,
    `where` its unit, container or sandbox."""

    kind: str
    name: str
    where: str


#: Thieves that had the least, together: there were more names than are kept. Its kind is one of its own.
OTHERS = Thief("others", "others", "")


class Theft(NamedTuple):
    """Run time (ns) of a thief on one CPU."""

    thief: Thief
    cpu: int
    spent: int


class OwnerBook:
    """One owner's minutes. `since` is when it began (CLOCK_BOOTTIME, ns), as far as that is known; `begun` identifies
    its first process (clock ticks), 0 where there is none."""

    def __init__(self, owner: str, since: int, begun: int = 0) -> None:
        self.owner, self.since, self.begun = owner, since, begun
        self.namespace = self.pod = self.kind = ""
        self.cpus: CpuSet = EMPTY
        #: Time (ns) between two readings above which it counts as not seen: it would all be of one minute, and the
        #: watcher was stopped.
        self.longest = MINUTE
        #: When it was last read, by CLOCK_BOOTTIME; and when it ended, None while it has not.
        self.until = since
        self.ended: int | None = None
        #: The first minute of the columns.
        self.first = since // MINUTE
        self.columns = {name: array("i") for name in COLUMNS}
        self.by_cpu: dict[int, array[int]] = {}
        self.thieves: list[Thief] = []
        self._carried: dict[object, int] = {}
        #: What each thief had in the minute of the last visit (ns).
        self._met: tuple[int, dict[Thief, int]] = 0, {}

    def __len__(self) -> int:
        """Minutes in each column."""
        return len(self.columns["watched"])

    @property
    def width(self) -> int:
        """Columns."""
        return len(COLUMNS) + len(self.by_cpu)

    @property
    def cells(self) -> int:
        return len(self) * self.width

    @property
    def met_last(self) -> tuple[int, Mapping[Thief, int]]:
        """The minute in which thieves were met last, since the watcher began, and what each had then (ns)."""
        return self._met

    def take(self, cpus: CpuSet) -> None:
        """Note the owner's CPUs from now on. The minutes of CPUs that it has no more are added up."""
        self.cpus = cpus
        for cpu in [cpu for cpu in self.by_cpu if cpu not in cpus and cpu != FORMER]:
            gone, former = self.by_cpu.pop(cpu), self._of_cpu(FORMER)
            self.by_cpu[FORMER] = array("i", map(sum, zip(gone, former, strict=True)))

    def book(self, now: int, found: Interval) -> bool:
        """Add an interval that has ended at `now` (CLOCK_BOOTTIME). :returns: False for one that is longer than
        `longest`: its time counts as not seen, and a series of readings ends."""
        at = self._at(now)
        self.until = now
        if found.elapsed > self.longest:
            return False
        for name, spent in (("watched", found.elapsed), ("seen", found.seen), ("less", found.less),
                            ("more", found.more), ("interrupts", found.interrupts), ("steal", found.steal)):
            if spent:  # most are 0 in most rounds
                self._add(self.columns[name], name, at, spent)
        self._add(self.columns["foreign"], "foreign", at, sum(found.foreign.values()))
        for cpu, spent in found.foreign.items():
            self._add(self._of_cpu(cpu), cpu, at, spent)
        return True

    def begin(self, now: int, slack: int) -> None:
        """A series of readings begins. :param slack: by what its sum may be wrong in the end (ns)."""
        at = self._at(now)
        self.until = now  # as the oldest minutes may have been dropped
        self._add(self.columns["slack"], "slack", at, slack)

    def idle(self, now: int, elapsed: int) -> None:
        """Book time in which the owner was watched and had no exclusive CPUs."""
        self.until = now
        if elapsed <= self.longest:
            self._add(self.columns["watched"], "watched", self._at(now), elapsed)

    def met(self, now: int, thefts: Iterable[Theft], kernel: str) -> None:
        """Note the thieves that were met. :param kernel: the kind of kernel threads."""
        at = self._at(now)
        minute = now // MINUTE
        if self._met[0] != minute:
            self._met = minute, {}
        spent = self._met[1]
        for each in thefts:
            if each.thief not in spent and len(spent) >= MAX_THIEVES:
                least = min(spent.keys() - {OTHERS}, key=spent.__getitem__)
                spent[OTHERS] = spent.get(OTHERS, 0) + spent.pop(least)
            spent[each.thief] = spent.get(each.thief, 0) + each.spent
            column = "kernel" if each.thief.kind == kernel else "others"
            self._add(self.columns[column], column, at, each.spent)
        if spent:
            thief = max(spent, key=spent.__getitem__)
            self.columns["thief"][at] = self._number(thief)
            self.columns["theft"][at] = spent[thief] // _MS

    def trim(self, now: int) -> None:
        """Drop minutes that are too old, some at a time."""
        more = now // MINUTE - self.first + 1 - MINUTES
        if more < _SPARE:
            return
        self.drop(more)

    def drop(self, minutes: int) -> None:
        """Drop the oldest minutes; there may be fewer."""
        for column in (*self.columns.values(), *self.by_cpu.values()):
            del column[:minutes]
        self.first += minutes
        if not any(self.by_cpu.get(FORMER, ())):
            self.by_cpu.pop(FORMER, None)

    def _at(self, now: int) -> int:
        """The index of a time's minute; the columns have it from now on."""
        self.trim(now)
        at = now // MINUTE - self.first
        if (missing := at + 1 - len(self)) > 0:
            for column in (*self.columns.values(), *self.by_cpu.values()):
                column.extend([0] * missing)
        return max(0, at)

    def _of_cpu(self, cpu: int) -> array[int]:
        return self.by_cpu.setdefault(cpu, array("i", [0] * len(self)))

    def _add(self, column: array[int], key: object, at: int, spent: int) -> None:
        whole, self._carried[key] = divmod(spent + self._carried.get(key, 0), _MS)
        column[at] += whole

    def _number(self, thief: Thief) -> int:
        """Return a thief's number in the list, from 1. Where the list is full, the one that had the least gives its
        place, and its minutes, to `OTHERS`: however many names there are, a later thief gets its own."""
        if thief not in self.thieves:
            if len(self.thieves) >= MAX_THIEVES:
                self._forget_thieves()
            if len(self.thieves) >= MAX_THIEVES:
                self._join_least()
            if thief not in self.thieves:  # it may be OTHERS
                self.thieves.append(thief)
        return self.thieves.index(thief) + 1

    def _join_least(self) -> None:
        """Make room for one more: at most two of the list become `OTHERS`."""
        if OTHERS not in self.thieves:
            self.thieves[self._least() - 1] = OTHERS
        others, least = self.thieves.index(OTHERS) + 1, self._least()
        numbers = self.columns["thief"]
        self.columns["thief"] = array("i", [others if number == least else number for number in numbers])
        self._forget_thieves()

    def _least(self) -> int:
        """The number of the thief that had the least in all minutes, `OTHERS` aside."""
        spent = dict.fromkeys((each for each, thief in enumerate(self.thieves, start=1) if thief != OTHERS), 0)
        for number, theft in zip(self.columns["thief"], self.columns["theft"], strict=True):
            if number in spent:
                spent[number] += theft
        return min(spent, key=spent.__getitem__)

    def _forget_thieves(self) -> None:
        """Drop the thieves that no minute names any more."""
        used = sorted(set(self.columns["thief"]) - {0})
        renumbered = {old: new for new, old in enumerate(used, start=1)} | {0: 0}
        self.thieves = [self.thieves[number - 1] for number in used]
        self.columns["thief"] = array("i", [renumbered[number] for number in self.columns["thief"]])


class IsolationBooks:
    """The books of all owners. `alive` is when owners were last looked at (CLOCK_BOOTTIME, ns), 0 for never.
    :param most: cells of all owners."""

    def __init__(self, most: int = MAX_CELLS) -> None:
        self._most = most
        self.owners: dict[str, OwnerBook] = {}
        self.alive = 0
        #: The minute in which `fit` was last called.
        self._fitted = -1

    def of(self, owner: str, now: int, begun: int, since: int) -> OwnerBook:
        """The book of an owner that there is; a new one where its first process is another one.
        :param since: when the owner began, for a new book: all of the time after it that is not booked counts as not
            seen."""
        book = self.owners.get(owner)
        if book is not None and begun and book.begun and begun != book.begun:
            del self.owners[owner]  # another one with the same id
            book = None
        if book is None:
            book = OwnerBook(owner, max(0, min(now, since)), begun)
            self._make_room()
            self.owners[owner] = book
        book.begun = book.begun or begun
        book.ended = None
        return book

    def end(self, there: Mapping[str, object] | set[str], now: int) -> None:
        """Mark the owners that have ended, and forget those whose minutes are all too old."""
        for owner, book in list(self.owners.items()):
            if owner not in there and book.ended is None:
                book.ended = now
            if book.ended is not None and now - book.ended > MINUTES * MINUTE:
                del self.owners[owner]
        if now // MINUTE != self._fitted:
            self._fitted = now // MINUTE
            self.fit(self._most)

    def _make_room(self) -> None:
        """Forget an owner where there are too many: one that has ended, the longest ago, before all others."""
        while len(self.owners) >= MAX_OWNERS:
            gone = min(self.owners.values(), key=lambda book: (book.ended is None, book.ended or book.until))
            del self.owners[gone.owner]

    def fit(self, most: int) -> None:
        """Keep at most so many cells, and a sixteenth less where there are more: owners that have ended are forgotten,
        the longest ago first; then the oldest hours of all others."""
        cells = sum(book.cells for book in self.owners.values())
        if cells <= most:
            return
        most -= most // 16
        for gone in sorted((book for book in self.owners.values() if book.ended is not None),
                           key=lambda book: book.ended or 0):
            if cells <= most:
                return
            cells -= gone.cells
            del self.owners[gone.owner]
        books = list(self.owners.values())
        keep = MINUTES
        while keep > _SPARE and sum(book.width * min(len(book), keep) for book in books) > most:
            keep -= _SPARE
        for book in books:
            book.drop(max(0, len(book) - keep))
