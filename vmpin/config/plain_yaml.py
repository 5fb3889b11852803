"""The plainest of YAML, as configuration files mostly are: sections of keys with one value each, and comments.

Pure. What a document of this kind means is what YAML makes of it, in a fiftieth of the time: to load PyYAML alone
takes a fifth of what a short command takes in all. Anything that is not plain to see is left to YAML itself
(yamlfile).
"""

from __future__ import annotations

import re

#: What a value may be: a number, a word or path, a text in quotes without anything that quoting changes. A word begins
#: with a letter or a slash, so that it is no number and no date (YAML 1.1, resolution of plain scalars).
_LINE = re.compile(r"""
    (?P<section>[a-z_]+):
    | [ ]{2}(?P<key>[a-z_]+):[ ]+(?:(?P<number>0|[1-9][0-9]{0,8})|(?P<word>[A-Za-z/][A-Za-z0-9_./*-]*)
                                   |"(?P<quoted>[A-Za-z0-9_./:,*@ -]*)")
    """, re.VERBOSE)
_COMMENT = re.compile(r"[ ]+#.*|[ ]+$")
#: Words that are none to YAML, in small letters.
_RESERVED = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_BOOLEANS = {"true": True, "false": False}

Value = str | int | bool
Document = dict[str, dict[str, Value] | None]


def parse(raw: bytes) -> Document | None:
    """The document, None where it takes YAML to find out what it means, or that it means nothing."""
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
    word: str | None = match["word"]
    if word is None:
        quoted: str = match["quoted"]
        return quoted
    return _BOOLEANS.get(word) if word.lower() in _RESERVED else word
