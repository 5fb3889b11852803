"""Tables as lines of a given width: cells are broken between words and after commas, never within a number.

Pure. What stays out: colours and printing (cli.output)."""

import re
from collections.abc import Iterator, Sequence

#: Between two columns, where there is room for it; else 1.
GAPS = (2, 1)
#: What a text is broken into: words with what follows them, the parts of CPU lists, numbers with their unit.
_PIECE = re.compile(r"[^ ,]*(?: [s%]\)?(?= |$))?[ ,]*")


def lines_of(rows: Sequence[Sequence[str]], width: int, gap: int) -> list[list[list[str]]]:
    """The lines of each row, each a list of its cells, filled up to the columns' widths.
    :param rows: the first has the titles. :param width: what there is for all columns and gaps; 0: any."""
    widths = column_widths(rows, width, gap)
    made = []
    for row in rows:
        cells = [list(broken(cell, room)) for cell, room in zip(row, widths, strict=True)]
        height = max(map(len, cells), default=0)
        made.append([[(cell[number] if number < len(cell) else "").ljust(room)
                      for cell, room in zip(cells, widths, strict=True)] for number in range(height)])
    return made


def column_widths(rows: Sequence[Sequence[str]], width: int, gap: int) -> list[int]:
    """As wide as their cells; where that is too much, the widest columns are made narrower, but no word is broken."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    least, room = _words(rows), width - gap * (len(widths) - 1)
    while width and sum(widths) > room and (wide := [
            (size, place) for place, size in enumerate(widths) if size > least[place]]):
        widths[max(wide)[1]] -= 1
    return widths


def gap_of(rows: Sequence[Sequence[str]], width: int) -> int | None:
    """The gap between columns with which the table has room in this width (0: any) without a broken word, None where
    there is none."""
    least = _words(rows)
    return next((gap for gap in GAPS if not width or sum(least) + gap * (len(least) - 1) <= width), None)


def _words(rows: Sequence[Sequence[str]]) -> list[int]:
    """The longest piece of each column."""
    return [max(len(piece.rstrip()) for cell in column for piece in pieces(cell))
            for column in zip(*rows, strict=True)]


def pieces(cell: str) -> list[str]:
    """What may stand in lines of its own."""
    return _PIECE.findall(cell) or [""]


def broken(cell: str, room: int) -> Iterator[str]:
    """The lines of a text, of at most `room` characters each (at least one)."""
    room = max(room, 1)
    line = ""
    for piece in pieces(cell):
        if line and len((line + piece).rstrip()) > room:
            yield line.rstrip()
            line = ""
        line += piece
        while len(line.rstrip()) > room:
            yield line[:room]
            line = line[room:]
    yield line.rstrip()
