"""Frames that are wrong somewhere, for both ends of a guest's channel."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

_VALUES: list[Any] = [None, True, -1, 1 << 70, 1.5, "", "\x00", "0-8191", [], {}, [[]] * 20, "\ud800"]
_BYTES = [b"", b"[", b"{", b'"', b"\\", b"9", b"\xff", b"-", b","]


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def spoilt(chance: random.Random, raw: bytes) -> bytes:
    """A good frame made wrong: in its bytes, or in its JSON's values with a right length."""
    if chance.random() < 0.5:
        body = json.loads(raw[4:])
        where: Any = body
        while isinstance(where, dict) and where and chance.random() < 0.7:
            key = chance.choice(list(where))
            if not isinstance(where[key], dict) or chance.random() < 0.3:
                where[key] = chance.choice(_VALUES)
                break
            where = where[key]
        return frame(json.dumps(body).encode())
    changed = bytearray(raw)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(changed))
        changed[at : at + chance.randrange(2)] = chance.choice([*_BYTES, chance.randbytes(3)])
    return bytes(changed) or b"\x00"
