"""The check of vCPUs' scheduling classes: whether a node lets vmpin set them, and what limits them. Pure."""

from __future__ import annotations

from vmpin.domain.facts import NodeFacts
from vmpin.domain.terminal import number_of
from vmpin.features.common.finding import Check, CheckResult, ok, warn

_DROP_IN = "systemctl edit vmpin: [Service] RestrictRealtime=no, then systemctl restart vmpin (docs/scheduling.md)"


def vcpu_class(facts: NodeFacts) -> CheckResult:
    """Judge what keeps vCPUs from having the class that they should have."""
    found = facts.of_features["scheduling"]
    if not found:
        return ok("vCPUs keep their classes (scheduling.vcpu_class: other)")
    wanted = facts.settings.get("scheduling.vcpu_class", "")
    entry = facts.status.get("features", {}).get("scheduling") or {}
    evidence = [f"scheduling.vcpu_class = {wanted}",
                *([f"set for {number_of(entry['set'], 'vCPU')}"] if entry else []),
                *(f"the kernel's threads {name} have {its}" for name, its in sorted(found["kernel"].items()))]
    if found["unlimited"] and facts.settings.get("scheduling.without_throttling") != "true":
        return warn(f"no class is set: {found['unlimited']}", "sysctl kernel.sched_rt_runtime_us=950000, or from "
                    "Linux 6.12 on 50000000 in cpuN/runtime of the fair server, leaves other threads a twentieth of "
                    "each CPU", *evidence)
    if found["restricted"]:
        return warn("the watcher's unit forbids real-time classes (RestrictRealtime=yes)", _DROP_IN, *evidence)
    why = {vcpu["why"] for sandbox in facts.status.get("sandboxes", ()) if sandbox.get("scheduling")
           for vcpu in sandbox["scheduling"]["vcpus"] if not vcpu["ok"]}
    if found["groups"] and (why or not entry.get("set")):
        return warn(f"the kernel has real-time shares of cgroups ({found['groups']}, CONFIG_RT_GROUP_SCHED): threads "
                    "in a cgroup without one get no real-time class", "cgroup v1: cpu.rt_runtime_us of the pods' "
                    "cgroups and all above them; v2 has no such file: rt_group_sched=0 on the kernel's command line, "
                    "where it takes that, or a kernel without the option", *evidence)
    if entry.get("trouble"):
        return warn(f"no class is set: {entry['trouble']}", "read the watcher's log: journalctl -u vmpin", *evidence)
    if why:
        return warn(f"vCPUs have not the class that they should have: {min(why)}",
                    "`vmpin status POD --explain` has the reason of each", *evidence)
    if facts.settings.get("scheduling.privileged_namespaces") and facts.settings.get("watch.nri") == "off":
        return warn("no pod's annotation vcpu-class.vmpin.io is read: watch.nri is off", "watch.nri: auto", *evidence)
    return ok("vCPUs that are alone on an exclusive CPU can have their class", *evidence)


CHECKS = (Check("vcpu-class", "whether vCPUs can have a real-time class, and what limits them", vcpu_class),)
