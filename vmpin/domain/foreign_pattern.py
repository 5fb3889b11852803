"""Searches texts for the regular expressions of other programs' files, in time that is bounded by their sizes.

`re` backtracks: a pattern such as `(a*)*b`, in a file that a container brings along, would hold a pass for ever. Here
a search follows all positions of the text at once, as bits of one number. Pure.
"""

from __future__ import annotations

import re

#: No pattern of a profile is longer, and no text of a machine needs more: the CPUs of /proc/cpuinfo are alike.
MAX_PATTERN, MAX_TEXT = 1024, 8192
#: Parts of a pattern that may be evaluated, repetitions included. Each costs some 8 µs for the longest text.
_MAX_STEPS = 1000
#: One character: a set, an escaped class or punctuation mark, or the character itself, also a brace that begins no
#: count.
_ATOM = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\[dDsSwWtnrfv]|\\[^A-Za-z0-9]|[^\\()|*+?{^$]|"
                   r"\{(?!(?:[0-9]+(?:,[0-9]*)?|,[0-9]*)\})", re.DOTALL)
_WHERE = {"^": r"(?m:^)", "$": r"(?m:$)", r"\b": r"\b", r"\B": r"\B", r"\A": r"\A", r"\Z": r"\Z"}
_ANCHOR = re.compile(r"[\^$]|\\[bBAZ]")
#: A lazy one reaches the same ends.
_REPETITION = re.compile(r"([*+?])\??")


def search(pattern: str, text: str) -> bool | None:
    """Whether a pattern matches somewhere in (the first MAX_TEXT characters of) a text, as `re.search` with
    re.MULTILINE. None for an invalid pattern, and for one that is not evaluated: with counts (`{2,3}`), references,
    flags or assertions, or longer than MAX_PATTERN, or with too many steps."""
    if len(pattern) > MAX_PATTERN:
        return None
    searching = _PatternSearch(pattern, text[:MAX_TEXT])
    try:
        at, ends = searching.alternatives(0, searching.everywhere)
    except (ValueError, re.error, OverflowError, RecursionError):
        return None
    return ends != 0 if at == len(pattern) else None


class _PatternSearch:
    """Interprets a pattern. Positions are bits: bit p is before character p. Each method evaluates the part of the
    pattern at `at` from the positions `starts`, and returns where that part ends and the positions behind it.
    :raises ValueError: the part is not evaluated."""

    def __init__(self, pattern: str, text: str) -> None:
        self._pattern, self._text = pattern, text
        self.everywhere = (2 << len(text)) - 1
        self._steps = 0
        self._positions: dict[str, int] = {}

    def alternatives(self, at: int, starts: int) -> tuple[int, int]:
        at, ends = self._sequence(at, starts)
        while self._pattern[at:at + 1] == "|":
            at, others = self._sequence(at + 1, starts)
            ends |= others
        return at, ends

    def _sequence(self, at: int, starts: int) -> tuple[int, int]:
        while self._pattern[at:at + 1] not in ("", "|", ")"):
            at, starts = self._repeated(at, starts)
        return at, starts

    def _repeated(self, at: int, starts: int) -> tuple[int, int]:
        after, ends = self._part(at, starts)
        repetition = _REPETITION.match(self._pattern, after)
        if repetition is None:
            return after, ends
        if _ANCHOR.fullmatch(self._pattern, at, after) or _REPETITION.match(self._pattern, repetition.end()):
            raise ValueError("nothing to repeat")
        reached = ends if repetition[1] == "+" else starts | ends
        if _ATOM.fullmatch(self._pattern, at, after):  # all rounds at once: the carry runs over consecutive matches
            there = self._at(self._pattern[at:after]) if repetition[1] != "?" else 0
            return repetition.end(), ((reached & there) + there ^ there) | reached
        while repetition[1] != "?" and (ends := self._part(at, ends)[1] & ~reached):
            reached |= ends
        return repetition.end(), reached

    def _part(self, at: int, starts: int) -> tuple[int, int]:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise ValueError("too many steps")
        if self._pattern[at] == "(":
            start = at + 3 if self._pattern.startswith("(?:", at) else at + 1
            after, ends = self.alternatives(start, starts)
            if self._pattern[after:after + 1] != ")":
                raise ValueError("group without end")
            return after + 1, ends
        if anchor := _ANCHOR.match(self._pattern, at):
            return anchor.end(), starts & self._at(_WHERE[anchor[0]])
        if atom := _ATOM.match(self._pattern, at):
            return atom.end(), (starts & self._at(atom[0])) << 1
        raise ValueError("not evaluated")

    def _at(self, pattern: str) -> int:
        """The positions at which a pattern of at most one character matches."""
        if pattern not in self._positions:
            bits = bytearray(b"0") * (len(self._text) + 1)
            for match in re.finditer(pattern, self._text):
                bits[-1 - match.start()] = ord("1")
            self._positions[pattern] = int(bits, 2)
        return self._positions[pattern]
