"""Run times of the threads of VM sandboxes, summed from samples: on their placement, elsewhere, waiting.

Pure. A sample has a thread's total run time and its last CPU; the run time between two samples is booked to the CPU of
the second. That is certain if the thread did not change CPUs in between, which the kernel counts, else an assumption:
docs/proof.md. Durations are nanoseconds, times CLOCK_REALTIME in seconds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vmpin.bounded import MAX_INT64, checked_real, checked_whole, load_json
from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole
from vmpin.named_tuple import NamedTuple

#: Marks are kept at least so many seconds apart, up to that age: the older, the coarser.
_GRID = ((300.0, 3600.0), (3600.0, 86400.0), (86400.0, 7 * 86400.0))
MAX_FINDINGS = 64


@dataclass(slots=True)
class RunAccount:
    """How threads spent their run time, in nanoseconds that add up to it (`waited` and `migrations` aside)."""

    placed: int = 0  #: Ran on the CPUs they were placed on.
    certain: int = 0  #: The part of it without a change of CPU between the samples: certain.
    elsewhere: int = 0  #: Ran on other CPUs.
    free: int = 0  #: Ran while no mask was wanted for them (a policy that is off, unpinned by hand).
    waited: int = 0  #: Were ready to run while another thread had the CPU.
    migrations: int = 0  #: Changes of CPU.

    def numbers(self) -> tuple[int, ...]:
        return self.placed, self.certain, self.elsewhere, self.free, self.waited, self.migrations

    @property
    def ran(self) -> int:
        return self.placed + self.elsewhere + self.free

    def add(self, other: RunAccount) -> None:
        self.placed += other.placed
        self.certain += other.certain
        self.elsewhere += other.elsewhere
        self.free += other.free
        self.waited += other.waited
        self.migrations += other.migrations

    def since(self, before: RunAccount) -> RunAccount:
        """The difference to an earlier state of this account."""
        return RunAccount(*(now - then for now, then in zip(self.numbers(), before.numbers(), strict=True)))

    def data(self) -> dict[str, object]:
        """Seconds, and a count."""
        return {"placed": to_seconds(self.placed), "certain": to_seconds(self.certain),
                "elsewhere": to_seconds(self.elsewhere), "free": to_seconds(self.free),
                "waited": to_seconds(self.waited), "migrations": self.migrations}


_NOTHING = RunAccount()


def _sum(accounts: Iterable[RunAccount]) -> RunAccount:
    total = RunAccount()
    for account in accounts:
        total.add(account)
    return total


def to_seconds(nanoseconds: int) -> float:
    return round(nanoseconds / 1e9, 6)


@dataclass
class SandboxRunAccount:
    """The account of one sandbox. `unseen` is run time of its processes that was not booked: of threads that ended
    between two samples, and the last moments of running threads."""

    roles: dict[ThreadRole, RunAccount] = field(default_factory=dict)
    unseen: int = 0

    def of(self, role: ThreadRole) -> RunAccount:
        return self.roles.get(role) or self.roles.setdefault(role, RunAccount())

    @property
    def total(self) -> RunAccount:
        return _sum(self.roles.values())

    def add(self, other: SandboxRunAccount) -> None:
        for role, account in other.roles.items():
            self.of(role).add(account)
        self.unseen += other.unseen

    def since(self, before: SandboxRunAccount) -> SandboxRunAccount:
        roles = {role: account.since(before.roles.get(role, _NOTHING)) for role, account in self.roles.items()}
        return SandboxRunAccount(roles, self.unseen - before.unseen)

    def continues(self, before: SandboxRunAccount) -> bool:
        """True if `before` may be an earlier state: booked times never decrease."""
        return all(role in self.roles and min(self.roles[role].since(account).numbers()) >= 0
                   for role, account in before.roles.items())

    def data(self) -> dict[str, object]:
        """JSON data. `unseen` contains run time since the last sample, so a value below zero means nothing."""
        roles = {role.value: account.data() for role, account in self.roles.items()}
        return {"roles": roles, "unseen": to_seconds(max(0, self.unseen))}


@dataclass
class StrayRun:
    """A thread that ran outside its placement: `spent` nanoseconds booked to `cpu`, in samples that ended between
    `first` and `last`."""

    sandbox: SandboxId
    role: ThreadRole
    vcpu: int | None
    tid: int
    cpu: int
    place: CpuSet
    first: float
    last: float
    spent: int

    def data(self) -> dict[str, object]:
        return {"sandbox": self.sandbox, "role": self.role.value, "vcpu": self.vcpu, "tid": self.tid,
                "cpu": self.cpu, "place": str(self.place), "first": self.first, "last": self.last,
                "seconds": to_seconds(self.spent)}


class Mark(NamedTuple):
    """The books at one time. Kept as text, as few are read again."""

    time: float
    raw: str


@dataclass(frozen=True)
class Proof:
    """The books between two times: `watched` seconds, in which samples were taken. `ended` is the sum of sandboxes
    that ended."""

    since: float
    until: float
    watched: float
    sandboxes: Mapping[SandboxId, SandboxRunAccount]
    ended: SandboxRunAccount
    drift: Mapping[str, int]
    findings: tuple[StrayRun, ...]

    @property
    def total(self) -> RunAccount:
        return _sum(account.total for account in (self.ended, *self.sandboxes.values()))


class ResidencyLedger:
    """The books of all sandboxes since the first sample, with marks of earlier times.
    :param repairs: the counter of this process's repairs, by cause."""

    def __init__(self, repairs: Counter[str] | None = None) -> None:
        self.sandboxes: dict[SandboxId, SandboxRunAccount] = {}
        self.ended = SandboxRunAccount()
        #: Time of the first sample, None before it; and the seconds in which samples were taken.
        self.began: float | None = None
        self.watched = 0.0
        self.repairs = Counter[str]() if repairs is None else repairs
        #: Repairs of an earlier process, by cause.
        self._earlier_repairs = Counter[str]()
        #: The latest, by thread and CPU.
        self.findings: dict[tuple[ThreadId, int], StrayRun] = {}
        self.marks: list[Mark] = []
        #: The books loaded from an earlier process, None for none.
        self.taken_up: ResidencyLedger | None = None

    @property
    def drift(self) -> Counter[str]:
        """Repairs, by cause, also those before the first sample."""
        return self.repairs + self._earlier_repairs

    def of(self, sandbox: SandboxId) -> SandboxRunAccount:
        return self.sandboxes.get(sandbox) or self.sandboxes.setdefault(sandbox, SandboxRunAccount())

    def roles(self) -> dict[ThreadRole, RunAccount]:
        """The accounts of all sandboxes, including ended ones, by role: they only grow."""
        total = SandboxRunAccount()
        for account in (self.ended, *self.sandboxes.values()):
            total.add(account)
        return total.roles

    # Since the start of this process: books loaded from a killed process are minutes older than its last metrics, and
    # a reader of counters treats one that decreased as restarted from zero.

    def added(self) -> dict[ThreadRole, RunAccount]:
        """Return the run times that this process has added, by role."""
        before = {} if self.taken_up is None else self.taken_up.roles()
        return {role: account.since(before.get(role, _NOTHING)) for role, account in self.roles().items()}

    def added_to(self, sandbox: SandboxId) -> RunAccount:
        """Return the run times that this process has added for one sandbox, in all roles together."""
        before = None if self.taken_up is None else self.taken_up.sandboxes.get(sandbox)
        return self.sandboxes[sandbox].total.since(_NOTHING if before is None else before.total)

    def added_seconds(self) -> float:
        """Return the seconds in which this process has taken samples."""
        return self.watched - (0.0 if self.taken_up is None else self.taken_up.watched)

    def record_stray(self, finding: StrayRun, thread: ThreadId) -> None:
        """Record run time outside a placement; repeated records are added."""
        key = (thread, finding.cpu)
        old = self.findings.pop(key, None)
        if old is not None and old.place == finding.place:
            finding.first = old.first
            finding.spent += old.spent
        self.findings[key] = finding
        if len(self.findings) > MAX_FINDINGS:
            del self.findings[next(iter(self.findings))]

    def end(self, sandboxes: Iterable[SandboxId]) -> None:
        """Move the accounts of ended sandboxes into the common sum."""
        for sandbox in sandboxes:
            self.ended.add(self.sandboxes.pop(sandbox))
            if self.taken_up is not None and sandbox in self.taken_up.sandboxes:
                self.taken_up.end([sandbox])

    def mark(self, now: float) -> None:
        """Add a mark of the current books."""
        if self.began is not None:
            self.began = min(self.began, now)  # the clock was set back
        self.marks = thinned([*self.marks, Mark(now, self.dump())], now)

    def due(self, now: float) -> bool:
        """True if the next mark is due; also if the clock was set back."""
        return not self.marks or not 0 <= now - self.marks[-1].time < _GRID[0][0]

    def dump(self) -> str:
        sandboxes = {sandbox: _pack(account) for sandbox, account in self.sandboxes.items()}
        return json.dumps({"watched": round(self.watched, 3), "drift": self.drift, "ended": _pack(self.ended),
                           "sandboxes": sandboxes}, separators=(",", ":"))

    @classmethod
    def of_marks(cls, marks: Sequence[Mark], began: float) -> ResidencyLedger:
        """The books as at the last of their marks. :raises ValueError: and others, for invalid marks."""
        ledger = _parsed(marks[-1].raw)
        ledger.began, ledger.marks = began, list(marks)
        ledger.taken_up = _parsed(marks[-1].raw)
        return ledger

    def begin(self, earlier: ResidencyLedger | None, now: float) -> None:
        """Begin the books, before the first sample: anew, or with those of an earlier process (`of_marks`)."""
        if earlier is None:
            self.began = now
            return
        self.began, self.marks, self.watched = earlier.began, earlier.marks, earlier.watched
        self._earlier_repairs = earlier.drift
        self.sandboxes, self.ended, self.taken_up = earlier.sandboxes, earlier.ended, earlier.taken_up

    def since(self, when: float, now: float) -> Proof:
        """The books since the last mark at or before `when`, else since the beginning."""
        mark = next((mark for mark in reversed(self.marks) if mark.time <= when), None)
        before = ResidencyLedger() if mark is None else _parsed(mark.raw)
        begun = (now if self.began is None else self.began) if mark is None else mark.time
        live = {sandbox: account.since(before.sandboxes.get(sandbox, SandboxRunAccount()))
                for sandbox, account in self.sandboxes.items()}
        ended = self.ended.since(before.ended)
        for sandbox, account in before.sandboxes.items():
            earlier = self.sandboxes.get(sandbox)
            if earlier is None or not earlier.continues(account):
                # It has ended, and may have been started again: its earlier times are in the sum as well.
                ended = ended.since(account)
                if earlier is not None:
                    live[sandbox] = earlier
        return Proof(begun, now, self.watched - before.watched, live, ended, self.drift - before.drift,
                     tuple(finding for finding in self.findings.values() if finding.last >= begun))


def thinned(marks: Iterable[Mark], now: float) -> list[Mark]:
    """The marks without those that are too old, too close to an older one, or of a clock that was ahead."""
    kept: list[Mark] = []
    for mark in marks:
        apart = next((apart for apart, age in _GRID if 0 <= now - mark.time <= age), None)
        # With a tolerance: the clock of the marks ticks a little late.
        if apart is not None and (not kept or mark.time - kept[-1].time >= apart * 0.9 or now - mark.time < 1):
            kept.append(mark)
    return kept


def _pack(account: SandboxRunAccount) -> list[object]:
    return [account.unseen, {role.value: account.numbers() for role, account in account.roles.items()}]


def _unpack(packed: Any) -> SandboxRunAccount:
    unseen, roles = packed
    return SandboxRunAccount({ThreadRole(role): RunAccount(*(checked_whole(number, MAX_INT64) for number in numbers))
                              for role, numbers in roles.items()},
                             checked_whole(unseen, MAX_INT64, -MAX_INT64))


def _parsed(raw: str) -> ResidencyLedger:
    """A ledger without its own past. :raises ValueError: and others."""
    document = load_json(raw)
    ledger = ResidencyLedger(Counter({str(cause): checked_whole(count, MAX_INT64)
                                      for cause, count in document["drift"].items()}))
    ledger.watched = checked_real(document["watched"], 1e12)
    ledger.ended = _unpack(document["ended"])
    ledger.sandboxes = {SandboxId(sandbox): _unpack(packed) for sandbox, packed in document["sandboxes"].items()}
    return ledger
