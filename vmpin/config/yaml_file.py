"""Reading YAML that people write: one document, a size limit, keys given twice refused, errors that name the line.

`parse_plain` alone reads most configuration files: sections of keys with one value each, and comments. It reads them
as YAML does, in a fiftieth of the time: loading PyYAML takes a fifth of a short command. All else is PyYAML's."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Hashable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vmpin.errors import ConfigError
from vmpin.host.files import read_regular

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 4 << 20  #: A configuration or scenario larger than this was not written by a person.
#: Values in the document, those an alias repeats counted each time: a few lines of aliases can stand for billions.
MAX_VALUES = 1 << 20
MAX_DEPTH = 32
_TRIED = 16  #: So many ends are tried for the part before an error.
MAX_NUMBER = 40  #: Characters of one of base 60: `1:30:00` is a number, and takes time in the square of its length.


#: A value is a number, a list of CPUs, a bare text or path, or a text in quotes without anything that quoting changes.
#: A bare text begins with a letter or a slash, and a list has at most three digits in a row, so that neither is a
#: number or a date (YAML 1.1, resolution of plain scalars).
_LINE = re.compile(r"""
    (?P<section>[a-z_]+):
    | [ ]{2}(?P<key>[a-z_]+):[ ]+(?:(?P<number>0|[1-9][0-9]{0,8})|(?P<bare>[A-Za-z/][A-Za-z0-9_./*-]*
                                   |[0-9]{1,3}(?:[-,][0-9]{1,3})+)|"(?P<quoted>[A-Za-z0-9_./:,*@ -]*)")
    """, re.VERBOSE)
_COMMENT = re.compile(r"[ ]+#.*|[ ]+$")
#: Bare texts that YAML reads as a boolean or null, in small letters.
_RESERVED = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

Value = str | int | bool
Document = dict[str, dict[str, Value] | None]


def parse_plain(raw: bytes) -> Document | None:
    """The document; None where it is empty, or more than this reads."""
    try:
        lines = raw.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return None
    document: Document = {}
    name, section = "", dict[str, Value]()
    for line in lines:
        if not line.isprintable():  # tabs, and what ends a line for YAML alone
            return None
        text = line.lstrip(" ")
        if not text or text.startswith("#"):
            continue
        match = _LINE.fullmatch(line if '"' in line else _COMMENT.sub("", line, count=1))
        if match is None:
            return None
        if match["section"]:
            name, section = match["section"], {}
            if name in document or name in _RESERVED:
                return None
            document[name] = None
        elif match["key"]:
            value = _value(match)
            if not name or value is None or match["key"] in section or match["key"] in _RESERVED:
                return None
            section[match["key"]] = value
            document[name] = section
    return document or None


def _value(match: re.Match[str]) -> Value | None:
    if match["number"]:
        return int(match["number"])
    bare: str | None = match["bare"]
    if bare is None:
        quoted: str = match["quoted"]
        return quoted
    return _BOOLEANS.get(bare) if bare.lower() in _RESERVED else bare


@cache
def _loader(as_go: bool) -> type[yaml.SafeLoader]:
    """SafeLoader that refuses a key given twice, which YAML forbids and PyYAML lets pass; not with `as_go`."""
    import yaml  # here, as most files do without it (parse_plain)

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            seen: set[object] = set()
            for key_node, _ in node.value:
                if key_node.tag.endswith(":merge"):  # a few lines of it can stand for billions of keys
                    raise yaml.MarkedYAMLError(problem="a merge key (<<) is not read: write the keys themselves",
                                               problem_mark=key_node.start_mark)
                key = self.construct_object(key_node, deep=True)
                if not isinstance(key, Hashable) or (key in seen and not as_go):
                    raise yaml.MarkedYAMLError(problem=f"key {key!r} cannot be used or is there twice",
                                               problem_mark=key_node.start_mark)
                seen.add(key)
            return super().construct_mapping(node, deep)

        def construct_number(self, node: yaml.ScalarNode) -> int | float:
            if ":" in node.value and len(node.value) > MAX_NUMBER:
                raise yaml.MarkedYAMLError(problem=f"a number of base 60 with {len(node.value)} characters, at most "
                                           f"{MAX_NUMBER} are read", problem_mark=node.start_mark)
            if node.tag.endswith(":int"):
                return int(self.construct_yaml_int(node))
            return float(self.construct_yaml_float(node))

    for kind in ("int", "float"):
        Loader.add_constructor(f"tag:yaml.org,2002:{kind}", Loader.construct_number)
    return Loader


def load(path: Path, pipe: bool = False) -> object:
    """The document, None for an empty file. :raises ConfigError: in one line with file, line and what is wrong."""
    raw = read(path, MAX_BYTES, pipe)
    plain = parse_plain(raw)
    return parse(path, raw) if plain is None else plain


def before_error(path: Path, err: ConfigError) -> object:
    """Parse the lines before an error, for a command that goes on without the rest. :returns: None for nothing.
    :param err: the error of `load`."""
    import yaml

    cause = err.__cause__
    if not isinstance(cause, yaml.MarkedYAMLError) or cause.problem_mark is None:
        return None
    lines = read(path, MAX_BYTES).decode("utf-8", "replace").splitlines(keepends=True)
    # The line that is named may be after the one at fault: an open bracket is noticed at the end of the file.
    for end in range(min(cause.problem_mark.line + 1, len(lines)), 0, -1)[:_TRIED]:
        with suppress(ConfigError):
            return parse(path, "".join(lines[:end]).encode())
    return None


def read(path: Path, most: int, pipe: bool = False) -> bytes:
    """A file that an operator named, and may well have linked.
    :param pipe: also a pipe, to its end; a watcher that loads its configuration again never waits for one.
    :raises ConfigError: in one line."""
    try:
        if os.path.realpath(path) == os.devnull:
            return b""  # /dev/null stands for "no file"
        if not (pipe and path.is_fifo()):
            return read_regular(path, most, follow=True)[0]
        with path.open("rb") as file:
            raw = file.read(most + 1)
    except OSError as err:
        why = f"larger than {most >> 20} MiB" if err.errno == errno.EFBIG else f"cannot be read: {err.strerror}"
        raise ConfigError(f"{path}: {why}") from err
    if len(raw) > most:
        raise ConfigError(f"{path}: larger than {most >> 20} MiB")
    return raw


def parse(path: Path, raw: bytes, as_go: bool = False) -> object:
    """The document that was read from `path`.
    :param as_go: as Go's parsers read it: the first document alone, and of a key given twice the last value.
    :raises ConfigError: as load."""
    import yaml

    try:
        loader = _loader(as_go)(raw.decode("utf-8"))
        document = loader.get_data() if as_go else loader.get_single_data()
    except UnicodeDecodeError as err:
        raise ConfigError(f"{path}: not UTF-8 text (byte {err.start})") from err
    except yaml.MarkedYAMLError as err:
        where = f":{err.problem_mark.line + 1}" if err.problem_mark else ""
        raise ConfigError(f"{path}{where}: {err.problem or err.context or 'not YAML'}") from err
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError,
            RecursionError) as err:
        # PyYAML lets its own mistakes out where a tag does not fit its value (`!!bool x`: KeyError).
        raise ConfigError(f"{path}: not YAML: {' '.join(str(err).split())[:200]}") from err
    check(path, document)
    return document


def check(path: Path, document: object) -> None:
    """Refuse what can be read but not handled or shown. :raises ConfigError: with what that is."""
    todo: list[tuple[object, int, object]] = [(document, 1, "the document")]
    count = 0
    while todo:
        value, depth, key = todo.pop()
        count += 1
        if count > MAX_VALUES:
            raise ConfigError(f"{path}: holds more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            raise ConfigError(f"{path}: is nested more than {MAX_DEPTH} deep")
        if isinstance(value, int) and value.bit_length() > 64:
            raise ConfigError(f"{path}: {key!r:.80} holds a number of {value.bit_length()} bits, at most 64 are read")
        if isinstance(value, dict):
            todo += [(item, depth + 1, name) for name, held in value.items() for item in (name, held)]
        elif isinstance(value, list | set | tuple):
            todo += [(item, depth + 1, key) for item in value]
