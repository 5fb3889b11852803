"""The books' file over time: written in steps, at the end at once, and a failure is logged once."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_isolation_file import books

from vmpin.features.isolation.isolation_books import IsolationBooks
from vmpin.features.isolation.isolation_keeper import IsolationKeeper


def written(keeper: IsolationKeeper) -> int:
    """:returns: the steps that it took."""
    keeper.begin()
    steps = 0
    while keeper.under_way:
        keeper.step()
        steps += 1
    return steps


def loaded(path: Path) -> IsolationBooks:
    found = IsolationBooks()
    IsolationKeeper(path, "boot", found).load()
    return found


def test_what_is_written_in_steps_is_loaded_the_next_time(tmp_path: Path) -> None:
    path, made = tmp_path / "isolation", books()
    made_by = IsolationKeeper(path, "boot", IsolationBooks(), every=0.0)
    assert written(made_by) == 1
    assert loaded(path).owners == {}
    keeper = IsolationKeeper(tmp_path / "other", "boot", made, every=0.0)
    assert written(keeper) >= 1
    assert list(loaded(tmp_path / "other").owners) == ["one", "two"]


def test_an_end_while_it_is_written_writes_the_newest(tmp_path: Path) -> None:
    path, made = tmp_path / "isolation", books()
    keeper = IsolationKeeper(path, "boot", made, every=0.0)
    keeper.begin()
    made.owners.pop("one")
    keeper.save()
    assert not keeper.under_way
    assert list(loaded(path).owners) == ["two"]
    assert [each.name for each in tmp_path.iterdir()] == ["isolation"]


def test_a_failure_is_logged_once_until_it_has_passed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "none"
    keeper = IsolationKeeper(directory / "isolation", "boot", books(), every=0.0)
    for _ in range(3):
        written(keeper)
    keeper.save()
    assert [each.levelname for each in caplog.records] == ["ERROR"]
    assert "the books of isolation cannot be saved" in caplog.text
    directory.mkdir()
    written(keeper)
    (directory / "isolation").unlink()
    directory.rmdir()
    written(keeper)
    assert len(caplog.records) == 2


def test_without_a_file_nothing_is_written(tmp_path: Path) -> None:
    keeper = IsolationKeeper(None, "boot", books())
    assert written(keeper) == 0
    keeper.save()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "isolation").write_bytes(b"abc")
    assert loaded(tmp_path / "isolation").owners == {}
    assert "set aside as isolation.bad" in caplog.text


def test_what_a_kill_left_of_a_writing_is_removed_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "isolation"
    IsolationKeeper(path, "boot", books(), every=0.0).save()
    (tmp_path / ".isolation.new").write_bytes(b"half")
    assert list(loaded(path).owners) == ["one", "two"]
    assert [each.name for each in tmp_path.iterdir()] == ["isolation"]
