"""The plain subset of YAML that configuration files mostly use: sections of keys with one value each, and comments.

Pure. It parses such a document as YAML does, in a fiftieth of the time: loading PyYAML alone takes a fifth of a short
command. Everything beyond the subset is left to PyYAML (yaml_file, which calls this first).
"""

from __future__ import annotations

import re

#: A value is a number, a bare text or path, or a text in quotes without anything that quoting changes. A bare text
#: begins with a letter or a slash, so that it is no number and no date (YAML 1.1, resolution of plain scalars).
_LINE = re.compile(r"""
    (?P<section>[a-z_]+):
    | [ ]{2}(?P<key>[a-z_]+):[ ]+(?:(?P<number>0|[1-9][0-9]{0,8})|(?P<bare>[A-Za-z/][A-Za-z0-9_./*-]*)
                                   |"(?P<quoted>[A-Za-z0-9_./:,*@ -]*)")
    """, re.VERBOSE)
_COMMENT = re.compile(r"[ ]+#.*|[ ]+$")
#: Bare texts that YAML reads as a boolean or null, in small letters.
_RESERVED = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_BOOLEANS = {"true": True, "false": False}

Value = str | int | bool
Document = dict[str, dict[str, Value] | None]


def parse(raw: bytes) -> Document | None:
    """The document; None where it is beyond the subset, or empty."""
    try:
        lines = raw.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return None
    found: Document = {}
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
            if name in found or name in _RESERVED:
                return None
            found[name] = None
        elif match["key"]:
            value = _value(match)
            if not name or value is None or match["key"] in section or match["key"] in _RESERVED:
                return None
            section[match["key"]] = value
            found[name] = section
    return found or None


def _value(match: re.Match[str]) -> Value | None:
    if match["number"]:
        return int(match["number"])
    bare: str | None = match["bare"]
    if bare is None:
        quoted: str = match["quoted"]
        return quoted
    return _BOOLEANS.get(bare) if bare.lower() in _RESERVED else bare
