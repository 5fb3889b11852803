"""How many vCPUs a VM's containers make, by which its spare set is sized."""

from __future__ import annotations

import pytest

from vmpin.domain.model import ContainerId, SandboxId
from vmpin.features.allocator.grants.cpu_request import CpuPolicy, CpuWish
from vmpin.features.allocator.grants.ledger import CpuAmount, Grant
from vmpin.features.allocator.grants.placing import kata_vcpus


@pytest.mark.parametrize(("limits", "vcpus", "part", "most", "expected"), [
    ([2000], 0, 200, 0, 3), ([2500], 0, 200, 0, 3), ([1900], 0, 200, 0, 3), ([2000, 800], 0, 200, 0, 3),
    ([2000, 900], 0, 200, 0, 4), ([2000], 0, 0, 0, 2), ([2500], 1, 0, 0, 4), ([1900], 1, 0, 0, 3),
    ([2000], 3, 0, 3, 3)])
def test_limits_and_a_part_of_a_vcpu_are_rounded_up_once(
        limits: list[int], vcpus: int, part: int, most: int, expected: int) -> None:
    """ceil(overhead_vcpus + sum) with runtime-rs' static sizing; else ceil(sum) + default_vcpus, which is whole."""
    grants = [Grant(ContainerId(f"c{number}"), SandboxId("pod"), "", "", "", "", CpuWish(), CpuPolicy.NONE,
                    amount=CpuAmount(limit=limit), vm=True, vm_vcpus=vcpus, vm_part=part, vm_most=most)
              for number, limit in enumerate(limits)]
    assert kata_vcpus(grants) == expected
