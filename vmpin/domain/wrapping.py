"""Texts as lines of a given width, for tables, sentences and help. Pure; widths are in characters.

A line is broken after a blank, and in CPU lists after a comma, never within a number or before its unit. What stands
in backquotes stays in one line: commands are copied from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

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
