"""`scheduling`: the class of vCPUs that are alone on an exclusive CPU."""

from __future__ import annotations

from vmpin.config import values
from vmpin.config.values import setting
from vmpin.named_tuple import NamedTuple


def _vcpu_class(value: object) -> str:
    if value == "other":
        return "other"
    from vmpin.features.scheduling.sched_class import parse_class  # not in what every command loads

    return str(parse_class(value))


class SchedulingSettings(NamedTuple):
    """`scheduling`. A change takes a restart."""

    vcpu_class: str = setting(
        "other", _vcpu_class, "the scheduling class of vCPUs that are alone on an exclusive CPU: other (left as it "
        "is), fifo or rr, with a priority from 1 (the default) to 49 as in fifo:2")
    privileged_namespaces: str = setting(
        "", values.token, "namespaces whose pods may choose the class with the annotation vcpu-class.vmpin.io, "
        "separated by commas")
    without_throttling: bool = setting(
        False, values.flag, "whether the class is set even if the kernel lets real-time threads take all of a CPU's "
        "time (kernel.sched_rt_runtime_us is -1; from Linux 6.12 on the fair server is off)")
