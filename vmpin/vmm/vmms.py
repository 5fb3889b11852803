"""The table of VMMs. Nothing but this names one of them: the rest of the program asks the values in it."""

from collections.abc import Iterable

from vmpin.vmm.cloud_hypervisor import CLOUD_HYPERVISOR
from vmpin.vmm.dragonball import DRAGONBALL
from vmpin.vmm.firecracker import FIRECRACKER
from vmpin.vmm.qemu import QEMU
from vmpin.vmm.stratovirt import STRATOVIRT
from vmpin.vmm.vmm_type import VmmType

#: A program of a name that is none of theirs is classified by its arguments, in this order.
VMMS = (
    QEMU,
    CLOUD_HYPERVISOR,
    FIRECRACKER,
    STRATOVIRT,
    DRAGONBALL,
)

#: What the names of their programs begin with.
BEGINNINGS = tuple(text for vmm in VMMS for text in vmm.beginnings)

_BY_KATA_NAME = {vmm.kata_name: vmm for vmm in VMMS if vmm.kata_name}
_LIBRARIES = tuple(vmm for vmm in VMMS if vmm.library_thread)
_ID_LENGTHS = frozenset(vmm.id_length for vmm in VMMS)


def named_in_kata(name: str) -> VmmType | None:
    """The VMM that Kata's Go runtime calls so; None where it is none of these."""
    return _BY_KATA_NAME.get(name)


def library_with(comms: Iterable[str]) -> VmmType | None:
    """The VMM that runs in the process of a shim with threads of these names; None where they show none."""
    return next((vmm for comm in comms for vmm in _LIBRARIES if comm.startswith(vmm.library_thread)), None)


def is_cut_id(text: str, whole: str) -> bool:
    """Whether an id is as much of another as Kata gives a VMM that it cuts ids for."""
    return len(text) in _ID_LENGTHS and whole.startswith(text)
