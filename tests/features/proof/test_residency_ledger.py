"""The books of where threads ran, over time and over a restart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole
from vmpin.features.proof.residency_ledger import MAX_FINDINGS, Mark, ResidencyLedger, RunAccount, StrayRun, thinned

A, B = SandboxId("a"), SandboxId("b")
VCPU, SHIM, IOTHREAD = ThreadRole.VCPU, ThreadRole.SHIM, ThreadRole.IOTHREAD
HOUR, DAY = 3600.0, 86400.0
SECOND = 10**9

accounts = st.builds(RunAccount, *[st.integers(0, 10**15)] * 6)


def ledger(began: float = 0.0) -> ResidencyLedger:
    made = ResidencyLedger()
    made.began = began
    return made


def continued(books: ResidencyLedger) -> ResidencyLedger:
    """The books of the next process, from the marks of these."""
    again = ResidencyLedger()
    again.begin(ResidencyLedger.of_marks(books.marks, books.began or 0.0), 0.0)
    return again


def finding(tid: int = 1, cpu: int = 5, place: int = 2, now: float = 10.0) -> tuple[StrayRun, ThreadId]:
    return StrayRun(A, VCPU, 0, tid, cpu, CpuSet((place,)), now, now, SECOND), ThreadId(tid, 1)


@given(accounts, accounts)
def test_what_is_added_is_what_happened_since(before: RunAccount, more: RunAccount) -> None:
    now = RunAccount(*before.numbers())
    now.add(more)
    assert now.since(before) == more
    assert now.ran == before.ran + more.ran


def test_the_time_begins_with_the_last_mark_before_it() -> None:
    books = ledger(100.0)
    books.of(A).of(VCPU).placed = SECOND
    books.watched = 300.0
    books.mark(400.0)
    books.of(A).of(VCPU).add(RunAccount(placed=2 * SECOND, elsewhere=SECOND, waited=5, migrations=7))
    books.of(A).unseen = 9
    books.repairs["tuned"] += 2
    books.watched = 600.0
    books.mark(700.0)
    books.of(B).of(SHIM).placed = SECOND
    books.watched = 800.0
    found = books.since(500.0, 900.0)
    assert (found.since, found.until, found.watched) == (400.0, 900.0, 500.0)
    assert found.sandboxes[A].roles == {VCPU: RunAccount(2 * SECOND, 0, SECOND, 0, 5, 7)}
    assert found.sandboxes[A].unseen == 9
    assert found.sandboxes[B].roles == {SHIM: RunAccount(SECOND)}
    assert found.drift == {"tuned": 2}
    assert found.total == RunAccount(3 * SECOND, 0, SECOND, 0, 5, 7)
    assert books.since(800.0, 900.0).sandboxes[A].total == RunAccount()
    assert books.since(800.0, 900.0).drift == {}


def test_a_time_before_all_marks_begins_with_the_books() -> None:
    books = ledger(100.0)
    books.of(A).of(VCPU).placed = SECOND
    books.mark(400.0)
    found = books.since(50.0, 500.0)
    assert (found.since, found.total.placed) == (100.0, SECOND)


def test_a_sandbox_that_ended_is_in_the_sum_with_what_it_did_since() -> None:
    books = ledger()
    books.of(A).of(VCPU).elsewhere = 5
    books.of(A).unseen = 1
    books.of(B).of(VCPU).placed = 3
    books.mark(300.0)
    books.of(A).of(VCPU).elsewhere = 12
    books.of(A).unseen = 3
    books.end([A])
    found = books.since(300.0, 400.0)
    assert set(found.sandboxes) == {B}
    assert found.ended.roles == {VCPU: RunAccount(elsewhere=7)}
    assert found.ended.unseen == 2
    assert books.roles() == {VCPU: RunAccount(placed=3, elsewhere=12)}
    books.mark(600.0)
    assert books.since(600.0, 700.0).ended.total == RunAccount()


def test_a_sandbox_that_came_again_begins_anew() -> None:
    books = ledger()
    books.of(A).of(SHIM).placed = 5
    books.mark(300.0)
    books.end([A])
    books.of(A).of(VCPU).placed = 2
    found = books.since(300.0, 400.0)
    assert found.sandboxes[A].roles == {VCPU: RunAccount(2)}
    assert found.total.placed == 2


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.sampled_from([VCPU, SHIM]), st.integers(0, 10**12),
                          st.booleans(), st.booleans()), max_size=30), st.integers(0, 30))
def test_nothing_is_lost_and_nothing_counted_twice(steps: list[tuple[SandboxId, ThreadRole, int, bool, bool]],
                                                   asked: int) -> None:
    books, now, sums, marks = ledger(), 0.0, [0], [0.0]
    for sandbox, role, spent, ends, mark in steps:
        books.of(sandbox).of(role).placed += spent
        if ends:
            books.end([sandbox])
        now += 600.0
        sums.append(sums[-1] + spent)
        if mark:
            books.mark(now)
            marks.append(now)
    when = asked * 600.0
    begun = max(mark for mark in marks if mark <= when)
    found = books.since(when, now)
    if found.since == begun:  # older marks may have been thinned out; then it begins earlier
        assert found.total.placed == sums[-1] - sums[int(begun // 600)]
    else:
        assert found.since < begun
    assert sum(account.placed for account in books.roles().values()) == sums[-1]


def test_marks_are_kept_ever_further_apart() -> None:
    marks: list[Mark] = []
    now = 0.0
    while now < 9 * DAY:
        now += 300.0
        marks = thinned([*marks, Mark(now, "")], now)
    ages = [now - mark.time for mark in marks]
    assert len(marks) < 50
    assert max(ages) > 6 * DAY
    assert max(ages) <= 7 * DAY
    assert ages[-1] == 0
    for newer, older in zip(ages[:0:-1], ages[-2::-1], strict=True):
        assert older - newer <= (310 if older <= HOUR else 2 * HOUR if older <= DAY else 2 * DAY)


def test_a_mark_is_due_every_five_minutes_and_when_the_clock_was_put_back() -> None:
    books = ledger()
    assert books.due(1000.0)
    books.mark(1000.0)
    assert not books.due(1299.0)
    assert books.due(1300.0)
    assert books.due(999.0)


@pytest.mark.parametrize("ahead", [HOUR, 400 * DAY])
def test_a_clock_that_is_put_back_takes_nothing_from_the_books(ahead: float) -> None:
    books, now = ledger(ahead), 0.0
    for number in range(7):
        now = number * 300.0 + (ahead if number < 3 else 0.0)
        books.of(A).of(VCPU).placed += 300 * SECOND
        books.repairs["other"] += 1
        assert books.due(now)
        books.mark(now)
    assert [mark.time for mark in books.marks] == [900.0, 1200.0, 1500.0, 1800.0]
    assert books.since(1200.0, now).total.placed == 600 * SECOND
    begun = books.since(0.0, now)
    assert (begun.since, begun.total.placed) == (900.0, 2100 * SECOND)
    again = continued(books)
    assert (again.roles(), again.drift) == (books.roles(), books.drift)


def test_more_of_the_same_is_one_finding() -> None:
    books = ledger()
    books.record_stray(*finding(now=10.0))
    books.record_stray(*finding(now=20.0))
    books.record_stray(*finding(cpu=6, now=30.0))
    assert [(each.cpu, each.first, each.last, each.spent) for each in books.findings.values()] == [
        (5, 10.0, 20.0, 2 * SECOND), (6, 30.0, 30.0, SECOND)]
    books.record_stray(*finding(place=3, now=40.0))  # to be elsewhere now: another matter
    assert books.findings[ThreadId(1, 1), 5].first == 40.0
    assert [each.cpu for each in books.since(0, 50.0).findings] == [6, 5]
    books.mark(35.0)
    assert [each.cpu for each in books.since(35.0, 50.0).findings] == [5]


def test_findings_are_the_latest() -> None:
    books = ledger()
    for tid in range(MAX_FINDINGS + 5):
        books.record_stray(*finding(tid=tid))
    assert len(books.findings) == MAX_FINDINGS
    assert min(each.tid for each in books.findings.values()) == 5


def test_books_go_on_from_their_last_mark() -> None:
    books = ledger(5.0)
    for number in range(1, 4):
        books.of(A).of(VCPU).add(RunAccount(number, 0, 1, 0, 0, 2))
        books.of(A).unseen += number
        books.repairs["other"] += 1
        books.watched += 300.0
        if number == 2:
            books.end([A])
        books.mark(number * 300.0)
    again = continued(books)
    assert (again.began, again.watched, again.drift) == (5.0, 900.0, {"other": 3})
    assert again.marks == books.marks
    assert (again.sandboxes, again.ended) == (books.sandboxes, books.ended)
    assert again.since(300.0, 1000.0) == books.since(300.0, 1000.0)
    again.of(A).of(VCPU).placed += 10
    assert again.since(900.0, 1000.0).total.placed == 10


def test_books_with_more_booked_than_the_processes_ran_go_on() -> None:
    """The processes' time is read before that of their threads, so `unseen` may be below zero for a while."""
    books = ledger(5.0)
    books.of(A).of(VCPU).placed += SECOND
    books.of(A).unseen -= 1
    books.mark(300.0)
    assert continued(books).sandboxes == books.sandboxes


def test_what_was_added_since_the_books_were_taken_up_is_distinguished() -> None:
    books = ledger()
    for sandbox in (A, B):
        books.of(sandbox).of(VCPU).placed += 100
    books.watched = 300.0
    books.mark(300.0)
    assert (books.added(), books.added_to(A), books.added_seconds()) == (
        {VCPU: RunAccount(200)}, RunAccount(100), 300.0)
    again = continued(books)
    assert (again.added(), again.added_to(A), again.added_seconds()) == ({VCPU: RunAccount()}, RunAccount(), 0.0)
    again.of(A).of(VCPU).placed += 7
    again.of(A).of(IOTHREAD).elsewhere += 5
    again.watched += 1.0
    again.end([B])
    assert again.added() == {VCPU: RunAccount(7), IOTHREAD: RunAccount(elsewhere=5)}
    assert again.added_to(A) == RunAccount(7, elsewhere=5)
    assert again.added_seconds() == 1.0
    again.end([A])
    again.of(A).of(VCPU).placed += 3  # another one of the same name
    assert again.added_to(A) == RunAccount(3)
    again.of(A).of(VCPU).placed += 300
    assert again.added_to(A) == RunAccount(303)
    assert again.added()[VCPU] == RunAccount(310)


def test_repairs_from_before_the_books_were_read_count_too() -> None:
    books = ledger(5.0)
    books.repairs.update(other=2, tuned=1)
    books.mark(300.0)
    again = ResidencyLedger()
    again.repairs["other"] += 1
    again.begin(ResidencyLedger.of_marks(books.marks, 5.0), 400.0)
    assert again.drift == {"other": 3, "tuned": 1}
    assert again.since(300.0, 400.0).drift == {"other": 1}
