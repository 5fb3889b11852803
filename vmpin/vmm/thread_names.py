"""Derives roles from the names of a VMM's threads.

Pure. The names cost nothing: they are in the stat files that are read for the start times. A thread can set any name,
so threads.py decides which names are trusted.
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
    #: All threads; EMULATOR unless the name has another role.
    roles: dict[int, Role]
    #: Threads with the name of a vCPU; only reliable if no number occurs twice.
    vcpus: dict[int, VcpuId]
    #: Threads with the process's name: a new thread inherits its creator's name, and QEMU sets none without
    #: debug-threads=on, or if it would be longer than 15 characters.
    unnamed: list[int]
    #: Threads with a name that has no role.
    other: list[int]
    #: Threads with the name of the VMM's monitors.
    monitors: list[int]


def read_names(vmm: VmmType, pid: int, stats: Mapping[int, Stat], iothreads: Iterable[str] = ()) -> Names:
    """Classify the threads of process `pid` by name. :param iothreads: the ids on the command line."""
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
    """Match a name. :returns: the group of the pattern that matches, its text, and the number in a vCPU's name.
    Cached: thousands of threads share a few names."""
    match = re.match(pattern + _ANY, comm)
    if match is None or match.lastgroup is None:
        return None, "", None
    text = match[match.lastgroup]
    if match.lastgroup != "vcpu":
        return match.lastgroup, text, None
    vcpu = parse_whole(text, MAX_VCPUS - 1)
    return (None, "", None) if vcpu is None else ("vcpu", text, VcpuId(vcpu))
