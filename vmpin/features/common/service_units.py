"""The command lines of services in their systemd units or OpenRC scripts: for programs that do not run, and for those
that replace theirs by a title."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from vmpin.errors import SourceError
from vmpin.host.files import Files

#: systemd's directories of units, the strongest first (systemd.unit(5)).
_PLACES = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
           "/lib/systemd/system")
_SETTING = re.compile(r"^[ \t]*(ExecStart|Environment|EnvironmentFile)[ \t]*=[ \t]*(.*)$", re.MULTILINE)
#: The specifiers of a unit's names (systemd.unit(5)).
_SPECIFIER = re.compile("%[nNp%]")
#: OpenRC's scripts, in which k3s' own installer writes its arguments as one word.
_OPENRC = re.compile(r'^command_args="((?:[^"\\]|\\.)*)"', re.MULTILINE | re.DOTALL)
#: A variable that a shell's file sets; a value in quotes may have several lines.
_ASSIGNMENT = re.compile(r"""^[ \t]*(?:export[ \t]+)?(\w+)=("(?:[^"\\]|\\.)*"|'[^']*'|[^\s#;"']*)""",
                         re.MULTILINE | re.DOTALL)
#: Between double quotes: a character that a backslash escapes, or a variable, which may have a default.
_QUOTED = re.compile(r'\\(["\\$`])|\$(?:(\w+)|\{(\w+)(?::?-([^}\n]*))?\})')
#: A comment, which systemd also passes over between lines that a backslash joins (systemd.syntax(7)).
_COMMENT = re.compile(r"^[ \t]*[#;].*\n?", re.MULTILINE)
#: Characters before the program's path that change how it is run (systemd.service(5)).
_PREFIXES = "-@:+!|"
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_SHELL = re.compile(r"\S*/(?:ba|da|a)?sh")


def exec_start(files: Files, pattern: str) -> Iterator[tuple[str, list[str]]]:
    """The units whose names match a pattern, each with its last ExecStart=, drop-ins over it, and variables expanded;
    without those that are masked, or cannot be read or parsed. Of the specifiers the unit's names are replaced. Of a
    shell that runs one command it is that command."""
    for path, *dropins in unit_files(files, pattern):
        try:
            texts = [files.text(file) or "" for file in (path, *dropins)]
            words = _in_shell(_words(files, _specified(path.rpartition("/")[2], "\n".join(texts))))
        except (SourceError, ValueError):
            continue
        if words:
            yield path, [words[0].lstrip(_PREFIXES), *words[1:]]


def openrc_arguments(files: Files, pattern: str) -> Iterator[tuple[str, list[str]]]:
    """OpenRC's scripts whose names match a pattern, each with the arguments that it gives its program, and variables
    of /etc/conf.d expanded, where packages have the arguments; without those that cannot be read or parsed."""
    for path in files.glob(f"/etc/init.d/{pattern}"):
        try:
            match = _OPENRC.search(files.text(path) or "")
            text = "" if match is None else _joined(match[1])
            words = shlex.split(_unquoted(text, _conf_d(files, path.rpartition("/")[2])))
        except (SourceError, ValueError):
            continue
        if words := [word for word in words if not re.match(r"[0-9]?>", word)]:
            yield path, words


def _conf_d(files: Files, script: str) -> dict[str, str]:
    """The variables that a script's file of /etc/conf.d sets, as a shell reads it; {} if it cannot be read."""
    try:
        text = _joined(files.text(f"/etc/conf.d/{script}") or "")
        return {name: "".join(shlex.split(value)) for name, value in _ASSIGNMENT.findall(text)}
    except (SourceError, ValueError):
        return {}


def _unquoted(text: str, variables: Mapping[str, str]) -> str:
    return _QUOTED.sub(lambda match: match[1] or variables.get(match[2] or match[3]) or match[4] or "", text)


def _in_shell(words: list[str]) -> list[str]:
    """The command in `sh -c COMMAND`; other words unchanged. :raises ValueError: for quotes that do not end."""
    if not (len(words) > 2 and _SHELL.fullmatch(words[0]) and re.fullmatch("-[a-z]*c", words[1])):
        return words
    command = shlex.split(words[2])
    return command[1:] if command[:1] == ["exec"] else command


def _specified(unit: str, text: str) -> str:
    name = unit.removesuffix(".service")
    values = {"%n": unit, "%N": name, "%p": name.partition("@")[0], "%%": "%"}
    return _SPECIFIER.sub(lambda match: values[match[0]], text)


def unit_files(files: Files, pattern: str) -> Iterator[list[str]]:
    """The units whose names match a pattern, the strongest of each name, each with its drop-ins of all directories in
    the order of their names, of which the strongest of each name counts, too."""
    units: dict[str, str] = {}
    for path in (path for place in _PLACES for path in files.glob(f"{place}/{pattern}")):
        units.setdefault(path.rpartition("/")[2], path)
    for unit, path in units.items():
        dropins = {path.rpartition("/")[2]: path for place in reversed(_PLACES)
                   for path in files.glob(f"{place}/{unit}.d/*.conf")}
        yield [path, *(dropins[name] for name in sorted(dropins))]


def _words(files: Files, unit: str) -> list[str]:
    """The words of a unit's last ExecStart=, with the variables of Environment= and of the files that EnvironmentFile=
    names, by patterns too; without a value they drop the earlier ones (systemd.exec(5)).
    :raises ValueError: for quotes that do not end."""
    command, variables, of_files = "", dict[str, str](), dict[str, str]()
    for key, value in _SETTING.findall(_joined(_COMMENT.sub("", unit))):
        if key == "ExecStart":
            command = value.strip() or command
        elif key == "Environment":
            own = dict(word.partition("=")[::2] for word in shlex.split(value))
            variables = variables | own if own else {}
        elif pattern := value.strip().removeprefix("-"):
            for path in files.glob(pattern):
                of_files |= _variables(_joined(files.text(path) or ""))
        else:
            of_files = {}
    variables |= of_files  # whatever their order
    words: list[str] = []
    for word in shlex.split(command):
        if word[:1] == "$" and word[1:].isidentifier():
            words += shlex.split(variables.get(word[1:], ""))
        else:
            words.append(_VARIABLE.sub(lambda match: variables.get(match[1], ""), word))
    return words


def _variables(text: str) -> dict[str, str]:
    """The variables in a file of EnvironmentFile=: a value without quotes reaches to the end of its line.
    :raises ValueError: for quotes that do not end."""
    variables = {}
    for line in text.split("\n"):
        name, equals, value = line.strip().partition("=")
        if equals and name[:1] not in ("#", ";"):
            name, value = name.strip(), value.strip()
            variables[name] = "".join(shlex.split(value)) if value[:1] in ("'", '"') else value
    return variables


def _joined(text: str) -> str:
    """Join lines that a backslash at the end of a line continues."""
    return re.sub(r"\\\n", " ", text)
