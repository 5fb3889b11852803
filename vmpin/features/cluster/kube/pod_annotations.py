"""Annotations of a pod with its CPUs, for programs that read pods and no conditions: kubernetes.annotate.

Nothing reads them back."""

from __future__ import annotations

import json
from collections.abc import Mapping

from vmpin.features.cluster.kube.api_request import ApiRequest, annotated, pod_path
from vmpin.features.cluster.kube.identifiers import ANNOTATION_CPUS, ANNOTATION_VCPUS
from vmpin.features.cluster.kube.pod_record import PodRecord
from vmpin.features.cluster.kube.reported_node import SandboxPinning

#: Characters of a value. All annotations of an object have 256 KiB at most, and pods are listed often.
MAX_VALUE = 8192


def annotations_of(found: SandboxPinning | None) -> dict[str, str]:
    """{} for a sandbox that is not placed, or None; one that would be too long is left out."""
    if found is None or not found.mask or not found.runs or found.suspended:
        return {}
    vcpus = json.dumps({str(vcpu): mask for vcpu, mask in sorted(found.vcpus.items())}, separators=(",", ":"))
    return {key: text for key, text in (
        (ANNOTATION_CPUS, found.mask), (ANNOTATION_VCPUS, vcpus)) if len(text) <= MAX_VALUE}


def annotation_change(pod: PodRecord, wanted: Mapping[str, str]) -> ApiRequest | None:
    """The patch that makes vmpin's annotations of the pod the wanted ones, {} for none; None where they are already.
    The uid is part of it: a pod that was created again under the name is not written to."""
    found: dict[str, str | None] = {**dict.fromkeys(pod.annotations), **wanted}
    changes = {key: text for key, text in found.items() if pod.annotations.get(key) != text}
    return annotated(pod_path(pod.namespace, pod.name), changes, pod.uid) if changes else None
