"""Patterns of other programs' files, searched in bounded time."""

from __future__ import annotations

import random
import re

import pytest

from vmpin.domain.foreign_pattern import MAX_PATTERN, search

CPUINFO = "processor\t: 0\nvendor_id\t: GenuineIntel\nCPU part\t: 0x516\nflags\t\t: fpu hypervisor lm\n"


@pytest.mark.parametrize(("pattern", "text", "found"), [
    (r"vendor_id\s*:\s*GenuineIntel", CPUINFO, True), (r"vendor_id\s*:\s*AuthenticAMD", CPUINFO, False),
    (r"CPU part\s+:\s+(0x0?516)|(0x0?af)|(0x0?a[0-3])|(0x0?b8)\b", CPUINFO, True),
    (r"^flags.* hypervisor\b", CPUINFO, True), (r"^flags$", CPUINFO, False), (r"\b[y,Y,1,t,T]\b", "no", False),
    (r"^\[ksoftirqd", "[ksoftirqd/0]", True), (r"^contrail-vroute$", "contrail-vroute", True), ("", "", True),
    # Exponential and cubic for an engine that goes back.
    ("(a*)*b", "a" * 5000, False), ("(a|a)*$b", "a" * 5000, False), ("((a?)+)*c", "a" * 5000, False),
    (r"\s*\s*\s*\s*x", " " * 5000, False), ("(((.*)*)*)*" * 9 + "x", "a" * 5000, False),
    ("^${x}$", "a", False), ("a{x}b{}", "a{x}b{}", True),
    # Not evaluated here, and no patterns.
    ("a{2}", "aa", None), ("a{,}", "aa", None), ("{2}", "{2}", None),
    (r"(a)\1", "aa", None), ("(?i)A", "a", None), ("(?=a)", "a", None), ("a*+", "a", None),
    ("(", "", None), (")", "", None), ("[", "", None), ("*", "", None), ("\\", "", None), ("(" * 999, "", None),
    ("a" * (MAX_PATTERN + 1), "", None), ("(" * 30 + "a" + ")*" * 30 + "b", "a" * 5000, None)])
def test_a_search_ends_and_a_pattern_that_is_not_evaluated_is_unknown(
        pattern: str, text: str, found: bool | None) -> None:
    assert search(pattern, text) is found


def test_a_search_has_the_result_of_re() -> None:
    rng = random.Random(1)
    parts = ("a", "b", ".", r"\s", "[ab]", "[^a]", "^", "$", r"\b", "|", "(", ")", "(?:", "*", "+", "?", "*?", "\\.",
             "{", "}", ",1")
    compared = 0
    for _ in range(4000):
        pattern = "".join(rng.choices(parts, k=rng.randrange(1, 8)))
        text = "".join(rng.choices("ab. \n", k=rng.randrange(9)))
        found = search(pattern, text)
        try:
            expected = re.search(pattern, text, re.MULTILINE) is not None
        except re.error:
            assert found is None, pattern
            continue
        if found is not None:
            compared += 1
            assert found is expected, (pattern, text)
    assert compared > 1000
