"""Classifies a process by its command line: a VMM, one of a sandbox's helpers, or neither.

Pure. A VMM that runs inside the shim is recognized only by its threads (vmms.library_with).
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from vmpin.bounded import MAX_PID, parse_whole
from vmpin.domain.model import SandboxId, ThreadRole
from vmpin.vmm.arguments import option_values, sandbox_id, served_sandbox
from vmpin.vmm.vmm_type import VmmType
from vmpin.vmm.vmms import BEGINNINGS, VMMS

# Patterns that are rarely needed are strings, which `re` compiles at their first use and caches.
#: File servers for guests: virtiofsd, or Nydus' daemon in its place (src/runtime/virtcontainers/nydusd.go).
_FILE_SERVER = r"(?:virtiofsd|nydusd)(?:[-_.].*)?"
_SHIM = r"containerd-shim-kata-(?:.+-)?v2"
#: The actions of a shim's program that end at once, and its flags that take no value (containerd,
#: core/runtime/v2/shim/shim.go).
_SHIM_ACTIONS = frozenset(("start", "delete"))
_SHIM_SWITCHES = frozenset(("debug", "v", "version", "info", "h", "help"))
#: Prefixes of all these names, for a quick check: most programs have none of them.
_BEGINNINGS = (*BEGINNINGS, "virtiofsd", "nydusd", "containerd-shim-kata", "ld-linux")
_LOADER = ("ld-linux-", "ld-linux.")
#: The loader's own options that take a value (ld.so(8)).
_LOADER_OPTIONS = frozenset(("--library-path", "--preload", "--audit", "--argv0", "--glibc-hwcaps-prepend",
                             "--glibc-hwcaps-mask", "--inhibit-rpath"))

#: Strings in the arguments of Kata's processes, independent of the program's name.
_ARGUMENTS = re.compile(rb"[\0=]sandbox-|/run/(?:vc|kata)/|/sandboxes/")

_UUID = r"(?ai)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_KERNEL_THREAD = re.compile(r"(vhost-|kvm-pit/|kvm-nx-lpage-recovery-)([1-9][0-9]{0,8})")


class VmmProcess(NamedTuple):
    """A VMM. `sandbox` is None if the command line names none: it is not Kata's, or its sandbox is unknown."""

    type: VmmType
    sandbox: SandboxId | None

    @property
    def cut(self) -> bool:
        """Whether `sandbox` may be only a prefix of the id."""
        return len(self.sandbox or "") == self.type.id_length


class HelperProcess(NamedTuple):
    """A file server (role VIRTIOFSD) or a Kata shim, and the sandbox that it serves."""

    role: ThreadRole
    sandbox: SandboxId | None


def may_be(beginning: bytes) -> bool:
    """Whether `classify` or `classify_by_arguments` may recognize a command line. The cost does not depend on its
    length.
    :param beginning: the beginning of /proc/PID/cmdline, with the whole first argument."""
    if _program(beginning).startswith(_BEGINNINGS):
        return True
    # Most command lines contain neither; searching for these two first takes a tenth of the time.
    return (b"sandbox" in beginning or b"/run/" in beginning) and _ARGUMENTS.search(beginning) is not None


def may_be_file_server(beginning: bytes) -> bool:
    """Whether a command line may be that of a file server, started through the dynamic loader or not."""
    program = _program(beginning)
    return program.startswith(_LOADER) or re.fullmatch(_FILE_SERVER, program) is not None


def classify(argv: Sequence[str]) -> VmmProcess | HelperProcess | None:
    """Classify a process by its program's name and its arguments. The result is only a claim, because a process can
    have any command line."""
    if not argv or not _basename(argv[0]).startswith(_BEGINNINGS) or not (argv := _past_loader(argv)):
        return None
    program = _basename(argv[0])
    if re.fullmatch(_FILE_SERVER, program):
        return HelperProcess(ThreadRole.VIRTIOFSD, served_sandbox(argv))
    if re.fullmatch(_SHIM, program):
        # containerd and CRI-O run the shim's program with the action start or delete for each sandbox *and* each
        # container, then with the container's id. Those processes end at once; the shim itself has no action.
        if _shim_action(argv) in _SHIM_ACTIONS:
            return None
        return HelperProcess(ThreadRole.SHIM, sandbox_id("".join(option_values(argv, "id")[-1:])))
    for vmm in VMMS:
        if vmm.program and re.fullmatch(vmm.program, program):
            return VmmProcess(vmm, vmm.sandbox(argv))
    return None


def classify_by_arguments(argv: Sequence[str]) -> VmmProcess | HelperProcess | None:
    """Classify a process by its arguments only, as Kata passes them to VMMs and file servers: Kata's configuration may
    name any program (`path`, `virtio_fs_daemon`). Other programs may have such arguments as well, so callers need more
    evidence (recognition). None if the arguments name no sandbox.

    >>> classify_by_arguments(["/usr/local/bin/vmm", "-name", "sandbox-a1"])
    VmmProcess(type=<VMM qemu>, sandbox='a1')"""
    for vmm in VMMS:
        if (sandbox := vmm.sandbox_by_arguments(argv)) is not None:
            return VmmProcess(vmm, sandbox)
    served = served_sandbox(argv[1:])
    return None if served is None else HelperProcess(ThreadRole.VIRTIOFSD, served)


def named_by_kata(vmm: VmmProcess, argv: Sequence[str], sandbox: SandboxId, uuid: str) -> bool:
    """Whether the command line has the sandbox's full id, or the VM's full UUID, where Kata's Go runtime puts them.
    Some VMMs get only a prefix of the id, and a VM from Kata's factory has another sandbox's name but its own UUID
    (govmm/qemu/qemu.go)."""
    if vmm.sandbox in (sandbox, sandbox[:vmm.type.id_length]):
        return True
    return re.fullmatch(_UUID, uuid) is not None and vmm.type.uuid(argv).lower() == uuid.lower()


def is_vms(argv: Sequence[str]) -> bool:
    """Whether the process that a runtime reports for a pod belongs to a VM: a VMM, or Kata's shim, which is
    Dragonball's process (the runtime reports its thread `vmm_master`). A pod without a VM never has a shim as its
    process."""
    process = classify(argv) or classify_by_arguments(argv)
    return isinstance(process, VmmProcess) or (process is not None and is_shim(process))


def is_shim(process: VmmProcess | HelperProcess) -> bool:
    return isinstance(process, HelperProcess) and process.role is ThreadRole.SHIM


def kernel_thread_owner(comm: str) -> tuple[ThreadRole, int] | None:
    """The role of a kernel thread that works for a VM, and the pid of the process it works for.

    >>> kernel_thread_owner("vhost-1234")
    (<ThreadRole.VHOST: 'vhost'>, 1234)"""
    match = _KERNEL_THREAD.fullmatch(comm)
    owner = None if match is None else parse_whole(match[2], MAX_PID, 1)
    if match is None or owner is None:
        return None
    return ThreadRole.VHOST if match[1] == "vhost-" else ThreadRole.KVM, owner


def _shim_action(argv: Sequence[str]) -> str:
    """The first argument that is neither a flag nor a flag's value, as Go's package flag parses it; "" for none."""
    at = 1
    while at < len(argv):
        flag, at = argv[at], at + 1
        if flag == "--":
            break
        if not flag.startswith("-") or flag == "-":
            return flag
        if "=" not in flag and flag.lstrip("-") not in _SHIM_SWITCHES:
            at += 1
    return argv[at] if at < len(argv) else ""


def _program(beginning: bytes) -> str:
    return _basename(beginning.partition(b"\0")[0].decode("utf-8", "replace"))


def _basename(path: str) -> str:
    return path.rpartition("/")[2]


def _past_loader(argv: Sequence[str]) -> Sequence[str]:
    """Skip the dynamic loader and its options in a command line, if the program was started through it."""
    if not _basename(argv[0]).startswith(_LOADER):
        return argv
    at = 1
    while at < len(argv) and argv[at].startswith("-"):
        at += 2 if argv[at] in _LOADER_OPTIONS else 1
    return argv[at:]
