"""Manual pages in roff, of the same grammar as the help: vmpin.1, and one for each verb. Pure."""

import re

from vmpin.cli.grammar import Command, Option
from vmpin.cli.help_layout import laid_out

#: What a page of 78 columns leaves to text, as man and mandoc indent it.
_WIDTH = 70


def pages(program: Command, version: str) -> dict[str, str]:
    """Return every manual page by its file name."""
    return {"vmpin.1": _page(program, program, version),
            **{f"vmpin-{each.name}.1": _page(each, program, version) for each in program.commands}}


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
    for each in command.commands:
        parts += [".TP", rf"\fB{escaped(each.name)}\fR", _line(each.summary)]
        parts += [line for option in ([] if whole else each.options) for line in _option(option)]
    if command.arguments:
        parts += [".SH ARGUMENTS"]
        for argument in command.arguments:
            parts += [".TP", rf"\fI{escaped(argument.metavar)}\fR", _line(argument.help)]
    for group in command.groups:
        parts += [f".SH {escaped(group.title.upper())}", *_prose(group.about),
                  *(line for option in group.options for line in _option(option))]
    if command.epilog:
        parts += [".SH NOTES", *_literal(command.epilog)]
    others = ["vmpin"] if not whole else [f"vmpin-{each.name}" for each in command.commands]
    options = "" if whole else r"The options of \fBvmpin\fR(1), \-\-config and \-\-set, may follow the command. "
    parts += [".SH SEE ALSO", options + r"\fBvmpin help exit\-codes\fR has the exit codes.", ".PP",
              ",\n".join(rf"\fB{escaped(each)}\fR(1)" for each in others)]
    return "\n".join(part for part in parts if part) + "\n"


def _synopsis(command: Command, whole: bool) -> str:
    """Return the synopsis in one line, which the reader's terminal breaks."""
    usage = re.sub(r"\s+", " ", command.usage)
    actions = "" if whole else "|".join(each.name for each in command.commands)
    return f"vmpin {command.name} {actions} ..." if actions else usage


def _option(option: Option) -> list[str]:
    value = rf" \fI{escaped(option.metavar)}\fR" if option.metavar else ""
    if option.metavar and not option.needs_value:
        value = rf" [{value.strip()}]"
    names = ", ".join(rf"\fB{escaped(name)}\fR" for name in option.names)
    return [".TP", names + value, _line(option.help)]


def _prose(text: str) -> list[str]:
    paragraphs = [each for each in re.split(r"\n\s*\n", text.strip()) if each]
    return [line for at, each in enumerate(paragraphs) for line in ([".PP"] * (at > 0) + [_line(each)])]


def _literal(text: str) -> list[str]:
    """Return a text as literal lines, as the help has them."""
    return [".nf", *(escaped(line) or ".sp" for line in laid_out(text, _WIDTH).splitlines()), ".fi"]


def _line(text: str) -> str:
    """Text of which roff fills the lines."""
    return "\n".join(escaped(line) for line in text.splitlines()) or r"\&"


def escaped(text: str) -> str:
    """Text as roff shows it: no escapes, no requests, and hyphens that can be typed again."""
    found = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
    found = found.replace("~", r"\(ti").replace("^", r"\(ha")
    return rf"\&{found}" if found.lstrip().startswith((".", "\\(aq")) else found
