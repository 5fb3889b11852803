"""Processes that run a VM of KVM, and that are no VMM that vmpin knows. No pass looks for them, because the
descriptors of many processes have to be read for that."""

from __future__ import annotations

import os
from collections.abc import Collection
from itertools import islice
from pathlib import Path

from vmpin.bounded import MAX_PID, parse_whole
from vmpin.host.procfs import Procfs, names_in
from vmpin.named_tuple import NamedTuple
from vmpin.vmm.kvm import VM, has_kvm
from vmpin.vmm.recognition import classify

MOST = 64  #: So many are found at most.


class UnknownVm(NamedTuple):
    pid: int
    name: str  #: Of its main thread. The program chooses it.


def unknown_vms(proc: Procfs, known: Collection[int], debugfs: Path) -> list[UnknownVm]:
    """Find processes with a VM that neither are of `known` pids nor have a VMM's name. A process in a pid namespace of
    its own belongs to a container (KubeVirt's VMMs, gVisor), whose cpuset holds all its threads.
    :param debugfs: it names each VM by the thread that made it (virt/kvm/kvm_main.c: kvm_create_vm_debugfs). Without
        it only this user's (root's) processes are found: other users may have very many descriptors."""
    makers = {parse_whole(name.partition("-")[0], MAX_PID, 1) for name in names_in(debugfs / "kvm")}
    listed = {proc.tgid(tid) for tid in makers if tid is not None}

    def find(pid: str) -> UnknownVm | None:
        number = parse_whole(pid, MAX_PID, 1)
        # A thread that made a VM may have ended, and another process have its tid.
        if (number is None or number in known or not (number in listed or _is_own(proc, pid))
                or not has_kvm(proc, pid, VM) or proc.nested(pid) is not False):
            return None
        stat = None if classify(proc.cmdline(pid)) else proc.stat(pid)
        return None if stat is None else UnknownVm(number, stat.comm)
    return list(islice(filter(None, map(find, proc.pids())), MOST))


def _is_own(proc: Procfs, pid: str) -> bool:
    try:
        return os.stat(f"{proc.root}/{pid}").st_uid == os.geteuid()
    except OSError:
        return False
