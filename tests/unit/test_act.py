"""What `vmpin unpin` says of the guests, and its exit code."""

from __future__ import annotations

import argparse

import pytest

from vmpin.cli.act import _told


@pytest.mark.parametrize(("word", "code"), [
    ("taken back", 0), ("nothing to take back", 0), ("nothing is taken back: nobody listens", 0),
    ("no answer within 3 s", 1), ("not all is taken back: read-only file system", 1)])
@pytest.mark.parametrize("output", ["text", "json"])
def test_a_guest_that_keeps_what_it_was_told_is_exit_code_1(word: str, code: int, output: str,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    found = {"operations": [], "guests": {"pod-a": "taken back", "pod-b": word}}
    assert _told(argparse.Namespace(output=output), found, "nothing to give back") == code
    assert word in capsys.readouterr().out


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_sandbox_that_does_not_have_all_its_masks_is_exit_code_1(output: str,
                                                                   capsys: pytest.CaptureFixture[str]) -> None:
    assert _told(argparse.Namespace(output=output), {"operations": [], "kept": ["pod-a"]}, "nothing to give back") == 1
    told = capsys.readouterr().out
    assert "pod-a" in told
    assert "nothing to give back" not in told
