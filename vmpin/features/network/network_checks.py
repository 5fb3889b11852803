"""The check of VMs' networks and disks: threads that work far from them, and queues without a vCPU.

Pure."""

from __future__ import annotations

from vmpin.doctor.finding import CheckResult, ok, several, unknown, warn
from vmpin.domain.facts import NodeFacts
from vmpin.domain.terminal import number_of, pod_name, short_id
from vmpin.features.network.network_text import summary

#: Reasons that end where this runs as root.
_DENIED = ("run it as root", "Operation not permitted", "Permission denied")


def network(facts: NodeFacts) -> CheckResult:
    if not facts.status:
        return unknown(f"no status: {facts.status_trouble}")
    found = {pod_name(sandbox["pod"], short_id(sandbox["id"])): network for sandbox in facts.sandboxes
             if (network := sandbox.get("network")) is not None}
    evidence = [f"{name}: {text}" for name, each in found.items() if (text := summary(each))][:20]
    warnings = [f"{name}: {text}" for name, each in found.items() for text in each["warnings"]]
    if warnings:
        far = any("NUMA node" in warning for warning in warnings)
        remedy = ("policy.vhost: near, if the pod has CPUs on the NIC's node; the kubelet's topologyManagerPolicy "
                  "gives it such CPUs" if far else "no more queues than vCPUs: a guest does not use the others")
        return warn(f"{number_of(len(warnings), 'finding')}: threads far from their NIC or disk, or queues without "
                    "a vCPU", remedy + " (docs/network.md)", *warnings[:20], *evidence)
    unseen = {name: each["why"] for name, each in found.items() if each["why"]}
    if unseen:
        denied = any(sign in why for why in unseen.values() for sign in _DENIED)
        return unknown(f"the networks of {number_of(len(unseen), 'VM')} were {next(iter(unseen.values()))}",
                       several(unseen), *evidence, remedy="run this as root on the node" if denied
                       else "run this again when the node is less busy")
    return ok(f"{number_of(len(found), 'VM')}: no thread is far from its NIC or disks, and no queue lacks a vCPU"
              if found else "no VM sandbox runs on this node", *evidence)
