"""The properties of a kind of VMM as a value. Each VMM has a module beside this one, and a line in `vmms`.

The defaults are those of Kata and KVM for most VMMs. All functions are pure; those that parse a command line (argv)
leave out what cannot be parsed, because a process can have any command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from vmpin.domain.model import SandboxId, Vcpu, VcpuId
from vmpin.named_tuple import NamedTuple
from vmpin.vmm.arguments import option_values, run_directory_sandbox

#: A command line.
Argv = Sequence[str]

#: More vCPUs than any VMM supports.
MAX_VCPUS = 8192


class VmStart(NamedTuple):
    """The initial configuration of a VM, by its VMM's command line."""

    #: Minimum number of vCPUs: boot vCPUs cannot be unplugged.
    vcpus: int = 1
    #: The number of vCPU slots; 0 if the command line does not have it.
    slots: int = 0
    #: The ids of its declared iothreads, in order.
    iothreads: tuple[str, ...] = ()
    #: Whether the VMM has a thread for its monitors, created after the iothreads and before the vCPUs.
    monitor_thread: bool = False


class GuestChannels(NamedTuple):
    """The channels into the guest that a VMM provides. guests.channels connects over them."""

    #: The guest's CID if the kernel's vhost-vsock serves it; otherwise None.
    cid: Callable[[Argv], int | None] = lambda argv: None
    #: The socket between the VMM and its vhost-user vsock daemon; None without one.
    vsock_daemon: Callable[[Argv], str | None] = lambda argv: None
    #: The socket of the virtio-serial port of a name, as written; relative paths start at the VMM's directory.
    serial: Callable[[Argv, str], str | None] = lambda argv, name: None
    #: Hybrid vsock: the Unix sockets that it may have for its guest, the likeliest first. :param go, rs: the state
    #: directories of Kata's two runtimes.
    hybrid: Callable[[SandboxId, Argv, Path, Path], Iterable[Path]] = lambda sandbox, argv, go, rs: ()
    #: The hybrid socket's path inside the VMM's jail; None if it runs in no jail.
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

    #: The name in the status.
    name: str
    #: A pattern for thread names: group `vcpu` is a vCPU's number, `io` an iothread's name, `monitor` the name of the
    #: monitors' thread. A thread's name has at most 15 characters.
    thread_names: str
    #: A pattern for the full name of its program, and the prefixes of such names; "" and () for a library.
    program: str = ""
    beginnings: tuple[str, ...] = ()
    #: The prefix of a vCPU thread's name, for a library that runs the VM in the shim's process; "" for others.
    library_thread: str = ""
    #: The name in the state of Kata's Go runtime (virtcontainers/hypervisor.go); "" for none.
    kata_name: str = ""

    #: The sandbox on the command line, where Kata puts it; None if there is none.
    sandbox: Callable[[Argv], SandboxId | None] = run_directory_sandbox
    #: The same for a program of any name, by arguments that Kata passes only to this VMM.
    sandbox_by_arguments: Callable[[Argv], SandboxId | None] = lambda argv: None
    #: The number of characters to which Kata truncates the sandbox's id for it; None: it does not.
    id_length: int | None = None
    #: The VM's UUID; "" if the command line has none or several.
    uuid: Callable[[Argv], str] = lambda argv: ""

    start: Callable[[tuple[str, ...]], VmStart] = lambda argv: VmStart()
    #: Converts KVM's vcpu ids to vCPU numbers; impossible ids are left out.
    vcpus_of_kvm_ids: Callable[[Argv, Iterable[int]], dict[int, VcpuId]] = _same_vcpus
    #: Converts vCPU numbers to KVM's vcpu ids.
    kvm_ids: Callable[[Argv, Iterable[VcpuId]], dict[VcpuId, int]] = _same_ids
    #: The guest's view of its vCPUs: cores and NUMA nodes.
    guest_vcpus: Callable[[Argv, Sequence[VcpuId]], tuple[Vcpu, ...]] = (
        lambda argv, vcpus: tuple(map(Vcpu, vcpus)))
    #: The guest's architecture as in uname(2); "" if unknown.
    machine: Callable[[Argv], str] = host_machine
    #: The files that may be the guest's kernel.
    kernels: Callable[[Argv], list[str]] = lambda argv: option_values(argv, "kernel")
    #: The QMP sockets for queries about threads; None: it has no QMP.
    qmp_sockets: Callable[[Argv], tuple[str, ...]] | None = None
    channels: GuestChannels = GuestChannels()
    #: A pattern for options by which it sets its own threads' masks; "" for none.
    mask_options: str = ""

    def __repr__(self) -> str:
        return f"<VMM {self.name}>"
