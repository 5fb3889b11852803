"""The network's side of a VM as plain data: links of a namespace, the VM's devices with their queues and vhost
workers, and the path from each to the node's NIC.

What stays out: reading links (host.links.netns) and descriptors (vmm.network_devices), and finding the path (network).
Used by most packages above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class NetLink(NamedTuple):
    """A network interface as rtnetlink has it. `kind` is the kernel's ("" for hardware and lo); `lower` the ifindex of
    the interface below it or of its veth peer, in the namespace with the number `lower_ns` as this one counts them
    (None: in this one); `master` that of its bridge or bond. `device` is "BUS/NAME" of the hardware, "" without."""

    ifindex: int
    name: str
    kind: str = ""
    lower: int = 0
    lower_ns: int | None = None
    master: int = 0
    device: str = ""


class NamespaceLinks(NamedTuple):
    """The links of one network namespace by ifindex. `redirects` are the targets of tc's mirred action on what an
    interface receives; `default_routes` the interfaces of the default route with the lowest metric; `node_ns` the
    number that this namespace has for the node's, None without one."""

    links: Mapping[int, NetLink]
    redirects: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    default_routes: tuple[int, ...] = ()
    node_ns: int | None = None


class Hop(NamedTuple):
    """An interface on the way. `namespace` is "sandbox" or "node"; `by` is how the way leads here from the hop before:
    "redirect" (tc mirred), "bridge", "port" (of a bridge or bond), "peer" (veth), "lower", "route", or "" for the
    first."""

    name: str
    kind: str
    namespace: str
    by: str = ""


class Nic(NamedTuple):
    """A NIC of the node. `numa_node` is None where the kernel shows none."""

    name: str
    device: str = ""
    numa_node: int | None = None


class NicPath(NamedTuple):
    """The way from a VM's device to the NICs that its traffic may take. `note` is the reason why there is none."""

    hops: tuple[Hop, ...] = ()
    nics: tuple[Nic, ...] = ()
    note: str = ""

    @property
    def numa_node(self) -> int | None:
        """The NUMA node of all its NICs; None where it has none, or they are on several."""
        nodes = {nic.numa_node for nic in self.nics}
        return nodes.pop() if len(nodes) == 1 else None


class VmNetDevice(NamedTuple):
    """A network device of a VM, as its VMM has it open. `kind` is "tap", "macvtap" or "vhost-user"; `name` the
    interface ("" for a macvtap, which its `ifindex` names) or, of vhost-user, the socket. `vhost` counts its vhost-net
    descriptors, one for each queue or none."""

    kind: str
    name: str
    queues: int
    vhost: int = 0
    ifindex: int = 0


class VmNetwork(NamedTuple):
    """One device with all that was found of it. `workers` are the vhost workers' thread ids by queue: () where there
    are none, or which serves which cannot be inferred."""

    device: VmNetDevice
    workers: tuple[int, ...] = ()
    path: NicPath = NicPath()

    def data(self) -> dict[str, object]:
        """As JSON: the member `network.devices` of a sandbox in the status document."""
        device, path = self.device, self.path
        return {"name": device.name, "kind": device.kind, "queues": device.queues, "vhost": device.vhost,
                "workers": list(self.workers), "path": [hop._asdict() for hop in path.hops],
                "nics": [nic._asdict() for nic in path.nics], "numa_node": path.numa_node, "note": path.note}
