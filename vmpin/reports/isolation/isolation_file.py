"""The file with the books of isolation, which survives a restart of the watcher: a header line, then the columns.

Beside the state file, for one boot, replaced as a whole: a kill at any moment leaves the old one or the new one. A
damaged file is set aside, and the books start empty. Called by isolation_observer. What stays out: the times of
writing.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from pathlib import Path
from typing import Any

from vmpin.cpuset import CpuSet
from vmpin.host import boottime
from vmpin.host.regular import read_regular
from vmpin.reconcile.state_file import replace, set_file_aside
from vmpin.reports.isolation.isolation_advice import ThiefKind
from vmpin.reports.isolation.isolation_books import (
    COLUMNS,
    MAX_OWNERS,
    MAX_THIEVES,
    MINUTE,
    IsolationBooks,
    OwnerBook,
    Thief,
)

VERSION = 1
MAX_BYTES = 128 << 20
_CELL = 4


def save(path: Path, boot_id: str, books: IsolationBooks) -> str:
    """Replace the file. :returns: why it cannot be, or ""; the old one is then unchanged."""
    body = b"".join(column.tobytes() for book in books.owners.values()
                    for column in (*book.columns.values(), *book.by_cpu.values()))
    head = {"version": VERSION, "boot_id": boot_id, "byteorder": sys.byteorder, "alive": books.alive,
            "owners": [_header(book) for book in books.owners.values()]}
    text = json.dumps(head, separators=(",", ":")).encode()
    crc32 = zlib.crc32(body, zlib.crc32(text))
    try:
        replace(path, b"%s\n%d\n%s" % (text, crc32, body))
    except OSError as err:
        return (f"{path}: the books of isolation cannot be saved: {err.strerror} (free space or inodes there; until "
                "then a restart loses them)")
    return ""


def load(path: Path, boot_id: str, books: IsolationBooks) -> str:
    """Continue the books of the file in `books`, if it is of this boot. :returns: the fault of the file, or ""."""
    try:
        raw, _ = read_regular(path, MAX_BYTES)
    except FileNotFoundError:
        return ""
    except OSError as err:
        return f"{path}: cannot be read: {err.strerror}"
    try:
        text, _, rest = raw.partition(b"\n")
        crc32, _, body = rest.partition(b"\n")
        if int(crc32) != zlib.crc32(body, zlib.crc32(text)):
            raise ValueError("the checksum is wrong")
        head = json.loads(text)
        if head["version"] != VERSION or head["byteorder"] != sys.byteorder:
            raise ValueError(f"version {head['version']!r} is unknown")
        if head["boot_id"] != boot_id:
            return ""
        found = _owners(head["owners"], body)
        alive = min(int(head["alive"]), boottime.now())
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as err:
        return set_file_aside(path, err, aside=True, then="the books of isolation begin anew")
    books.owners, books.alive = found, alive
    return ""


def _header(book: OwnerBook) -> dict[str, object]:
    return {"owner": book.owner, "since": book.since, "begun": book.begun, "namespace": book.namespace,
            "pod": book.pod, "kind": book.kind, "cpus": str(book.cpus), "until": book.until, "ended": book.ended,
            "first": book.first, "minutes": len(book), "by_cpu": list(book.by_cpu), "thieves": book.thieves}


def _owners(headers: list[dict[str, Any]], body: bytes) -> dict[str, OwnerBook]:
    """:raises ValueError: and others, for what no watcher writes."""
    found: dict[str, OwnerBook] = {}
    at = 0
    for head in headers:
        book = OwnerBook(str(head["owner"]), int(head["since"]), int(head["begun"]))
        book.namespace, book.pod, book.kind = (str(head[key]) for key in ("namespace", "pod", "kind"))
        book.cpus, book.until = CpuSet.parse(head["cpus"]) if head["cpus"] else CpuSet(), int(head["until"])
        book.ended = None if head["ended"] is None else int(head["ended"])
        book.first, minutes = int(head["first"]), int(head["minutes"])
        book.thieves = [Thief(ThiefKind(kind), str(name), str(where)) for kind, name, where in head["thieves"]]
        for name in COLUMNS:
            book.columns[name], at = _column(body, at, minutes)
        for cpu in head["by_cpu"]:
            book.by_cpu[int(cpu)], at = _column(body, at, minutes)
        numbers = book.columns["thief"]
        if len(book.thieves) > MAX_THIEVES or any(not 0 <= number <= len(book.thieves) for number in numbers):
            raise ValueError(f"a thief of {book.owner!r} is not in its list")
        if not 0 <= book.first <= book.until // MINUTE + 1 or book.until > boottime.now():
            raise ValueError(f"the times of {book.owner!r} are none")
        found[book.owner] = book
    if at != len(body) or len(found) != len(headers) or len(found) > MAX_OWNERS:
        raise ValueError("it has more or fewer figures than owners")
    return found


def _column(body: bytes, at: int, minutes: int) -> tuple[array[int], int]:
    end = at + minutes * _CELL
    if minutes < 0 or end > len(body):
        raise ValueError("it ends too early")
    return array("i", body[at:end]), end
