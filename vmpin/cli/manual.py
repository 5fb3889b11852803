"""The command line as plain values, read from its parsers, and its manual pages in roff: vmpin.1, and a page a verb.

Pure but for reading argparse's parsers, whose lists of actions have no public names.
"""

from __future__ import annotations

import argparse
import re
from typing import NamedTuple

from vmpin.domain.wrapping import filled_help


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


#: What a page of 78 columns leaves to text, as man and mandoc indent it.
_WIDTH = 70


def pages(program: Command, version: str) -> dict[str, str]:
    """Return every manual page by its file name. The parts of a verb that have examples have a page, too."""
    parts = (part._replace(name=f"{command.name}-{part.name}") for command in program.commands
             for part in command.commands if part.epilog)
    return {"vmpin.1": _page(program, program, version),
            **{f"vmpin-{command.name}.1": _page(command, program, version) for command in (*program.commands, *parts)}}


def _page(command: Command, program: Command, version: str) -> str:
    whole = command is program
    name = "vmpin" if whole else f"vmpin-{command.name}"
    summary = "keeps VM sandboxes on the CPUs of their containers" if whole else command.summary
    parts = [f'.TH "{name.upper()}" "1" "" "vmpin {escaped(version)}" "vmpin"',
             ".SH NAME", rf"{escaped(name)} \- {escaped(summary)}",
             ".SH SYNOPSIS", _line(_synopsis(command, whole)),
             ".SH DESCRIPTION", *_prose(command.about)]
    if command.commands:
        parts += [".SH COMMANDS"]
    for subcommand in command.commands:
        parts += [".TP", rf"\fB{escaped(subcommand.name)}\fR", _line(subcommand.summary)]
        parts += [line for option in ([] if whole else subcommand.options) for line in _lines(option)]
    if command.arguments:
        parts += [".SH ARGUMENTS", *(line for argument in command.arguments for line in _lines(argument))]
    for group in command.groups:
        parts += [f".SH {escaped(group.title.upper())}", *_prose(group.about),
                  *(line for option in group.options for line in _lines(option))]
    if command.epilog:
        parts += [".SH NOTES", *_literal(command.epilog)]
    others = [f"vmpin-{verb.name}" for verb in command.commands] if whole else ["vmpin"]
    options = "" if whole else r"The options of \fBvmpin\fR(1), \-\-config and \-\-set, may follow the command. "
    parts += [".SH SEE ALSO", options + r"\fBvmpin help exit\-codes\fR has the exit codes.", ".PP",
              ",\n".join(rf"\fB{escaped(page)}\fR(1)" for page in others)]
    return "\n".join(part for part in parts if part) + "\n"


def _synopsis(command: Command, whole: bool) -> str:
    """Return the synopsis in one line, which the reader's terminal breaks."""
    usage = re.sub(r"\s+", " ", command.usage)
    actions = "" if whole else "|".join(action.name for action in command.commands)
    return f"vmpin {command.name} {actions} ..." if actions else usage


def _lines(parameter: Parameter) -> list[str]:
    names = ", ".join(rf"\fB{escaped(name)}\fR" for name in parameter.names)
    value = rf"\fI{escaped(parameter.metavar)}\fR" if parameter.metavar else ""
    if value and names:
        value = f" [{value}]" if parameter.optional else f" {value}"
    return [".TP", names + value, _line(parameter.help)]


def _prose(text: str) -> list[str]:
    paragraphs = [paragraph for paragraph in re.split(r"\n\s*\n", text.strip()) if paragraph]
    return [line for paragraph in paragraphs for line in (".PP", _line(paragraph))][1:]


def _literal(text: str) -> list[str]:
    """Return a text as literal lines, as the help has them."""
    return [".nf", *(escaped(line) or ".sp" for line in filled_help(text, _WIDTH).splitlines()), ".fi"]


def _line(text: str) -> str:
    """Text of which roff fills the lines."""
    return "\n".join(escaped(line) for line in text.splitlines()) or r"\&"


def escaped(text: str) -> str:
    """Text as roff shows it: no escapes, no requests, and hyphens that can be typed again."""
    safe = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
    safe = safe.replace("~", r"\(ti").replace("^", r"\(ha")
    return rf"\&{safe}" if safe.lstrip().startswith((".", "\\(aq")) else safe
