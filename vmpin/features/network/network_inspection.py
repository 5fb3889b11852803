"""The network of each VM of a status document, as the member `network` of its sandbox.

Reads the VMMs' descriptors, and their network namespaces through a child process (netns): for commands that
root runs (status -o wide, explain, map, doctor), never for the watcher.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ThreadId
from vmpin.errors import SourceError
from vmpin.features.network.device_nodes import DeviceNodes, default_routes
from vmpin.features.network.netns import NamespacesRead, read_namespaces
from vmpin.features.network.network_devices import OpenDevices, disk_devices, open_devices
from vmpin.features.network.network_text import warnings
from vmpin.features.network.nic_path import path_of_device
from vmpin.features.network.vm_network import NamespaceLinks, NicPath, VmNetwork, workers_of_queues
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import Sysfs
from vmpin.named_tuple import NamedTuple


class _OpenVm(NamedTuple):
    """What a VMM has open. `workers`: its vhost workers in the order of their start."""

    main: ThreadId
    opened: OpenDevices
    workers: tuple[int, ...]
    disks: frozenset[tuple[int, int]]


def add_networks(sandboxes: Iterable[dict[str, Any]], proc: Procfs, sys_root: str) -> None:
    """Give each entry of a status document the member `network`: {why, devices, disks, warnings}; None without a VMM.
    `why` is the reason where it could not be read."""
    vms: list[tuple[dict[str, Any], _OpenVm]] = []
    for entry in sandboxes:
        entry["network"] = None
        if entry["vmm"] is not None:
            try:
                vm = _open_vm(entry, proc)
            except PermissionError:
                entry["network"] = _data("not inspected: the VMM's descriptors cannot be read (run it as root)")
                continue
            if vm is None:
                entry["network"] = _data("not inspected: the VMM has ended")
            else:
                vms.append((entry, vm))
    mains = [vm.main for _, vm in vms if any(device.kind != "vhost-user" for device in vm.opened.devices)]
    read = read_namespaces(proc, mains) if mains else NamespacesRead()
    if read.node is not None:
        read = read._replace(node=read.node.with_default_routes(default_routes(proc)))
    nodes = DeviceNodes(sys_root)
    numa_nodes = nodes.of_links(links for links in (read.node, *read.of.values()) if links is not None)
    cpus = _cpus_of_nodes(sys_root) if vms else {}
    for entry, vm in vms:
        network = entry["network"] = _network(vm, read, numa_nodes, nodes)
        network["warnings"] = warnings(network, entry["threads"], cpus)


def _open_vm(entry: Mapping[str, Any], proc: Procfs) -> _OpenVm | None:
    """None where its process has ended. Its start time before and after shows that all was the same process's."""
    pid = int(entry["vmm"]["pid"])
    before = proc.thread_stat(pid, pid)
    if before is None or before.starttime != entry["vmm"]["starttime"]:
        return None
    argv = proc.cmdline(pid)
    started = ((tid, proc.thread_stat(tid, tid)) for tid in
               (thread["tid"] for thread in entry["threads"] if thread["role"] == "vhost"))
    workers = sorted((stat.starttime, tid) for tid, stat in started if stat is not None)
    vm = _OpenVm(ThreadId(pid, before.starttime), open_devices(proc, pid, argv), tuple(tid for _, tid in workers),
                 disk_devices(proc, pid, argv))
    after = proc.thread_stat(pid, pid)
    return vm if after is not None and after.starttime == before.starttime else None


def _cpus_of_nodes(sys_root: str) -> Mapping[int, CpuSet]:
    try:
        return Sysfs(sys_root).topology().nodes
    except SourceError:
        return {}


def _network(vm: _OpenVm, read: NamespacesRead, numa_nodes: Mapping[str, int], nodes: DeviceNodes) -> dict[str, Any]:
    pid, devices, others = vm.main.tid, vm.opened.devices, vm.opened.other_vhost
    why = read.trouble or read.why.get(pid, "")
    workers = [()] * len(devices) if others is None else workers_of_queues(devices, others, vm.workers)
    networks = []
    for device, served in zip(devices, workers, strict=True):
        unread = why and device.kind != "vhost-user"
        path = NicPath(note=f"not inspected: {why}") if unread else path_of_device(
            device, read.of.get(pid), read.node or NamespaceLinks({}), numa_nodes)
        networks.append(VmNetwork(device, served, path).data())
    disks: list[dict[str, object]] = [{"device": f"{major}:{minor}", "numa_node": nodes.of_disk(major, minor)}
                                      for major, minor in sorted(vm.disks)]
    return _data(f"not inspected: {why}" if why else "", networks, disks)


def _data(why: str, devices: list[dict[str, object]] | None = None,
          disks: list[dict[str, object]] | None = None) -> dict[str, Any]:
    return {"why": why, "devices": devices or [], "disks": disks or [], "warnings": []}
