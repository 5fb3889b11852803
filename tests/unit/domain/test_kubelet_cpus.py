"""The contents of a checkpoint, beside those of earlier ones and what PodResources lists."""

from __future__ import annotations

import pytest
from reported import UID, kubelet

from vmpin.cpuset import CpuSet
from vmpin.domain.kubelet_cpus import compare_with_pod_resources


def test_an_entry_is_as_old_as_the_file_that_had_these_cpus_first() -> None:
    first = kubelet({(UID, "app"): "2-3", (UID, "side"): "4"}).dated(10, None)
    then = kubelet({(UID, "app"): "2-3", (UID, "side"): "5"}).dated(20, first)
    assert then.since == {(UID, "app"): 10, (UID, "side"): 20}


@pytest.mark.parametrize(("resources", "said"), [
    (None, "PodResources does not answer"),
    ({("ns", "web", "app"): CpuSet.parse("2-3")}, "PodResources lists the same CPUs"),
    ({}, "PodResources does not list its CPUs 2-3"),
    ({("ns", "web", "app"): CpuSet.parse("3-4")},
     "PodResources lists CPUs 4, which it does not have and does not list its CPUs 2"),
])
def test_podresources_are_asked_of_a_checkpoint_that_is_gone(
        resources: dict[tuple[str, str, str], CpuSet] | None, said: str) -> None:
    assert compare_with_pod_resources(kubelet({(UID, "app"): "2-3"}), resources) == said


def test_podresources_do_not_list_init_containers() -> None:
    """Their CPUs stay the pod's, also those that no other container of it got."""
    listed = {("ns", "web", "app"): CpuSet.parse("2-3")}
    assert compare_with_pod_resources(kubelet({(UID, "init"): "2-5", (UID, "app"): "2-3"}), listed) == (
        "PodResources lists the same CPUs")
    assert compare_with_pod_resources(kubelet({(UID, "init"): "2-5", ("other", "app"): "6"}), listed) == (
        "PodResources does not list its CPUs 4-6")
