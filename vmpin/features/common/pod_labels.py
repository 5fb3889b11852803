"""The labels by which metrics name a sandbox."""

from collections.abc import Iterable

from vmpin.domain.model import Pod, SandboxId
from vmpin.reconcile.view import NodeView

POD = ("sandbox", "namespace", "pod")


def pod_labels(sandboxes: Iterable[SandboxId], view: NodeView) -> dict[SandboxId, tuple[str, str, str]]:
    """The labels of those sandboxes that still exist."""
    return {sandbox: labels_of(sandbox, view.sandboxes[sandbox].pod) for sandbox in sandboxes
            if sandbox in view.sandboxes}


def labels_of(sandbox: SandboxId, pod: Pod | None) -> tuple[str, str, str]:
    """The labels of a sandbox with this pod."""
    return (sandbox, "", "") if pod is None else (sandbox, label_text(pod.namespace), label_text(pod.name))


def label_text(text: str) -> str:
    """The text of a metric's label: names come from a pod's author or a hook, and may have invalid Unicode."""
    return text[:253].encode("utf-8", "replace").decode()
