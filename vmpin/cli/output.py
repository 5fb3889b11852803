"""Printing: data as JSON or YAML, tables, and styled lines, in colour at a terminal and plain in a pipe.

A table is laid out within a width: cells are broken between words and after commas, never within a number. Where that
does not suffice, columns are left out or names are broken, and then the table is cut into several.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence

from vmpin.domain.terminal import printable
from vmpin.named_tuple import NamedTuple

VERDICTS = {"pinned": "green", "floating": "cyan", "degraded": "yellow", "waiting": "yellow", "unmanaged": "yellow",
            "off": "dim", "yes": "green", "no": "red"}

#: Of each document that a command makes itself; counted up when a member goes away or changes its meaning. Those of
#: the watcher, doctor and verify --others have their own (docs/json.md).
VERSION = 1

#: A line, as texts with their styles.
Line = Sequence[tuple[str, str]]

#: No terminal is wider, but COLUMNS in the environment may have any number.
_WIDEST = 10_000
#: Between two columns, where there is room for it; else 1.
GAPS = (2, 1)
#: A name longer than this may be broken where there is no room for it; where that does not suffice, one longer than
#: the second. All figures and titles are shorter.
LONGEST = (24, 16)


def print_data(data: object, output: str) -> None:
    """Print data as JSON (indented at a terminal) or YAML."""
    if output == "yaml":
        import yaml
        # In ASCII, as JSON is: YAML's printable characters include those that turn the direction of a line.
        print(yaml.safe_dump(data, sort_keys=False), end="")
    else:
        print(json.dumps(data, indent=2 if sys.stdout.isatty() else None))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], styles: dict[str, str] | None = None, *,
          spare: Sequence[str] = (), also: str = "", keys: Sequence[str] = (), headers: bool = True) -> None:
    """Print an aligned table: in colour at a terminal and within its width, plain and as wide as it is in a pipe. At a
    terminal without room for it columns are left out, which a line below names, or it is cut into several tables;
    where not even these have room each row is a sentence, its titles in it.

    :param styles: by cell text, a rich style. :param spare: titles that may be left out, the least important first.
    :param also: a command that shows these. :param keys: titles of the columns that name a row (none: the first does);
        each of several tables has them.
    :param headers: False prints the rows alone, at a terminal as in a pipe.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    if not headers or not sys.stdout.isatty():
        for line in list(plain_table(columns, cells))[not headers:]:
            print(line)
        return
    width, with_titles = columns_of_terminal(), [list(columns), *cells]
    blocks = blocks_of(with_titles, width, spare, keys)
    print_styled(line for block in blocks for line in _styled(with_titles, block, styles or {}))
    if not blocks:
        for row in cells:
            print_text("  ".join(f"{title} {cell}" for title, cell in zip(columns, row, strict=True) if cell))
    elif left := [title for place, title in enumerate(columns) if not any(place in block.places for block in blocks)]:
        print_text(f"{also} also has {', '.join(left)} (no room in {width} columns)")


def plain_table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of an aligned table. :param cells: printable texts."""
    rows = [columns, *cells]
    (block,) = blocks_of(rows, 0)
    return ((" " * block.gap).join(line).rstrip() for lines in lines_of(rows, block) for line in lines)


def _styled(rows: Sequence[Sequence[str]], block: Block, styles: dict[str, str]) -> list[Line]:
    """The columns of this block, their titles underlined."""
    styled: list[Line] = []
    for row, lines in zip(rows, lines_of(rows, block), strict=True):
        cell_styles = [styles.get(row[place], "") if styled else "bold" for place in block.places]
        for cells in lines:
            styled.append([part for text, style in zip(cells, cell_styles, strict=True)
                           for part in ((text, style), (" " * block.gap, ""))][:-1])
        if row is rows[0]:
            styled.append([("─" * sum(len(text) for text, _ in styled[-1]), "dim")])
    return styled


def print_text(text: str, indent: str = "") -> None:
    """Print a sentence: at a terminal broken between words, and after commas in long CPU lists."""
    text, columns = printable(text), columns_of_terminal()
    if not columns:
        print(f"{indent}{text}")
        return
    from vmpin.domain.wrapping import wrapped
    for line in wrapped(text, columns, indent, f"{indent}  "):
        print(line)


def print_lines(lines: Iterable[str]) -> None:
    """Print sentences, each broken within the blanks with which it begins."""
    for line in lines:
        text = line.lstrip(" ")
        print_text(text, line.removesuffix(text))


def columns_of_terminal() -> int:
    """The width of the terminal that standard output is; 0 for a pipe or file."""
    if not sys.stdout.isatty():
        return 0
    import shutil
    return min(shutil.get_terminal_size().columns, _WIDEST)


def plain_lines(lines: Iterable[Line]) -> Iterator[str]:
    return ("".join(text for text, _ in line).rstrip() for line in lines)


def print_styled(lines: Iterable[Line]) -> None:
    """Print lines of styled texts: in colour at a terminal, plain in a pipe."""
    if not sys.stdout.isatty():
        for line in plain_lines(lines):
            print(line)
        return
    from rich.console import Console
    from rich.text import Text
    console = Console(highlight=False)
    for parts in lines:
        text = Text.assemble(*parts)
        text.rstrip()
        console.print(text, soft_wrap=True)  # as it was laid out


def print_markdown(text: str) -> None:
    """Print a page: rendered at a terminal, as it is written in a pipe."""
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown
    Console(width=columns_of_terminal()).print(Markdown(text))


class Block(NamedTuple):
    """Columns that stand side by side: their places in the table, their widths in characters, and the gap."""

    places: Sequence[int]
    widths: Sequence[int]
    gap: int


def blocks_of(rows: Sequence[Sequence[str]], width: int, spare: Sequence[str] = (),
              keys: Sequence[str] = ()) -> list[Block]:
    """Lay a table out: as one block, or else as the fewest blocks, each with the key columns; [] where there is no
    room for these either.

    :param rows: the first has the titles. :param width: in characters; 0: any.
    :param spare: titles of columns to leave out where that makes one block possible, the first of them first.
    :param keys: titles of the columns that name a row; none: the first does."""
    from vmpin.domain.wrapping import pieces

    def longest_piece(cell: str) -> int:
        return max(len(piece.rstrip()) for piece in pieces(cell))

    titles = rows[0]
    full, words = ([max(map(size, column)) for column in zip(*rows, strict=True)] for size in (len, longest_piece))
    floors = (words, *([min(word, longest) for word in words] for longest in LONGEST))
    for least in floors:
        for count in range(len(spare) + 1):
            places = [place for place, title in enumerate(titles) if title not in spare[:count]]
            if block := _block(places, full, least, width):
                return [block]
    key_places = [place for place, title in enumerate(titles) if title in keys] or [0]
    return min(filter(None, (_cut(key_places, full, least, width) for least in floors)), key=len, default=[])


def _block(places: Sequence[int], full: Sequence[int], least: Sequence[int], width: int,
           gaps: Sequence[int] = GAPS) -> Block | None:
    """Columns as wide as their cells; without room for that the widest are narrowed, down to their least width. None
    where even that is too wide.

    :param full: the widths of the whole cells. :param least: the widths below which no column is narrowed."""
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
    """Blocks with the key columns and as many others, in their order, as there is room for; [] if a column has no room
    beside the keys."""
    blocks: list[Block] = []
    for place in (place for place in range(len(full)) if place not in keys):
        if blocks and (wider := _block([*blocks[-1].places, place], full, least, width, GAPS[:1])):
            blocks[-1] = wider
        elif block := _block([*keys, place], full, least, width, GAPS[:1]):
            blocks.append(block)
        else:
            return []
    return blocks


def lines_of(rows: Sequence[Sequence[str]], block: Block) -> list[list[list[str]]]:
    """The lines of each row in this block, each a list of its cells, filled up to the columns' widths."""
    from vmpin.domain.wrapping import wrapped
    lines_by_row = []
    for row in rows:
        cells = [wrapped(row[place], room) for place, room in zip(block.places, block.widths, strict=True)]
        height = max(map(len, cells), default=0)
        lines_by_row.append([[(cell[number] if number < len(cell) else "").ljust(room)
                              for cell, room in zip(cells, block.widths, strict=True)] for number in range(height)])
    return lines_by_row
