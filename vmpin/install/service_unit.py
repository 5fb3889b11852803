"""The text of the watcher's systemd unit for this installation, and whether a unit file is still as vmpin wrote it.

Pure."""

import hashlib
import re
from collections.abc import Sequence

_START = re.compile(r"^ExecStart=.*$", re.MULTILINE)
_HEAD = """\
# The watcher's unit, written by `vmpin install-service`. Changes of your own go into a drop-in: systemctl edit vmpin
# vmpin install-service: """


def unit_text(shipped: str, command: Sequence[str]) -> str:
    """The shipped unit with the command that starts the watcher, below a line that has the sum of the rest."""
    start = "ExecStart=" + " ".join(map(_quoted, command))
    body = _START.sub(lambda _: start, shipped[shipped.index("[Unit]"):])
    return f"{_HEAD}{_sum(body)}\n{body}"


def is_untouched(text: str, shipped: str) -> bool:
    """True for a unit that this or an older vmpin wrote and that was not changed since, and for a copy of the shipped
    one, whatever its ExecStart."""
    _, mark, rest = text.partition("# vmpin install-service: ")
    checksum, _, body = rest.partition("\n")
    return bool(mark and checksum == _sum(body)) or _START.sub("", text) == _START.sub("", shipped)


def _sum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _quoted(argument: str) -> str:
    """Quote an argument as systemd reads it in ExecStart= (systemd.service(5), systemd.syntax(7))."""
    text = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return text if re.fullmatch(r"[\w./+=:,@%$-]+", text) else f'"{text}"'
