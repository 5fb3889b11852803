"""Absurd numbers for parsers of numbers from outside, and what a parser may make of them."""

from __future__ import annotations

import argparse
import tracemalloc
from collections.abc import Callable, Iterable
from typing import NamedTuple

from vmpin.errors import VmpinError

ABSURD = ["000000001999999999", "1999999999", "18446744073709551616", "9" * 39, "9" * 5000, "-1", "-" + "9" * 30,
          "1e308", "1e999", "Infinity", "-Infinity", "NaN", "inf", "nan", "0x7fffffff", "1_000_000_000", "+7", " 7",
          "7 ", "٣", "²", "", "1:59", "3.999", "7.", "0777", "true", "null", "1e-400"]


class Parser(NamedTuple):
    """Gives the numbers that it makes of an input with the text in it; none of them may be above `most`."""

    name: str
    numbers: Callable[[str], Iterable[float | None]]
    most: float


def check_bound(parser: Parser) -> None:
    """Each absurd number is refused or within the bound, and costs no memory: a set of that size would be gigabytes.
    :raises AssertionError: naming the number."""
    list(_numbers(parser, "1"))  # what is loaded and compiled once
    for text in ABSURD:
        tracemalloc.start()
        try:
            numbers = list(_numbers(parser, text))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert [number for number in numbers if number is not None and not 0 <= number <= parser.most] == [], text
        assert peak < 4 << 20, text


def reads(parser: Parser, text: str) -> bool:
    """Whether a parser makes a number other than 0 of a text."""
    return any(number for number in _numbers(parser, text))


def _numbers(parser: Parser, text: str) -> Iterable[float | None]:
    try:
        yield from parser.numbers(text)
    except (VmpinError, ValueError, argparse.ArgumentTypeError):
        return
