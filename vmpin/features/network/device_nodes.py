"""The NUMA nodes of hardware: of NICs by their bus and name, of disks by their numbers; and the node's default route.

Reads /sys and /proc.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from vmpin.features.network.vm_network import NamespaceLinks
from vmpin.host.procfs import Procfs, names_in, read_file
from vmpin.host.sysfs import numbered, text_of

#: Of a device's bus and name, as rtnetlink has them.
_DEVICE = re.compile(r"[A-Za-z0-9_-]{1,32}/[A-Za-z0-9:._@-]{1,64}")
#: Disks below a disk (dm, md) that are followed, and how deep.
_MOST_BELOW, _DEEPEST = 64, 4
#: include/uapi/linux/ipv6_route.h: RTF_UP; and the first lines of a routing table, which have the default route.
_ROUTE_UP, _FIRST_ROUTES = 0x0001, 8192


class DeviceNodes:
    """The devices below `root` (``/sys``)."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.fspath(root)

    def of_nic(self, device: str) -> int | None:
        """Return the NUMA node of "BUS/NAME", None where the kernel shows none."""
        if not _DEVICE.fullmatch(device):
            return None
        bus, _, name = device.partition("/")
        return self._of(f"{self.root}/bus/{bus}/devices/{name}")

    def of_links(self, namespaces: Iterable[NamespaceLinks]) -> dict[str, int]:
        """Return the NUMA nodes of the links' devices, as far as the kernel shows them."""
        devices = {link.device for namespace in namespaces for link in namespace.nics}
        return {device: node for device in devices if (node := self.of_nic(device)) is not None}

    def of_disk(self, major: int, minor: int, depth: int = 0) -> int | None:
        """Return the NUMA node of a block device: that of all those below it, where they are on one node."""
        path = os.path.realpath(f"{self.root}/dev/block/{major}:{minor}")
        below = names_in(f"{path}/slaves")[:_MOST_BELOW]
        if not below:
            return self._of(path)
        if depth >= _DEEPEST:
            return None
        numbers = [text_of(f"{path}/slaves/{name}/dev").partition(":") for name in below]
        nodes = {self.of_disk(int(high), int(low), depth + 1) if high.isdigit() and low.isdigit() else None
                 for high, _, low in numbers}
        return nodes.pop() if len(nodes) == 1 else None

    def _of(self, path: str) -> int | None:
        """Read the NUMA node from a device's directory, or the nearest above it that shows one. The firmware often
        names no node (-1) where there is one alone."""
        at = os.path.realpath(path)
        while len(at) > len(os.path.realpath(self.root)) and os.path.exists(at):
            text = text_of(f"{at}/numa_node")
            if text:
                if text.isascii() and text.isdigit():
                    return int(text)
                break
            at = os.path.dirname(at)
        else:
            return None
        nodes = numbered(f"{self.root}/devices/system/node", "node")
        return nodes[0] if len(nodes) == 1 else None


def default_routes(proc: Procfs, pid: int = 1) -> tuple[str, ...]:
    """The interfaces of the default route with the lowest metric in a process's network namespace: IPv4's, or IPv6's
    where that has none. Its first lines show it: tables are in the order of their keys (net/ipv4/fib_trie.c)."""
    rows = [line.split() for line in _first_lines(f"{proc.root}/{pid}/net/route")[1:]]
    routes = [(int(row[6]), row[0]) for row in rows if len(row) >= 8 and row[1] == row[7] == b"00000000"
              and row[6].isdigit() and int(row[3], 16) & _ROUTE_UP]
    if not routes:
        rows = [line.split() for line in _first_lines(f"{proc.root}/{pid}/net/ipv6_route")]
        routes = [(int(row[5], 16), row[9]) for row in rows if len(row) >= 10 and row[:2] == [b"0" * 32, b"00"]
                  and row[9] != b"lo" and int(row[8], 16) & _ROUTE_UP]
    lowest = min((metric for metric, _ in routes), default=0)
    return tuple(dict.fromkeys(name.decode("utf-8", "backslashreplace") for metric, name in routes
                               if metric == lowest))


def _first_lines(path: str) -> list[bytes]:
    """Read them as bytes: an interface's name may have characters that separate words and lines of a text, but none
    that separate those of bytes (net/core/dev.c: dev_valid_name)."""
    try:
        raw = read_file(path, _FIRST_ROUTES) or b""
    except OSError:
        return []
    return raw.split(b"\n")[:-1]
