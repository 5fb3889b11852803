"""Roles by the names of a VMM's threads.

Pure, and free of cost: the name comes with the stat that is read for the start time anyway. Every thread can give
itself any name: threads.py decides which is believed.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from vmpin.bounded import parse_whole
from vmpin.domain.model import ThreadRole, VcpuId
from vmpin.host.procfs import Stat
from vmpin.vmm.vmm_type import MAX_VCPUS, VmmType

# Linux 6.4 and newer run vhost's workers and KVM's huge page recovery inside the VMM's own thread group.
_ANY = r"|(?P<vhost>vhost-[0-9]+$)|(?P<kvm>kvm-nx-lpage)|(?P<own>iou-)"

Role = tuple[ThreadRole, VcpuId | None]
EMULATOR: Role = (ThreadRole.EMULATOR, None)
IOTHREAD: Role = (ThreadRole.IOTHREAD, None)
_BY_GROUP: dict[str, Role] = {
    "io": IOTHREAD, "monitor": EMULATOR, "vhost": (ThreadRole.VHOST, None), "kvm": (ThreadRole.KVM, None),
    "own": EMULATOR}


class Names(NamedTuple):
    #: Every thread; emulator unless its name has another role.
    roles: dict[int, Role]
    #: Those named as a vCPU; not in doubt only if no number comes twice.
    vcpus: dict[int, VcpuId]
    #: Those that bear the process's own name: QEMU names no thread without debug-threads=on, none whose name
    #: would be longer than 15 characters, and every thread is born with its creator's name.
    unnamed: list[int]
    #: Those whose name has no role.
    other: list[int]
    #: Those named as the VMM's monitors.
    monitors: list[int]


def read_names(vmm: VmmType, pid: int, stats: Mapping[int, Stat], iothreads: Iterable[str] = ()) -> Names:
    """Sort the threads of process `pid` by their names; `iothreads` are the declared ids."""
    pattern = vmm.thread_names
    process = stats[pid].comm if pid in stats else ""
    names = Names({}, {}, [], [], [])
    roles, vcpus, unnamed, other, monitors = names
    for tid, stat in stats.items():
        comm = stat.comm
        role = EMULATOR
        group, text, vcpu = _read_name(pattern, comm)
        if vcpu is not None:
            vcpus[tid] = vcpu
        elif group is None:
            if tid != pid:
                (unnamed if comm == process else other).append(tid)
        else:
            role = _BY_GROUP[group]
            if group == "monitor":
                monitors.append(tid)
                role = IOTHREAD if text in iothreads else EMULATOR
        roles[tid] = role
    return names


@lru_cache(maxsize=1024)
def _read_name(pattern: str, comm: str) -> tuple[str | None, str, VcpuId | None]:
    """The group of the pattern that a name matches, its text, and the number of a vCPU's name: thousands of threads
    have a few different names."""
    match = re.match(pattern + _ANY, comm)
    if match is None or match.lastgroup is None:
        return None, "", None
    text = match[match.lastgroup]
    if match.lastgroup != "vcpu":
        return match.lastgroup, text, None
    vcpu = parse_whole(text, MAX_VCPUS - 1)
    return (None, "", None) if vcpu is None else ("vcpu", text, VcpuId(vcpu))
