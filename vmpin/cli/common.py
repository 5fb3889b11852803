"""Shared by the verbs' parsers: common flags and options, the configuration, exit codes that are answers.

What stays out: requests to the watcher (control_client) and printing (output).
"""

import argparse
import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vmpin.cli.cluster.plugin import about_this_node, named
from vmpin.config import loading as configuration
from vmpin.config.settings import Config
from vmpin.errors import ConfigError, UsageError, VmpinError

#: Verb parsers are added to this.
Verbs = Any


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """As wide as the terminal, as shutil finds it: argparse makes one for every option that it is given, and would
    load shutil and all its compressors for the first."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


@functools.cache
def _columns() -> int:
    """The width of the terminal, as shutil.get_terminal_size has it."""
    try:
        columns = int(os.environ.get("COLUMNS", 0))
    except ValueError:
        columns = 0
    if columns <= 0:
        try:
            columns = os.get_terminal_size(1).columns
        except OSError:
            columns = 0
    return columns or 80


def verb(verbs: Verbs, name: str, summary: str, run: Callable[[argparse.Namespace], int], *, about: str = "",
         epilog: str = "") -> argparse.ArgumentParser:
    """A verb's parser. The flags --config and --set may follow the verb as well.

    :param run: carries the verb out, and returns its exit code.
    """
    made: argparse.ArgumentParser = verbs.add_parser(
        name, help=summary, description=about or f"{summary[0].upper()}{summary[1:]}.", epilog=named(epilog),
        formatter_class=HelpFormatter)
    made.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    made.add_argument("--set", metavar="KEY=VALUE", action="append", dest="set_here", default=[],
                      help=argparse.SUPPRESS)
    made.set_defaults(run=run)
    return made


def load_config(args: argparse.Namespace) -> Config:
    """The effective configuration. :raises ConfigError:"""
    flags = {}
    for text in [*args.set, *args.set_here]:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: is no KEY=VALUE", "e.g. --set node.shared_pool=0-1")
        flags[key] = value
    return configuration.load(None if args.config is None else Path(args.config), os.environ, flags)


def directory(text: str) -> Path:
    """An option's directory, absolute. With `..` in it links are resolved: abspath() would reduce `link/..` to the
    directory of the link. :raises UsageError:"""
    if not text:
        raise UsageError("an empty path names no directory", "is a variable unset?")
    return Path(os.path.realpath(text) if ".." in Path(text).parts else os.path.abspath(text))


def node_root(text: str) -> Path:
    """The mount of the node's file system. A missing or empty one would look like a node without any configuration.
    :raises UsageError:"""
    found = directory(text)
    try:
        if os.listdir(found):
            return found
        why = "is empty"
    except OSError as err:
        why = err.strerror or str(err)
    raise UsageError(f"--root {text}: {why}", "give the directory at which the node's file system is mounted")


def new_file(text: str) -> str:
    """An option's output file; Path() would drop the slash of a directory's name. :raises UsageError:"""
    if os.path.basename(text) in ("", ".", "..") or (text != "-" and os.path.isdir(text)):
        raise UsageError(f"{text!r} names no file to write", "it is empty, or a directory's name")
    return text


def sandbox_argument(parser: argparse.ArgumentParser, what: str, optional: bool = True) -> None:
    """The argument SANDBOX."""
    parser.add_argument("sandbox", nargs="?" if optional else None, metavar="SANDBOX", help=about_this_node(
        f"{what}: POD, NAMESPACE/POD, or the first digits of its id"))


def namespace_flag(parser: argparse.ArgumentParser) -> None:
    """The option -n of a verb with the argument SANDBOX."""
    parser.add_argument("-n", "--namespace", metavar="NAMESPACE", default="",
                        help=about_this_node("the namespace of the pod"))


def direct_flag(parser: argparse.ArgumentParser) -> None:
    """The flag --direct, for verbs that work without the watcher."""
    parser.add_argument("--direct", action="store_true", help=about_this_node(
        "read the node in this process instead of asking the watcher, as if no watcher ran"))


def output_flag(parser: argparse.ArgumentParser, choices: Sequence[str]) -> None:
    parser.add_argument("-o", "--output", choices=choices, default=choices[0], metavar="FORMAT",
                        help=f"{', '.join(choices)} (default: {choices[0]})")


@contextlib.contextmanager
def answering(unanswered: type[VmpinError]) -> Iterator[None]:
    """Decorates a verb whose exit code 1 is an answer: errors that have this code elsewhere become `unanswered`."""
    try:
        yield
    except (ConfigError, UsageError, BrokenPipeError):
        raise
    except (VmpinError, OSError) as err:
        raise unanswered(str(err), getattr(err, "hint", "")) from err
