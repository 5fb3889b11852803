"""`metrics`: where they are served, and of what."""

from __future__ import annotations

from pathlib import Path

from vmpin.bounded import parse_whole
from vmpin.config import values
from vmpin.config.values import setting
from vmpin.named_tuple import NamedTuple


class Address(NamedTuple):
    """An address to listen on: an IP address and a TCP port, or the path of a unix socket."""

    host: str = ""
    port: int = 0
    path: Path | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _address(value: object) -> Address | None:
    """None for nowhere."""
    if value is None or value is False or value in ("", "off"):
        return None
    text = str(value)
    if text.startswith("unix:"):
        socket = values.path(text.removeprefix("unix:"))
        if len(bytes(socket)) > 107:
            raise ValueError("is longer than the path of a socket can be (107 bytes)")
        return Address(path=socket)
    host, _, its_port = text.rpartition(":")
    number = parse_whole(its_port, 65535, 1)
    if number is None:
        raise ValueError("ends in no port of TCP's, and is no unix:/path")
    from ipaddress import ip_address  # here, as few commands need it

    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        if ip_address(bare).version == (4 if bare == host else 6):
            return Address(bare, number)
    except ValueError:
        pass
    raise ValueError("has no IP address before the port (0.0.0.0 for all of the machine's; [::1] for one of IPv6)")


class MetricsSettings(NamedTuple):
    """`metrics`: where they are served."""

    address: Address | None = setting(
        None, _address,
        "where metrics and probes are served: an IP address and port (127.0.0.1:9750), or unix:/path; unset: nowhere")
    per_sandbox: bool = setting(
        False, values.flag, "whether there are metrics of each sandbox, labelled with its pod")
