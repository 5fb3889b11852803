"""`irqs`: whether interrupts on exclusive CPUs are counted, and moved away."""

from __future__ import annotations

from vmpin.config import values
from vmpin.config.values import setting
from vmpin.named_tuple import NamedTuple


class IrqSettings(NamedTuple):
    """`irqs`."""

    policy: str = setting(
        "off", values.one_of("off", "see", "away"), "off (nothing is read), see (the interrupts that exclusive CPUs "
        "take are counted and shown) or away (those of devices are moved to other CPUs, too)")
    honour: str = setting(
        "off", values.one_of("off", "crio", "nri-plugins", "crio,nri-plugins", "nri-plugins,crio"),
        "other programs' annotations that are honoured: crio (its irq-load-balancing.crio.io: with housekeeping a "
        "container's first core goes on taking interrupts), nri-plugins (its irq-affinity.resource-policy.nri.io: "
        "with claim a container's CPUs take interrupts), both, with a comma, or off")
