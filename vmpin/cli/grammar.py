"""The command line as plain values, read from its parsers: what help has is then also in the hint for a wrong option.

Pure but for reading argparse's parsers, whose lists of actions have no public names.
"""

import argparse
from typing import NamedTuple


class Option(NamedTuple):
    """An option that help shows. `metavar` is "" for a flag without a value."""

    names: tuple[str, ...]
    metavar: str
    choices: tuple[str, ...]
    help: str
    #: False where the value may be left out.
    needs_value: bool = True
    repeatable: bool = False


class Argument(NamedTuple):
    """A positional argument."""

    metavar: str
    choices: tuple[str, ...]
    help: str
    optional: bool
    many: bool


class OptionGroup(NamedTuple):
    """The options under one heading of the help."""

    title: str
    about: str
    options: tuple[Option, ...]


class Command(NamedTuple):
    """A verb, or the whole program, whose `commands` are the verbs."""

    name: str
    summary: str
    usage: str
    about: str
    epilog: str
    groups: tuple[OptionGroup, ...]
    arguments: tuple[Argument, ...]
    commands: tuple["Command", ...]

    @property
    def options(self) -> tuple[Option, ...]:
        return tuple(option for group in self.groups for option in group.options)


def read(parser: argparse.ArgumentParser, name: str, summary: str = "") -> Command:
    """The grammar of a parser, without what its help hides. :param summary: its line in the list of commands."""
    verbs = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    commands = [read(each.choices[one.dest], one.dest, one.help or "") for each in verbs
                for one in each._choices_actions]
    shown = [each for each in parser._actions if each.help != argparse.SUPPRESS and each not in verbs]
    groups = [OptionGroup(group.title or "", group.description or "", tuple(
        _option(parser, each) for each in group._group_actions if each.option_strings and each in shown))
        for group in parser._action_groups]
    return Command(name, summary, parser.format_usage().removeprefix("usage: ").strip(), parser.description or "",
                   parser.epilog or "", tuple(group for group in groups if group.options),
                   tuple(_argument(parser, each) for each in shown if not each.option_strings), tuple(commands))


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> Option:
    metavar = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    return Option(tuple(action.option_strings), metavar, _choices(action), _help(parser, action),
                  action.nargs not in ("?", "*"), isinstance(action, argparse._AppendAction | argparse._ExtendAction))


def _argument(parser: argparse.ArgumentParser, action: argparse.Action) -> Argument:
    return Argument(str(action.metavar or action.dest.upper()), _choices(action), _help(parser, action),
                    action.nargs in ("?", "*"), action.nargs in ("*", "+"))


def _choices(action: argparse.Action) -> tuple[str, ...]:
    return tuple(map(str, action.choices or ()))


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    values = {**vars(action), "prog": parser.prog}
    return (action.help or "") % values
