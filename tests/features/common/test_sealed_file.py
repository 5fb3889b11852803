"""A file of the run directory that is replaced as a whole."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from vmpin.features.common import sealed_file
from vmpin.features.common.sealed_file import FileForm, SealedFile


def parse(body: Mapping[str, Any]) -> list[int]:
    return [number + 1 - 1 for number in body["numbers"]]


def file(path: Path, boot: str = "boot", version: int = 1) -> SealedFile[list[int]]:
    made = SealedFile[list[int]](path, boot)
    made.form = FileForm(version, parse, lambda numbers: {"numbers": numbers}, [], "they are lost")
    return made


def test_it_has_what_was_saved_last_and_is_removed_where_there_is_nothing(tmp_path: Path) -> None:
    kept = file(tmp_path / "kept.json")
    assert kept.load() == []
    for numbers in ([1], [1, 2]):
        kept.save(numbers)
        assert file(kept.path).load() == numbers
    assert file(kept.path, "another boot").load() == []
    assert file(kept.path).load() == [1, 2]
    kept.save([])
    assert not kept.path.exists()
    kept.save([])


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'{"crc32":1,"body":{}}', b"\xff", b"[" * 100_000])
def test_a_damaged_one_is_set_aside_with_its_consequence(tmp_path: Path, raw: bytes,
                                                         caplog: pytest.LogCaptureFixture) -> None:
    kept = file(tmp_path / "kept.json")
    kept.path.write_bytes(raw)
    assert kept.load() == []
    assert kept.damaged == tmp_path / "kept.json.bad"
    assert "set aside as kept.json.bad, they are lost" in caplog.text


def test_one_of_another_version_or_with_wrong_values_is_damaged(tmp_path: Path) -> None:
    kept = file(tmp_path / "kept.json", version=2)
    kept.save([1])
    assert file(kept.path).load() == []
    assert kept.damaged is not None
    kept.save(["one"])  # type: ignore[list-item]
    assert kept.load() == []


def test_one_that_cannot_be_read_is_no_damaged_one(tmp_path: Path) -> None:
    kept = file(tmp_path / "kept.json")
    kept.path.mkdir()
    with pytest.raises(IsADirectoryError):
        kept.load()
    assert kept.damaged is None


def test_one_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                           caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    kept = file(tmp_path / "kept.json")
    kept.save([1])

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(sealed_file, "replace", fail)
        with pytest.raises(OSError, match="No space left"):
            kept.save([2])
    assert kept.load() == [1]
