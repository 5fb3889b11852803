"""The doctor's check of VMs' memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from healthy_node import facts, sandbox, status, verdict

from vmpin.features.common.finding import Level


def memory(away: float | None, why: str = "") -> dict[str, Any]:
    nodes = {} if away is None else {"1": 1 << 30}
    return {"source": "numa_maps" if nodes else None, "why": why, "nodes": nodes, "vcpu_nodes": [0], "away": away}


def found(*entries: dict[str, Any] | None) -> Any:
    names = (sandbox(f"vm{at}", memory=entry) for at, entry in enumerate(entries))
    return verdict("memory", replace(facts(), status=status(*names)))


def test_vms_beside_their_memory_are_well() -> None:
    result = found(memory(0.1), None)
    assert (result.level, result.what) == (Level.OK, "1 VM: memory and vCPUs are on the same NUMA nodes")
    assert result.evidence == ("vm0: 100 % on node 1 of 1.0 GiB; the vCPUs are on node 0",)
    assert found(None).what == "this machine has one NUMA node, or no VM"


def test_memory_far_from_the_vcpus_is_warned_of_with_a_remedy() -> None:
    result = found(memory(0.97), memory(0.0))
    assert (result.level, result.what) == (
        Level.WARN, "1 VM with memory on other NUMA nodes than the vCPUs: vm0")
    assert "memoryManagerPolicy: Static" in result.remedy


def test_what_was_not_inspected_is_unknown() -> None:
    assert found(memory(None, "only root may read numa_maps")).level is Level.UNKNOWN
    assert verdict("memory", replace(facts(), status={}, status_trouble="no watcher")).level is Level.UNKNOWN
