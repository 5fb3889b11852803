"""A map as a command prints it, or writes it to --file: as text, SVG, HTML or JSON."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vmpin.cli.output import Line, plain_lines, print_styled
from vmpin.cli.verbs import write_page
from vmpin.domain.terminal import printable

if TYPE_CHECKING:
    from vmpin.reports.map.node_map import Picture


def show(picture: Picture, args: argparse.Namespace) -> None:
    """Print it, or write it to --file. :raises UsageError: where it cannot be written."""
    if args.output == "text":
        from vmpin.reports.map.text import lines
        show_lines(lines(picture, width(args)), args)
    elif args.output == "json":
        from vmpin.reports.map.map_document import map_document
        _write(json.dumps(map_document(picture), indent=None if args.file else 2) + "\n", args)
    else:
        from vmpin.reports.map import svg
        _write(svg.svg(picture) if args.output == "svg" else svg.html(picture, args.watch), args)


def show_lines(lines: Iterable[Line], args: argparse.Namespace) -> None:
    """Print lines, or write them to --file, as `show` does."""
    made = [[(printable(text), style) for text, style in line] for line in lines]
    if args.file is None:
        print_styled(made)
    else:
        _write("".join(f"{line}\n" for line in plain_lines(made)), args)


def width(args: argparse.Namespace) -> int:
    return 110 if args.file else shutil.get_terminal_size((110, 24)).columns


def _write(text: str, args: argparse.Namespace) -> None:
    if args.file is None:
        sys.stdout.write(text)
        return
    write_page(args.file, text, args.watch)
