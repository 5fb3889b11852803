"""A database of one boot in one file: whatever lies there, it begins anew or goes on."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from vmpin.features.common.kept_database import KeptDatabase, files_of, rows

SCHEMA = "CREATE TABLE IF NOT EXISTS number (value INTEGER);"


@contextmanager
def database(path: Path | None, boot_id: str = "boot", version: int = 1,
             most: int = 1 << 20, owned: Callable[[], bool] = lambda: True) -> Iterator[KeptDatabase]:
    made = KeptDatabase(path, boot_id, SCHEMA, version, most, "numbers", owned)
    yield made
    made.close()


def add(made: KeptDatabase, value: object) -> None:
    made.submit(lambda connection: connection.execute("INSERT INTO number VALUES (?)", (value,))).result()


def values_of(connection: sqlite3.Connection) -> list[list[int]]:
    return list(rows(connection, "SELECT value FROM number"))


def values(made: KeptDatabase) -> list[list[int]]:
    return made.submit(values_of).result()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "numbers"
    with database(path) as made:
        add(made, 7)
    return path


def test_it_goes_on_in_the_same_boot_and_begins_anew_in_another(path: Path) -> None:
    with database(path) as made:
        assert values(made) == [[7]]
    with database(path, "other") as made:
        assert values(made) == []
    with database(path) as made:
        assert values(made) == []


def test_work_that_fails_leaves_nothing(path: Path) -> None:
    def failing(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO number VALUES (8)")
        raise OSError("in the middle of it")

    with database(path) as made:
        with pytest.raises(OSError, match="middle"):
            made.submit(failing).result()
        assert values(made) == [[7]]


@pytest.mark.parametrize("spoil", [
    "DROP TABLE boot",  # as a kill in the middle of emptying it might leave it, table by table
    "ALTER TABLE number RENAME COLUMN value TO other",
])
def test_a_schema_that_is_another_is_damage_and_no_full_disk(
        path: Path, spoil: str, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(spoil)
    with database(path) as made:
        with contextlib.suppress(sqlite3.DatabaseError):
            values(made)
        add(made, 9)
        assert values(made) == [[9]]
    assert "set aside as numbers.bad" in caplog.text


def test_a_name_that_is_no_utf8_is_damage(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Python cannot decode the message of SQLite that quotes it."""
    raw = path.read_bytes()
    assert raw.count(b"tablenumbernumber") == 1
    path.write_bytes(raw.replace(b"tablenumbernumber", b"tablen\xc7mbernumber"))
    with database(path) as made:
        with contextlib.suppress(sqlite3.DatabaseError):
            values(made)
        assert values(made) == []
    assert "set aside as numbers.bad" in caplog.text


def test_it_does_not_grow_above_its_limit(path: Path) -> None:
    with database(path, most=64 << 10) as made:
        with pytest.raises(sqlite3.OperationalError, match="full"):
            add(made, "x" * 100_000)
        add(made, 8)
        assert values(made) == [[7], [8]]


def test_a_damaged_file_is_set_aside_wherever_it_is_cut(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = path.read_bytes()
    for length in (1000, 5000, len(whole) // 2):
        caplog.clear()
        path.write_bytes(whole[:length])
        with database(path) as made:
            assert values(made) == []
            add(made, 8)
            assert values(made) == [[8]]
        assert "set aside as numbers.bad, the numbers begin anew" in caplog.text
        path.with_name("numbers.bad").unlink()
        assert list(path.parent.iterdir()) == [path]


def test_an_empty_file_is_a_new_one(path: Path) -> None:
    path.write_bytes(b"")
    with database(path) as made:
        assert values(made) == []


class Killed(sqlite3.Connection):
    """Ends where the file was made, and not all of its content is there yet."""

    statement = ""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql.startswith(self.statement):
            self.rollback()
            raise KeyboardInterrupt
        return super().execute(sql, *values)


@pytest.mark.parametrize("statement", ["PRAGMA user_version =", "INSERT INTO boot"])
def test_a_kill_while_it_is_made_leaves_no_damage(
        statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(Killed, "statement", statement)
    path, connect = tmp_path / "numbers", sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", partial(connect, factory=Killed))
    with database(path) as made, contextlib.suppress(KeyboardInterrupt):
        add(made, 1)
    monkeypatch.setattr(sqlite3, "connect", connect)
    with database(path) as made:
        add(made, 7)
        assert [7] in values(made)
    assert (caplog.text, [each.name for each in tmp_path.iterdir()]) == ("", ["numbers"])


def test_a_file_of_another_version_is_set_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with database(path, version=2) as made:
        assert values(made) == []
    assert "version 1 is unknown" in caplog.text


@pytest.mark.parametrize("kind", ["fifo", "directory", "link"])
def test_what_is_no_file_is_set_aside_and_not_opened(path: Path, kind: str) -> None:
    other = path.with_name("other")
    path.rename(other)
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "link":
            path.symlink_to(other)
    before = other.read_bytes()
    with database(path) as made:
        assert values(made) == []
        add(made, 8)
    assert other.read_bytes() == before
    assert path.is_file()


def test_what_cannot_be_set_aside_fails_each_work_until_it_is_gone(path: Path) -> None:
    """As a directory beside whose name a file has the other one; and a mount point."""
    path.unlink()
    path.mkdir()
    path.with_name("numbers.bad").write_bytes(b"")
    with database(path) as made:
        for _ in range(2):
            with pytest.raises(sqlite3.OperationalError, match="it is no file, and cannot be set aside"):
                add(made, 8)
        nothing: list[list[int]] = []
        assert made.read(values_of, nothing).result() is nothing
        path.rmdir()
        add(made, 8)
        assert values(made) == [[8]]


def test_a_figure_that_is_no_number_sets_it_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with database(path) as made:
        add(made, "x")
        with pytest.raises(sqlite3.DatabaseError, match="no number"):
            values(made)
        assert values(made) == []
    assert "set aside" in caplog.text


def test_without_a_directory_each_work_fails_until_there_is_one(tmp_path: Path) -> None:
    with database(tmp_path / "none" / "numbers") as made:
        with pytest.raises(sqlite3.OperationalError, match="No such file"):
            values(made)
        (tmp_path / "none").mkdir()
        assert values(made) == []


def test_a_file_that_was_removed_is_made_again_with_what_it_held(path: Path) -> None:
    with database(path) as made:
        assert values(made) == [[7]]
        for file in list(path.parent.iterdir()):
            file.unlink()
        add(made, 8)
    with database(path) as made:
        assert values(made) == [[7], [8]]


def test_in_a_directory_of_another_process_nothing_is_made(path: Path) -> None:
    owned = True
    with database(path, owned=lambda: owned) as made:
        assert values(made) == [[7]]
        owned = False
        for file in list(path.parent.iterdir()):
            file.unlink()
        with pytest.raises(sqlite3.OperationalError, match="another process's"):
            add(made, 8)
    assert list(path.parent.iterdir()) == []


def test_while_it_is_open_its_files_are_those_that_are_listed(path: Path) -> None:
    with database(path) as made:
        add(made, 8)
        assert set(path.parent.iterdir()) <= set(files_of(path))
    with database(None) as made:
        assert values(made) == []
