"""The table of VMMs. Only this module names single VMMs; the rest of the program uses the values in it."""

from collections.abc import Iterable

from vmpin.vmm.cloud_hypervisor import CLOUD_HYPERVISOR
from vmpin.vmm.dragonball import DRAGONBALL
from vmpin.vmm.firecracker import FIRECRACKER
from vmpin.vmm.openvmm import OPENVMM
from vmpin.vmm.qemu import QEMU
from vmpin.vmm.stratovirt import STRATOVIRT
from vmpin.vmm.vmm_type import VmmType

#: The order in which a program with another name is classified by its arguments.
VMMS = (
    QEMU,
    CLOUD_HYPERVISOR,
    FIRECRACKER,
    STRATOVIRT,
    DRAGONBALL,
    OPENVMM,
)

#: The prefixes of the names of their programs.
BEGINNINGS = tuple(text for vmm in VMMS for text in vmm.beginnings)

_BY_KATA_NAME = {vmm.kata_name: vmm for vmm in VMMS if vmm.kata_name}
_LIBRARIES = tuple(vmm for vmm in VMMS if vmm.library_thread)
_ID_LENGTHS = frozenset(vmm.id_length for vmm in VMMS)


def named_in_kata(name: str) -> VmmType | None:
    """The VMM with this name in the state of Kata's Go runtime; None if there is none."""
    return _BY_KATA_NAME.get(name)


def library_with(comms: Iterable[str]) -> VmmType | None:
    """The library VMM in the process of a shim with threads of these names; None if they show none."""
    return next((vmm for comm in comms for vmm in _LIBRARIES if comm.startswith(vmm.library_thread)), None)


def is_cut_id(text: str, whole: str) -> bool:
    """Whether `text` is `whole` as Kata truncates it for one of the VMMs."""
    return len(text) in _ID_LENGTHS and whole.startswith(text)
