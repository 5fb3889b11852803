"""Documents that are right but for one absurd value, in JSON, TOML and YAML."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

#: Written as they stand here, as no encoder makes them.
TEXTS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 39, "9" * 5000, "-" + "9" * 39, "0." + "1" * 60,
         "[" * 100 + "]" * 100, '{"a":' * 100 + "1" + "}" * 100, "[" * 20_000)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1 << 31, 1 << 62, 1 << 63, 1 << 64, 10**30, 1.5, 1e308, "", "0", "-1", "0-8191",
    "x" * 70_000, "\ud800", "a\0b", "\x1b[2J\n", "9" * 5000, "0-8191:1/2," * 5000, "0-8191," * 9000, [], {}, [[]],
    [None], {"": None}, [0] * 5000, {str(number): number for number in range(3000)}, [["x", 1]], ["0-3"] * 3)
_MARK = "\ue000"


def absurd_json(document: Any) -> Iterator[str]:
    """The document's text with each of its values, in turn, replaced by each absurd one."""
    for place in _places(document):
        for value in VALUES:
            yield json.dumps(_replaced(document, place, value))
        marked = json.dumps(_replaced(document, place, _MARK))
        for text in TEXTS:
            yield marked.replace(json.dumps(_MARK), text)


def absurd_texts() -> list[bytes]:
    """What is no document at all, in any format."""
    return [b"", b"\0", b"\xff\xfe", b" \n\t", b"null", b"[]", b"7", b'"x"', b"NaN", b"Infinity", b"1e999",
            b"9" * 5000, b"[" * 5000, b'{"a":' * 5000, b"{" * 1000, b"- " * 2000, b"x: " * 500, b"\n" * 10_000,
            b"[a]\n" * 1000, b"a = 1\n" * 1000, b"\xef\xbb\xbf{}", b"\xed\xa0\x80", '{"a": 1}'.encode("utf-16"),
            b"a: " + b"x" * 10_000]


#: Values as they stand in YAML: short ones, as PyYAML takes a microsecond for each character.
YAML = ("9" * 4301, "0x" + "f" * 500, "0b" + "1" * 500, "1" + ":30" * 500, "1" + ":30" * 500 + ".5", ".inf", "-.inf",
        ".nan", "1e999", "1.0e+999", "-1", "9" * 18, "!!int ''", "!!float x", "!!bool x", "!!binary '?'",
        "!!timestamp x", "0001-01-01T00:00:00+23:59", "9999-99-99", "2001-02-30", "[" * 40 + "]" * 40, "[" * 1000,
        "{a: " * 300, "~", "''", '"\\uD800"', '"a\\0b"', "&a [*a]", "*b", "? [1]", "<<: 1", "'" + "x" * 2000 + "'",
        "0-8191:1/2," * 300, "[]", "{}", "[0]", "{a: b}", "true", "!!set {1, 2}", "!!omap [a: 1]",
        "!!python/object:os.system x", "|\n  x", "\t", "%TAG")
#: Values as they stand in TOML.
TOML = ("9" * 4300, "9" * 4301, "0x" + "f" * 5000, "-" + "9" * 60, "inf", "-inf", "nan", "1e999", "true", '""', "[]",
        "{}", "[1, [2, ['x']]]", "[" * 200 + "]" * 200, "[" * 5000, "{ a = " * 500, '"' + "x" * 7000 + '"',
        '"\\u0000"', "1979-05-27T07:32:00Z", "9999-99-99", "{ a.b.c = 1 }", "'0-8191:1/2'", '[{ path = 1 }]')


def absurd_lines(document: str, values: tuple[str, ...], separator: str) -> Iterator[str]:
    """The document with the value of each line that has one, in turn, replaced by each of these."""
    lines = document.splitlines()
    for number, line in enumerate(lines):
        name, found, _ = line.partition(separator)
        if found:
            for value in values:
                yield "\n".join([*lines[:number], f"{name}{separator} {value}", *lines[number + 1:]]) + "\n"


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in entries:
        yield from _places(item, (*at, key))


def _replaced(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    if not at:
        return value
    found = dict(document) if isinstance(document, dict) else list(document)
    found[at[0]] = _replaced(found[at[0]], at[1:], value)
    return found


def spoil(load: Callable[[bytes], object], documents: Iterable[str | bytes], *declared: type[Exception]) -> None:
    """Load each document. Another error than those declared fails with the document that it came of."""
    count = 0
    for document in documents:
        raw = document if isinstance(document, bytes) else document.encode("utf-8", "surrogatepass")
        count += 1
        shown = ""
        try:
            load(raw)
        except declared as err:
            shown = str(err)
        except Exception as err:
            pytest.fail(f"{err!r} of {raw[:300]!r}")
        assert len(shown) < 1000, "what is shown fills the log"
    assert count > 20
