"""Classifies a process by its command line: a VMM, one of a sandbox's helpers, or neither.

Pure. Dragonball is not found here: it runs inside the shim and shows itself only by its threads (threads.py).
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from vmpin.bounded import MAX_PID, parse_whole
from vmpin.domain.model import SandboxId, ThreadRole, VmmType, valid_id
from vmpin.vmm.qemu_cmdline import keyvals, option_values

# Patterns that most starts do not use are texts, which `re` compiles at their first use, and keeps: so many take a
# millisecond before the first pass.
_VMM = (
    # Builds of QEMU bear names of their own: qemu-kiwi (RHEL), qemu-lite-, qemu-vanilla-, qemu-virtiofs-system-ARCH.
    (r"qemu-(?:.+-)?system-.+|qemu-(?:kvm|kiwi)(?:[-_.].*)?|kvm", VmmType.QEMU),
    (r"cloud-hypervisor(?:[-_.].*)?", VmmType.CLOUD_HYPERVISOR),
    # Not firecracker-containerd and firecracker-ctr, which are no VMMs.
    (r"firecracker(?!-c)(?:[-_.].*)?", VmmType.FIRECRACKER),
    (r"stratovirt", VmmType.STRATOVIRT),
)
#: What serves files to a guest: virtiofsd, and Nydus' daemon in its place (src/runtime/virtcontainers/nydusd.go).
_FILE_SERVER = re.compile(r"(?:virtiofsd|nydusd)(?:[-_.].*)?")
_SHIM = re.compile(r"containerd-shim-kata-(?:.+-)?v2")
#: The actions of a shim's program that end at once, and its flags that take no value (containerd,
#: core/runtime/v2/shim/shim.go).
_SHIM_ACTIONS = frozenset(("start", "delete"))
_SHIM_SWITCHES = frozenset(("debug", "v", "version", "info", "h", "help"))
#: What all of these begin with: most programs are none of them.
_BEGINS = re.compile(r"qemu-|kvm|cloud-h|firecracker|stratovirt|virtiofsd|nydusd|containerd-shim-kata|ld-linux")
_LOADER = re.compile(r"ld-linux[-.].*")
#: The loader's own options that take a value (ld.so(8)).
_LOADER_OPTIONS = frozenset(("--library-path", "--preload", "--audit", "--argv0", "--glibc-hwcaps-prepend",
                             "--glibc-hwcaps-mask", "--inhibit-rpath"))

# Anywhere in an argument: Kata writes paths bare, after `path=` and in comma lists, and a rootless Kata puts
# $XDG_RUNTIME_DIR in front.
_RUN_DIR = r"/run/(?:vc/(?:vm|sbs)|kata)/([^/,=]+)/"
_SHARED_DIR = r"/sandboxes/([^/,=]+)(?:[/,]|$)"
#: What Kata's arguments have in them, whatever the program is called.
_ARGUMENTS = re.compile(rb"[\0=]sandbox-|/run/(?:vc|kata)/|/sandboxes/")

_UUID = r"(?ai)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
#: How many characters of a sandbox's id Kata's Go shim gives Firecracker (virtcontainers/fc.go).
_FIRECRACKER_ID = 32
_KERNEL_THREAD = re.compile(r"(vhost-|kvm-pit/|kvm-nx-lpage-recovery-)([1-9][0-9]{0,8})")


class VmmProcess(NamedTuple):
    """A VMM. `sandbox` is None when the command line names none (then it is not Kata's, or it is unknown)."""

    type: VmmType
    sandbox: SandboxId | None

    @property
    def cut(self) -> bool:
        """Whether `sandbox` may be the beginning of the id only."""
        return self.type is VmmType.FIRECRACKER and len(self.sandbox or "") == _FIRECRACKER_ID

    @staticmethod
    def is_beginning(id: str, whole: str) -> bool:
        """Whether an id is that much of another as Kata gives Firecracker."""
        return len(id) == _FIRECRACKER_ID and whole.startswith(id)


class HelperProcess(NamedTuple):
    """A server of files (role VIRTIOFSD) or a Kata shim, and the sandbox that it serves."""

    role: ThreadRole
    sandbox: SandboxId | None


def may_be(beginning: bytes) -> bool:
    """Whether a command line that begins so (/proc/PID/cmdline, with all of its first argument) may be one that
    `classify` or `classify_by_arguments` recognizes. What it costs does not depend on how long that is."""
    if _BEGINS.match(_program(beginning)):
        return True
    # Most command lines contain neither: to search for these two first takes a tenth of the time.
    return (b"sandbox" in beginning or b"/run/" in beginning) and _ARGUMENTS.search(beginning) is not None


def may_be_file_server(beginning: bytes) -> bool:
    """The same for a server of files, started by the dynamic loader or not."""
    program = _program(beginning)
    return (_FILE_SERVER.fullmatch(program) or _LOADER.fullmatch(program)) is not None


def classify(argv: Sequence[str]) -> VmmProcess | HelperProcess | None:
    """Classify a process by its program's name, and the rest of its command line. The command line is the process's
    own claim: it can write any."""
    if not argv or not _BEGINS.match(_basename(argv[0])) or not (argv := _past_loader(argv)):
        return None
    program = _basename(argv[0])
    if _FILE_SERVER.fullmatch(program):
        return HelperProcess(ThreadRole.VIRTIOFSD, _served(argv))
    if _SHIM.fullmatch(program):
        # containerd and CRI-O run the shim's program with the action start or delete for each sandbox *and* each
        # container, then with the container's id. Those processes end at once; the shim itself has no action.
        if _shim_action(argv) in _SHIM_ACTIONS:
            return None
        return HelperProcess(ThreadRole.SHIM, _sandbox(_last(argv, "id")))
    for pattern, vmm in _VMM:
        if re.fullmatch(pattern, program):
            return VmmProcess(vmm, vmm_sandbox(vmm, argv))
    return None


def classify_by_arguments(argv: Sequence[str]) -> VmmProcess | HelperProcess | None:
    """Classify a process of any program's name by the arguments that Kata gives its VMMs and file servers: it runs
    whatever its configuration names (`path`, `virtio_fs_daemon`). Any program may be given such arguments, so a caller
    needs more to go by (recognition). None where they name no sandbox.

    >>> classify_by_arguments(["/usr/local/bin/vmm", "-name", "sandbox-a1"])
    VmmProcess(type=<VmmType.QEMU: 'qemu'>, sandbox='a1')"""
    if (sandbox := vmm_sandbox(VmmType.QEMU, argv)) is not None:
        return VmmProcess(VmmType.QEMU, sandbox)
    words = {word.partition("=")[0] for word in argv[1:]}
    for option, vmm in (("--api-socket", VmmType.CLOUD_HYPERVISOR), ("--api-sock", VmmType.FIRECRACKER)):
        if option in words and (sandbox := _by_pattern(argv, _RUN_DIR)) is not None:
            return VmmProcess(vmm, sandbox)
    served = _served(argv[1:])
    return None if served is None else HelperProcess(ThreadRole.VIRTIOFSD, served)


def named_by_kata(vmm: VmmProcess, argv: Sequence[str], sandbox: SandboxId, uuid: str) -> bool:
    """Whether the command line names the sandbox by its whole id, or the VM by its whole UUID, where Kata's Go runtime
    puts them. Firecracker has the id's beginning for an id, and a QEMU from Kata's factory another sandbox's name, but
    its own -uuid (govmm/qemu/qemu.go)."""
    if vmm.sandbox in (sandbox, sandbox[:_FIRECRACKER_ID] if vmm.type is VmmType.FIRECRACKER else sandbox):
        return True
    return (vmm.type is VmmType.QEMU and re.fullmatch(_UUID, uuid) is not None
            and [each.lower() for each in option_values(argv, "uuid")] == [uuid.lower()])


def is_vms(argv: Sequence[str]) -> bool:
    """Whether the process that a runtime names as a pod's is a VM's, by its command line: a VMM, or Kata's shim, which
    is Dragonball's process (the runtime names the thread `vmm_master` in it). No other pod's process is a shim's."""
    found = classify(argv) or classify_by_arguments(argv)
    return isinstance(found, VmmProcess) or (found is not None and is_shim(found))


def is_shim(found: VmmProcess | HelperProcess) -> bool:
    return isinstance(found, HelperProcess) and found.role is ThreadRole.SHIM


def kernel_thread_owner(comm: str) -> tuple[ThreadRole, int] | None:
    """The role of a kernel thread that works for a VM, and the pid of the process it works for.

    >>> kernel_thread_owner("vhost-1234")
    (<ThreadRole.VHOST: 'vhost'>, 1234)"""
    match = _KERNEL_THREAD.fullmatch(comm)
    owner = None if match is None else parse_whole(match[2], MAX_PID, 1)
    if match is None or owner is None:
        return None
    return ThreadRole.VHOST if match[1] == "vhost-" else ThreadRole.KVM, owner


def vmm_sandbox(vmm: VmmType, argv: Sequence[str]) -> SandboxId | None:
    """The sandbox that the command line of a VMM of that type names where Kata names it (to Firecracker often by the
    beginning of its id); None where it names none."""
    if vmm is VmmType.QEMU:
        # Only by name: another program's QEMU may well be given a file below /run/kata.
        name = ""
        for value in option_values(argv, "name"):
            name = dict(keyvals(value, "guest")).get("guest", name)
        return _sandbox(name.removeprefix("sandbox-")) if name.startswith("sandbox-") else None
    if vmm is VmmType.FIRECRACKER and (id_ := _sandbox(_last(argv, "id"))):
        return id_
    return _by_pattern(argv, _RUN_DIR)


def _served(argv: Sequence[str]) -> SandboxId | None:
    """The sandbox whose shared directory, or else whose runtime's directory, is in the arguments."""
    return _by_pattern(argv, _SHARED_DIR) or _by_pattern(argv, _RUN_DIR)


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


def _by_pattern(argv: Iterable[str], pattern: str) -> SandboxId | None:
    for arg in argv:
        for match in re.finditer(pattern, arg):
            if sandbox := _sandbox(match[1]):
                return sandbox
    return None


def _last(argv: Sequence[str], option: str) -> str:
    values = option_values(argv, option)
    return values[-1] if values else ""


def _sandbox(text: str) -> SandboxId | None:
    return SandboxId(text) if valid_id(text) else None


def _program(beginning: bytes) -> str:
    return _basename(beginning.partition(b"\0")[0].decode("utf-8", "replace"))


def _basename(path: str) -> str:
    return path.rpartition("/")[2]


def _past_loader(argv: Sequence[str]) -> Sequence[str]:
    """The command line of the program itself when it was started through the dynamic loader."""
    if not _LOADER.fullmatch(_basename(argv[0])):
        return argv
    at = 1
    while at < len(argv) and argv[at].startswith("-"):
        at += 2 if argv[at] in _LOADER_OPTIONS else 1
    return argv[at:]
