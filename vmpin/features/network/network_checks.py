"""The check of VMs' networks and disks: threads that work far from them, and queues without a vCPU.

Pure."""

from __future__ import annotations

from vmpin.domain.facts import NodeFacts
from vmpin.domain.terminal import number_of, pod_name, short_id
from vmpin.features.common.finding import Check, CheckResult, ok, several, unknown, warn
from vmpin.features.network.network_text import summary

#: Reasons that end where this runs as root.
_DENIED = ("run it as root", "Operation not permitted", "Permission denied")


def network(facts: NodeFacts) -> CheckResult:
    if not facts.status:
        return unknown(f"no status: {facts.status_trouble}")
    networks = {pod_name(sandbox["pod"], short_id(sandbox["id"])): network for sandbox in facts.sandboxes
                if (network := sandbox.get("network")) is not None}
    evidence = [f"{name}: {text}" for name, network in networks.items() if (text := summary(network))][:20]
    warnings = [f"{name}: {text}" for name, network in networks.items() for text in network["warnings"]]
    if warnings:
        far = any("NUMA node" in warning for warning in warnings)
        remedy = ("policy.vhost: near, if the pod has CPUs on the NIC's node; the kubelet's topologyManagerPolicy "
                  "gives it such CPUs" if far else "no more queues than vCPUs: a guest does not use the others")
        return warn(f"{number_of(len(warnings), 'finding')}: threads far from their NIC or disk, or queues without "
                    "a vCPU", remedy + " (docs/network.md)", *warnings[:20], *evidence)
    unread = {name: network["why"] for name, network in networks.items() if network["why"]}
    if unread:
        denied = any(sign in why for why in unread.values() for sign in _DENIED)
        return unknown(f"the networks of {number_of(len(unread), 'VM')} were {next(iter(unread.values()))}",
                       several(unread), *evidence, remedy="run this as root on the node" if denied
                       else "run this again when the node is less busy")
    return ok(f"{number_of(len(networks), 'VM')}: no thread is far from its NIC or disks, and no queue lacks a vCPU"
              if networks else "no VM sandbox runs on this node", *evidence)


CHECKS = (Check("network", "vhost workers and iothreads far from their NIC or disk; queues without a vCPU", network),)
