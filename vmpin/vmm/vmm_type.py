"""What one kind of VMM has of its own, as a value: a module beside this one for each, and its line in `vmms`.

What a VMM does not set is as Kata and KVM have it for most of them. All functions are pure; those of a command line
(argv, which is its process's own claim) leave out what cannot be read.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from vmpin.domain.model import SandboxId, Vcpu, VcpuId
from vmpin.vmm.arguments import option_values, run_directory_sandbox

#: A command line.
Argv = Sequence[str]

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
    #: Beside iothreads the VMM has a thread for its own monitors, created after them and before the vCPUs.
    monitor_thread: bool = False


class GuestChannels(NamedTuple):
    """The ways into the guest that a VMM gives the host. guests.transport connects over them."""

    #: The guest's CID where the kernel's vhost-vsock serves it; None without one.
    cid: Callable[[Argv], int | None] = lambda argv: None
    #: The socket between the VMM and a daemon that is its vsock device (vhost-user); None without one.
    vsock_daemon: Callable[[Argv], str | None] = lambda argv: None
    #: The socket of the virtio-serial port of a name, as written: a relative one starts at the VMM's directory.
    serial: Callable[[Argv, str], str | None] = lambda argv, name: None
    #: Hybrid vsock: the Unix sockets that it may have for its guest, the likeliest first. :param go, rs: the state
    #: directories of Kata's two runtimes.
    hybrid: Callable[[SandboxId, Argv, Path, Path], Iterable[Path]] = lambda sandbox, argv, go, rs: ()
    #: The one that it sees by another path, as it runs in a jail; None without one.
    hybrid_in_jail: Callable[[Argv], Path | None] = lambda argv: None


def host_machine(argv: Argv) -> str:
    """The architecture of this machine."""
    import platform  # takes a millisecond to load, and few programs need it

    return platform.machine()


def _same_vcpus(argv: Argv, kvm_ids: Iterable[int]) -> dict[int, VcpuId]:
    return {number: VcpuId(number) for number in kvm_ids}


def _same_ids(argv: Argv, vcpus: Iterable[VcpuId]) -> dict[VcpuId, int]:
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
    sandbox: Callable[[Argv], SandboxId | None] = run_directory_sandbox
    #: The same of a program of any name, by arguments that Kata gives to this VMM alone.
    sandbox_by_arguments: Callable[[Argv], SandboxId | None] = lambda argv: None
    #: To how many characters Kata cuts the sandbox's id for it; None: not at all.
    id_length: int | None = None
    #: The VM's UUID, "" for none, or where the command line has several.
    uuid: Callable[[Argv], str] = lambda argv: ""

    start: Callable[[tuple[str, ...]], VmStart] = lambda argv: VmStart()
    #: The vCPU of each of KVM's vcpu ids; one that no vCPU of this VM can have is left out.
    vcpus_of_kvm_ids: Callable[[Argv, Iterable[int]], dict[int, VcpuId]] = _same_vcpus
    #: The other way: KVM's vcpu id of each vCPU.
    kvm_ids: Callable[[Argv, Iterable[VcpuId]], dict[VcpuId, int]] = _same_ids
    #: The vCPUs as the guest sees them: cores and NUMA nodes.
    guest_vcpus: Callable[[Argv, Sequence[VcpuId]], tuple[Vcpu, ...]] = (
        lambda argv, vcpus: tuple(map(Vcpu, vcpus)))
    #: The guest's architecture, as uname(2) names it; "" where it is not known.
    machine: Callable[[Argv], str] = host_machine
    #: The files that may be the guest's kernel.
    kernels: Callable[[Argv], list[str]] = lambda argv: option_values(argv, "kernel")
    #: The QMP sockets on which it can be asked for its threads; None: it has no QMP.
    qmp_sockets: Callable[[Argv], tuple[str, ...]] | None = None
    channels: GuestChannels = GuestChannels()
    #: Options by which it sets masks of its own threads, as a pattern; "" for none.
    mask_options: str = ""

    def __repr__(self) -> str:
        return f"<VMM {self.name}>"
