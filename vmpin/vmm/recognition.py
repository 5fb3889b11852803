"""Recognizes the VMM and helper processes of sandboxes: by their command lines, which any process can forge, and by
evidence that it cannot. A VMM that runs inside the shim is recognized by its threads alone (vmms.library_with).

Trusted are the command lines of root's processes (and of this program's user), because runtimes run VMMs as root; and
those of another user's processes if root's shim of the sandbox started it, or if root's file or hook names it as the
sandbox's VMM (Kata's `rootless`: src/runtime/virtcontainers/qemu.go, setupVirtiofsd and startVM). Any user of the node
could forge another one. A process in a pid namespace of its own belongs to a container and is never recognized.

A program of any name may be Kata's VMM or file server (`path` and `virtio_fs_daemon` in Kata's configuration). It is
recognized if it has Kata's arguments, and if Kata's state, its parent or an open KVM descriptor confirms it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence

from vmpin.bounded import MAX_PID, parse_whole
from vmpin.domain.events import VmmClaim
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole
from vmpin.host.procfs import BEGINNING, Procfs, read_file, split_arguments
from vmpin.named_tuple import NamedTuple
from vmpin.vmm.arguments import go_flag, sandbox_id, served_sandbox
from vmpin.vmm.vmm_type import VmmType
from vmpin.vmm.vmms import BEGINNINGS, VMMS, is_cut_id, named_in_kata

# Patterns that are rarely needed are strings, which `re` compiles at their first use and caches.
#: File servers for guests: virtiofsd, or in its place Nydus' daemon (src/runtime/virtcontainers/nydusd.go) or that of
#: StratoVirt.
_FILE_SERVERS = ("virtiofsd", "nydusd", "vhost_user_fs")
_FILE_SERVER = rf"(?:{'|'.join(_FILE_SERVERS)})(?:[-_.].*)?"
#: A runtime type may have any name, and its last part but one is a part of the shim's: Edgeless Systems' Contrast
#: installs Kata's as containerd-shim-contrast-cc-v2 (nodeinstaller/internal/containerdconfig).
_SHIM, _KATAS_SHIM = r"containerd-shim-(?!runc-).+-v2", r"containerd-shim-.*kata.*-v2"
#: The actions of a shim's program that end at once, and its flags that take no value (containerd,
#: core/runtime/v2/shim/shim.go).
_SHIM_ACTIONS = frozenset(("start", "delete"))
_SHIM_SWITCHES = frozenset(("debug", "v", "version", "info", "h", "help"))
#: Prefixes of all these names, for a quick check: most programs have none of them.
_BEGINNINGS = (*BEGINNINGS, *_FILE_SERVERS, "ld-linux", "ld-musl")
_SHIMS, _RUNCS_SHIM = "containerd-shim-", "containerd-shim-runc-"
_LOADER = ("ld-linux-", "ld-linux.", "ld-musl-")
#: The loader's own options that take a value (ld.so(8)).
_LOADER_OPTIONS = frozenset(("--library-path", "--preload", "--audit", "--argv0", "--glibc-hwcaps-prepend",
                             "--glibc-hwcaps-mask", "--inhibit-rpath"))
#: Strings in the arguments of Kata's processes, independent of the program's name.
_ARGUMENTS = re.compile(rb"[\0=]sandbox-|/run/(?:vc|kata)/|/sandboxes/")
_UUID = r"(?ai)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_KERNEL_THREAD = r"(vhost-|kvm-pit/|kvm-nx-lpage-recovery-)([1-9][0-9]{0,8})"
#: No file has a longer name (include/uapi/linux/limits.h: NAME_MAX). A command line may: 128 KiB of it, which any user
#: writes, would take the patterns of programs seconds.
_LONGEST_NAME = 255
#: How many forks may lie between a process and the one that the shim started.
_GENERATIONS = 3


class VmmProcess(NamedTuple):
    """A VMM. `sandbox` is None if the command line names none: it is not Kata's, or its sandbox is unknown."""

    type: VmmType
    sandbox: SandboxId | None

    @property
    def cut(self) -> bool:
        """Whether `sandbox` may be only a prefix of the id."""
        return len(self.sandbox or "") == self.type.id_length


class HelperProcess(NamedTuple):
    """A file server (role VIRTIOFSD) or a shim, and the sandbox that it serves. `vms`: whether that is a VM by the
    program's name; a shim without Kata's name may be another runtime's."""

    role: ThreadRole
    sandbox: SandboxId | None
    vms: bool = True


#: A process of a sandbox: its main thread, classification and command line.
Recognized = tuple[ThreadId, VmmProcess | HelperProcess, list[str]]


class Impostor(NamedTuple):
    """A process of an unprivileged user (`uid`) with the command line of a sandbox's VMM or helper."""

    thread: ThreadId
    sandbox: SandboxId
    uid: int


class ClaimedVmm(NamedTuple):
    """A sandbox, and the claim that a process is its VMM."""

    sandbox: SandboxId
    claim: VmmClaim


def may_be(beginning: bytes) -> bool:
    """Whether `classify` or `classify_by_arguments` may recognize a command line. The cost does not depend on its
    length.
    :param beginning: the beginning of /proc/PID/cmdline, with the whole first argument."""
    if _has_name(_program(beginning)):
        return True
    # Most command lines contain neither; searching for these two first takes a tenth of the time.
    return (b"sandbox" in beginning or b"/run/" in beginning) and _ARGUMENTS.search(beginning) is not None


def classify(argv: Sequence[str]) -> VmmProcess | HelperProcess | None:
    """Classify a process by its program's name and its arguments. The result is only a claim, because a process can
    have any command line."""
    if not argv or not _has_name(_basename(argv[0])) or not (argv := _past_loader(argv)):
        return None
    program = _basename(argv[0])
    # The patterns of programs that are not there are never compiled.
    if program.startswith(_FILE_SERVERS) and re.fullmatch(_FILE_SERVER, program):
        return HelperProcess(ThreadRole.VIRTIOFSD, served_sandbox(argv))
    if program.startswith(_SHIMS) and re.fullmatch(_SHIM, program):
        # containerd and CRI-O run the shim's program with the action start or delete for each sandbox *and* each
        # container, then with the container's id. Those processes end at once; the shim itself has no action.
        if _shim_action(argv) in _SHIM_ACTIONS:
            return None
        return HelperProcess(ThreadRole.SHIM, sandbox_id(go_flag(argv, "id")),
                             re.fullmatch(_KATAS_SHIM, program) is not None)
    for vmm in VMMS:
        if vmm.program and re.fullmatch(vmm.program, program):
            return VmmProcess(vmm, vmm.sandbox(argv))
    return None


def classify_by_arguments(argv: Sequence[str]) -> VmmProcess | HelperProcess | None:
    """Classify a process by its arguments only, as Kata passes them to VMMs and file servers. Other programs may have
    such arguments as well, so callers need more evidence. None if the arguments name no sandbox.

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


def is_shim(process: VmmProcess | HelperProcess) -> bool:
    return isinstance(process, HelperProcess) and process.role is ThreadRole.SHIM


def kernel_thread_owner(comm: str) -> tuple[ThreadRole, int] | None:
    """The role of a kernel thread that works for a VM, and the pid of the process it works for.

    >>> kernel_thread_owner("vhost-1234")
    (<ThreadRole.VHOST: 'vhost'>, 1234)"""
    match = re.fullmatch(_KERNEL_THREAD, comm) if comm.startswith(("vhost-", "kvm-")) else None
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


def _has_name(program: str) -> bool:
    """Whether a program may be one of these by its name."""
    return program.startswith(_BEGINNINGS) or (program.startswith(_SHIMS) and not program.startswith(_RUNCS_SHIM))


def _program(beginning: bytes) -> str:
    return _basename(beginning.partition(b"\0")[0].decode("utf-8", "replace"))


def _basename(path: str) -> str:
    """The last component of a path; "" if no file can have that name."""
    name = path.rpartition("/")[2]
    return name if len(name) <= _LONGEST_NAME else ""


def _past_loader(argv: Sequence[str]) -> Sequence[str]:
    """Skip the dynamic loader and its options in a command line, if the program was started through it."""
    if not _basename(argv[0]).startswith(_LOADER):
        return argv
    at = 1
    while at < len(argv) and argv[at].startswith("-"):
        at += 2 if argv[at] in _LOADER_OPTIONS else 1
    return argv[at:]


def is_containers(proc: Procfs, pid: int | str, nested: bool | None) -> bool:
    """Whether a process belongs to a container, so that its command line is not to be read. A read waits for the
    memory map's lock (fs/proc/base.c: get_mm_cmdline), and a thread that maps a file of a server which does not answer
    (NFS, FUSE) holds that for ever. Kata's VMMs and helpers run in the host's pid namespace. But with
    --sandbox=namespace virtiofsd serves from a child in a new pid namespace. Its parent is a virtiofsd, whereas the
    parent of a container's process is the runtime or a process of the container.
    :param nested: the result of `Procfs.nested`."""
    stat = proc.stat(pid) if nested else None
    if stat is None or proc.nested(stat.ppid) is not False:
        return bool(nested)
    program = _program(proc.beginning(stat.ppid))
    return not program.startswith(_LOADER) and re.fullmatch(_FILE_SERVER, program) is None


def recognize(proc: Procfs, pid: int | str, beginning: bytes, nested: bool | None = False,
              claimed: ClaimedVmm | None = None, before: Recognized | None = None) -> Recognized | Impostor | None:
    """Recognize a process; None if it belongs to no sandbox.
    :param beginning: the beginning of its command line, just read. :param nested: whether it is in a pid namespace of
        its own, and not `is_containers`. :param claimed: a source's claim about its pid.
    :param before: the earlier result for its pid."""
    if claimed is None and not may_be(beginning):
        return None
    stat = proc.thread_stat(pid, pid)
    if stat is None:
        return None
    if nested and proc.beginning(stat.ppid) != beginning:
        return None
    identity = ThreadId(int(pid), stat.starttime)
    cut = (len(beginning) == BEGINNING and claimed is None and (before is None or before[0] != identity)
           and _poses(proc, identity.tid, stat.ppid, beginning))
    # Most arguments are the same for all VMs of a node, so they are interned.
    argv = list(map(sys.intern, split_arguments(beginning) if cut else proc.cmdline(pid, beginning)))
    by_name = classify(argv)
    process = by_name or classify_by_arguments(argv) or _as_claimed(claimed, identity, argv)
    if process is None or (nested and (isinstance(process, VmmProcess) or process.role is not ThreadRole.VIRTIOFSD)):
        return None
    if before is None or (before[0], before[2]) != (identity, argv):
        confirmed = _is_claimed(process, identity, argv, claimed)
        # What Kata's state claims needs no further evidence: the status of a process costs as much as all the rest.
        uid = 0 if confirmed else proc.foreign_uid(identity.tid)
        confirmed = confirmed or ((uid != 0 or by_name is None)
                                  and _is_of_its_shim(proc, process, stat.ppid, beginning, claimed))
        if uid and not confirmed:
            return None if process.sandbox is None else Impostor(identity, process.sandbox, uid)
        # Arguments alone prove nothing: an editor may have them, too.
        if by_name is None and not confirmed and not (
                isinstance(process, VmmProcess) and _has_kvm(proc, identity.tid)):
            return None
    if process.sandbox is None and by_name is None and claimed is not None:
        process = process._replace(sandbox=claimed.sandbox)
    return identity, process, argv


def _poses(proc: Procfs, pid: int, parent: int, beginning: bytes) -> bool:
    """Whether a process with a long command line is another user's, and the shim of the sandbox that its beginning
    names has not started it. It is judged by that beginning: parsing 128 KiB takes 50 ms, and a user may have a
    thousand such processes."""
    if not proc.foreign_uid(pid):
        return False
    argv = split_arguments(beginning)
    process = classify(argv) or classify_by_arguments(argv)
    return process is None or not _is_of_its_shim(proc, process, parent, beginning, None)


def _as_claimed(claimed: ClaimedVmm | None, identity: ThreadId, argv: list[str]) -> VmmProcess | None:
    """The VMM that Kata's state claims by pid and kind, whatever its command line; with the sandbox if the command
    line names the same one."""
    vmm = None if claimed is None else named_in_kata(claimed.claim.hypervisor)
    if claimed is None or vmm is None or claimed.claim.identity not in (None, identity):
        return None
    process = VmmProcess(vmm, vmm.sandbox(argv))
    same = named_by_kata(process, argv, claimed.sandbox, "")
    return process if same else process._replace(sandbox=None)


def _is_claimed(process: VmmProcess | HelperProcess, identity: ThreadId, argv: list[str],
                claimed: ClaimedVmm | None) -> bool:
    """Whether a source's claim and the command line agree on the VM."""
    if claimed is None or not isinstance(process, VmmProcess):
        return False
    sandbox, claim = claimed
    return named_by_kata(process, argv, sandbox, claim.uuid) or (
        process.sandbox is None and claim.identity == identity)


def _is_of_its_shim(proc: Procfs, process: VmmProcess | HelperProcess, parent: int, beginning: bytes,
                    claimed: ClaimedVmm | None) -> bool:
    """Whether the shim of its sandbox, by its command line or else by the claim, started a process."""
    sandbox = process.sandbox or (claimed.sandbox if claimed is not None else None)
    return sandbox is not None and started_by_shim(proc, parent, beginning, sandbox)


def started_by_shim(proc: Procfs, parent: int, beginning: bytes, sandbox: SandboxId) -> bool:
    """Whether root's shim of a sandbox started a process, or an ancestor of it with the same command line.
    :param parent: the process's parent. :param beginning: the beginning of the process's command line."""
    for _ in range(_GENERATIONS):
        above = proc.beginning(parent)
        # Another user's process is not parsed: its command line may have 128 KiB.
        process = classify(proc.cmdline(parent, above)) if may_be(above) and not proc.foreign_uid(parent) else None
        if process is not None and is_shim(process):
            whole = process.sandbox or ""
            return sandbox == whole or is_cut_id(sandbox, whole)
        stat = proc.stat(parent) if above == beginning else None
        if stat is None:
            return False
        parent = stat.ppid
    return False


def _has_kvm(proc: Procfs, pid: int) -> bool:
    from vmpin.vmm.kvm import has_kvm  # here, as most VMMs are recognized by their names
    return has_kvm(proc, pid)


def evidence_strength(proc: Procfs, pid: int, sandbox: SandboxId, rivals: Collection[int]) -> tuple[bool, ...]:
    """Return the evidence that a process is a sandbox's VMM, as a tuple to compare with those of its rivals; the
    strongest evidence comes first: its program has a VMM's name, it has KVM open (neither holds for the interpreter of
    a script that runs the VMM), none of the rivals forked it, the sandbox's shim started it, its cgroup is named after
    the sandbox (virtcontainers/sandbox.go: createResourceController), it has a network namespace of its own."""
    stat = proc.stat(pid)
    parent = 0 if stat is None else stat.ppid
    try:
        cgroups = read_file(f"{proc.root}/{pid}/cgroup") or b""
    except OSError:
        cgroups = b""
    named = re.search(rb"[/_:-]" + re.escape(sandbox.encode()) + rb"(?:\.scope)?(?:/|$)", cgroups, re.MULTILINE)
    own, first = proc.network_namespace(pid), proc.network_namespace(1)
    return (classify(proc.cmdline(pid)) is not None, _has_kvm(proc, pid), parent not in rivals,
            started_by_shim(proc, parent, proc.beginning(pid), sandbox), named is not None,
            bool(own and first and own != first))
