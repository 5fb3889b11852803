"""The file with the books of isolation, which survives a restart of the watcher: a line for all, then of each owner a
line and its columns, then a checksum.

It lies beside the state file, is of one boot, and is replaced as a whole: a kill at any moment leaves the old one or
the new one. A damaged file is set aside, and the books start empty. It is written in steps, between which the
watcher's loop has its turn.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from vmpin.bounded import MAX_INT64, checked_whole, load_json
from vmpin.cpuset import MAX_CPU, CpuSet
from vmpin.features.isolation.isolation_advice import ThiefKind
from vmpin.features.isolation.isolation_books import (
    COLUMNS,
    FORMER,
    MAX_OWNERS,
    MAX_THIEVES,
    MINUTE,
    IsolationBooks,
    OwnerBook,
    Thief,
)
from vmpin.host import boottime
from vmpin.reconcile.state_file import read_kept, replacing, set_file_aside

VERSION = 2
#: The cells of isolation_books, and the longest names of the most thieves.
MAX_BYTES = 64 << 20
_CELL = 4
#: What is written in one step (bytes): a third of a millisecond.
_STEP = 256 << 10
#: The last line of the file: its checksum in hexadecimal digits.
_SEAL = len(b"00000000\n")


def save(path: Path, boot_id: str, books: IsolationBooks) -> str:
    """Replace the file at once. :returns: why it cannot be, or ""; the old one is then unchanged."""
    try:
        for _ in writing(path, boot_id, books):
            pass
    except OSError as err:
        return trouble(path, err)
    return ""


def trouble(path: Path, err: OSError) -> str:
    """Return the text of the report that the file cannot be written."""
    return (f"{path}: the books of isolation cannot be saved: {err.strerror} (free space or inodes there; until "
            "then a restart loses them)")


def writing(path: Path, boot_id: str, books: IsolationBooks) -> Generator[None, None, None]:
    """Replace the file in steps, between which the books may change: each is written as it is at one moment, and all
    that comes after the first step is unknown to the file. :raises OSError: the old file is then unchanged, as it is
    where the steps are not done to the end."""
    owners = list(books.owners.values())
    head = {"version": VERSION, "boot_id": boot_id, "byteorder": sys.byteorder, "alive": books.alive,
            "owners": len(owners)}
    crc32 = size = 0
    with replacing(path) as file:
        for part in _parts(head, owners):
            file.write(part)
            crc32 = zlib.crc32(part, crc32)
            size += len(part)
            if size >= _STEP:
                size = 0
                yield
        file.write(b"%08x\n" % crc32)


def _parts(head: dict[str, object], owners: Iterable[OwnerBook]) -> Iterator[bytes]:
    yield _line(head)
    for book in owners:
        # In copy: a step later a minute, a CPU or a thief may have been added.
        columns = [column.tobytes() for column in (*book.columns.values(), *book.by_cpu.values())]
        yield _line(_header(book))
        yield from columns


def _line(found: dict[str, object]) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode() + b"\n"


def load(path: Path, boot_id: str, books: IsolationBooks, now: Callable[[], int] = boottime.now) -> str:
    """Continue the books of the file in `books`, if it is of this boot. :returns: the fault of the file, or ""."""
    raw, fault = read_kept(path, MAX_BYTES)
    if raw is None:
        return fault
    try:
        body = memoryview(raw)[:-_SEAL]
        if raw[-_SEAL:] != b"%08x\n" % zlib.crc32(body):
            raise ValueError("the checksum is wrong")
        text, at = _next_line(raw, 0)
        head = load_json(text)
        if head["version"] != VERSION or head["byteorder"] != sys.byteorder:
            raise ValueError(f"version {head['version']!r:.80} is unknown")
        if head["boot_id"] != boot_id:
            return ""
        latest = now()
        found = _owners(raw, at, checked_whole(head["owners"], MAX_OWNERS), latest)
        alive = min(checked_whole(head["alive"], MAX_INT64), latest)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as err:
        return set_file_aside(path, err, aside=True, then="the books of isolation begin anew")
    books.owners, books.alive = found, alive
    return ""


def _header(book: OwnerBook) -> dict[str, object]:
    return {"owner": book.owner, "since": book.since, "begun": book.begun, "namespace": book.namespace,
            "pod": book.pod, "kind": book.kind, "cpus": str(book.cpus), "until": book.until, "ended": book.ended,
            "first": book.first, "minutes": len(book), "by_cpu": list(book.by_cpu), "thieves": book.thieves}


def _next_line(raw: bytes, at: int) -> tuple[bytes, int]:
    end = raw.index(b"\n", at)
    return raw[at:end], end + 1


def _owners(raw: bytes, at: int, number: int, latest: int) -> dict[str, OwnerBook]:
    """Read the books of all owners. :param latest: no time can be later (CLOCK_BOOTTIME, ns).
    :raises ValueError: and others, for what no watcher writes."""
    if not 0 <= number <= MAX_OWNERS:
        raise ValueError("it has too many owners")
    found: dict[str, OwnerBook] = {}
    for _ in range(number):
        text, at = _next_line(raw, at)
        book, at = _owner(load_json(text), raw, at, latest)
        found[book.owner] = book
    if at != len(raw) - _SEAL or len(found) != number:
        raise ValueError("it has more or fewer figures than owners")
    return found


def _owner(head: dict[str, Any], raw: bytes, at: int, latest: int) -> tuple[OwnerBook, int]:
    """A book, and where it ends."""
    book = OwnerBook(str(head["owner"]), _time(head["since"]), _time(head["begun"]))
    book.namespace, book.pod, book.kind = (str(head[key]) for key in ("namespace", "pod", "kind"))
    book.cpus, book.until = CpuSet.parse(head["cpus"]) if head["cpus"] else CpuSet(), _time(head["until"])
    book.ended = None if head["ended"] is None else _time(head["ended"])
    book.first, minutes = _time(head["first"]), checked_whole(head["minutes"], MAX_BYTES)
    book.thieves = [Thief(ThiefKind(kind), str(name), str(where)) for kind, name, where in head["thieves"]]
    for name in COLUMNS:
        book.columns[name], at = _column(raw, at, minutes)
    for cpu in head["by_cpu"]:
        book.by_cpu[checked_whole(cpu, MAX_CPU, FORMER)], at = _column(raw, at, minutes)
    numbers = book.columns["thief"]
    if len(book.thieves) > MAX_THIEVES or any(not 0 <= number <= len(book.thieves) for number in numbers):
        raise ValueError(f"a thief of {book.owner!r:.80} is not in its list")
    if not 0 <= book.first <= book.until // MINUTE + 1 or book.until > latest:
        raise ValueError(f"the times of {book.owner!r:.80} are none")
    return book, at


def _time(value: object) -> int:
    """CLOCK_BOOTTIME in ns, or in minutes: negative where it is from before that clock began."""
    return checked_whole(value, MAX_INT64, -MAX_INT64)


def _column(raw: bytes, at: int, minutes: int) -> tuple[array[int], int]:
    end = at + minutes * _CELL
    if minutes < 0 or end > len(raw) - _SEAL:
        raise ValueError("it ends too early")
    return array("i", raw[at:end]), end
