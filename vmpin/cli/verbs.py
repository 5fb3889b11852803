"""The verbs of the command line, their parsers, and the options, the configuration and the exit codes that they share.

A verb's module is imported when it is used.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vmpin.bounded import parse_real, parse_whole
from vmpin.cli.this_program import about_this_node, named, program, version_line
from vmpin.config import loading as configuration
from vmpin.config.settings import Config
from vmpin.errors import ConfigError, UsageError, VmpinError
from vmpin.feature import features, present

if TYPE_CHECKING:
    from vmpin.cli.grammar import Command

#: In the order in which help shows them; each is in a module of its name.
VERBS = ("watch", "status", "verify", "plan", "repin", "unpin", "config", "help")

#: Words of scripts outside of this project, and what they stand for. No text names them.
_ALIASES = {"explain": ("status", "--explain"), "reconcile": ("repin",), "version": ("--version",)}

#: What to do about an error of the system that no command expects.
_REMEDIES = {errno.EACCES: "use root", errno.EPERM: "use root", errno.ENOSPC: "free space there",
             errno.EDQUOT: "free space there", errno.EMFILE: "raise its limit of open files (ulimit -n)",
             errno.ENFILE: "close files: the machine has no more (sysctl fs.file-max)",
             errno.ENOMEM: "free memory", errno.EROFS: "mount it writable, or name another place"}

#: What verbs' parsers are added to: argparse's type for it is not public.
Verbs = Any

#: Paragraphs of help are no wider, however wide the terminal is.
_WIDEST = 118

_ABOUT = """\
Keeps VM sandboxes (Kata Containers) on the CPUs that the kubelet's static CPU manager gave their containers.
"""

_EXAMPLES = """\
a first look, on any node:
  vmpin status               the sandboxes, and where their threads may run
  vmpin plan                 the changes that vmpin would make, without making them
in service:
  vmpin verify               exit code 1 if a thread is misplaced, or CPUs collide; 3 if the check is impossible
  vmpin unpin SANDBOX        restore the masks that its threads had before vmpin (--every: each sandbox's)
  vmpin repin SANDBOX        the opposite: place its threads again

exit codes: 0 done, 1 a finding or a failure, 2 the command or a file cannot be used, 3 (verify) the check was
impossible; `vmpin help exit-codes` has them by command
"""


def named_verb(arguments: Sequence[str]) -> str | None:
    """The first argument that is no option and no option's value; None for none, and after --help or --version."""
    return None if (at := _place_of_verb(arguments)) is None else arguments[at]


def _place_of_verb(arguments: Sequence[str]) -> int | None:
    at = 0
    while at < len(arguments):
        if not arguments[at].startswith(("--config=", "--set=")) and arguments[at] not in ("--config", "--set"):
            return None if arguments[at].startswith("-") else at
        at += 1 if "=" in arguments[at] else 2
    return None


def without_alias(arguments: Sequence[str]) -> list[str]:
    """The command line with the verb and option for a word that stands for them."""
    at = _place_of_verb(arguments)
    return [*arguments] if at is None else [
        *arguments[:at], *_ALIASES.get(arguments[at], (arguments[at],)), *arguments[at + 1:]]


def verb_modules() -> dict[str, str]:
    """The module of each verb, those of features among them."""
    return {verb: f"vmpin.cli.{verb.replace('-', '_')}" for verb in VERBS} | {
        verb: f"vmpin.features.{feature.name}.{module}" for feature in features()
        for verb, module in feature.verbs.items()}


def verbs_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of all verbs; of that alone with which the arguments begin: a short command starts in half the time
    without the others' modules."""
    parser, verbs = program_parser()
    verb, modules = named_verb(arguments), verb_modules()
    wanted = [*dict.fromkeys(modules.values())] if verb is None else [modules[verb]]
    for module in wanted if arguments[:1] != ["--version"] else ():
        importlib.import_module(module).add_parser(verbs)
    for options in present(feature.options for feature in features()):
        for verb_name, verb_parser in {"": parser, **verbs.choices}.items():
            options(verb_name, verb_parser)
    return parser


def program_parser() -> tuple[argparse.ArgumentParser, Verbs]:
    """The program's parser without verbs, and to what they are added."""
    name = program()
    # For each of its own texts argparse searches the disk for a catalog of translations; vmpin has none.
    vars(argparse)["_"] = lambda text: text
    epilog = _EXAMPLES
    for text, longer in (example for feature in features() for example in feature.examples.items()):
        epilog = epilog.replace(text, longer, 1)
    parser = Parser(name, description=_ABOUT, epilog=epilog, formatter_class=HelpFormatter, add_help=False)
    parser.add_argument("-h", "--help", action=HelpFlag, nargs=0, help="show this help message and exit")
    parser.add_argument("--version", action=VersionFlag, nargs=0, help="print the version and exit")
    parser.add_argument("--config", metavar="FILE", help="configuration file (default: /etc/vmpin/vmpin.yaml if it "
                        "exists)")
    completed_by(parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[],
        help="set a configuration key, e.g. --set node.shared_pool=0-1 (repeatable)"), keys_to_set)
    parser.set_defaults(set_here=[])
    verbs = parser.add_subparsers(metavar="COMMAND", required=True, title="commands", prog=name)
    return parser, verbs


def grammar(arguments: Sequence[str] = ()) -> Command:
    """Describe what the parsers take: all of it, or for a command line what concerns its verb."""
    from vmpin.cli.grammar import read
    return read(verbs_parser(arguments), "vmpin")


def did_you_mean(text: str, names: Iterable[str], otherwise: str) -> str:
    """A hint for a name that does not exist."""
    import difflib
    near = difflib.get_close_matches(text, list(dict.fromkeys(names)), n=2)
    return f"did you mean {' or '.join(near)}? {otherwise}" if near else otherwise


class Parser(argparse.ArgumentParser):
    """A parser whose help is an error where it cannot be written; argparse ignores that."""

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file)


class _NoColours:
    """argparse's colours, by the names of what they colour."""

    def __getattr__(self, name: str) -> str:
        return ""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """As wide as the terminal, as shutil finds it: argparse makes one for every option that it is given, and would
    load shutil and all its compressors for the first. Help has no colours: for them argparse of Python 3.14 would load
    dataclasses and inspect at each start, 13 ms of CPU time."""

    _theme, _decolor = _NoColours(), str

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=terminal_columns() - 2)

    def _set_color(self, *_: object, **__: object) -> None:
        """Called by argparse for each formatter."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        from vmpin.domain.wrapping import filled_help

        return "".join(f"{indent}{line}\n" if line else "\n"
                       for line in filled_help(named(text), min(width, _WIDEST) - len(indent)).splitlines())


@functools.cache
def terminal_columns() -> int:
    """The width of the terminal, as shutil.get_terminal_size has it."""
    columns = parse_whole(os.environ.get("COLUMNS", ""), 10_000) or 0
    if not columns:
        try:
            columns = os.get_terminal_size(1).columns
        except OSError:
            columns = 0
    return columns or 80


def verb(verbs: Verbs, name: str, summary: str, run: Callable[[argparse.Namespace], int], *, about: str = "",
         epilog: str = "") -> argparse.ArgumentParser:
    """Add a verb's parser. :param run: carries the verb out, and returns its exit code."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, help=summary, description=about or f"{summary[0].upper()}{summary[1:]}.", epilog=epilog,
        formatter_class=HelpFormatter)
    global_options(parser)
    parser.set_defaults(run=run, run_instead=())
    return parser


def global_options(parser: argparse.ArgumentParser) -> None:
    """The program's own options, which may follow a verb as well; only the program's help shows them."""
    parser.add_argument("--config", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    completed_by(parser.add_argument("--set", action="append", dest="set_here", default=argparse.SUPPRESS,
                                     help=argparse.SUPPRESS),
                 keys_to_set)
    parser.add_argument("--version", action=VersionFlag, nargs=0, help=argparse.SUPPRESS)


def completed_by(action: argparse.Action, words: Callable[[], Iterable[str]]) -> None:
    """Have a shell complete an argument's values by these words; the metavar decides for others."""
    vars(action)["completer"] = lambda **_: words()


def keys_to_set() -> Iterable[str]:
    """Yield the keys of the configuration, as --set takes them."""
    from vmpin.config.settings import BY_KEY
    return (f"{key}=" for key in BY_KEY)


class HelpFlag(argparse.Action):
    """The option --help of the program. It lists apart what services and builds run, and leaves out the verbs of a
    feature that is switched off."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: object,
                 **__: object) -> None:
        apart, left_out = set[str](), set[str]()
        config = None
        with contextlib.suppress(VmpinError, OSError):  # the list of commands needs no valid configuration
            config = configuration.load_usable(_file(namespace), os.environ, _flags(namespace))
        for feature in features():
            apart.update(feature.service_verbs)
            if config is not None and feature.lists_verbs is not None and not feature.lists_verbs(config):
                left_out.update(feature.verbs)
        # argparse has no other way to order its list of verbs.
        (verbs,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        listed = verbs._choices_actions
        group = parser.add_argument_group("run by services and builds")
        group._group_actions += [choice for choice in listed if choice.dest in apart]
        listed[:] = [choice for choice in listed if choice.dest not in apart | left_out]
        parser.print_help()
        parser.exit()


class VersionFlag(argparse.Action):
    """The option --version."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: object,
                 **__: object) -> None:
        print(version_line())
        parser.exit()


def load_config(args: argparse.Namespace) -> Config:
    """The effective configuration. :raises UsageError: for a --set without a value. :raises ConfigError: as `load`."""
    return configuration.load(_file(args), os.environ, _flags(args))


def usable_config(args: argparse.Namespace) -> Config:
    """The configuration of a verb that sets no masks by it: a fault in the file or the environment is printed, and is
    in `errors`, but does not stop the verb. The running watcher's own values are used then, without one the valid
    rest. :raises UsageError: for a --set without a value. :raises ConfigError: for a flag."""
    config = configuration.load_usable(_file(args), os.environ, _flags(args))
    if not config.errors:
        return config
    from vmpin.cli.control_client import watcher_values
    of_watcher = watcher_values(config)
    if not getattr(args, "faults_shown", False):  # --watch comes here again and again
        args.faults_shown = True
        lines = [line for err in config.errors for line in (f"vmpin: {err}", *([f"  {err.hint}"] if err.hint else []))]
        rest = ("the running watcher's configuration is used" if of_watcher else
                f"the rest of the configuration is used, with paths.run {config.paths.run}")
        with contextlib.suppress(BrokenPipeError):
            print(*lines, f"vmpin: going on without that: {rest}", sep="\n", file=sys.stderr, flush=True)
    return configuration.of_watcher(config, of_watcher) if of_watcher else config


def _file(args: argparse.Namespace) -> Path | None:
    return None if args.config is None else Path(args.config)


def _flags(args: argparse.Namespace) -> dict[str, str]:
    """The keys that --set gives. :raises UsageError: for one without a value."""
    flags = {}
    for text in [*args.set, *args.set_here]:
        key, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set {text}: is not KEY=VALUE", "e.g. --set node.shared_pool=0-1")
        flags[key] = value
    return flags


def sandbox_argument(parser: argparse.ArgumentParser, use: str) -> None:
    """The argument SANDBOX, which may be left out. :param use: how the help describes what the verb does with it."""
    parser.add_argument("sandbox", nargs="?", metavar="SANDBOX", help=about_this_node(
        f"{use}: POD, NAMESPACE/POD, or the first digits of its id"))


def namespace_flag(parser: argparse.ArgumentParser, only: bool = False) -> None:
    """The option -n of a verb with the argument SANDBOX. :param only: of one that shows the pods of a namespace."""
    parser.add_argument("-n", "--namespace", metavar="NAMESPACE", default="", help=(
        "only the pods of this namespace" if only else about_this_node("the namespace of the pod")))


def direct_flag(parser: argparse.ArgumentParser) -> None:
    """The flag --direct, for verbs that work without the watcher."""
    parser.add_argument("--direct", action="store_true", help=about_this_node(
        "read the node in this process instead of asking the watcher, as if no watcher ran"))


def watch_flag(parser: argparse.ArgumentParser) -> None:
    """The option --watch, of verbs that read (`repetition` carries it out)."""
    parser.add_argument("-w", "--watch", nargs="?", type=seconds_from(0.1), const=2.0, metavar="SECONDS",
                        help=about_this_node("show it again every SECONDS (default: 2), until Ctrl-C"))


def seconds_from(least: float) -> Callable[[str], float]:
    """The parser of an option's seconds, at most a day."""
    def parse(text: str) -> float:
        if (seconds := parse_real(text, 86400, least)) is not None:
            return seconds
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds between {least:g} and 86400 (a day)")
    return parse


def without_seconds(arguments: Sequence[str]) -> list[str]:
    """The command line with `--watch=2` for a --watch that another argument than a number follows: argparse would take
    the POD of `status --watch POD` for the SECONDS."""
    clear = list(arguments)
    for at, (word, after) in enumerate(pairwise(arguments)):
        if word in ("-w", "--watch") and not after.startswith("-") and not after.replace(".", "", 1).isdigit():
            clear[at] = "--watch=2"
    return clear


def output_flag(parser: argparse.ArgumentParser, choices: Sequence[str]) -> None:
    parser.add_argument("-o", "--output", choices=choices, default=choices[0], metavar="FORMAT",
                        help=f"{', '.join(choices)} (default: {choices[0]})"
                        + "; its members: vmpin help json" * ("json" in choices))


@contextlib.contextmanager
def answering(unanswered: type[VmpinError]) -> Iterator[None]:
    """Decorates a verb whose exit code 1 is an answer: errors that have this code elsewhere become `unanswered`, also
    those of its output."""
    try:
        yield
        sys.stdout.flush()
    except (ConfigError, UsageError, BrokenPipeError):
        raise
    except VmpinError as err:
        raise unanswered(str(err), err.hint) from err
    except OSError as err:
        raise unanswered(*explained(err)) from err


def explained(err: OSError) -> tuple[str, str]:
    """An error of the system that no command expects, as text; and what to do about it, "" if that is not known."""
    where = f"{os.fsdecode(err.filename)}: " if isinstance(err.filename, str | bytes) else ""
    return f"{where}{err.strerror or err}", _REMEDIES.get(err.errno or 0, "")
