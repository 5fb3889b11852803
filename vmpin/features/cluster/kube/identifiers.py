"""vmpin's names in a cluster, and the names of other programs that it reads there."""

from __future__ import annotations

import re

GROUP = "vmpin.io"
API_VERSION = f"{GROUP}/v1alpha1"
KIND, PLURAL = "NodePinning", "nodepinnings"
#: The field manager of all that is applied, and the source component of Events.
MANAGER = "vmpin-reporter"
CONDITION = f"{GROUP}/CPUsPinned"
LABEL_READY, LABEL_VERSION = f"{GROUP}/ready", f"{GROUP}/version"

#: Labels of a node that its NodePinning has, too, so that nodes can be chosen by them.
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
POOLS = ("cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup", "kubernetes.azure.com/agentpool",
         "karpenter.sh/nodepool", "node.cluster.x-k8s.io/nodepool", f"{GROUP}/pool")
#: On the API server's copy of a static pod: the uid by which the kubelet and the runtime have the pod.
MIRROR = "kubernetes.io/config.mirror"

#: DNS-1123 subdomains: names of nodes, pods and namespaces. Nothing in them changes the path of a request.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")


def valid_name(text: str) -> bool:
    return len(text) <= 253 and _NAME.fullmatch(text) is not None


def label_value(text: str) -> str:
    """The text as the value of a label: other characters become dashes, and 63 are kept."""
    value = re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:63].strip("-_.")
    return value if not value or _LABEL.fullmatch(value) else ""
