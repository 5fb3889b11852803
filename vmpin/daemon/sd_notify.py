"""sd_notify(3): reports the service's state to systemd, where systemd asks for it."""

from __future__ import annotations

import contextlib
import os

from vmpin.bounded import MAX_INT64, parse_whole


def notify(message: str) -> None:
    """Send e.g. `READY=1`; nothing happens without NOTIFY_SOCKET, and no failure matters."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    import socket  # here, as the first pass of a watcher waits for imports at the top

    address = "\0" + path[1:] if path.startswith("@") else path
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
        to.sendto(message.encode(), socket.MSG_DONTWAIT, address)


def watchdog_seconds() -> float | None:
    """The interval at which systemd expects WATCHDOG=1, half of its time-out; None if it expects none."""
    text = os.environ.get("WATCHDOG_USEC", "")
    own = os.environ.get("WATCHDOG_PID", "")
    interval = parse_whole(text, MAX_INT64)
    return None if interval is None or own not in ("", str(os.getpid())) else interval / 2e6
