"""Texts as lines of a given width, for tables, sentences and help. Pure; widths are in characters.

A line is broken after a blank, and in CPU lists after a comma, never within a number or before its unit. What stands
in backquotes stays in one line: commands are copied from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

#: The width to which the sources' paragraphs are wrapped: a line that ends well before it was meant to.
_SOURCE = 105
#: An example or a term: its indent, its text, the gap and the explanation beside it.
_ENTRY = re.compile(r"( +)(\S.*?\S|\S)( {2,})(\S.*)")
#: Words with what follows them, the parts of CPU lists, numbers with their unit.
_PIECE = re.compile(r"(?:`[^`]{1,50}`|[^ ,])*(?: [s%]\)?(?= |$))?[ ,]*")


def wrapped(text: str, width: int, indent: str = "", hanging: str | None = None) -> list[str]:
    """Break a text into lines of `width` characters at most; "" is one line. A longer word is broken after one of its
    last `/` or `-`, if it has one there.

    :param indent: before the first line. :param hanging: before the others; None: the same.
    """
    below = indent if hanging is None else hanging
    return [f"{below if number else indent}{line}" for number, line in enumerate(
        _broken(pieces(text), width - len(indent), width - len(below)))]


def filled(text: str, width: int) -> list[str]:
    """Break a text at blanks alone, for commands: a word that is longer than the width is a line of its own."""
    lines = [""]
    for word in re.findall(r"(?:`[^`]{1,50}`|[^ ])*[ ]*", text):
        if lines[-1] and len((lines[-1] + word).rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return [line.rstrip() for line in lines]


def pieces(text: str) -> list[str]:
    """Split a text into the pieces between which a line may be broken."""
    return _PIECE.findall(text) or [""]


def _broken(parts: list[str], room: int, below: int) -> Iterator[str]:
    """The lines of a text. :param room: of the first line. :param below: of the others."""
    room, below = max(room, 1), max(below, 1)
    line = ""
    for piece in parts:
        if line and len((line + piece).rstrip()) > room:
            yield line.rstrip()
            line, room = "", below
        line += piece
        while len(line.rstrip()) > room:
            cut = max(line.rfind(sign, room // 3, room) for sign in "/-") + 1 or room
            yield line[:cut]
            line, room = line[cut:], below
    yield line.rstrip()


def filled_help(text: str, width: int) -> str:
    """Fill the paragraphs of a help text, and the second column of its examples and lists of terms. No line is longer
    than `width`, but for a command or word that is longer itself."""
    blocks = groupby(text.strip("\n").splitlines(), lambda line: (not line.strip(), line.startswith(" ")))
    lines: list[str] = []
    for (blank, indented), block in blocks:
        lines += [""] * len(list(block)) if blank else _columns(list(block), width) if indented else [
            line for paragraph in _paragraphs(list(block)) for line in filled(paragraph, width)]
    return "\n".join(lines)


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Joined lines; a new paragraph begins after a line that ends a sentence, and had room for the next one's first
    word."""
    joined = last = ""
    for line in lines:
        if last.endswith((".", ":")) and len(last) + 1 + len(line.split()[0]) <= _SOURCE:
            yield joined
            joined = ""
        joined, last = f"{joined} {line}".strip(), line
    yield joined


def _columns(lines: list[str], width: int) -> list[str]:
    """Examples with their comments, or terms with their explanations; unchanged where all fit."""
    if all(len(line) <= width for line in lines):
        return lines
    entries: list[tuple[str, str]] = []
    column = 0
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if entries and column and indent == column:
            entries[-1] = entries[-1][0], f"{entries[-1][1]} {line.strip()}"
        elif match := _ENTRY.fullmatch(line):
            entries.append((match[1] + match[2], match[4]))
            column = match.start(4)
        else:
            entries.append((line.rstrip(), ""))
    longest = max((len(first) for first, second in entries if second and len(first) + 2 <= width // 2), default=6)
    return [line for first, second in entries for line in _entry(first, second, longest + 2, width)]


def _entry(first: str, second: str, column: int, width: int) -> list[str]:
    """One entry, its second part below the first where that reaches into its column."""
    if not second:
        return [first]
    below = filled(second, width - column)
    head = [first] if len(first) + 2 > column else [f"{first:<{column}}{below.pop(0)}"]
    return head + [" " * column + line for line in below]
