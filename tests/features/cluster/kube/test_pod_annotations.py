"""Annotations of pods: the mask and the vCPUs of a pod in a VM, and none where it is not placed."""

from __future__ import annotations

from typing import Any

import pytest
from kube_given import pod, sandbox

from vmpin.features.cluster.kube.identifiers import ANNOTATION_CPUS, ANNOTATION_VCPUS
from vmpin.features.cluster.kube.pod_annotations import annotation_change, annotations_of
from vmpin.features.cluster.kube.pod_record import record_of

SHOWN = {ANNOTATION_CPUS: "0-1,4-5", ANNOTATION_VCPUS: '{"0":"0-1","1":"4","2":"5"}'}


def test_they_are_the_mask_and_the_cpus_of_each_vcpu() -> None:
    assert annotations_of(sandbox()) == SHOWN


@pytest.mark.parametrize("changes", [{"mask": None}, {"vmm": None}, {"suspended": True}])
def test_a_pod_that_is_not_placed_has_none(changes: dict[str, Any]) -> None:
    assert annotations_of(sandbox(**changes)) == {}
    assert annotations_of(None) == {}


def test_one_that_would_be_too_long_is_left_out() -> None:
    vcpus = {str(number): ",".join(map(str, range(0, 200, 2))) for number in range(64)}
    assert annotations_of(sandbox(vcpus=vcpus)) == {ANNOTATION_CPUS: "0-1,4-5"}


def test_the_patch_holds_what_differs_and_the_uid() -> None:
    request = annotation_change(pod(annotations={ANNOTATION_CPUS: "0-1,4-5", ANNOTATION_VCPUS: "{}"}), SHOWN)
    assert request is not None
    assert (request.method, request.path) == ("PATCH", "/api/v1/namespaces/default/pods/web")
    assert request.body == {"metadata": {"uid": "uid-web", "annotations": {
        ANNOTATION_VCPUS: SHOWN[ANNOTATION_VCPUS]}}}
    assert annotation_change(pod(annotations=SHOWN), SHOWN) is None
    gone = annotation_change(pod(annotations=SHOWN), {})
    assert gone is not None
    assert gone.body == {"metadata": {"uid": "uid-web", "annotations": dict.fromkeys(SHOWN)}}
    assert annotation_change(pod(), {}) is None


def test_of_a_pod_only_vmpins_own_are_kept() -> None:
    record = record_of({"metadata": {"namespace": "n", "name": "p", "uid": "u", "annotations": {
        "a": "b", "vmpin.io/other": "c", ANNOTATION_CPUS: "0"}}})
    assert record is not None
    assert record.annotations == {ANNOTATION_CPUS: "0"}
