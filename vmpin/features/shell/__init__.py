"""What shells and man take of the command line: completion of a line, and manual pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmpin.feature import Feature

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable


def _take_over() -> None:
    """Complete a line for a shell, as the script of `vmpin completion` asks."""
    import os

    if "_ARGCOMPLETE" in os.environ:
        from vmpin.features.shell.verbs.completion import complete_line

        complete_line()


def _options(verb: str, parser: ArgumentParser) -> None:
    if verb == "help":
        parser.add_argument("--man", action="store_true", help="print the manual page of TOPIC, a command, or of "
                            "vmpin (`vmpin help --man status | man -l -`)")
        parser.set_defaults(run_instead=(*parser.get_default("run_instead"), _manual))


def _manual(args: Namespace) -> Callable[[Namespace], int] | None:
    if not args.man:
        return None
    from vmpin.features.shell.verbs.manual_pages import print_page

    return print_page


FEATURE = Feature(name="shell", verbs={"completion": "verbs.completion"}, take_over=_take_over,
                  options=_options)
