"""The network of a VM as plain data: links of a namespace, the VM's devices with their queues and vhost workers, and
the path from each to the node's NIC. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from vmpin.named_tuple import NamedTuple

#: Kinds of links that are pairs: what one receives the other has sent.
PEERS = frozenset(("veth", "netkit"))


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


@dataclass(frozen=True)
class NamespaceLinks:
    """The links of one network namespace by ifindex. `redirects` are the targets of tc's mirred action on what an
    interface receives; `default_routes` the interfaces of the default route with the lowest metric; `node_ns` the
    number that this namespace has for the node's, None without one.

    The other members are made once: a node has several links for each VM, and the links of all VMs are looked up."""

    links: Mapping[int, NetLink]
    redirects: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    default_routes: tuple[int, ...] = ()
    node_ns: int | None = None

    def with_default_routes(self, names: Collection[str]) -> NamespaceLinks:
        """The same links, with the interfaces of the default route by their names."""
        return replace(self, default_routes=tuple(link.ifindex for link in self.links.values() if link.name in names))

    @cached_property
    def by_name(self) -> Mapping[str, NetLink]:
        return {link.name: link for link in self.links.values()}

    @cached_property
    def peers(self) -> Mapping[int, Sequence[NetLink]]:
        """The ends of pairs whose other ends are in another namespace, by its number."""
        return _grouped((link.lower_ns, link) for link in self.links.values()
                        if link.kind in PEERS and link.lower_ns is not None)

    @cached_property
    def ports(self) -> Mapping[int, Sequence[NetLink]]:
        """The ports of each bridge or bond, by its ifindex, without those that lead into another namespace."""
        return _grouped((link.master, link) for link in self.links.values()
                        if link.master and not (link.kind in PEERS and link.lower_ns is not None))

    @cached_property
    def nics(self) -> Sequence[NetLink]:
        return [link for link in self.links.values() if link.device]


def _grouped(links: Iterable[tuple[int, NetLink]]) -> dict[int, list[NetLink]]:
    groups: dict[int, list[NetLink]] = {}
    for key, link in links:
        groups.setdefault(key, []).append(link)
    return groups


class Hop(NamedTuple):
    """An interface on a path. `namespace` is "sandbox" or "node"; `by` is how the path leads here from the hop before:
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
    """The path from a VM's device to the NICs that its traffic may take. `note` is the reason where it has none."""

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
    descriptors, one for each queue or none. `plugged`: it is not on the command line, so newer than all that is."""

    kind: str
    name: str
    queues: int
    vhost: int = 0
    ifindex: int = 0
    plugged: bool = False


class VmNetwork(NamedTuple):
    """A device with its workers and path. `workers` are the vhost workers' thread ids by queue: () where it has none,
    or their order cannot be inferred."""

    device: VmNetDevice
    workers: tuple[int, ...] = ()
    path: NicPath = NicPath()

    def data(self) -> dict[str, object]:
        """Return the device as plain JSON: an element of the member `network.devices` of a sandbox in the status
        document."""
        device, path = self.device, self.path
        return {"name": device.name, "kind": device.kind, "queues": device.queues, "vhost": device.vhost,
                "workers": list(self.workers), "path": [hop._asdict() for hop in path.hops],
                "nics": [nic._asdict() for nic in path.nics], "numa_node": path.numa_node, "note": path.note}


def workers_of_queues(devices: Sequence[VmNetDevice], others: int, workers: Sequence[int]) -> list[tuple[int, ...]]:
    """Infer which vhost worker serves which queue: the workers of each device's queues; () for each device where the
    numbers do not fit.

    The kernel makes a worker for each vhost device when its owner is set (VHOST_SET_OWNER), and names it after the
    process alone. QEMU sets the owner of a network device's queues, in their order, when it makes the -netdev; of
    vsock devices when it makes the -device, after every -netdev; of devices that are plugged in later then. Nothing in
    /proc names the device of a worker.
    :param others: vhost devices on the command line that are no network devices (vsock), one worker each.
    :param workers: thread ids in the order of their start."""
    if sum(device.vhost for device in devices) + others != len(workers):
        return [()] * len(devices)
    served: list[tuple[int, ...]] = [()] * len(devices)
    left = list(workers)
    for plugged in (False, True):
        for at, device in enumerate(devices):
            if device.plugged is plugged:
                served[at], left = tuple(left[:device.vhost]), left[device.vhost:]
        if not plugged:
            left = left[others:]
    return served
