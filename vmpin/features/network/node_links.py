"""The links of this process's own network namespace, and which of them lead into those of other processes.

Enters no namespace and needs no capability: the kernel numbers the namespaces that links lead to, and gives the number
of a process's (RTM_GETNSID). For policy.vhost: near.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from vmpin.domain.model import ThreadId
from vmpin.errors import SourceError, WireError
from vmpin.features.network.device_nodes import DeviceNodes, default_routes
from vmpin.features.network.rtnetlink import links_request, nsid_request, parse_links, parse_nsid
from vmpin.features.network.vm_network import NamespaceLinks
from vmpin.host.procfs import Procfs

#: Bytes of a datagram (the kernel sends up to 32 KiB of a dump), and how many datagrams a dump may have: 256 Ki links.
_DATAGRAM, _MOST_DATAGRAMS = 1 << 16, 8192
#: The kernel answers within the call that asks.
_PATIENCE = 1.0


class NodeLinks(NamedTuple):
    """`numa_nodes` are those of the links' devices. `numbers` are the namespaces of processes as `links` has them, by
    main thread; None where it is in this one, and missing where no link leads there, or it has ended."""

    links: NamespaceLinks
    numa_nodes: Mapping[str, int]
    numbers: Mapping[ThreadId, int | None]


def read_node_links(proc: Procfs, sys_root: str, processes: Iterable[ThreadId]) -> NodeLinks:
    """Read the node's links, their NUMA nodes, and the numbers of the processes' network namespaces.
    :raises SourceError: where the kernel does not list the links."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as netlink:
            netlink.settimeout(_PATIENCE)
            links = _links(netlink)
            numbers = {process: number for process in processes
                       if (number := _number(netlink, proc, process)) is not False}
    except OSError as err:
        raise SourceError("rtnetlink", err.strerror or str(err)) from err
    names = default_routes(proc, os.getpid())
    routes = tuple(link.ifindex for link in links.links.values() if link.name in names)
    nodes = DeviceNodes(sys_root)
    numa = {link.device: node for link in links.links.values() if link.device
            and (node := nodes.of_nic(link.device)) is not None}
    return NodeLinks(replace(links, default_routes=routes), numa, numbers)


def _links(netlink: socket.socket) -> NamespaceLinks:
    netlink.send(links_request())
    found = []
    for _ in range(_MOST_DATAGRAMS):
        links, last = parse_links(netlink.recv(_DATAGRAM))
        found += links
        if last:
            return NamespaceLinks({link.ifindex: link for link in found})
    raise SourceError("rtnetlink", "the list of links does not end")


def _number(netlink: socket.socket, proc: Procfs, process: ThreadId) -> int | bool | None:
    """The number of a process's namespace, None for this process's own, False where there is none. Its start time,
    read afterwards, shows that the pid was still its own."""
    try:
        if os.readlink(f"{proc.root}/{process.tid}/ns/net") == os.readlink("/proc/self/ns/net"):
            number: int | bool | None = None
        else:
            netlink.send(nsid_request(process.tid))
            found = parse_nsid(netlink.recv(_DATAGRAM))
            number = False if found is None else found
    except (OSError, WireError):
        return False
    stat = proc.thread_stat(process.tid, process.tid)
    return number if stat is not None and stat.starttime == process.starttime else False
