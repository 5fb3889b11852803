"""The file with the books of run times, which survives a restart of the watcher: a header line, then a line a mark.

It lies beside the state file and is of one boot. An invalid file is ignored, and the books start empty.
"""

import json
import zlib
from pathlib import Path

from vmpin.bounded import checked_real, load_json, parse_real
from vmpin.domain.proof import Mark, ResidencyLedger
from vmpin.errors import StateFileError
from vmpin.reconcile.state_file import read_kept, replace

VERSION = 1
MAX_BYTES = 64 << 20


def save(path: Path, boot_id: str, ledger: ResidencyLedger) -> None:
    """Replace the file. :raises StateFileError: the old one is then unchanged."""
    body = "".join(f"{mark.time!r} {mark.raw}\n" for mark in ledger.marks).encode()
    head = {"version": VERSION, "boot_id": boot_id, "began": ledger.began, "crc32": zlib.crc32(body)}
    try:
        replace(path, json.dumps(head, separators=(",", ":")).encode() + b"\n" + body)
    except OSError as err:
        raise StateFileError(f"{path}: the books of run times cannot be saved: {err.strerror}",
                             "free space or inodes there; until then a restart loses the recorded run times") from err


def _time(text: str) -> float:
    seconds = parse_real(text, 1e12)
    if seconds is None:
        raise ValueError(f"{text[:40]!r} is no time")
    return seconds


def load(path: Path, boot_id: str, ledger: ResidencyLedger) -> str:
    """Continue the books of the file in `ledger`, if it is of this boot. :returns: the fault of the file, or ""."""
    raw, trouble = read_kept(path, MAX_BYTES)
    if raw is None:
        return trouble
    try:
        first, _, body = raw.partition(b"\n")
        head = load_json(first)
        if head["version"] != VERSION:
            raise ValueError(f"version {head['version']!r:.80} is unknown")
        if head["boot_id"] != boot_id:
            return ""
        if head["crc32"] != zlib.crc32(body):
            raise ValueError("the checksum is wrong")
        lines = (line.partition(" ") for line in body.decode("ascii").splitlines())
        if marks := [Mark(_time(time), text) for time, _, text in lines]:
            ledger.load(marks, checked_real(head["began"], 1e12))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
        return f"{path}: {str(err)[:200]}: earlier run times are lost"
    return ""
