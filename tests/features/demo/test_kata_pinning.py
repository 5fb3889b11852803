"""Kata's own pinning, as its source has it."""

from __future__ import annotations

import pytest

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.features.demo.kata_pinning import kata_pinning


@pytest.mark.parametrize(("vcpus", "cpus", "masks"), [
    ([0, 1], "4,6", {0: "4", 1: "6"}),
    ([7, 0], "2-3", {0: "2", 7: "3"}),
    ([0], "3", {0: "3"}),
    ([0, 1, 2], "0-1", {}),
    ([0, 1], "0-3", {}),
    ([], "1", {}),
    ([0], "", {}),
])
def test_as_many_vcpus_as_cpus_are_pinned_in_order_and_else_none(vcpus: list[int], cpus: str,
                                                                 masks: dict[int, str]) -> None:
    made = kata_pinning(vcpus, CpuSet.parse(cpus) if cpus else EMPTY)
    assert {vcpu: str(mask) for vcpu, mask in made.masks.items()} == masks


def test_the_reason_has_both_numbers() -> None:
    assert kata_pinning(range(2), CpuSet((5,))).reason == (
        "the VM has 2 vCPUs and the pod 1 CPU; it pins only where these numbers are equal")
    assert kata_pinning(range(2), EMPTY).reason == "no container of the pod has a cpuset"
    assert kata_pinning(range(2), CpuSet((0, 1))).reason == "the VM has as many vCPUs as the pod has CPUs: 2"
