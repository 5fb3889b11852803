"""The books' database over time: written now and then and at the end, and a failure is logged once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from test_isolation_books import BACKUP, SECOND, found

from vmpin.cpuset import CpuSet
from vmpin.features.isolation.isolation_advice import ProgramKind
from vmpin.features.isolation.isolation_books import ForeignRun, IsolationBooks
from vmpin.features.isolation.isolation_keeper import IsolationKeeper
from vmpin.host import boottime


def fill(books: IsolationBooks) -> None:
    """With two owners, at this moment."""
    now = boottime.now()
    for name in ("one", "two"):
        book = books.of(name, now, 7, now)
        book.namespace, book.pod, book.kind, book.cpus = "demo", name, "vm", CpuSet([2, 3])
        book.book(now, found(10, 4, (2, 3)))
        book.add_runs(now, [ForeignRun(BACKUP, 2, SECOND)], ProgramKind.KERNEL)


@contextmanager
def keeping(path: Path | None, boot_id: str = "boot") -> Iterator[IsolationKeeper]:
    keeper = IsolationKeeper(path, boot_id)
    asyncio.run(keeper.load())
    yield keeper
    keeper.close()


def foreign(keeper: IsolationKeeper, owner: str) -> int:
    """Until now (ms)."""
    figures = keeper.figures(keeper.books.owners[owner].described, 0, boottime.now(), 48).result()
    assert figures is not None
    return figures.account.foreign


def test_what_is_written_is_loaded_the_next_time(tmp_path: Path) -> None:
    path = tmp_path / "isolation"
    with keeping(path) as keeper:
        fill(keeper.books)
        keeper.write(0.0)
        assert foreign(keeper, "one") == 4000
        fill(keeper.books)  # the end writes that
    assert [each.name for each in tmp_path.iterdir()] == ["isolation"]
    assert path.stat().st_mode & 0o777 == 0o600
    with keeping(path) as keeper:
        assert list(keeper.books.owners) == ["one", "two"]
        assert foreign(keeper, "two") == 8000


def test_it_is_written_no_more_often_than_it_is_due() -> None:
    with keeping(None) as keeper:
        fill(keeper.books)
        keeper.write()
        assert foreign(keeper, "one") == 0
        keeper.write(0.0)
        assert foreign(keeper, "one") == 4000


def test_a_kill_loses_what_was_booked_after_the_last_writing(tmp_path: Path) -> None:
    path = tmp_path / "isolation"
    child = os.fork()
    if not child:
        try:
            keeper = IsolationKeeper(path, "boot")
            asyncio.run(keeper.load())
            fill(keeper.books)
            keeper.write(0.0)
            foreign(keeper, "one")  # it is written
            fill(keeper.books)
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    with keeping(path) as keeper:
        assert foreign(keeper, "one") == foreign(keeper, "two") == 4000


def test_the_books_of_another_boot_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "isolation"
    with keeping(path) as keeper:
        fill(keeper.books)
    with keeping(path, "other") as keeper:
        assert not keeper.books.owners
    with keeping(path) as keeper:
        assert not keeper.books.owners


def test_a_failure_is_logged_once_and_nothing_is_lost_when_it_has_passed(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "none"
    with keeping(directory / "isolation") as keeper:
        for _ in range(3):
            fill(keeper.books)
            keeper.write(0.0)
            with pytest.raises(Exception, match="No such file"):
                foreign(keeper, "one")
        assert [each.levelname for each in caplog.records] == ["ERROR"]
        assert "the books of isolation cannot be saved" in caplog.text
        directory.mkdir()
        keeper.write(0.0)
        assert foreign(keeper, "one") == 12_000
    assert len(caplog.records) == 1


def test_a_damaged_file_is_set_aside_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "isolation").write_bytes(b"abc" * 5000)
    with keeping(tmp_path / "isolation") as keeper:
        assert keeper.books.owners == {}
        fill(keeper.books)
    assert "set aside as isolation.bad, the books of isolation begin anew" in caplog.text
    assert sorted(each.name for each in tmp_path.iterdir()) == ["isolation", "isolation.bad"]


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with keeping(None) as keeper:
        fill(keeper.books)
    assert list(tmp_path.iterdir()) == []
