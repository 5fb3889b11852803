"""What one kind of VMM has of its own, as a value: a module beside this one for each, and its line in `vmms`.

What a VMM does not set is as Kata and KVM have it for most of them. All functions are pure; those of a command line
(argv, which is its process's own claim) leave out what cannot be read.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from vmpin.domain.model import SandboxId, Vcpu, VcpuId
from vmpin.vmm.arguments import option_values, run_directory_sandbox

#: More vCPUs than any VMM takes.
MAX_VCPUS = 8192


class VmStart(NamedTuple):
    """What a VM was started with, by its VMM's command line."""

    #: vCPUs that there must be at least, as they are never unplugged.
    vcpus: int = 1
    #: The vCPUs that it has room for, so that there can be no others; 0 where the command line does not have that.
    slots: int = 0
    #: The ids of its declared iothreads, in order.
    iothreads: tuple[str, ...] = ()
    #: The VMM has a thread for its own monitors, created after the iothreads and before the vCPUs.
    monitor_thread: bool = False


class HybridSocket(NamedTuple):
    """A Unix socket on which a VMM takes connections for its guest: the path as the VMM sees it (`in_jail`), or as
    this program does."""

    path: str
    in_jail: bool = False


class GuestPlace(NamedTuple):
    """The facts that a hybrid vsock's path follows from. :param kata_go, kata_rs: the state directories of Kata's two
    runtimes."""

    sandbox: SandboxId
    argv: Sequence[str]
    kata_go: Path
    kata_rs: Path


class GuestChannels(NamedTuple):
    """The ways into the guest that a VMM gives the host. guests.transport connects over them."""

    #: The guest's CID where the kernel's vhost-vsock serves it; None without one.
    cid: Callable[[Sequence[str]], int | None] = lambda argv: None
    #: The socket between the VMM and a daemon that is its vsock device (vhost-user); None without one.
    vsock_daemon: Callable[[Sequence[str]], str | None] = lambda argv: None
    #: The socket of the virtio-serial port of a name, as written: a relative one starts at the VMM's directory.
    serial: Callable[[Sequence[str], str], str | None] = lambda argv, name: None
    #: Hybrid vsock: where its sockets may be, the likeliest first.
    hybrid: Callable[[GuestPlace], Iterable[HybridSocket]] = lambda place: ()


def host_machine(argv: Sequence[str]) -> str:
    """The architecture of this machine."""
    import platform  # takes a millisecond to load, and few programs need it

    return platform.machine()


def _same_vcpus(argv: Sequence[str], kvm_ids: Iterable[int]) -> dict[int, VcpuId]:
    return {number: VcpuId(number) for number in kvm_ids}


def _same_ids(argv: Sequence[str], vcpus: Iterable[VcpuId]) -> dict[VcpuId, int]:
    return {vcpu: vcpu for vcpu in vcpus}


class VmmType(NamedTuple):
    """A kind of VMM."""

    #: As the status has it.
    name: str
    #: Names of its threads, as a pattern: group `vcpu` is a vCPU's number, `io` an iothread's name, `monitor` that of
    #: the VMM's monitors. A thread's name has at most 15 characters.
    thread_names: str
    #: The whole name of its program, as a pattern, and what such names begin with; "" and () for a library.
    program: str = ""
    beginnings: tuple[str, ...] = ()
    #: The beginning of a vCPU thread's name, for a library that runs the VM in the shim's own process; "" for others.
    library_thread: str = ""
    #: In Kata's Go runtime's state (virtcontainers/hypervisor.go), "" for none.
    kata_name: str = ""

    #: The sandbox that the command line names, where Kata names it; None where it names none.
    sandbox: Callable[[Sequence[str]], SandboxId | None] = run_directory_sandbox
    #: The same of a program of any name, by arguments that Kata gives to this VMM alone.
    sandbox_by_arguments: Callable[[Sequence[str]], SandboxId | None] = lambda argv: None
    #: To how many characters Kata cuts the sandbox's id for it; None: not at all.
    id_length: int | None = None
    #: The VM's UUID, "" for none, or where the command line has several.
    uuid: Callable[[Sequence[str]], str] = lambda argv: ""

    start: Callable[[tuple[str, ...]], VmStart] = lambda argv: VmStart()
    #: The vCPU of each of KVM's vcpu ids; one that no vCPU of this VM can have is left out.
    vcpus_of_kvm_ids: Callable[[Sequence[str], Iterable[int]], dict[int, VcpuId]] = _same_vcpus
    #: The other way: KVM's vcpu id of each vCPU.
    kvm_ids: Callable[[Sequence[str], Iterable[VcpuId]], dict[VcpuId, int]] = _same_ids
    #: The vCPUs as the guest sees them: cores and NUMA nodes.
    guest_vcpus: Callable[[Sequence[str], Sequence[VcpuId]], tuple[Vcpu, ...]] = (
        lambda argv, vcpus: tuple(map(Vcpu, vcpus)))
    #: The guest's architecture, as uname(2) names it; "" where it is not known.
    machine: Callable[[Sequence[str]], str] = host_machine
    #: The files that may be the guest's kernel.
    kernels: Callable[[Sequence[str]], list[str]] = lambda argv: option_values(argv, "kernel")
    #: The QMP sockets on which it can be asked for its threads; None: it has no QMP.
    qmp_sockets: Callable[[Sequence[str]], tuple[str, ...]] | None = None
    channels: GuestChannels = GuestChannels()
    #: Options by which it sets masks of its own threads, as a pattern; "" for none.
    mask_options: str = ""

    def __repr__(self) -> str:
        return f"<VMM {self.name}>"
