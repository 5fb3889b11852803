"""The devices of a container that may have a NUMA node, from its list of devices and its environment.

Device plugins and CDI put device nodes into the list, and the SR-IOV network device plugin sets PCIDEVICE_<RESOURCE>
to PCI addresses. The environment is the image's and the pod author's as well: an address in it decides only which of
the CPUs that the container may have are preferred, as the annotation cpu-near does.

Sources: k8snetworkplumbingwg/sriov-network-device-plugin pkg/resources/server.go (getEnvs).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

#: Device nodes and PCI addresses that are read of one container; a privileged one has every device of the host.
MOST_NODES = 256
MOST_ADDRESSES = 64
#: Longer values are not looked through.
_LONGEST = 16_384
_VARIABLE = re.compile(r"(PCIDEVICE_[A-Za-z0-9_]{1,200})=(.*)", re.DOTALL)
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_LETTERS = {"b": "b", "c": "c", "u": "c"}  # "u": a character device without buffer, as mknod(1) has it


class DeviceNode(NamedTuple):
    """A device node: `kind` is "b" or "c" (or "u"), or "p" for a pipe. `path` is the one in the container."""

    path: str
    kind: str
    major: int
    minor: int


def container_devices(nodes: Iterable[DeviceNode], env: Iterable[str]) -> dict[str, str]:
    """Map each device name ("c226:128", "0000:3b:00.0") to its origin: a path, or a variable.
    What gives out CPUs resolves the names."""
    found: dict[str, str] = {}
    for node in nodes:
        if len(found) == MOST_NODES:
            break
        if node.kind in _LETTERS and node.major >= 0 <= node.minor:
            found.setdefault(f"{_LETTERS[node.kind]}{node.major}:{node.minor}", node.path)
    addresses: dict[str, str] = {}
    for entry in env:
        if (match := _VARIABLE.fullmatch(entry[:_LONGEST])) is None:
            continue
        for address in match[2].split(","):
            if _ADDRESS.fullmatch(address.strip()) and len(addresses) < MOST_ADDRESSES:
                addresses.setdefault(address.strip(), match[1])
    return {**addresses, **found}
