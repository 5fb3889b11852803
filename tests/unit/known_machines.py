"""Real machines of public test data (tests/data/sysfs), as they are known: the numbers of cores and caches that their
vendors name."""

from __future__ import annotations

from collections.abc import Iterable

from vmpin.cpuset import CpuSet
from vmpin.domain.topology import Topology


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def groups(*texts: str) -> list[CpuSet]:
    return list(map(cpus, texts))


def pairs(first: Iterable[int], away: int) -> list[CpuSet]:
    """Cores of two threads whose numbers are `away` apart."""
    return [CpuSet((cpu, cpu + away)) for cpu in first]


def matrix(*rows: str) -> dict[int, dict[int, int]]:
    return {node: dict(enumerate(map(int, row.split()))) for node, row in enumerate(rows)}


#: The CPUs of each node of xeon-snc: in both halves of its socket the kernel numbers cores as the firmware lists them.
_SNC = {0: "0-2,5-6,10-12,15-16,40-42,45-46,50-52,55-56", 1: "3-4,7-9,13-14,17-19,43-44,47-49,53-54,57-59",
        2: "20-22,25-26,30-32,35-36,60-62,65-66,70-72,75-76", 3: "23-24,27-29,33-34,37-39,63-64,67-69,73-74,77-79"}
_HALVES = [CpuSet(range(0, 112, 2)), CpuSet(range(1, 112, 2))]

MACHINES = {
    # 24 cores a socket in four dies of two CCX, three cores in each; hwloc reads the same from CPUID of two EPYC 7451
    # (tests/hwloc/x86/AMD-17h-Zen-2xEpyc-7451.xml).
    "epyc-7451": Topology.build(
        cpus("0-95"), pairs(range(48), 48),
        [cpus(f"{cpu}-{cpu + 2},{cpu + 48}-{cpu + 50}") for cpu in range(0, 48, 3)],
        {node: cpus(f"{6 * node}-{6 * node + 5},{6 * node + 48}-{6 * node + 53}") for node in range(8)},
        present=cpus("0-95"), sockets=groups("0-23,48-71", "24-47,72-95"), memory_nodes=cpus("0-7")),
    "xeon-snc": Topology.build(
        cpus("0-79"), pairs(range(40), 40), groups("0-19,40-59", "20-39,60-79"),
        {node: cpus(text) for node, text in _SNC.items()}, present=cpus("0-79"),
        distances=matrix("10 11 21 21", "11 10 21 21", "21 21 10 11", "21 21 11 10"),
        sockets=groups("0-19,40-59", "20-39,60-79"), dies=groups("0-19,40-59", "20-39,60-79"),
        memory_nodes=cpus("0-3")),
    "hybrid-8p8e": Topology.build(
        cpus("0-15"), groups("0-1", "2-3", "4-5", "6-7"), groups("0-15"), {0: cpus("0-15")}, present=cpus("0-15"),
        distances=matrix("10"), sockets=groups("0-15"), dies=groups("0-15"),
        kinds={"performance": cpus("0-7"), "efficient": cpus("8-15")}, memory_nodes=cpus("0")),
    "xeon-isolcpus": Topology.build(
        cpus("0-111"), pairs(range(56), 56), _HALVES, {node: CpuSet(range(node, 112, 4)) for node in range(4)},
        isolated=cpus("4-7,60-63"), present=cpus("0-111"), distances=matrix(
            "10 21 11 21 17 28 28 28", "21 10 21 11 28 28 17 28", "11 21 10 21 28 17 28 28",
            "21 11 21 10 28 28 28 17", "17 28 28 28 10 28 28 28", "28 28 17 28 28 10 28 28",
            "28 17 28 28 28 28 10 28", "28 28 28 17 28 28 28 10"),
        sockets=_HALVES, dies=_HALVES, memory_nodes=cpus("0-7")),
    "vm-offline": Topology.build(
        cpus("0-1"), caches=groups("0", "1"), nodes={0: cpus("0-1")}, present=cpus("0-3"), distances=matrix("10"),
        sockets=groups("0", "1"), dies=groups("0", "1"), memory_nodes=cpus("0")),
    "xeon-e5-devices": Topology.build(
        cpus("0-15"), caches=groups("0-7", "8-15"), nodes={0: cpus("0-7"), 1: cpus("8-15")}, present=cpus("0-15"),
        distances=matrix("10 21", "21 10"), sockets=groups("0-7", "8-15"), memory_nodes=cpus("0-1")),
}
