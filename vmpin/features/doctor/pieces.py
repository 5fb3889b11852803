"""The pieces of a report, with limits on their size, and the archive that they become.

The same pieces at the same time give the same bytes.
"""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import BinaryIO

from vmpin.config.settings import to_plain
from vmpin.features.doctor.redact import cleaned

#: Of one piece, and of all together before they are compressed (bytes).
MAX_PIECE, MAX_ALL = 4 << 20, 64 << 20
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Piece:
    """A file of the report. `cut` is the number of bytes left out for its size."""

    name: str
    data: bytes
    cut: int = 0


class Pieces:
    """Collects pieces. Data beyond the limits is cut, and recorded in the manifest."""

    def __init__(self, most: int = MAX_ALL, largest: int = MAX_PIECE) -> None:
        """Begin without a piece. :param most: bytes of all pieces. :param largest: bytes of one."""
        self._left, self._largest = most, largest
        self._pieces: dict[str, Piece] = {}
        #: By missing piece, the reason.
        self.missing: dict[str, str] = {}

    def add(self, name: str, data: bytes | str, tail: bool = False) -> None:
        """Add a piece. :param tail: keep the end if it is too long, as of a log."""
        raw = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
        room = max(0, min(self._largest, self._left))
        kept = raw if len(raw) <= room else raw[len(raw) - room :] if tail else raw[:room]
        self._left -= len(kept)
        self._pieces[name] = Piece(name, kept, len(raw) - len(kept))

    def add_json(self, name: str, data: object) -> None:
        """Add a piece of JSON. Its texts are cleaned: some come from errors of other programs."""
        self.add(name, json.dumps(plain(data), indent=1, ensure_ascii=False) + "\n")

    def all(self) -> list[Piece]:
        """The pieces by name, with the manifest last."""
        pieces = sorted(self._pieces.values(), key=lambda piece: piece.name)
        listed = {"pieces": [{"name": piece.name, "bytes": len(piece.data), "cut": piece.cut,
                              "sha256": hashlib.sha256(piece.data).hexdigest()} for piece in pieces],
                  "missing": dict(sorted(self.missing.items()))}
        return [*pieces, Piece(MANIFEST, (json.dumps(listed, indent=1) + "\n").encode())]


def plain(value: object) -> object:
    """A value as JSON can hold it, without secrets in its texts (redact)."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(cleaned(str(item)) for item in value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    simple = to_plain(value)
    return cleaned(simple) if isinstance(simple, str) else simple


def write(to: BinaryIO, pieces: Iterable[Piece], top: str, when: int) -> None:
    """Write the pieces as .tar.gz below the directory `top`, readable by root only.

    :param when: the time stamp of every file, seconds since 1970.
    """
    with gzip.GzipFile(filename="", mode="wb", fileobj=to, mtime=when) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for piece in pieces:
            member = tarfile.TarInfo(f"{top}/{piece.name}")
            member.size, member.mode, member.mtime = len(piece.data), 0o600, when
            archive.addfile(member, io.BytesIO(piece.data))
