"""Text about the network of a VM, from the member `network` of its sandbox in the status document.

Pure. Names of interfaces are any bytes: what prints them escapes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from vmpin.cpuset import CpuSet, union
from vmpin.domain.terminal import number_of

Document = Mapping[str, Any]

COLUMNS = ("NETWORK", "KIND", "QUEUES", "VHOST WORKERS", "PATH TO THE NIC", "NUMA NODE")
_BY = {"redirect": "tc mirred", "route": "default route"}


def rows(network: Document) -> list[list[object]]:
    """A table's row for each device."""
    return [[device["name"] or "-", device["kind"], device["queues"], _workers(device),
             "; ".join(filter(None, (_path(device, 1), device["note"]))) or "-",
             "-" if device["numa_node"] is None else device["numa_node"]] for device in network["devices"]]


def status_lines(sandbox: Document) -> Iterator[str]:
    """Lines of `vmpin status` about one sandbox, from its members `near` and `network`."""
    if near := sandbox.get("near"):
        yield near_sentence(near)
    if network := sandbox.get("network"):
        if network["why"]:
            yield f"network {network['why']}"
        yield from network["warnings"]


def near_sentence(near: Document) -> str:
    """The decision of policy.vhost: near."""
    node, why = near["numa_node"], near["why"]
    if near.get("placed") == "near":
        return f"vhost workers are near: on NUMA node {node} of the NIC ({why})"
    if node is None:
        return f"vhost workers are placed as by apart, not near: the NIC's NUMA node is not known ({why})"
    return (f"vhost workers are placed as by apart, not near: none of their CPUs is on NUMA node {node} of the NIC "
            f"({why})")


def summary(network: Document | None) -> str:
    """One line for a legend: `tap0_kata (2 queues) → eth0 on node 1`; "" where there is nothing to show."""
    return ", ".join(f"{device['name'] or device['kind']} ({number_of(device['queues'], 'queue')})"
                     + (f" → {_nics(device)}" if device["nics"] else "")
                     for device in (() if network is None else network["devices"]))


def network_sentences(network: Document | None) -> Iterator[str]:
    """Sentences about one sandbox."""
    if network is None:
        return
    if network["why"] and not network["devices"]:
        yield f"Its network was {network['why']}."
    for device in network["devices"]:
        queues = number_of(device["queues"], "queue")
        name = f"{device['kind']} {device['name']}".strip()
        if device["nics"]:
            yield f"Its network device {name} ({queues}) reaches {_nics(device)}: {_path(device)}."
        else:
            path = f"{_path(device)}; " if device["path"] else ""
            yield f"Its network device {name} ({queues}) leads to no NIC that was found: {path}{device['note']}."
        if device["workers"]:
            served = ", ".join(f"{tid} serves queue {at}" for at, tid in enumerate(device["workers"]))
            yield f"vhost worker {served} (inferred from the order in which they were created)."
    for warning in network["warnings"]:
        yield f"{warning}."


def warnings(network: Document, threads: Sequence[Document], nodes: Mapping[int, CpuSet]) -> list[str]:
    """Describe what costs speed: threads far from their NIC or disk, and more queues than vCPUs.
    :param nodes: the CPUs of each NUMA node, {} where they are not known."""
    vcpus = sum(thread["role"] == "vcpu" for thread in threads)
    return [*_distant_threads(network, threads, nodes), *_surplus_queues(network, vcpus)]


def _distant_threads(network: Document, threads: Iterable[Document], nodes: Mapping[int, CpuSet]) -> list[str]:
    """Vhost workers that may run on no CPU of their NIC's NUMA node, and iothreads on none of their disks'."""
    by_tid = {thread["tid"]: thread for thread in threads}
    vhost, iothreads = ([tid for tid, thread in by_tid.items() if thread["role"] == role]
                        for role in ("vhost", "iothread"))

    def warning(noun: str, tids: Iterable[int], node: int | None, devices: str) -> Iterator[str]:
        far = [tid for tid in tids if tid in by_tid and _elsewhere(by_tid[tid], node, nodes)]
        if far:
            cpus = union(CpuSet.parse(by_tid[tid]["actual"]) for tid in far)
            yield (f"{noun}{'s' * (len(far) > 1)} {', '.join(map(str, far))} may run on CPUs {cpus}, none of them on "
                   f"NUMA node {node} of {devices}")

    warnings: list[str] = []
    nic_nodes = {device["numa_node"] for device in network["devices"] if device["vhost"]}
    for device in network["devices"]:
        workers = device["workers"] or (vhost if device["vhost"] and len(nic_nodes) == 1 else [])
        nics = " and ".join(nic["name"] for nic in device["nics"])
        warnings += warning("Vhost worker", workers, device["numa_node"], nics)
    disk_nodes = {disk["numa_node"] for disk in network["disks"]}
    warnings += warning("Iothread", iothreads, disk_nodes.pop() if len(disk_nodes) == 1 else None,
                        "its disks")
    return list(dict.fromkeys(warnings))


def _surplus_queues(network: Document, vcpus: int) -> list[str]:
    """Devices with more queues than the VM has vCPUs."""
    return [f"{device['name'] or device['kind']} has {number_of(device['queues'], 'queue')} for "
            f"{number_of(vcpus, 'vCPU')}"
            for device in network["devices"] if vcpus and device["queues"] > vcpus]


def _elsewhere(thread: Document, node: int | None, nodes: Mapping[int, CpuSet]) -> bool:
    if node is None or node not in nodes or thread["actual"] in ("", "None"):
        return False
    return nodes[node].isdisjoint(CpuSet.parse(thread["actual"]))


def _workers(device: Document) -> str:
    if device["workers"]:
        return ", ".join(map(str, device["workers"]))
    return f"{device['vhost']}, which is not known" if device["vhost"] else "none"


def _nics(device: Document) -> str:
    return " and ".join(nic["name"] + ("" if nic["numa_node"] is None else f" on NUMA node {nic['numa_node']}")
                        for nic in device["nics"])


def _path(device: Document, first: int = 0) -> str:
    """`tap0_kata (tap) → eth0 (veth, tc mirred) → node: veth12 (veth) → cni0 (bridge) → eno1 (nic)`.
    :param first: the hop that it begins with."""
    parts, namespace = [], "sandbox"
    for hop in device["path"]:
        by = _BY.get(hop["by"], "")
        where = "node: " if hop["namespace"] != namespace else ""
        namespace = hop["namespace"]
        parts.append(f"{where}{hop['name']} ({', '.join(filter(None, (hop['kind'], by)))})")
    return " → ".join(parts[first:])
