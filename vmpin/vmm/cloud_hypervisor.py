"""Cloud Hypervisor. It is configured over its API, so its command line has little more than the API's socket.

Kata puts the socket for the guest beside the API's. The directory is named after the sandbox, or after a VM from
Kata's factory (virtcontainers/clh.go; runtime-rs: hypervisor/src/ch).
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from vmpin.bounded import parse_whole
from vmpin.cpuset import EMPTY, MAX_CPU, CpuSet, CpuSetError
from vmpin.domain.model import SandboxId, Vcpu, VcpuId
from vmpin.vmm.arguments import run_directory_with, socket_path
from vmpin.vmm.vmm_type import GuestChannels, VmmType

_OPTION = r"(?:^|,)([a-z_]{1,32})=(\[[^\]]*\]|[^,]*)"
_MAX_NODE = 1023  #: Linux's limit on a host's nodes (CONFIG_NODES_SHIFT).


def _hybrid_sockets(sandbox: SandboxId, argv: Sequence[str], go: Path, rs: Path) -> Iterator[Path]:
    api = socket_path(argv, "--api-socket")
    beside = [Path(api).parent] if api else []
    for directory in (*beside, go / "vm" / sandbox, rs / sandbox):
        for name in ("clh.sock", "ch-vm.sock"):
            yield directory / name


def guest_vcpus(argv: Sequence[str], ids: Sequence[VcpuId]) -> tuple[Vcpu, ...]:
    """The given vCPUs with the guest's node (--numa guest_numa_id=,cpus=) and the host node to which the memory of
    its zones is bound (--memory-zone id=,host_numa_node=). Kata passes neither here, but over the API."""
    zones = {zone["id"]: zone["host_numa_node"] for zone in _listed(argv, "--memory-zone")
             if {"id", "host_numa_node"} <= zone.keys()}
    node_of: dict[int, int] = {}
    vcpus = CpuSet(vcpu for vcpu in ids if vcpu <= MAX_CPU)
    memory: dict[int | None, frozenset[int]] = {}
    for node in _listed(argv, "--numa"):
        number = parse_whole(node.get("guest_numa_id", ""), _MAX_NODE)
        if number is None:
            continue
        node_of |= dict.fromkeys(_numbers(node.get("cpus", "")) & vcpus, number)
        bound = (parse_whole(zones.get(zone, ""), _MAX_NODE) for zone in _items(node.get("memory_zones", "")))
        memory[number] = frozenset(host for host in bound if host is not None)
    return tuple(Vcpu(vcpu, None, node_of.get(vcpu), memory.get(node_of.get(vcpu), frozenset())) for vcpu in ids)


def _listed(argv: Sequence[str], name: str) -> Iterator[dict[str, str]]:
    """An option that may have several values after it, each a list of key=value whose values may be [lists]."""
    option = ""
    for arg in argv:
        if arg.startswith("--"):
            option, _, value = arg.partition("=")
            if value and option == name:
                yield dict(re.findall(_OPTION, value))
        elif option == name:
            yield dict(re.findall(_OPTION, arg))


def _items(value: str) -> list[str]:
    return value.strip("[]").split(",")


def _numbers(value: str) -> CpuSet:
    try:
        return CpuSet.parse(value.strip("[]"))
    except CpuSetError:
        return EMPTY


CLOUD_HYPERVISOR = VmmType(
    name="cloud-hypervisor",
    kata_name="clh",
    program=r"cloud-hypervisor(?:[-_.].*)?",
    beginnings=("cloud-h",),
    thread_names=r"vcpu(?P<vcpu>[0-9]{1,5})$",
    sandbox_by_arguments=run_directory_with("--api-socket"),
    guest_vcpus=guest_vcpus,
    channels=GuestChannels(hybrid=_hybrid_sockets),
    mask_options=r"affinity=\[",
)
