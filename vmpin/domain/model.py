"""The nouns of the domain: sandboxes, containers, virtual machines and their threads.

Plain frozen data, used everywhere.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NewType

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.named_tuple import NamedTuple

SandboxId = NewType("SandboxId", str)
ContainerId = NewType("ContainerId", str)
#: The VMM's number of a vCPU (QEMU's cpu-index, KVM's vcpu id). Not the guest's CPU number, and with holes
#: after hotplug: QEMU lists free slots highest first, so 0, 1, 7, 6.
VcpuId = NewType("VcpuId", int)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+:@-]{0,255}")


def valid_id(text: object) -> bool:
    """Whether `text` can be a sandbox or container id: one plain path component, nothing else."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None and ".." not in text


# A pass creates, hashes and compares one for each of a node's thousands of threads: a named tuple takes a third of a
# frozen dataclass's time for that.

#: `named(ThreadId, (tid, starttime))` makes a named tuple in half of the time that calling its class takes, as the
#: class's own `__new__` is a Python function: for those that a pass makes of each thread.
named = tuple.__new__


class ThreadId(NamedTuple):
    """A thread's identity: kernel thread id and start time (clock ticks since boot, /proc/TID/stat field 22). The
    kernel gives a bare number to another thread sooner or later; the pair is unique."""

    tid: int
    starttime: int


class ThreadRole(enum.StrEnum):
    """What a thread of a sandbox does, in libvirt's terms; the value is what status prints."""

    VCPU = "vcpu"
    IOTHREAD = "iothread"
    VHOST = "vhost"
    KVM = "kvm"  #: KVM's own helpers, kvm-pit/PID and kvm-nx-lpage-recovery-PID.
    #: All other threads of the VMM.
    EMULATOR = "emulator"
    VIRTIOFSD = "virtiofsd"
    SHIM = "shim"

    @property
    def policy(self) -> str:
        """The policy key that rules this role (KVM's helpers go with the emulator threads)."""
        return _POLICY.get(self, self)


_POLICY = {"vcpu": "vcpus", "iothread": "iothreads", "kvm": "emulator"}


class VmThread(NamedTuple):
    """One thread of a sandbox. `pid` is the process it belongs to (its own tid for a kernel thread)."""

    id: ThreadId
    role: ThreadRole
    name: str
    pid: int
    vcpu: VcpuId | None = None

    @property
    def main(self) -> bool:
        """Whether it is its process's main thread, from which new threads usually inherit their masks."""
        return self.id.tid == self.pid


class Vcpu(NamedTuple):
    """A vCPU as the guest sees it; `core` and `node` are the guest's numbers, None if unknown. `memory` are the host's
    NUMA nodes to which the memory of its guest node is bound, none if it is not bound."""

    id: VcpuId
    core: int | None = None
    node: int | None = None
    memory: frozenset[int] = frozenset()


class VcpuState(enum.Enum):
    """How far a VM's vCPU threads are identified."""

    #: Every vCPU's thread is identified.
    IDENTIFIED = enum.auto()
    #: Some are not identified yet, as while a VM boots or just after a hotplug: placement waits for a short time.
    AWAITED = enum.auto()
    #: Some are not identified, and placement no longer waits for them.
    UNIDENTIFIED = enum.auto()


class VcpuThreads(NamedTuple):
    """The identified vCPU threads of a VMM without thread names, and the unplugged vCPUs, whose threads have ended.
    `found_by` is the last strategy that identified a vCPU."""

    vmm: ThreadId
    threads: Mapping[ThreadId, VcpuId] = MappingProxyType({})
    gone: frozenset[VcpuId] = frozenset()
    found_by: str = "none"


class ContainerState(enum.StrEnum):
    CREATED = "created"
    RUNNING = "running"
    STOPPED = "stopped"


class Container(NamedTuple):
    """A container of a sandbox.

    `cpuset`: its CPUs on the host, None without any. `exclusive`: as declared by an annotation, None if undeclared; in
    an effective container (placement.rulings) whether it owns CPUs. `pause`: the sandbox's own container, whose cpuset
    counts while there is no other. `stale_cpuset`: the cpuset that its sources still report although an authority
    assigned some of it to another pod, or other CPUs to the container (`cpuset` is then None for the shared pool).
    `creating`: the runtime is creating it, and Kata may be plugging in vCPUs for it. `requested_cpuset`: the cpuset of
    an update in progress, None without one. `spare`: shared CPUs in the cpuset of an exclusive container: an
    allocator's CPUs for a VM's other threads, or CPUs added by a runtime or plugin (mixed CPUs). `ruled_by`: the
    authority by which it is exclusive or its cpuset is stale."""

    id: ContainerId
    name: str = ""
    cpuset: CpuSet | None = None
    exclusive: bool | None = None
    state: ContainerState = ContainerState.RUNNING
    pause: bool = False
    stale_cpuset: CpuSet | None = None
    creating: bool = False
    requested_cpuset: CpuSet | None = None
    spare: CpuSet = EMPTY
    ruled_by: str = ""

    @property
    def own_cpus(self) -> CpuSet:
        """The exclusive CPUs of an exclusive container: its cpuset without `spare`."""
        return (self.cpuset or EMPTY) - self.spare


class Pod(NamedTuple):
    namespace: str
    name: str
    uid: str = ""


def uid_of(pod: Pod | None) -> str:
    """The uid of a pod, "" for None."""
    return "" if pod is None else pod.uid


class NearNic(NamedTuple):
    """`numa_node` is the NIC's, None where it is not known; `why` is how it was found, or why not."""

    numa_node: int | None
    why: str
