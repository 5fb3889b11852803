"""Printing: data as JSON or YAML, tables, and styled lines, in colour at a terminal and plain in a pipe."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from vmpin.domain.terminal import printable

if TYPE_CHECKING:
    from vmpin.cli.table_layout import Block

VERDICTS = {"pinned": "green", "floating": "cyan", "degraded": "yellow", "waiting": "yellow", "unmanaged": "yellow",
            "off": "dim", "yes": "green", "no": "red"}


#: Of each document that a command makes itself; counted up when a member goes away or changes its meaning. Those of
#: the watcher, doctor and audit have their own (docs/json.md).
VERSION = 1


def print_data(data: object, output: str) -> None:
    """Print data as JSON (indented at a terminal) or YAML."""
    if output == "yaml":
        import yaml
        print(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), end="")
    else:
        print(json.dumps(data, indent=2 if sys.stdout.isatty() else None))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], styles: dict[str, str] | None = None, *,
          spare: Sequence[str] = (), also: str = "", keys: Sequence[str] = ()) -> None:
    """Print an aligned table: in colour at a terminal and within its width, plain and as wide as it is in a pipe. At a
    terminal without room for it columns are left out, which a line below names, or it is cut into several tables;
    where not even these have room each row is a sentence, its titles in it.

    :param styles: by cell text, a rich style. :param spare: titles that may be left out, the least important first.
    :param also: a command that shows these. :param keys: titles of the columns that name a row (none: the first does);
        each of several tables has them.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for line in plain_table(columns, cells):
            print(line)
        return
    from vmpin.cli.table_layout import blocks_of
    width, rows_with_titles = columns_of_terminal(), [list(columns), *cells]
    blocks = blocks_of(rows_with_titles, width, spare, keys)
    print_styled(line for block in blocks for line in _styled(rows_with_titles, block, styles or {}))
    if not blocks:
        for row in cells:
            print_text("  ".join(f"{title} {cell}" for title, cell in zip(columns, row, strict=True) if cell))
    elif left := [title for place, title in enumerate(columns) if not any(place in block.places for block in blocks)]:
        print_text(f"{also} also has {', '.join(left)} (no room in {width} columns)")


def _styled(rows: Sequence[Sequence[str]], block: "Block", styles: dict[str, str]) -> "list[Line]":
    """The columns of this block, their titles underlined."""
    from vmpin.cli.table_layout import lines_of
    made: list[Line] = []
    for row, lines in zip(rows, lines_of(rows, block), strict=True):
        kinds = [styles.get(row[place], "") if made else "bold" for place in block.places]
        for filled in lines:
            made.append([part for text, kind in zip(filled, kinds, strict=True)
                         for part in ((text, kind), (" " * block.gap, ""))][:-1])
        if row is rows[0]:
            made.append([("─" * sum(len(text) for text, _ in made[-1]), "dim")])
    return made


def print_text(text: str, indent: str = "") -> None:
    """Print a sentence: at a terminal broken between words, and after commas in long CPU lists."""
    text, columns = printable(text), columns_of_terminal()
    if not columns:
        print(f"{indent}{text}")
        return
    from vmpin.domain.wrapping import wrapped
    for line in wrapped(text, columns, indent, f"{indent}  "):
        print(line)


def columns_of_terminal() -> int:
    """The width of the terminal that standard output is; 0 for a pipe or file."""
    if not sys.stdout.isatty():
        return 0
    import shutil
    return shutil.get_terminal_size().columns


def plain_table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of an aligned table. :param cells: printable texts."""
    from vmpin.cli.table_layout import blocks_of, lines_of
    rows = [columns, *cells]
    (block,) = blocks_of(rows, 0)
    return ((" " * block.gap).join(line).rstrip() for lines in lines_of(rows, block) for line in lines)


#: A line, as texts with their styles.
Line = Sequence[tuple[str, str]]


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
    """A page: rendered at a terminal, as it is written in a pipe."""
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown
    Console().print(Markdown(text))
