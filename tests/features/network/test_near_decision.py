from types import SimpleNamespace
from typing import Any, cast

import pytest

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.vm_nic import NearNic
from vmpin.features.network.near_decision import near_decision
from vmpin.features.network.network_text import near_sentence


@pytest.mark.parametrize(("nic", "cpus", "text"), [
    (NearNic(1, "tap5 leads to b"), CpuSet.parse("4-5"), "are near: on NUMA node 1 of the NIC (tap5 leads to b)"),
    (NearNic(1, "tap5 leads to b"), CpuSet.parse("2"), "as by apart, not near: none of their CPUs is on NUMA node 1"),
    (NearNic(None, "several"), CpuSet.parse("2"), "not near: the NIC's NUMA node is not known (several)"),
    (NearNic(1, "b"), EMPTY, "as by apart"), (NearNic(7, "b"), CpuSet.parse("4"), "as by apart")])
def test_the_decision_of_near_is_a_sentence(nic: NearNic, cpus: CpuSet, text: str) -> None:
    placement = SimpleNamespace(cpus_for=lambda role, vcpu: cpus)
    view = SimpleNamespace(nics={1: nic}, placements={"a": placement}, node=SimpleNamespace(
        topology=SimpleNamespace(nodes={0: CpuSet.parse("0-3"), 1: CpuSet.parse("4-7")})))
    vm = SimpleNamespace(vmm=SimpleNamespace(id=1), sandbox="a")
    assert text in near_sentence(cast("Any", near_decision(cast("Any", view), cast("Any", vm))))
    assert near_decision(cast("Any", SimpleNamespace(nics={}, placements={})), cast("Any", vm)) is None
