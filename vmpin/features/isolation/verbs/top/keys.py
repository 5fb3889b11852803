"""Bytes from a terminal as names of keys. Pure."""

from __future__ import annotations

import re

#: What terminals send for keys that are no character (ECMA-48, xterm's and the Linux console's forms).
_SEQUENCES = {
    b"[A": "up", b"[B": "down", b"[C": "right", b"[D": "left", b"OA": "up", b"OB": "down", b"OC": "right",
    b"OD": "left", b"[5~": "pageup", b"[6~": "pagedown", b"[H": "home", b"[F": "end", b"OH": "home", b"OF": "end",
    b"[1~": "home", b"[4~": "end", b"[7~": "home", b"[8~": "end"}
_CONTROLS = {0x0d: "enter", 0x0a: "enter", 0x7f: "backspace", 0x08: "backspace", 0x0c: "redraw", 0x02: "pageup",
             0x06: "pagedown", 0x15: "clear"}
#: A whole sequence after ESC: CSI with parameters, or SS3 with one byte.
_SEQUENCE = re.compile(rb"\[[0-9;?]*[ -/]*[@-~]|O[A-Za-z]")
_UNFINISHED = re.compile(rb"\[[0-9;?]*[ -/]*|O|")


def decode(raw: bytes, more: bool = False) -> tuple[list[str], bytes]:
    """(the keys, the bytes that are the beginning of one). A printable character is its own name; unknown sequences
    are dropped. :param more: False once no further byte has followed for a moment: a lone ESC is the key then."""
    found: list[str] = []
    while raw:
        if raw[0] == 0x1b:
            whole = _SEQUENCE.match(raw, 1)
            if whole is None:
                if more and _UNFINISHED.fullmatch(raw, 1):
                    return found, raw
                found.append("escape")
                raw = raw[1:]
                continue
            if (name := _SEQUENCES.get(whole[0])) is not None:
                found.append(name)
            raw = raw[whole.end():]
        elif raw[0] < 0x20 or raw[0] == 0x7f:
            if (name := _CONTROLS.get(raw[0])) is not None:
                found.append(name)
            raw = raw[1:]
        else:
            length = 1 if raw[0] < 0xc0 else 2 if raw[0] < 0xe0 else 3 if raw[0] < 0xf0 else 4
            if more and len(raw) < length:
                return found, raw
            text = raw[:length].decode("utf-8", "replace")
            found += [char for char in text if char.isprintable() and char != "�"]
            raw = raw[length:]
    return found, b""
