"""The manual pages of the command line in roff: vmpin.1, and a page a verb."""

from __future__ import annotations

import argparse
import re

from vmpin.cli.grammar import Command, Parameter
from vmpin.cli.verbs import grammar
from vmpin.domain.wrapping import filled_help
from vmpin.errors import UsageError
from vmpin.install.own_version import installed_version

#: What a page of 78 columns leaves to text, as man and mandoc indent it.
_WIDTH = 70


def pages(program: Command, version: str) -> dict[str, str]:
    """Return every manual page by its file name. The parts of a verb that have examples have a page, too."""
    parts = (part._replace(name=f"{command.name}-{part.name}") for command in program.commands
             for part in command.commands if part.epilog)
    return {"vmpin.1": _page(program, program, version),
            **{f"vmpin-{command.name}.1": _page(command, program, version) for command in (*program.commands, *parts)}}


def print_page(args: argparse.Namespace) -> int:
    """Print the page of the command that `vmpin help --man` names, or of the program. :raises UsageError: for none."""
    texts = pages(grammar(), installed_version() or "")
    file = "vmpin.1" if args.topic is None else f"vmpin-{args.topic}.1"
    if file not in texts:
        raise UsageError(f"no command is called {args.topic!r}", "`vmpin --help` lists them")
    print(texts[file], end="")
    return 0


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
    actions = "|".join(action.name for action in command.commands)
    return usage if whole else re.sub(r"\b(ACTION|PART)\b", actions, usage)


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
