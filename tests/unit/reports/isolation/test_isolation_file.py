"""The file of the books: kept over a restart, and never believed where it is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_isolation_books import BACKUP, SECOND, found

from vmpin.cpuset import CpuSet
from vmpin.reports.isolation import isolation_file
from vmpin.reports.isolation.isolation_advice import ThiefKind
from vmpin.reports.isolation.isolation_books import MINUTE, IsolationBooks, Theft


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
    assert isolation_file.load(path, "boot", back) == ""
    assert back.alive == made.alive
    for name, book in made.owners.items():
        other = back.owners[name]
        assert (other.columns, other.by_cpu, other.thieves) == (book.columns, book.by_cpu, book.thieves)
        assert (other.since, other.begun, other.until, other.ended, other.first, other.cpus, other.pod) == (
            book.since, book.begun, book.until, book.ended, book.first, book.cpus, book.pod)


def test_the_books_of_another_boot_are_not_used(tmp_path: Path) -> None:
    back = IsolationBooks()
    isolation_file.save(tmp_path / "isolation", "boot", books())
    assert isolation_file.load(tmp_path / "isolation", "other", back) == ""
    assert not back.owners
    assert isolation_file.load(tmp_path / "none", "boot", back) == ""


def test_a_damaged_file_is_set_aside_wherever_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "isolation"
    isolation_file.save(path, "boot", books())
    whole = path.read_bytes()
    for at in range(0, len(whole), 29):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:]):
            path.write_bytes(damaged)
            back = IsolationBooks()
            assert "set aside as isolation.bad, the books of isolation begin anew" in isolation_file.load(
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
    assert "set aside" in isolation_file.load(tmp_path / "isolation", "boot", back)
    assert not back.owners


def test_a_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    assert "cannot be saved" in isolation_file.save(tmp_path / "none" / "isolation", "boot", books())
