"""The command line as plain values, read from argparse's parsers, whose lists of actions have no public names."""

from __future__ import annotations

import argparse

from vmpin.named_tuple import NamedTuple


class Parameter(NamedTuple):
    """An option that help shows, or a positional argument, which has no `names`. `metavar` is "" for a flag without a
    value. `optional`: the value of an option, or the argument, may be left out."""

    names: tuple[str, ...]
    metavar: str
    choices: tuple[str, ...]
    help: str
    optional: bool


class OptionGroup(NamedTuple):
    """The options under one heading of the help."""

    title: str
    about: str
    options: tuple[Parameter, ...]


class Command(NamedTuple):
    """A verb, or the whole program, whose `commands` are the verbs."""

    name: str
    summary: str
    usage: str
    about: str
    epilog: str
    groups: tuple[OptionGroup, ...]
    arguments: tuple[Parameter, ...]
    commands: tuple[Command, ...]

    @property
    def options(self) -> tuple[Parameter, ...]:
        return tuple(option for group in self.groups for option in group.options)


def read(parser: argparse.ArgumentParser, name: str, summary: str = "") -> Command:
    """Read what a parser takes, without what its help hides. :param summary: its line in the list of commands."""
    verbs = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    commands = [read(subparsers.choices[choice.dest], choice.dest, choice.help or "") for subparsers in verbs
                for choice in subparsers._choices_actions]
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS and action not in verbs]
    groups = [OptionGroup(group.title or "", group.description or "", tuple(
        _parameter(parser, action) for action in group._group_actions if action.option_strings and action in shown))
        for group in parser._action_groups]
    return Command(name, summary, parser.format_usage().removeprefix("usage: ").strip(), parser.description or "",
                   parser.epilog or "", tuple(group for group in groups if group.options),
                   tuple(_parameter(parser, action) for action in shown if not action.option_strings), tuple(commands))


def _parameter(parser: argparse.ArgumentParser, action: argparse.Action) -> Parameter:
    metavar = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    text = (action.help or "") % {**vars(action), "prog": parser.prog}
    return Parameter(tuple(action.option_strings), metavar, tuple(map(str, action.choices or ())), text,
                     action.nargs in ("?", "*"))
