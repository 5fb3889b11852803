"""Descriptions and examples of the help at a given width: paragraphs are filled, and so is the second column of
examples and lists of terms, so that no command is broken.

Pure.
"""

import re
from collections.abc import Iterator
from itertools import groupby

from vmpin.domain.wrapping import filled

#: The width to which the sources' paragraphs are wrapped: a line that ends well before it was meant to.
_SOURCE = 105
_ENTRY = re.compile(r"( +)(\S.*?\S|\S)( {2,})(\S.*)")


def laid_out(text: str, width: int) -> str:
    """The text with no line longer than `width`, but for a command or word that is longer itself."""
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
        elif found := _ENTRY.fullmatch(line):
            entries.append((found[1] + found[2], found[4]))
            column = found.start(4)
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
