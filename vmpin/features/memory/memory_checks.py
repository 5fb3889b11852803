"""The check of VMs' memory: whether it is on the NUMA nodes of their vCPUs. Pure."""

from __future__ import annotations

from vmpin.domain.facts import NodeFacts
from vmpin.domain.terminal import number_of, pod_name, short_id
from vmpin.features.common.finding import Check, CheckResult, ok, several, unknown, warn
from vmpin.features.memory.memory_text import summary

#: The part of its memory that a VM may have elsewhere: the VMM's own program, page cache, a guest that was moved.
_FAR = 0.2
_REMEDY = ("the kubelet's memoryManagerPolicy: Static with topologyManagerPolicy: single-numa-node, or Kata's "
           "enable_numa; memory moves when the pod is created again (docs/memory.md)")


def memory(facts: NodeFacts) -> CheckResult:
    if not facts.status:
        return unknown(f"no status: {facts.status_trouble}")
    inspected = {pod_name(sandbox["pod"], short_id(sandbox["id"])): entry for sandbox in facts.sandboxes
                 if (entry := sandbox.get("memory")) is not None}
    evidence = [f"{name}: {summary(entry)}" for name, entry in inspected.items()]
    far = [name for name, entry in inspected.items() if (entry["away"] or 0) > _FAR]
    if far:
        return warn(f"{number_of(len(far), 'VM')} with memory on other NUMA nodes than the vCPUs: {several(far)}",
                    _REMEDY, *evidence[:20])
    unread = [name for name, entry in inspected.items() if not entry["nodes"]]
    if unread:
        return unknown(f"the memory of {number_of(len(unread), 'VM')} could not be read: {several(unread)}",
                       *evidence[:20], remedy="run this as root on the node")
    return ok(f"{number_of(len(inspected), 'VM')}: memory and vCPUs are on the same NUMA nodes" if inspected
              else "this machine has one NUMA node, or no VM", *evidence[:20])


CHECKS = (Check("memory", "VMs whose memory is on another NUMA node than their vCPUs", memory),)
