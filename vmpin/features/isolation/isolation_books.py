"""The books of isolation: for each owner of exclusive CPUs and each minute, how its CPUs' time was spent, and the
foreign time of each CPU.

Pure. Booked times wait here until `take` hands them to the database (books_database). Times are nanoseconds of CPU
time. Minutes count from boot (CLOCK_BOOTTIME), so that no step of the system's clock moves them. A minute without a
reading has 0 in `watched`: not seen, which does not mean free of foreign time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.features.isolation.cpu_intervals import Interval
from vmpin.named_tuple import NamedTuple

MINUTE = 60 * 10**9
#: Minutes that are kept.
MINUTES = 1440
#: Owners that are kept, including those that have ended.
MAX_OWNERS = 512
#: Foreign programs that are kept of a minute.
MAX_PROGRAMS = 64
#: The sums of a minute: CPU time but where another unit is given.
COLUMNS = (
    "watched",  # elapsed time that readings cover, whatever the number of CPUs; it alone and `without` are in the
    "seen",  # minutes in which they were, all else in that of the reading. `seen`: time of all the CPUs
    "foreign",  # neither the owner's threads' time nor the hypervisor's
    "less", "more",  # how much smaller and larger that may be, as some threads of the owner may have run elsewhere
    "slack",  # the measurement error: once for each series of readings
    "interrupts", "steal",  # interrupts, a part of foreign; the hypervisor's time
    "kernel", "others",  # run time of kernel threads and other programs that scans found
    "without")  # elapsed time in which the owner had no exclusive CPUs, a part of watched


class ProgramKind(StrEnum):
    """Kinds of foreign programs."""

    VM = "vm"
    CONTAINER = "container"
    HOST = "host"
    KERNEL = "kernel"
    INTERRUPTS = "interrupts"
    HYPERVISOR = "hypervisor"
    #: Several programs that each had little time.
    OTHERS = "others"


class ForeignProgram(NamedTuple):
    """A program that ran on exclusive CPUs of others; a kernel thread and the hypervisor count as such. `name` is
    the thread's, `where` its unit, container or pod."""

    kind: ProgramKind
    name: str
    where: str


#: The programs with the least time, together, where there are more than are kept.
OTHERS = ForeignProgram(ProgramKind.OTHERS, "others", "")


class ForeignRun(NamedTuple):
    """Run time (ns) of a program on one CPU."""

    program: ForeignProgram
    cpu: int
    spent: int


class Owner(NamedTuple):
    """An owner of exclusive CPUs, without its minutes. `number` is unique; `owner` is a sandbox's id, which another
    sandbox may have later. `since` is when it began (CLOCK_BOOTTIME, ns), as far as that is known;
    `begun` identifies its first process (clock ticks), 0 for none; `until` is when it was last read, `ended` when it
    ended, None while it has not."""

    number: int
    owner: str
    since: int
    begun: int
    namespace: str
    pod: str
    kind: str
    cpus: CpuSet
    until: int
    ended: int | None


class BookedMinutes(NamedTuple):
    """What was booked of an owner since the last `take`: by minute, by minute and CPU, by minute and program."""

    owner: Owner
    columns: Mapping[int, Mapping[str, int]]
    by_cpu: Mapping[tuple[int, int], int]
    by_program: Mapping[tuple[int, ForeignProgram], int]


class Booked(NamedTuple):
    """What is to be written. `gone` are the numbers of owners that are forgotten."""

    alive: int
    owners: tuple[BookedMinutes, ...]
    gone: tuple[int, ...]


class OwnerBook:
    """One owner's books. The attributes are those of `Owner`."""

    def __init__(self, owner: str, since: int, begun: int = 0, number: int = 0) -> None:
        self.number, self.owner, self.since, self.begun = number, owner, since, begun
        self.namespace = self.pod = self.kind = ""
        self.cpus: CpuSet = EMPTY
        #: The longest time (ns) between two readings that counts: where it is longer, the watcher was stopped, and
        #: that time counts as not seen.
        self.longest = MINUTE
        self.until = since
        self.ended: int | None = None
        self._columns: dict[int, dict[str, int]] = {}
        self._by_cpu: dict[tuple[int, int], int] = {}
        self._by_program: dict[tuple[int, ForeignProgram], int] = {}

    @property
    def described(self) -> Owner:
        return Owner(self.number, self.owner, self.since, self.begun, self.namespace, self.pod, self.kind, self.cpus,
                     self.until, self.ended)

    def take(self) -> BookedMinutes:
        """Take what was booked since the last call."""
        taken = BookedMinutes(self.described, self._columns, self._by_cpu, self._by_program)
        self._columns, self._by_cpu, self._by_program = {}, {}, {}
        return taken

    def book(self, now: int, interval: Interval) -> bool:
        """Add an interval that has ended at `now` (CLOCK_BOOTTIME). :returns: False for one that is longer than
        `longest`: its time counts as not seen, and a series of readings ends."""
        self.until = now
        if interval.elapsed > self.longest:
            return False
        minute = now // MINUTE
        self._add_elapsed(now, interval.elapsed, "watched")
        self._add(minute, seen=interval.seen, foreign=sum(interval.foreign.values()), less=interval.less,
                  more=interval.more, interrupts=interval.interrupts, steal=interval.steal)
        for cpu, spent in interval.foreign.items():
            self._by_cpu[minute, cpu] = self._by_cpu.get((minute, cpu), 0) + spent
        return True

    def begin(self, now: int, slack: int) -> None:
        """A series of readings begins. :param slack: by what its sum may be wrong in the end (ns)."""
        self.until = now
        self._add(now // MINUTE, slack=slack)

    def idle(self, now: int, elapsed: int) -> None:
        """Book time in which the owner was watched and had no exclusive CPUs."""
        self.until = now
        if elapsed <= self.longest:
            self._add_elapsed(now, elapsed, "watched", "without")

    def add_runs(self, now: int, runs: Iterable[ForeignRun]) -> None:
        """Add run times that a scan found."""
        minute = now // MINUTE
        for program, _, spent in runs:
            while ((minute, program) not in self._by_program and len(self._by_program) >= MAX_PROGRAMS
                   and self._join_least()):
                pass
            self._by_program[minute, program] = self._by_program.get((minute, program), 0) + spent
            self._add(minute, **{"kernel" if program.kind is ProgramKind.KERNEL else "others": spent})

    def _join_least(self) -> bool:
        """Add the time of the program that had the least to that of OTHERS in its minute. :returns: False where there
        are only OTHERS, of many minutes, as while the database writes nothing."""
        named = [key for key in self._by_program if key[1] != OTHERS]
        if named:
            least = min(named, key=self._by_program.__getitem__)
            others = least[0], OTHERS
            self._by_program[others] = self._by_program.get(others, 0) + self._by_program.pop(least)
        return bool(named)

    def _add_elapsed(self, now: int, elapsed: int, *columns: str) -> None:
        """Add a span of time that ends at `now` to the minutes in which it was."""
        begin = now - elapsed
        while begin < now:
            end = min(now, (begin // MINUTE + 1) * MINUTE)
            self._add(begin // MINUTE, **dict.fromkeys(columns, end - begin))
            begin = end

    def _add(self, minute: int, **columns: int) -> None:
        sums = self._columns.setdefault(minute, {})
        for name, spent in columns.items():
            if spent:  # most are 0 in most rounds
                sums[name] = sums.get(name, 0) + spent


class IsolationBooks:
    """The books of all owners. `alive` is when owners were last looked at (CLOCK_BOOTTIME, ns), 0 for never."""

    def __init__(self, owners: Iterable[Owner] = (), alive: int = 0) -> None:
        self.owners: dict[str, OwnerBook] = {}
        self.alive = alive
        self._gone: list[int] = []
        for known in owners:
            book = self.owners[known.owner] = OwnerBook(known.owner, known.since, known.begun, known.number)
            book.namespace, book.pod, book.kind, book.cpus = known.namespace, known.pod, known.kind, known.cpus
            book.until, book.ended = known.until, known.ended
        self._number = max((book.number for book in self.owners.values()), default=0)

    def of(self, owner: str, now: int, begun: int, since: int) -> OwnerBook:
        """The book of an owner; a new one where its first process is not the one in the books.
        :param since: when the owner began, for a new book: the time after it that is not booked counts as not seen."""
        book = self.owners.get(owner)
        if book is not None and begun and book.begun and begun != book.begun:
            self._forget(book)  # another sandbox with the same id
            book = None
        if book is None:
            while len(self.owners) >= MAX_OWNERS:  # first the owner that ended longest ago
                self._forget(min(self.owners.values(),
                                 key=lambda book: (book.ended is None, book.ended or book.until)))
            self._number += 1
            book = self.owners[owner] = OwnerBook(owner, max(0, min(now, since)), begun, self._number)
        book.begun = book.begun or begun
        book.ended = None
        return book

    def end(self, running: set[str], now: int) -> None:
        """Mark the owners that have ended, and forget those whose minutes are all too old."""
        for owner, book in list(self.owners.items()):
            if owner not in running and book.ended is None:
                book.ended = now
            if book.ended is not None and now - book.ended > MINUTES * MINUTE:
                self._forget(book)

    def take(self) -> Booked:
        """Take what has changed since the last call."""
        gone, self._gone = tuple(self._gone), []
        return Booked(self.alive, tuple(book.take() for book in self.owners.values()), gone)

    def _forget(self, book: OwnerBook) -> None:
        del self.owners[book.owner]
        self._gone.append(book.number)
