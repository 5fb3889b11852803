"""Identifies vCPU threads by KVM: by their KVM_RUN system calls, and by KVM's debugfs.

Both give KVM's vcpu id, which is the APIC id for QEMU on x86 (qemu.cpu_index converts it). Neither works for a
VM that was never started (-S), because KVM learns the thread of a vCPU at its first KVM_RUN.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping
from time import monotonic, sleep

from vmpin.bounded import MAX_FD, MAX_PID, parse_whole
from vmpin.host.procfs import Procfs, read_file

#: ioctl on x86, on arm64 (and every newer architecture), on s390x and POWER.
_IOCTL = frozenset(("16", "29", "54"))
#: include/uapi/linux/kvm.h: _IO(0xAE, 0x80); the second on POWER (arch/powerpc/include/uapi/asm/ioctl.h: _IOC_NONE).
_KVM_RUN = frozenset(("0xae80", "0x2000ae80"))
_FD = r"anon_inode:kvm-vcpu:([0-9]{1,6})"
VM = "anon_inode:kvm-vm"
_KVM = r"/dev/kvm|anon_inode:kvm-v(?:m|cpu:[0-9]+)"
_MOST_FDS = 4096
_VCPU = r"vcpu([0-9]{1,6})"

#: Pauses in seconds before a thread that was on a CPU is sampled again. A vCPU usually leaves the guest many times per
#: millisecond; one in a busy loop may never do so.
_PAUSES = (0.0005, 0.001, 0.002, 0.004)
_BUDGET = 0.01


def vcpu_fds(procfs: Procfs, pid: int) -> dict[int, int]:
    """Return KVM's vcpu ids by file descriptor of the process. Unplugged vCPUs are included: QEMU keeps ("parks")
    their descriptors, because KVM cannot destroy a vCPU. {} if the process has no KVM vCPU or may not be traced."""
    try:
        return {fd: int(vcpu[1]) for fd, target in procfs.descriptors(pid) if (vcpu := re.fullmatch(_FD, target))}
    except OSError:
        return {}


def has_kvm(procfs: Procfs, pid: int | str, what: str = _KVM) -> bool:
    """Whether a process has KVM open. False if it may not be traced. Only the first _MOST_FDS descriptors are read: a
    VMM opens KVM at its start, and other programs may have very many.
    :param what: a pattern of links: for the device, a VM or a vCPU; or for one of these."""
    try:
        return any(re.fullmatch(what, target) for _, target in procfs.descriptors(pid, _MOST_FDS))
    except OSError:
        return False


def in_kvm_run(procfs: Procfs, pid: int, tids: Iterable[int],
               fds: Mapping[int, int]) -> tuple[dict[int, int], list[int]]:
    """Return the vcpu ids of threads blocked in KVM_RUN, by tid; and the threads that were on a CPU: the kernel
    reports the system call of blocked threads only (fs/proc/base.c: proc_pid_syscall)."""
    fds_by_tid, running = {}, []
    for tid in tids:
        call = procfs.syscall(pid, tid)
        if call == "running":
            running.append(tid)
            continue
        fields = call.split(None, 3)
        if len(fields) < 3 or fields[0] not in _IOCTL or fields[2] not in _KVM_RUN:
            continue
        fd = parse_whole(fields[1], MAX_FD, base=16)
        if fd is not None and (number := fds.get(fd)) is not None:
            fds_by_tid[tid] = number
    return fds_by_tid, running


def in_kvm_run_later(procfs: Procfs, pid: int, tids: Collection[int], fds: Mapping[int, int]) -> dict[int, int]:
    """Sample threads that were on a CPU a few more times within 10 ms. :returns: as the first of `in_kvm_run`."""
    indices: dict[int, int] = {}
    deadline = monotonic() + _BUDGET
    for pause in _PAUSES:
        if not tids or monotonic() + pause > deadline:
            break
        sleep(pause)
        seen, tids = in_kvm_run(procfs, pid, tids, fds)
        indices |= seen
    return indices


def from_debugfs(root: str, pid: int) -> dict[int, int]:
    """Return KVM's vcpu ids by tid from `root`/kvm/PID-FD/vcpuN/pid (virt/kvm/kvm_main.c). Includes busy threads, and
    threads that have ended. {} if debugfs is not mounted or the kernel has no such file."""
    indices: dict[int, int] = {}
    try:
        for machine in (name for name in os.listdir(f"{root}/kvm") if name.startswith(f"{pid}-")):
            for vcpu in filter(None, (re.fullmatch(_VCPU, name) for name in os.listdir(f"{root}/kvm/{machine}"))):
                raw = (read_file(f"{root}/kvm/{machine}/{vcpu[0]}/pid", 32) or b"").strip()
                if (tid := parse_whole(raw, MAX_PID, 1)) is not None:
                    indices[tid] = int(vcpu[1])
    except OSError:
        return {}
    return indices
