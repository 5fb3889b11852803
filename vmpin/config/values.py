"""Parsers of the configuration's values: each takes a value from the file, the environment or a flag.

Each raises ValueError with what is wrong about the value. What stays out: which key has which parser (settings).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet


def path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value).startswith("/") or "\0" in str(value):
        raise ValueError("is no absolute path")
    return Path(value)


def path_or_unset(value: object) -> Path | None:
    return None if value is None or value == "" else path(value)


def cpus(value: object) -> CpuSet:
    if value is None:
        return EMPTY
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("is no CPU list")
    return CpuSet.parse(str(value))


def pool(value: object) -> CpuSet | None:
    return cpus(value) or None


def seconds(value: object) -> float:
    try:
        number = float("" if isinstance(value, bool) else value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ValueError("is no number of seconds") from None
    if not 0.1 <= number <= 86400:
        raise ValueError("is not between 0.1 and 86400 seconds")
    return number


def seconds_or_off(value: object) -> float:
    """0 for off."""
    return 0.0 if value is False or value in ("off", "0", 0) else seconds(value)


def count(value: object) -> int:
    text = "" if isinstance(value, bool) else str(value)
    if not (text.isascii() and text.isdigit() and 0 < len(text) <= 6 and int(text)):
        raise ValueError("is no number from 1 to 999999")
    return int(text)


def on_fight(value: object) -> str:
    if value not in ("rest", "leave", "persist"):
        raise ValueError("is none of rest, leave, persist")
    return str(value)


def on_exit(value: object) -> str:
    if value not in ("keep", "unpin"):
        raise ValueError("is neither keep nor unpin")
    return str(value)


def token(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or any(char.isspace() for char in value):
        raise ValueError("is no word")
    return value


def level(value: object) -> str:
    if value not in ("debug", "info", "warning", "error"):
        raise ValueError("is none of debug, info, warning, error")
    return str(value)


def flag(value: object) -> bool:
    meaning = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if isinstance(value, bool):
        return value
    if str(value).lower() not in meaning:
        raise ValueError("is neither true nor false")
    return meaning[str(value).lower()]


def nri(value: object) -> str:
    if value == "auto":
        return "auto"
    try:
        return "on" if flag(value) else "off"
    except ValueError:
        raise ValueError("is none of auto, on, off") from None


def guest_agent(value: object) -> str:
    text = "off" if value is False else value
    if text not in ("auto", "vmpin-agent", "kata-agent", "off"):
        raise ValueError("is none of auto, vmpin-agent, kata-agent, off")
    return str(text)


def port(value: object) -> int:
    """A port of vsock: 32 bits. 1024 to 1027 are Kata's."""
    text = "" if isinstance(value, bool) else str(value)
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and 0 < int(text) < 0xFFFFFFFF):
        raise ValueError("is no port")
    if 1024 <= int(text) <= 1027:
        raise ValueError("is a port of Kata's own")
    return int(text)


class Address(NamedTuple):
    """An address to listen on: an IP address and a TCP port, or the path of a unix socket."""

    host: str = ""
    port: int = 0
    path: Path | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(value: object) -> Address | None:
    """None for nowhere."""
    if value is None or value is False or value in ("", "off"):
        return None
    text = str(value)
    if text.startswith("unix:"):
        found = path(text.removeprefix("unix:"))
        if len(bytes(found)) > 107:
            raise ValueError("is longer than the path of a socket can be (107 bytes)")
        return Address(path=found)
    host, _, number = text.rpartition(":")
    if not (number.isascii() and number.isdigit() and len(number) <= 5 and 0 < int(number) < 65536):
        raise ValueError("ends in no port of TCP's, and is no unix:/path")
    from ipaddress import ip_address  # here, as few commands need it

    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        if ip_address(bare).version == (4 if bare == host else 6):
            return Address(bare, int(number))
    except ValueError:
        pass
    raise ValueError("has no IP address before the port (0.0.0.0 for all of the machine's; [::1] for one of IPv6)")


def system(value: object) -> str:
    text = "off" if value is False else value
    if text not in ("spare", "off"):
        raise ValueError("is neither spare nor off")
    return str(text)
