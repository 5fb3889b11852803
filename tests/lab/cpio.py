"""What the kernel unpacks as its first root file system: cpio archives of the kind "newc", nothing else of cpio."""

from __future__ import annotations

from collections.abc import Iterable

DIRECTORY, FILE, PROGRAM = 0o40755, 0o100644, 0o100755


def archive(files: Iterable[tuple[str, int, bytes]]) -> bytes:
    """:param files: name, mode and content of each, a directory before what is in it. Archives one after the other are
    one to the kernel: of a file that is in two, the last is there."""
    parts = [_member(*file, number) for number, file in enumerate(files, 1)]
    return b"".join([*parts, _member("TRAILER!!!", 0, b"", 0)])


def _member(name: str, mode: int, data: bytes, inode: int) -> bytes:
    raw = name.encode() + b"\0"
    fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(raw), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + raw
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)
