"""The vCPUs that are alone on an exclusive CPU: no other thread of their VM may run there, and none of another pod.

Pure. A busy real-time vCPU leaves other threads on its CPU the rest that the kernel keeps for them, a twentieth at
most: an emulator thread there would hold up the whole VM.
"""

from __future__ import annotations

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ThreadRole
from vmpin.domain.policy import Policy, ThreadPolicy
from vmpin.domain.sandbox_placement import Placement, VcpuPlacement


def why_not_alone(place: VcpuPlacement, placement: Placement, exclusive: CpuSet, collided: CpuSet,
                  policy: Policy) -> str:
    """Why a vCPU is not alone on an exclusive CPU; "" if it is.
    :param exclusive: the exclusive CPUs of its pod. :param collided: CPUs that another sandbox may use, too."""
    if place.cpus is None:
        return "its mask is not set"
    if len(place.cpus) != 1:
        return f"it may run on CPUs {place.cpus}"
    cpu = place.cpus.first
    if cpu not in exclusive:
        return f"CPU {cpu} is not exclusive to its pod"
    if cpu in collided:
        return f"another sandbox may use CPU {cpu}, too"
    others = [f"vCPU {other.id}" for other in placement.vcpus
              if other.id != place.id and (other.cpus is None or cpu in other.cpus)]
    rules: dict[str, list[str]] = {}
    for role, cpus in placement.others.items():
        if cpus is None or cpu in cpus:
            rules.setdefault(_rule(role, policy), []).append(role.value)
    others += [f"threads of the role {', '.join(roles)} ({rule})" for rule, roles in rules.items()]
    return f"{' and '.join(others)} may run on CPU {cpu}" if others else ""


def _rule(role: ThreadRole, policy: Policy) -> str:
    """The rule by which threads of a role share a vCPU's CPU."""
    rule = policy.rule(role)
    if rule in (ThreadPolicy.APART, ThreadPolicy.NEAR):
        return f"policy {rule}, and the sandbox has no shared CPU"
    return f"policy {rule}"
