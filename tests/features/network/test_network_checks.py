"""."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from healthy_node import facts, sandbox, status, verdict

from vmpin.features.common.finding import Level

TAP = {"name": "tap0_kata", "kind": "tap", "queues": 1, "vhost": 1, "workers": [], "path": [],
       "nics": [{"name": "eno1", "device": "pci/a", "numa_node": 1}], "numa_node": 1, "note": ""}


def network(*warnings: str, why: str = "") -> dict[str, Any]:
    return {"why": why, "devices": [TAP], "disks": [], "warnings": list(warnings)}


def found(*networks: dict[str, Any] | None) -> Any:
    names = (sandbox(f"vm{at}", network=each) for at, each in enumerate(networks))
    return verdict("network", replace(facts(), status=status(*names)))


def test_vms_near_their_nics_are_well() -> None:
    result = found(network(), None)
    assert (result.level, result.what) == (
        Level.OK, "1 VM: no thread is far from its NIC or disks, and no queue lacks a vCPU")
    assert result.evidence == ("vm0: tap0_kata (1 queue) → eno1 on NUMA node 1",)
    assert found().what == "no VM sandbox runs on this node"


def test_far_threads_and_surplus_queues_are_warned_of_each_with_its_remedy() -> None:
    far = found(network("Vhost worker 5 may run on CPUs 0, none of them on NUMA node 1 of eno1"), network())
    assert far.level is Level.WARN
    assert "policy.vhost: near" in far.remedy
    assert far.evidence[0] == "vm0: Vhost worker 5 may run on CPUs 0, none of them on NUMA node 1 of eno1"
    queues = found(network("tap0_kata has 4 queues for 1 vCPU"))
    assert (queues.level, queues.remedy) == (
        Level.WARN, "no more queues than vCPUs: a guest does not use the others (docs/network.md)")


def test_what_was_not_inspected_is_unknown_with_the_reason() -> None:
    result = found(network(why="not inspected: needs CAP_SYS_ADMIN (run it as root)"), network())
    assert (result.level, result.what) == (
        Level.UNKNOWN, "the networks of 1 VM were not inspected: needs CAP_SYS_ADMIN (run it as root)")
    assert verdict("network", replace(facts(), status={}, status_trouble="no watcher")).level is Level.UNKNOWN


@pytest.mark.parametrize(("why", "remedy"), [
    ("not inspected: the VMM's descriptors cannot be read (run it as root)", "run this as root on the node"),
    ("not inspected: Operation not permitted", "run this as root on the node"),
    ("not inspected: network namespaces were not read within 30 s", "run this again when the node is less busy"),
    ("not inspected: the VMM has ended", "run this again when the node is less busy")])
def test_root_is_asked_for_only_where_a_right_is_missing(why: str, remedy: str) -> None:
    assert found(network(why=why)).remedy == remedy
