"""Where the threads of VM sandboxes ran over time, added up from samples: on their CPUs, elsewhere, or waiting.

Pure. A sample has a thread's total run time and its last CPU; the time that it ran between two samples is booked to
the
CPU of the second. That is certain where the thread did not change CPUs in between, which the kernel counts,
and a guess
elsewhere (docs/proof.md). Durations are nanoseconds, times are CLOCK_REALTIME in seconds. What stays out: taking
samples (host.schedstat, reports.residency.sampler),
and the file that outlives a restart (reports.residency.books_file).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole

#: Marks are kept at least so many seconds apart, up to that age: the older, the coarser.
_GRID = ((300.0, 3600.0), (3600.0, 86400.0), (86400.0, 7 * 86400.0))
MAX_FINDINGS = 64


@dataclass(slots=True)
class RunAccount:
    """How threads spent their run time, in nanoseconds that add up to it (`waited` and `migrations` aside)."""

    #: Ran on the CPUs they were placed on.
    placed: int = 0
    #: Of that, without having changed CPUs between the samples: no guess.
    certain: int = 0
    #: Ran on other CPUs.
    elsewhere: int = 0
    #: Ran while no mask was wanted for them (a policy that is off, unpinned by hand).
    free: int = 0
    #: Were ready to run while another thread had the CPU.
    waited: int = 0
    #: How often they went from one CPU to another.
    migrations: int = 0

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
        """What was added to it since it was `before`."""
        return RunAccount(*(now - then for now, then in zip(self.numbers(), before.numbers(), strict=True)))

    def data(self) -> dict[str, object]:
        """Seconds, and a count."""
        return {"placed": to_seconds(self.placed), "certain": to_seconds(self.certain),
                "elsewhere": to_seconds(self.elsewhere), "free": to_seconds(self.free),
                "waited": to_seconds(self.waited),
                "migrations": self.migrations}


def to_seconds(nanoseconds: int) -> float:
    return round(nanoseconds / 1e9, 6)


@dataclass
class SandboxRunAccount:
    """One sandbox's. `unseen` is what its processes ran in all beyond what was booked: threads that ended between two
    samples, and the last moments of those that run right now."""

    roles: dict[ThreadRole, RunAccount] = field(default_factory=dict)
    unseen: int = 0

    def of(self, role: ThreadRole) -> RunAccount:
        account = self.roles.get(role)
        if account is None:
            account = self.roles[role] = RunAccount()
        return account

    @property
    def total(self) -> RunAccount:
        found = RunAccount()
        for account in self.roles.values():
            found.add(account)
        return found

    def add(self, other: SandboxRunAccount) -> None:
        for role, account in other.roles.items():
            self.of(role).add(account)
        self.unseen += other.unseen

    def since(self, before: SandboxRunAccount) -> SandboxRunAccount:
        return SandboxRunAccount({role: account.since(before.roles.get(role, _NOTHING))
                               for role, account in self.roles.items()}, self.unseen - before.unseen)

    def continues(self, before: SandboxRunAccount) -> bool:
        """Whether it may have been `before` once: what is booked never becomes less."""
        return all(role in self.roles and all(now >= then for now, then in zip(
            self.roles[role].numbers(), account.numbers(), strict=True)) for role, account in before.roles.items())

    def data(self) -> dict[str, object]:
        """What ran since the last sample is no more than unseen for now: below zero it says nothing."""
        return {"roles": {role.value: account.data() for role, account in self.roles.items()},
                "unseen": to_seconds(max(0, self.unseen))}


_NOTHING = RunAccount()


@dataclass
class StrayRun:
    """A thread that ran where it should not: `spent` nanoseconds booked to `cpu`, first and last between two samples
    that ended at those times."""

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
    """The books as they were at one time. Kept as text: few are ever read again."""

    time: float
    raw: str


@dataclass(frozen=True)
class Proof:
    """What happened between two times. `ended` is of sandboxes that are gone."""

    since: float
    until: float
    #: Seconds of that in which samples were taken.
    watched: float
    sandboxes: Mapping[SandboxId, SandboxRunAccount]
    ended: SandboxRunAccount
    drift: Mapping[str, int]
    findings: tuple[StrayRun, ...]

    @property
    def total(self) -> RunAccount:
        found = self.ended.total
        for account in self.sandboxes.values():
            found.add(account.total)
        return found


class ResidencyLedger:
    """The books of all sandboxes since the first sample, and what they were at times since."""

    def __init__(self) -> None:
        self.sandboxes: dict[SandboxId, SandboxRunAccount] = {}
        self.ended = SandboxRunAccount()
        #: When samples were first taken, None before; and for how many seconds they were.
        self.began: float | None = None
        self.watched = 0.0
        #: Repairs, by cause, since then.
        self.drift: Counter[str] = Counter()
        #: The latest, by thread and CPU.
        self.findings: dict[tuple[ThreadId, int], StrayRun] = {}
        self.marks: list[Mark] = []
        #: What was taken up from a process before this one, None for nothing.
        self.taken_up: ResidencyLedger | None = None

    def of(self, sandbox: SandboxId) -> SandboxRunAccount:
        account = self.sandboxes.get(sandbox)
        if account is None:
            account = self.sandboxes[sandbox] = SandboxRunAccount()
        return account

    def roles(self) -> dict[ThreadRole, RunAccount]:
        """All sandboxes' that ever were, by role: these only grow."""
        found = SandboxRunAccount()
        for account in (self.ended, *self.sandboxes.values()):
            found.add(account)
        return found.roles

    # Since this process began: what is taken up from one that was killed is minutes behind what that told, and whoever
    # follows a counter takes one that went back for one that began anew at nothing.

    def added(self) -> dict[ThreadRole, RunAccount]:
        """As `roles`."""
        before = {} if self.taken_up is None else self.taken_up.roles()
        return {role: account.since(before.get(role, _NOTHING)) for role, account in self.roles().items()}

    def added_to(self, sandbox: SandboxId) -> RunAccount:
        """One sandbox's, in all roles."""
        before = None if self.taken_up is None else self.taken_up.sandboxes.get(sandbox)
        return self.sandboxes[sandbox].total.since(_NOTHING if before is None else before.total)

    def added_seconds(self) -> float:
        """In which samples were taken."""
        return self.watched - (0.0 if self.taken_up is None else self.taken_up.watched)

    def found(self, finding: StrayRun, thread: ThreadId) -> None:
        """Keep what ran where it should not; more of the same is added to it."""
        key = (thread, finding.cpu)
        old = self.findings.pop(key, None)
        if old is not None and old.place == finding.place:
            finding.first = old.first
            finding.spent += old.spent
        self.findings[key] = finding
        if len(self.findings) > MAX_FINDINGS:
            del self.findings[next(iter(self.findings))]

    def end(self, sandboxes: Iterable[SandboxId]) -> None:
        """Sandboxes that are gone: what they did is kept, in one sum."""
        for sandbox in sandboxes:
            self.ended.add(self.sandboxes.pop(sandbox))
            if self.taken_up is not None and sandbox in self.taken_up.sandboxes:
                self.taken_up.end([sandbox])

    def mark(self, now: float) -> None:
        """Remember the books as they are."""
        if self.began is not None:
            self.began = min(self.began, now)  # the clock was put back
        self.marks = thinned([*self.marks, Mark(now, self.dump())], now)

    def due(self, now: float) -> bool:
        """Whether it is time for the next mark; also when the clock was put back."""
        return not self.marks or not 0 <= now - self.marks[-1].time < _GRID[0][0]

    def dump(self) -> str:
        return json.dumps({
            "watched": round(self.watched, 3), "drift": self.drift, "ended": _pack(self.ended),
            "sandboxes": {sandbox: _pack(account) for sandbox, account in self.sandboxes.items()}},
            separators=(",", ":"))

    def load(self, marks: Iterable[Mark], began: float) -> None:
        """Go on where another ledger ended. :raises ValueError: and others, for what it cannot have written.

        :param marks: as they were made: by their times the last may be another, where the clock was put back.
        """
        marks = list(marks)
        last = _parsed(marks[-1].raw)
        self.began, self.marks = began, marks
        self.watched = last.watched
        self.drift.update(last.drift)  # there may have been some already: repairs begin before samples do
        self.sandboxes, self.ended = last.sandboxes, last.ended
        self.taken_up = _parsed(marks[-1].raw)

    def since(self, when: float, now: float) -> Proof:
        """What happened since the last mark at or before `when`, else since the beginning."""
        mark = next((mark for mark in reversed(self.marks) if mark.time <= when), None)
        before = ResidencyLedger() if mark is None else _parsed(mark.raw)
        begun = (now if self.began is None else self.began) if mark is None else mark.time
        nothing = SandboxRunAccount()
        live = {sandbox: account.since(before.sandboxes.get(sandbox, nothing))
                for sandbox, account in self.sandboxes.items()}
        ended = self.ended.since(before.ended)
        for sandbox, account in before.sandboxes.items():
            there = self.sandboxes.get(sandbox)
            if there is None or not there.continues(account):
                # It has ended, and may have come again: what it did before that time is in the sum as well.
                ended = ended.since(account)
                if there is not None:
                    live[sandbox] = there
        return Proof(begun, now, self.watched - before.watched, live, ended, self.drift - before.drift,
                     tuple(finding for finding in self.findings.values() if finding.last >= begun))


def thinned(marks: Iterable[Mark], now: float) -> list[Mark]:
    """The marks without those that are too old or too near to an older one, and those of a clock that was ahead."""
    kept: list[Mark] = []
    for mark in marks:
        apart = next((apart for apart, age in _GRID if 0 <= now - mark.time <= age), None)
        # A moment's grace: marks are made by a clock that ticks a little late.
        if apart is not None and (not kept or mark.time - kept[-1].time >= apart * 0.9 or now - mark.time < 1):
            kept.append(mark)
    return kept


def _pack(account: SandboxRunAccount) -> list[object]:
    return [account.unseen, {role.value: account.numbers() for role, account in account.roles.items()}]


def _unpack(packed: Any) -> SandboxRunAccount:
    unseen, roles = packed
    return SandboxRunAccount({ThreadRole(role): RunAccount(*map(int, numbers)) for role, numbers in roles.items()},
                          int(unseen))


def _parsed(raw: str) -> ResidencyLedger:
    """A ledger without its own past. :raises ValueError: and others."""
    found = json.loads(raw)
    ledger = ResidencyLedger()
    ledger.watched = float(found["watched"])
    ledger.drift = Counter({str(cause): int(count) for cause, count in found["drift"].items()})
    ledger.ended = _unpack(found["ended"])
    ledger.sandboxes = {SandboxId(sandbox): _unpack(packed) for sandbox, packed in found["sandboxes"].items()}
    return ledger
