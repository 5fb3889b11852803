"""The network's side of each VM of a status document, as the member `network` of its sandbox.

Reads the VMMs' descriptors, and their network namespaces through a child process (netns): for commands that
root runs (status -o wide, explain, map, doctor, gather), never for the watcher.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ThreadId
from vmpin.errors import SourceError
from vmpin.features.network.device_nodes import DeviceNodes, default_routes
from vmpin.features.network.netns import NamespacesRead, read_namespaces
from vmpin.features.network.network_devices import OpenDevices, disk_devices, open_devices
from vmpin.features.network.network_text import warnings
from vmpin.features.network.nic_path import path_of_device
from vmpin.features.network.vhost_order import workers_of_queues
from vmpin.features.network.vm_network import NamespaceLinks, NicPath, VmNetwork
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import Sysfs


@dataclass(frozen=True)
class _OpenVm:
    """What one VMM has open."""

    main: ThreadId
    devices: OpenDevices
    workers: tuple[int, ...]
    disks: frozenset[tuple[int, int]]


def add_networks(sandboxes: Iterable[dict[str, Any]], proc: Procfs, sys_root: str) -> None:
    """Give each entry of a status document the member `network`: {why, devices, disks, warnings}; None without a VMM.
    `why` is the reason where it could not be looked at."""
    opened: list[tuple[dict[str, Any], _OpenVm]] = []
    for entry in sandboxes:
        entry["network"] = None
        if entry["vmm"] is not None:
            try:
                found = _open_vm(entry, proc)
            except PermissionError:
                entry["network"] = _data("not inspected: the VMM's descriptors cannot be read (run it as root)")
                continue
            if found is None:
                entry["network"] = _data("not inspected: the VMM has ended")
            else:
                opened.append((entry, found))
    nodes = DeviceNodes(sys_root)
    with_links = [vm.main for _, vm in opened if any(each.kind != "vhost-user" for each in vm.devices.devices)]
    read = read_namespaces(proc, with_links) if with_links else NamespacesRead()
    if read.node is not None:
        names = default_routes(proc)
        node = replace(read.node, default_routes=tuple(link.ifindex for link in read.node.links.values()
                                                       if link.name in names))
        read = read._replace(node=node)
    numa, cpus = _numa_nodes(read, nodes), _cpus_of_nodes(sys_root) if opened else {}
    for entry, found in opened:
        network = entry["network"] = _network(found, read, numa, nodes)
        network["warnings"] = warnings(network, entry["threads"], cpus)


def _open_vm(entry: Mapping[str, Any], proc: Procfs) -> _OpenVm | None:
    """None where its process has ended. Its start time before and after shows that all was the same process's."""
    pid = int(entry["vmm"]["pid"])
    before = proc.thread_stat(pid, pid)
    start = entry["vmm"].get("starttime")  # a watcher of an older version has none
    if before is None or start not in (None, before.starttime):
        return None
    argv = proc.cmdline(pid)
    started = ((tid, proc.thread_stat(tid, tid)) for tid in
               (thread["tid"] for thread in entry["threads"] if thread["role"] == "vhost"))
    workers = sorted((stat.starttime, tid) for tid, stat in started if stat is not None)
    found = _OpenVm(ThreadId(pid, before.starttime), open_devices(proc, pid, argv), tuple(tid for _, tid in workers),
                    disk_devices(proc, pid, argv))
    after = proc.thread_stat(pid, pid)
    return found if after is not None and after.starttime == before.starttime else None


def _cpus_of_nodes(sys_root: str) -> Mapping[int, CpuSet]:
    try:
        return Sysfs(sys_root).topology().nodes
    except SourceError:
        return {}


def _numa_nodes(read: NamespacesRead, nodes: DeviceNodes) -> dict[str, int]:
    namespaces = [each for each in (read.node, *read.of.values()) if each is not None]
    devices = {link.device for namespace in namespaces for link in namespace.links.values() if link.device}
    return {device: node for device in devices if (node := nodes.of_nic(device)) is not None}


def _network(vm: _OpenVm, read: NamespacesRead, numa: Mapping[str, int], nodes: DeviceNodes) -> dict[str, Any]:
    pid, opened = vm.main.tid, vm.devices
    why = read.trouble or read.why.get(pid, "")
    workers: list[tuple[int, ...]] = [()] * len(opened.devices)
    if opened.other_vhost is not None:
        workers = workers_of_queues(opened.queues, opened.other_vhost, vm.workers)
    found = []
    for device, served in zip(opened.devices, workers, strict=True):
        unseen = why and device.kind != "vhost-user"
        path = NicPath(note=f"not inspected: {why}") if unseen else path_of_device(
            device, read.of.get(pid), read.node or NamespaceLinks({}), numa)
        found.append(VmNetwork(device, served, path).data())
    disks: list[dict[str, object]] = [{"device": f"{major}:{minor}", "numa_node": nodes.of_disk(major, minor)}
             for major, minor in sorted(vm.disks)]
    return _data(f"not inspected: {why}" if why else "", found, disks)


def _data(why: str, devices: list[dict[str, object]] | None = None,
          disks: list[dict[str, object]] | None = None) -> dict[str, Any]:
    return {"why": why, "devices": devices or [], "disks": disks or [], "warnings": []}
