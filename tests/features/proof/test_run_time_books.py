"""The books of run times in their database: they go on after a restart, or begin anew."""

from __future__ import annotations

import os
import signal
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import pytest
from absurd_values import absurd_json, absurd_texts, spoil

from vmpin.domain.model import SandboxId, ThreadRole
from vmpin.features.proof import run_time_books
from vmpin.features.proof.residency_ledger import Mark, ResidencyLedger
from vmpin.features.proof.run_time_books import SCHEMA, RunTimeBooks, keep_marks

A, VCPU = SandboxId("a"), ThreadRole.VCPU


def ledger(*marks: float) -> ResidencyLedger:
    """Between two of its marks a second is added to its account."""
    made = ResidencyLedger()
    made.began = 5.0
    for moment in marks:
        made.of(A).of(VCPU).placed += 10**9
        made.mark(moment)
    return made


def keep(path: Path | None, books: ResidencyLedger, boot_id: str = "boot") -> None:
    RunTimeBooks(path, boot_id, books).close()


def kept(path: Path | None, boot_id: str = "boot") -> ResidencyLedger | None:
    books = RunTimeBooks(path, boot_id, ResidencyLedger())
    try:
        return books.read().result()
    finally:
        books.close()


def placed(books: ResidencyLedger | None) -> int:
    """Whole seconds."""
    assert books is not None
    return books.roles()[VCPU].placed // 10**9


def test_what_is_written_is_read_the_next_time(tmp_path: Path) -> None:
    path, books = tmp_path / "proof", ledger(300.0, 600.0)
    books.of(A).of(VCPU).placed += 10**9  # after the last mark
    books.repairs["other"] += 2
    keep(path, books)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["proof"]
    again = kept(path)
    assert again is not None
    assert (again.began, again.marks[:-1], placed(again), again.drift) == (5.0, books.marks, 3, {"other": 2})
    assert kept(path, "another") is None
    assert kept(path) is None


def test_marks_that_were_dropped_are_dropped_in_the_file_too(tmp_path: Path) -> None:
    path, books = tmp_path / "proof", ledger(300.0, 600.0)
    keep(path, books)
    del books.marks[0]
    books.of(A).of(VCPU).placed += 10**9
    keep(path, books)
    again = kept(path)
    assert again is not None
    assert (again.marks[:-1], len(again.marks), placed(again)) == (books.marks, 2, 3)


def test_a_kill_loses_what_was_booked_after_the_last_writing(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        try:
            counts = ledger(300.0)
            books = RunTimeBooks(tmp_path / "proof", "boot", counts)
            books.write(0.0)
            books.read().result()  # it is written
            counts.of(A).of(VCPU).placed += 10**9
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert placed(kept(tmp_path / "proof")) == 1


def test_it_is_written_no_more_often_than_it_is_due() -> None:
    books = RunTimeBooks(None, "boot", ledger(300.0))
    books.write()
    assert books.read().result() is None
    books.write(0.0)
    assert placed(books.read().result()) == 1
    books.close()


def test_where_marks_have_no_room_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    books = ledger(300.0, 600.0, 900.0)
    monkeypatch.setattr(run_time_books, "MAX_BYTES", 3 * len(books.marks[0].raw) - 1)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        for _ in range(2):
            keep_marks(connection, 5.0, books.marks)
            assert connection.execute("SELECT time FROM mark").fetchall() == [(600.0,), (900.0,)]


@pytest.mark.parametrize("change", [
    "UPDATE mark SET crc32 = 7", "UPDATE mark SET crc32 = 'x'", "UPDATE mark SET raw = x'ff'",
    "UPDATE mark SET raw = replace(raw, '1', '2')", "UPDATE mark SET raw = CAST(x'ff41' AS TEXT)",
    "UPDATE mark SET time = 'x'", "UPDATE mark SET time = 1e300", "UPDATE books SET began = 'x'",
    "DELETE FROM books"])
def test_books_that_no_watcher_writes_are_set_aside(tmp_path: Path, change: str,
                                                    caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "proof"
    keep(path, ledger(300.0))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM mark WHERE time > 300")
        connection.execute(change)
    assert kept(path) is None
    assert "set aside as proof.bad, the books of run times begin anew" in caplog.text
    keep(path, ledger(300.0))
    assert placed(kept(path)) == 1


@pytest.mark.parametrize("raw", ["", "[]", "{" * 100_000, '{"watched":"x"}', "[" * 100_000])
def test_a_mark_that_no_watcher_writes_is_refused(tmp_path: Path, raw: str) -> None:
    path = tmp_path / "proof"
    keep(path, ledger(300.0))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE mark SET raw = ?, crc32 = ?", (raw, zlib.crc32(raw.encode())))
    assert kept(path) is None
    assert path.with_name("proof.bad").exists()


def test_a_clock_that_is_put_back_leaves_the_latest_books_the_last(tmp_path: Path) -> None:
    path, books = tmp_path / "proof", ledger(300.0)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCHEMA)
        keep_marks(connection, 5.0, [*books.marks, Mark(9000.0, books.dump())])
        books.of(A).of(VCPU).placed += 10**9
        keep_marks(connection, 5.0, [*books.marks, Mark(400.0, books.dump())])
        assert placed(run_time_books.kept_ledger(connection)) == 2
    assert not path.exists()


def test_a_failure_is_logged_once_and_nothing_is_lost_when_it_has_passed(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    books = RunTimeBooks(tmp_path / "none" / "proof", "boot", ledger(300.0))
    for _ in range(3):
        books.write(0.0)
        assert books.read().result() is None
    assert [record.message for record in caplog.records] == [
        f"{tmp_path}/none/proof: the books of run times cannot be saved: No such file or directory (free space or "
        "inodes there; until then a restart loses them)"]
    (tmp_path / "none").mkdir()
    books.close()
    assert placed(kept(tmp_path / "none" / "proof")) == 1


def test_absurd_marks_are_refused() -> None:
    mark = {"watched": 1.5, "drift": {"cgroup": 1}, "ended": [0, {}],
            "sandboxes": {"pod": [1, {"vcpu": [1, 2, 3, 4, 5]}]}}
    connection = sqlite3.connect(":memory:")
    connection.executescript(f"{run_time_books.SCHEMA} INSERT INTO books VALUES (1.0);")

    def load(raw: bytes) -> object:
        text = raw.decode(errors="backslashreplace")
        connection.execute("INSERT OR REPLACE INTO mark VALUES (1.5, ?, ?)", (text, zlib.crc32(text.encode())))
        return run_time_books.kept_ledger(connection)

    spoil(load, [*absurd_json(mark), *absurd_texts()], ValueError)
    connection.close()
