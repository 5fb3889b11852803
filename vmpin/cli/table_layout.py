"""Tables as lines of a given width: cells are broken between words and after commas, never within a number.

Where that is too wide, columns are left out or names are broken, and then the table is cut into several. Pure.
"""

from collections.abc import Sequence
from typing import NamedTuple

from vmpin.domain.wrapping import pieces, wrapped

#: Between two columns, where there is room for it; else 1.
GAPS = (2, 1)
#: A name longer than this may be broken where there is no room for it; where that does not suffice, one longer than
#: the second. All figures and titles are shorter.
LONGEST = (24, 16)


class Block(NamedTuple):
    """Columns that stand side by side: which of the table's they are, their widths in characters, and the gap."""

    places: Sequence[int]
    widths: Sequence[int]
    gap: int


def blocks_of(rows: Sequence[Sequence[str]], width: int, spare: Sequence[str] = (),
              keys: Sequence[str] = ()) -> list[Block]:
    """The table as one block; where the width suffices for none, as few as possible, each with the key columns; []
    where there is no room for these either.
    :param rows: the first has the titles. :param width: in characters; 0: any.
    :param spare: titles of columns to leave out where that makes one block possible, the first of them first.
    :param keys: titles of the columns that name a row; none: the first does."""
    every = range(len(rows[0]))
    full, words = ([max(map(size, column)) for column in zip(*rows, strict=True)] for size in (len, _longest_piece))
    least = (words, *([min(word, most) for word in words] for most in LONGEST))
    for floors in least:
        for count in range(len(spare) + 1):
            places = [place for place in every if rows[0][place] not in spare[:count]]
            if found := _block(places, full, floors, width):
                return [found]
    named = [place for place in every if rows[0][place] in keys] or [0]
    return min(filter(None, (_cut(named, full, floors, width) for floors in least)), key=len, default=[])


def _block(places: Sequence[int], full: Sequence[int], least: Sequence[int], width: int,
           gaps: Sequence[int] = GAPS) -> Block | None:
    """Columns as wide as their cells; where that is too much, the widest are made narrower, down to their least width.
    None where that is too much, too."""
    for gap in gaps:
        room = width - gap * (len(places) - 1)
        if width and sum(least[place] for place in places) > room:
            continue
        widths = [full[place] for place in places]
        return Block(places, narrowed(widths, [least[place] for place in places], room) if width else widths, gap)
    return None


def narrowed(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Make the widest columns narrower until all have room; none falls below its least width."""
    sizes = list(widths)
    while sum(sizes) > room and (wider := [(size, at) for at, size in enumerate(sizes) if size > least[at]]):
        sizes[max(wider)[1]] -= 1
    return sizes


def _cut(keys: Sequence[int], full: Sequence[int], least: Sequence[int], width: int) -> list[Block]:
    """Blocks with the key columns and as many others, in their order, as there is room for; [] if one has no other."""
    made: list[Block] = []
    for place in (each for each in range(len(full)) if each not in keys):
        if made and (wider := _block([*made[-1].places, place], full, least, width, GAPS[:1])):
            made[-1] = wider
        elif started := _block([*keys, place], full, least, width, GAPS[:1]):
            made.append(started)
        else:
            return []
    return made


def lines_of(rows: Sequence[Sequence[str]], block: Block) -> list[list[list[str]]]:
    """The lines of each row in this block, each a list of its cells, filled up to the columns' widths."""
    made = []
    for row in rows:
        cells = [wrapped(row[place], room) for place, room in zip(block.places, block.widths, strict=True)]
        height = max(map(len, cells), default=0)
        made.append([[(cell[number] if number < len(cell) else "").ljust(room)
                      for cell, room in zip(cells, block.widths, strict=True)] for number in range(height)])
    return made


def _longest_piece(cell: str) -> int:
    return max(len(piece.rstrip()) for piece in pieces(cell))
