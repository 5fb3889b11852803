"""A sheet as lines of a screen, and the changed ones of them as bytes for the terminal, with rich."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.color import ColorSystem
from rich.console import Console
from rich.text import Text

from vmpin.cli.output import narrowed
from vmpin.features.isolation.verbs.top.sheet import Column, Row, Sheet
from vmpin.features.isolation.verbs.top.view_state import Line, State, View

_GAP = 2
#: A screen of so many columns has room for long names.
_WIDE = 132
_SYSTEMS = {"standard": ColorSystem.STANDARD, "256": ColorSystem.EIGHT_BIT, "truecolor": ColorSystem.TRUECOLOR}
#: Before each row: ">" is the selected one, "!" needs attention.
_MARKS = 2


def laid_out(sheet: Sheet, state: State, width: int, height: int) -> list[Line]:
    """Lay out all lines of the screen, none wider than it. :param state: from `with_selection`, with this height."""
    lines = [*sheet.head]
    rows = sheet.height(height)
    if state.page.view is View.TEXT:
        lines += sheet.text[state.page.top:state.page.top + rows]
    else:
        lines += _table(sheet, state, width, rows)
    lines = [cut(line, width) for line in lines[:height - 1]]
    lines += [()] * (height - 1 - len(lines))
    return [*lines, cut(((_key_line(sheet, state.page.top, rows, width), "reverse"),), width)]


def _key_line(sheet: Sheet, top: int, height: int, width: int) -> str:
    """The keys, and which rows are shown where these are not all."""
    count = len(sheet.ids)
    place = f" {top + 1}-{min(top + height, count)} of {count}" if count > height else ""
    items = sheet.keys.split("  ")
    while cell_len("  ".join(items)) + len(place) > width and len(items) > 2:
        del items[-2]  # the last ones are help and quit
    return set_cell_size("  ".join(items), max(width - len(place), 0)) + place


def wrapped(lines: Iterable[Line], width: int) -> tuple[Line, ...]:
    """Lines no wider than the screen, broken between words."""
    console = Console(width=max(width, 1), no_color=True)
    broken: list[Line] = []
    for line in lines:
        parts = Text.assemble(*line).wrap(console, max(width, 1))
        broken += [tuple((segment.text, str(segment.style or "")) for segment in part.render(console) if segment.text)
                  for part in parts] if line else [()]
    return tuple(broken)


def _table(sheet: Sheet, state: State, width: int, height: int) -> list[Line]:
    shown = [number for number, column in enumerate(sheet.columns) if width >= column.screen]
    columns = [sheet.columns[number] for number in shown]
    widths = column_widths(columns, [[row.cells[number] for number in shown] for row in sheet.rows], width)
    lines: list[Line] = [((" " * _MARKS + _cells([column.title for column in columns], columns, widths), "bold"),)]
    if not sheet.rows and sheet.empty:
        lines.append((("  " + sheet.empty, ""),))
    page = state.page
    for row in sheet.rows[page.top:page.top + height]:
        lines.append(_row(row, row.id == page.selected, columns, shown, widths))
    return lines


def _row(row: Row, selected: bool, columns: Sequence[Column], shown: Sequence[int], widths: Sequence[int]) -> Line:
    marks = ">"[:selected].ljust(1) + "!"[:row.marked].ljust(1)
    if selected:
        return ((marks + _cells([row.cells[number] for number in shown], columns, widths), "reverse"),)
    parts: list[tuple[str, str]] = [(marks, "yellow" if row.marked else "")]
    for at, number in enumerate(shown):
        style = row.styles[number] if number < len(row.styles) else ""
        parts.append((_cell(row.cells[number], columns[at], widths[at]) + " " * _GAP * (at < len(shown) - 1), style))
    return tuple(parts)


def column_widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Make columns as wide as their cells need, within their bounds; where that is too much, those without a bound
    are made narrower first, the widest before the others."""
    room = max(width - _MARKS - _GAP * (len(columns) - 1), 0)
    times = 2 if width >= _WIDE else 1
    widths = []
    for at, column in enumerate(columns):
        need = max([column.least, cell_len(column.title), *(cell_len(row[at]) for row in rows)])
        widths.append(min(need, column.most * times or need, max(room, 1)))
    widths = narrowed(widths, [size if column.most else 1 for size, column in zip(widths, columns, strict=True)], room)
    return narrowed(widths, [1] * len(columns), room)


def _cells(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    return (" " * _GAP).join(_cell(cell, column, width)
                             for cell, column, width in zip(cells, columns, widths, strict=True))


def _cell(text: str, column: Column, width: int) -> str:
    size = cell_len(text)
    if size > width:
        text = _shortened(text, width)
        size = cell_len(text)
    return " " * (width - size) + text if column.right else text + " " * (width - size)


def _shortened(text: str, width: int) -> str:
    """Cut the middle out of a text: the names of a Deployment's pods differ at their end."""
    if width < 12:
        return set_cell_size(text, max(width - 1, 0)) + "…"[:width]
    end = width // 3
    tail = text[-end:]
    while cell_len(tail) > end:
        tail = tail[1:]
    return set_cell_size(text, width - 1 - cell_len(tail)) + "…" + tail


def cut(line: Line, width: int) -> Line:
    """The part of a line that fits, with … for the rest."""
    if sum(cell_len(text) for text, _ in line) <= width:
        return line
    kept: list[tuple[str, str]] = []
    left = width - 1
    for text, style in line:
        size = cell_len(text)
        if size > left:
            return (*kept, (set_cell_size(text, left) + "…", style))
        kept.append((text, style))
        left -= size
    return tuple(kept)


class ScreenWriter:
    """Turns the lines of a screen into bytes: those of the lines that differ from what is there already.

    :param console: decides on colours, as the terminal and NO_COLOR have them.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._colours = _SYSTEMS.get(console.color_system or "")
        self._there: list[Line] = []

    def forget(self) -> None:
        """The screen may show anything."""
        self._there = []

    def update(self, lines: Sequence[Line]) -> str:
        parts = [] if len(self._there) == len(lines) else ["\x1b[H\x1b[2J"]
        shown = self._there if not parts else [()] * len(lines)
        for number, (line, before) in enumerate(zip(lines, shown, strict=True)):
            if line != before:
                parts.append(f"\x1b[{number + 1};1H{self._ansi(line)}\x1b[K")
        self._there = list(lines)
        return "".join(parts)

    def _ansi(self, line: Line) -> str:
        parts = []
        for text, name in line:
            style = self._console.get_style(name) if name else None
            if style is not None and self._console.no_color:
                style = style.without_color
            parts.append(text if style is None else style.render(text, color_system=self._colours))
        return "".join(parts)
