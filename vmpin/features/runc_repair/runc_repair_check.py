"""The check of repairs of runc containers: whether another program writes the same cpusets. Pure."""

from __future__ import annotations

from vmpin.domain.facts import ALLOCATORS, NodeFacts
from vmpin.features.common.finding import Check, CheckResult, bad, ok, several, unknown

#: cri-resmgr rewrites cpusets before the runtime receives them, and vmpin restores what the runtime received. CMK sets
#: masks alone. mixedcpu adds shared CPUs to those of a container that has exclusive ones, and vmpin does not take
#: these away (runc_drift).
_NO_RIVALS = frozenset(("cri-resmgr", "cmk", "mixed-cpus"))


def runc_repair(facts: NodeFacts) -> CheckResult:
    if facts.settings.get("runc.repair") != "true":
        return ok("vmpin writes no cpuset of runc containers (runc.repair: false)")
    writers = [daemon for daemon in facts.daemons if daemon.kind in ALLOCATORS - _NO_RIVALS]
    if writers:
        kinds = dict.fromkeys(daemon.kind for daemon in writers)
        return bad(f"{several(kinds)} write cpusets, and so does vmpin (runc.repair)", "set runc.repair: false",
                   *(f"{daemon.name} pid {daemon.pid}" for daemon in writers))
    if not facts.sees:
        return unknown("the node's processes are invisible here", remedy="run this as root; in a pod: hostPID: true")
    return ok("no other program that writes pods' cpusets was found")


CHECKS = (Check("runc-repair", "whether another program writes the cpusets that vmpin restores", runc_repair),)
