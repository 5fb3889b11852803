"""StratoVirt, whose thread names and devices are QEMU's (virtcontainers/stratovirt.go)."""

from vmpin.vmm.qemu import QEMU
from vmpin.vmm.vmm_type import VmmType

STRATOVIRT = VmmType(
    name="stratovirt",
    kata_name="stratovirt",
    program=r"stratovirt(?:[-_.].*)?",
    beginnings=("stratovirt",),
    thread_names=QEMU.thread_names,
    channels=QEMU.channels,
)
