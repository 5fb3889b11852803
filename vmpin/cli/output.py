"""Printing: data as JSON or YAML, tables, and styled lines, in colour at a terminal and plain in a pipe."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence

from vmpin.domain.terminal import printable

VERDICTS = {"pinned": "green", "floating": "cyan", "degraded": "yellow", "waiting": "yellow", "unmanaged": "yellow",
            "off": "dim", "yes": "green", "no": "red"}


#: Of each document that a command makes itself; counted up when a member goes away or changes its meaning. Those of
#: the watcher, doctor and audit have their own (docs/json.md).
VERSION = 1


def print_data(data: object, output: str) -> None:
    """As JSON (indented for a person) or YAML."""
    if output == "yaml":
        import yaml
        print(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), end="")
    else:
        print(json.dumps(data, indent=2 if sys.stdout.isatty() else None))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], styles: dict[str, str] | None = None) -> None:
    """Print an aligned table: in colour at a terminal, plain in a pipe.

    :param styles: by cell text, a rich style.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for line in plain_table(columns, cells):
            print(line)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in cells:
        made.add_row(*(Text(cell, style=(styles or {}).get(cell, "")) for cell in row))
    Console().print(made)


def plain_table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of an aligned table. :param cells: printable texts."""
    lines = [columns, *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for row in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


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
        console.print(Text.assemble(*parts), soft_wrap=False)


def print_markdown(text: str) -> None:
    """A page: rendered at a terminal, as it is written in a pipe."""
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown
    Console().print(Markdown(text))
