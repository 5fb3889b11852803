"""The spool in a run directory whose content others have had a hand in."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from vmpin.sources import spool as spools
from vmpin.sources.spool import Spool

OLD = "00000000000000000007"


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool")


def age(path: Path) -> Path:
    path.touch()
    os.utime(path, (1, 1))
    return path


def test_a_link_in_its_place_leads_nowhere(spool: Spool, tmp_path: Path) -> None:
    """Not the mode of another directory is set, and no file of it is removed."""
    other = tmp_path / "other"
    other.mkdir(mode=0o755)
    files = [age(other / name) for name in ("passwd", f".{OLD}-1.tmp", f"{OLD}-1.hook")]
    spool.path.symlink_to(other)
    spool.prepare()
    assert spool.waiting(set(), tidy=True) == []
    assert stat.S_IMODE(other.stat().st_mode) == 0o755
    assert all(path.exists() for path in files)
    assert stat.S_IMODE(spool.path.lstat().st_mode) == 0o700
    assert stat.S_ISDIR(spool.path.lstat().st_mode)


def test_only_what_hooks_and_watchers_left_unfinished_is_removed(spool: Spool) -> None:
    """As where the run directory has a spool of another program's: paths.run: /var."""
    spool.prepare()
    others = [age(spool.path / name) for name in ("mail", "cron.tmp", ".hidden", f".{OLD}.tmp", f"{OLD}-1.tmp")]
    left = [age(spool.path / name) for name in (f".{OLD}-71.tmp", f".{OLD}-71.3.hook.tmp")]
    young = spool.path / f".{OLD}-72.tmp"
    young.touch()
    assert spool.waiting(set(), tidy=False) == []
    assert all(path.exists() for path in left)
    assert spool.waiting(set(), tidy=True) == []
    assert [path.exists() for path in (*others, young)] == [True] * 6
    assert [path.exists() for path in left] == [False] * 2
    spool.keep(b"x", 7)
    spool.remove_all()
    assert sorted(os.listdir(spool.path)) == sorted(path.name for path in others)


def test_without_anything_else_in_it_it_is_removed(spool: Spool, tmp_path: Path) -> None:
    spool.prepare()
    spool.keep(b"x", 7)
    (spool.path / f".{OLD}-72.tmp").touch()
    spool.remove_all()
    spool.remove_all()
    assert not spool.path.exists()
    (tmp_path / "other").mkdir()
    spool.path.symlink_to(tmp_path / "other")
    age(tmp_path / "other" / f"{OLD}-1.hook")
    spool.remove_all()
    assert (tmp_path / "other" / f"{OLD}-1.hook").exists()


def test_a_file_in_its_place_loses_no_message(spool: Spool) -> None:
    """The message is used without being spooled; on a read-only file system, too, nothing is raised."""
    spool.path.touch()
    assert spool.keep(b"x", 7) is None
    assert spool.keep(b"x", 8) is None


def test_messages_are_read_in_parts_that_fit_into_memory(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spools, "MAX_TOGETHER", 100)
    spool.prepare()
    names = [spool.keep(b"x" * 60, when) for when in range(5)]
    taken: set[str] = set()
    for count in (2, 2, 1, 0):
        messages = spool.waiting(taken, tidy=True)
        assert [name for name, _ in messages] == names[len(taken):len(taken) + count]
        taken |= {name for name, _ in messages}
