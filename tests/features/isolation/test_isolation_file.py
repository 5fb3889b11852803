"""The file of the books: kept over a restart, and never believed where it is damaged."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest
from test_isolation_books import BACKUP, SECOND, found

from vmpin.cpuset import CpuSet
from vmpin.features.isolation import isolation_file
from vmpin.features.isolation.isolation_advice import ThiefKind
from vmpin.features.isolation.isolation_books import MINUTE, IsolationBooks, Theft


def load(path: Path, boot_id: str, books: IsolationBooks) -> str:
    """On a machine that has run for long."""
    return isolation_file.load(path, boot_id, books, now=lambda: 1000 * MINUTE)


def books() -> IsolationBooks:
    made = IsolationBooks()
    for name in ("one", "two"):
        book = made.of(name, MINUTE, 7, MINUTE)
        book.namespace, book.pod, book.kind = "demo", name, "vm"
        book.take(CpuSet([2, 3]))
        book.book(2 * MINUTE, found(60, 4, (2, 3)))
        book.met(2 * MINUTE, [Theft(BACKUP, 2, SECOND)], ThiefKind.KERNEL)
    made.end({"one"}, 3 * MINUTE)
    made.alive = 3 * MINUTE
    return made


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path, made, back = tmp_path / "isolation", books(), IsolationBooks()
    assert isolation_file.save(path, "boot", made) == ""
    assert load(path, "boot", back) == ""
    assert back.alive == made.alive
    for name, book in made.owners.items():
        other = back.owners[name]
        assert (other.columns, other.by_cpu, other.thieves) == (book.columns, book.by_cpu, book.thieves)
        assert (other.since, other.begun, other.until, other.ended, other.first, other.cpus, other.pod) == (
            book.since, book.begun, book.until, book.ended, book.first, book.cpus, book.pod)


def test_times_are_held_against_the_clock_that_is_given(tmp_path: Path) -> None:
    """Whatever the machine's own has: this one may have booted a minute ago."""
    isolation_file.save(tmp_path / "isolation", "boot", books())
    assert isolation_file.load(tmp_path / "isolation", "boot", back := IsolationBooks(), lambda: 2 * MINUTE) == ""
    assert (back.alive, set(back.owners)) == (2 * MINUTE, {"one", "two"})
    assert "the times of 'one' are none" in isolation_file.load(
        tmp_path / "isolation", "boot", IsolationBooks(), lambda: 2 * MINUTE - 1)


def test_the_books_of_another_boot_are_not_used(tmp_path: Path) -> None:
    back = IsolationBooks()
    isolation_file.save(tmp_path / "isolation", "boot", books())
    assert load(tmp_path / "isolation", "other", back) == ""
    assert not back.owners
    assert load(tmp_path / "none", "boot", back) == ""


def test_a_damaged_file_is_set_aside_wherever_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "isolation"
    isolation_file.save(path, "boot", books())
    whole = path.read_bytes()
    for at in range(0, len(whole), 29):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:]):
            path.write_bytes(damaged)
            back = IsolationBooks()
            assert "set aside as isolation.bad, the books of isolation begin anew" in load(
                path, "boot", back)
            assert not back.owners
            assert not path.exists()


@pytest.mark.parametrize("what", ["first", "thieves", "minutes", "since"])
def test_figures_that_no_watcher_writes_are_refused(tmp_path: Path, what: str) -> None:
    made = books()
    book = made.owners["one"]
    match what:
        case "first":
            book.first = 10**9
        case "thieves":
            book.thieves.clear()
        case "minutes":
            book.columns["seen"].append(1)
        case "since":
            book.until = 10**30
    isolation_file.save(tmp_path / "isolation", "boot", made)
    back = IsolationBooks()
    assert "set aside" in load(tmp_path / "isolation", "boot", back)
    assert not back.owners


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    assert "cannot be saved" in isolation_file.save(tmp_path / "none" / "isolation", "boot", books())


def steps_of(path: Path, made: IsolationBooks) -> int:
    return sum(1 for _ in isolation_file.writing(path, "boot", made))


@pytest.fixture
def large() -> IsolationBooks:
    """Written in several steps."""
    made = books()
    for name in ("one", "two"):
        book = made.owners[name]
        book.take(CpuSet(range(500)))
        for minute in range(3, 303, 50):
            book.book(minute * MINUTE, found(60, 4, tuple(range(500))))
    return made


def test_a_kill_at_any_step_leaves_the_old_file_or_the_new_one(tmp_path: Path, large: IsolationBooks) -> None:
    path, old = tmp_path / "isolation", books()
    old.alive = 1
    for step in range(steps_of(tmp_path / "whole", large) + 2):
        assert isolation_file.save(path, "boot", old) == ""
        child = os.fork()
        if not child:
            try:
                writing = isolation_file.writing(path, "boot", large)
                for _ in range(step):
                    next(writing, None)
                os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        back = IsolationBooks()
        assert load(path, "boot", back) == ""
        assert back.alive in (1, large.alive)
        assert {len(book.by_cpu) for book in back.owners.values()} == {2 if back.alive == 1 else 500}
    assert back.alive == large.alive  # the last one was done
    assert isolation_file.save(path, "boot", old) == ""
    assert not (tmp_path / ".isolation.new").exists()


def test_books_that_change_between_the_steps_are_written_whole(tmp_path: Path, large: IsolationBooks) -> None:
    path, back = tmp_path / "isolation", IsolationBooks()
    steps = 0
    for steps, _ in enumerate(isolation_file.writing(path, "boot", large), start=1):
        for book in list(large.owners.values()):
            book.drop(1)
            book.book((400 + steps) * MINUTE, found(60, 1, tuple(range(500))))
            book.take(CpuSet(range(500 - steps)))
        large.end(set(), 400 * MINUTE)
        large.owners.pop("one", None)
    assert steps > 3
    assert load(path, "boot", back) == ""
    assert list(back.owners) == ["one", "two"]


def test_a_writing_that_is_given_up_leaves_the_old_file(tmp_path: Path, large: IsolationBooks) -> None:
    path = tmp_path / "isolation"
    isolation_file.save(path, "boot", books())
    before = path.read_bytes()
    writing = isolation_file.writing(path, "boot", large)
    next(writing)
    assert (tmp_path / ".isolation.new").exists()
    writing.close()
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["isolation"]


def test_a_step_writes_little_however_large_the_books_are(tmp_path: Path, large: IsolationBooks) -> None:
    """Half a megabyte at most: a step is a third of a millisecond."""
    sizes = [0]
    for _ in isolation_file.writing(tmp_path / "isolation", "boot", large):
        sizes.append((tmp_path / ".isolation.new").stat().st_size)
    sizes.append((tmp_path / "isolation").stat().st_size)
    assert max(after - before for before, after in pairwise(sizes)) <= 1 << 19
