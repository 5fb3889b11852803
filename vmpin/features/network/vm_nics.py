"""The NUMA node of each VM's NIC, kept from pass to pass: for policy.vhost: near, and loaded only with that policy.

A VM's NIC is read from the links of this process's own network namespace. That takes no other namespace and no
capability: the kernel numbers the namespaces that links lead to, and returns the number of a process's (RTM_GETNSID).
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Mapping

from vmpin.domain.model import NearNic, SandboxId, ThreadId
from vmpin.errors import SourceError, WireError
from vmpin.features.network.device_nodes import DeviceNodes, default_routes
from vmpin.features.network.network_devices import open_devices
from vmpin.features.network.nic_path import near_nic
from vmpin.features.network.rtnetlink import links_request, nsid_request, parse_links, parse_nsid
from vmpin.features.network.vm_network import NamespaceLinks
from vmpin.host.procfs import Procfs
from vmpin.named_tuple import NamedTuple
from vmpin.vmm.process_table import ROUNDS
from vmpin.vmm.virtual_machine import Vm

logger = logging.getLogger(__name__)

#: Bytes of a datagram (the kernel sends up to 32 KiB of a dump), and how many datagrams a dump may have: 256 Ki links.
_DATAGRAM, _MOST_DATAGRAMS = 1 << 16, 8192
#: Seconds. The kernel answers within the call that asks.
_PATIENCE = 1.0
_NOT_ASSIGNED = -1  #: linux/net_namespace.h: NETNSA_NSID_NOT_ASSIGNED


class VmNics:
    """Finds the NICs of VMs (`Vm.nic`). :param sys_root: /sys."""

    def __init__(self, proc: Procfs, sys_root: str) -> None:
        self._proc, self._sys_root = proc, sys_root
        self._turn = 0
        self._trouble = ""

    def refresh(self, vms: Mapping[SandboxId, Vm], turn: int, wanted: bool) -> set[SandboxId]:
        """Read the NICs of new VMs, and once in ROUNDS passes those of all, as bridges and routes may change.
        :param turn: counts passes. :param wanted: whether the policy is near; else all is forgotten.
        :returns: the sandboxes whose NIC is on another NUMA node than before, or found elsewhere."""
        again = wanted and turn % ROUNDS == 0 and turn != self._turn
        due = [vm for vm in vms.values() if again or (vm.nic is None) == wanted]
        if not due:
            return set()
        nics: Mapping[ThreadId, NearNic] = self._read({vm.vmm.id: vm for vm in due}) if wanted else {}
        self._turn = turn
        changed = {vm.sandbox for vm in due if vm.nic != nics.get(vm.vmm.id)}
        for vm in due:
            vm.nic = nics.get(vm.vmm.id)
        return changed

    def _read(self, mains: Mapping[ThreadId, Vm]) -> dict[ThreadId, NearNic]:
        try:
            node = read_node_links(self._proc, self._sys_root, mains)
        except SourceError as err:
            if str(err) != self._trouble:
                logger.warning("links of the node not read (%s): with policy.vhost: near vhost workers are placed as "
                               "by apart", err)
            self._trouble = str(err)
            return dict.fromkeys(mains, NearNic(None, f"the node's links cannot be read: {err}"))
        self._trouble = ""
        in_node = {main for main, number in node.numbers.items() if number is None}
        return {main: near_nic(node.numbers.get(main), self._taps(vm) if main in in_node else (), node.links,
                               node.numa_nodes) for main, vm in mains.items()}

    def _taps(self, vm: Vm) -> list[str]:
        """The interfaces of the taps that a VMM has open."""
        try:
            opened = open_devices(self._proc, vm.vmm.pid, vm.vmm.argv)
        except OSError:
            return []
        return [device.name for device in opened.devices if device.kind == "tap"]


class NodeLinks(NamedTuple):
    """`numa_nodes` are those of the links' devices. `numbers` are the namespaces of processes as `links` has them, by
    main thread: None for this namespace; a process is missing where no link leads to its namespace, or it ended."""

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
                       if (number := _number(netlink, proc, process)) != _NOT_ASSIGNED}
    except OSError as err:
        raise SourceError("rtnetlink", err.strerror or str(err)) from err
    return NodeLinks(links.with_default_routes(default_routes(proc, os.getpid())),
                     DeviceNodes(sys_root).of_links([links]), numbers)


def _links(netlink: socket.socket) -> NamespaceLinks:
    netlink.send(links_request())
    links = []
    for _ in range(_MOST_DATAGRAMS):
        more, last = parse_links(netlink.recv(_DATAGRAM))
        links += more
        if last:
            return NamespaceLinks({link.ifindex: link for link in links})
    raise SourceError("rtnetlink", "the list of links does not end")


def _number(netlink: socket.socket, proc: Procfs, process: ThreadId) -> int | None:
    """The number of a process's namespace, None for this process's own. The start time, read afterwards, shows that
    the pid was still the process's."""
    try:
        if os.readlink(f"{proc.root}/{process.tid}/ns/net") == os.readlink("/proc/self/ns/net"):
            number = None
        else:
            netlink.send(nsid_request(process.tid))
            number = parse_nsid(netlink.recv(_DATAGRAM))
            number = _NOT_ASSIGNED if number is None else number
    except (OSError, WireError):
        return _NOT_ASSIGNED
    stat = proc.thread_stat(process.tid, process.tid)
    return number if stat is not None and stat.starttime == process.starttime else _NOT_ASSIGNED
