"""Texts are broken into lines where a person would: never within a number, a unit or a command."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.domain.wrapping import filled, filled_help, wrapped


@pytest.mark.parametrize(("text", "width", "lines"), [
    ("", 10, [""]),
    ("one two three", 7, ["one two", "three"]),
    ("CPUs 0-127,200-255,300", 12, ["CPUs 0-127,", "200-255,300"]),
    ("it had 99.9 % of 12.5 s there", 9, ["it had", "99.9 % of", "12.5 s", "there"]),
    ("see `vmpin status -o wide` for all", 24, ["see", "`vmpin status -o wide`", "for all"]),
    ("shop/web-7d9f8c6b5-x2zkp", 16, ["shop/web-", "7d9f8c6b5-x2zkp"]),
    ("a" * 20, 16, ["a" * 16, "a" * 4]),
])
def test_a_text_is_broken_between_its_parts(text: str, width: int, lines: list[str]) -> None:
    assert wrapped(text, width) == lines


def test_the_lines_below_have_an_indent_of_their_own() -> None:
    assert wrapped("one two three four", 10, "- ", "    ") == ["- one two", "    three", "    four"]
    assert wrapped("one two three", 9, "  ") == ["  one two", "  three"]


def test_commands_are_broken_at_blanks_alone_and_never_cut() -> None:
    assert filled("vmpin plan --set node.shared_pool=0-1,8-9 -o json", 16) == [
        "vmpin plan --set", "node.shared_pool=0-1,8-9", "-o json"]
    assert filled("", 16) == [""]


@given(st.text(alphabet="ab0-9,/ %s`", max_size=80), st.integers(-3, 40))
def test_nothing_is_lost_but_blanks_and_no_line_is_too_long(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert max(map(len, lines)) <= max(width, 1)
    assert "".join("".join(filled(text, width)).split()) == "".join(text.split())


@given(st.lists(st.integers(0, 4095), min_size=1, max_size=30, unique=True), st.integers(12, 60))
def test_no_number_of_a_cpu_list_is_broken(cpus: list[int], width: int) -> None:
    numbers = [number for line in wrapped(",".join(map(str, cpus)), width) for number in re.findall(r"\d+", line)]
    assert numbers == list(map(str, cpus))


def test_paragraphs_are_filled_and_commands_in_them_stay_whole() -> None:
    text = "a " * 52 + "b\nc d.\nThe next one.\n\nends with `vmpin status -o wide`"
    assert filled_help(text, 24).splitlines() == [
        *["a a a a a a a a a a a a"] * 4, "a a a a b c d.", "The next one.", "", "ends with", "`vmpin status -o wide`"]


def test_a_comment_too_long_goes_on_in_its_column_or_below_a_long_command() -> None:
    text = ("examples:\n  vmpin a      one two three four\n               five\n"
            "  vmpin a --long-option x  six\n  vmpin b")
    assert filled_help(text, 26).splitlines() == [
        "examples:", "  vmpin a  one two three", "           four five", "  vmpin a --long-option x", "           six",
        "  vmpin b"]
    assert filled_help(text, 80) == text
