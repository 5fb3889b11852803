"""`kubernetes`: the keys of `vmpin reporter`, of which the watcher reads `node` for its metrics."""

from __future__ import annotations

from pathlib import Path

from vmpin.config import values
from vmpin.config.values import setting
from vmpin.named_tuple import NamedTuple


class KubernetesSettings(NamedTuple):
    """`kubernetes`: which node is reported, and what is written of it."""

    node: str = setting("", values.token, "name of the node that is reported, as the API server has it; in a pod its "
                        "spec.nodeName (VMPIN_KUBERNETES_NODE)")
    kubeconfig: Path | None = setting(None, values.path_or_unset, "kubeconfig with the API server's address and "
                                      "rights; unset: the service account of the pod")
    events: bool = setting(True, values.flag, "whether pods get Events (kubectl describe pod)")
    conditions: bool = setting(True, values.flag, "whether pods get the condition vmpin.io/CPUsPinned")
    labels: bool = setting(True, values.flag, "whether the node gets the labels vmpin.io/ready and vmpin.io/version")
    startup_taint: str = setting("", values.token, "key of the taint that is removed from the node once the watcher "
                                 "is ready; unset: none")
    nrt: str = setting("off", values.one_of("off", "own"), "the node's NodeResourceTopology: off; own (zones of its "
                       "own, unless another program writes any)")
    ready_file: Path | None = setting(None, values.path_or_unset, "file that is there while the API server is "
                                      "reached, for a readiness probe; unset: none")
