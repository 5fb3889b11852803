"""Recognizes the VMM and helper processes of sandboxes: by their command lines, which any process can forge, and by
evidence that it cannot.

Trusted are the command lines of root's processes (and of this program's user), because runtimes run VMMs as root; and
those of another user's processes if root's shim of the sandbox started it, or if root's file or hook names it as the
sandbox's VMM (Kata's `rootless`: src/runtime/virtcontainers/qemu.go, setupVirtiofsd and startVM). Any user of the node
could forge another one. A process in a pid namespace of its own belongs to a container and is never recognized.

A program of any name may be Kata's VMM or file server (`path` and `virtio_fs_daemon` in Kata's configuration). It is
recognized if it has Kata's arguments, and if Kata's state, its parent or an open KVM descriptor confirms it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Mapping
from typing import NamedTuple

from vmpin.domain.events import VmmClaim
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole
from vmpin.host.procfs import Procfs, read_file
from vmpin.vmm.kvm import has_kvm
from vmpin.vmm.processes import (
    HelperProcess,
    VmmProcess,
    classify,
    classify_by_arguments,
    is_shim,
    may_be,
    may_be_file_server,
    named_by_kata,
)
from vmpin.vmm.vmms import is_cut_id, named_in_kata

#: A process of a sandbox: its main thread, classification and command line.
Found = tuple[ThreadId, VmmProcess | HelperProcess, list[str]]

#: How many forks may lie between a process and the one that the shim started.
_GENERATIONS = 3


class Impostor(NamedTuple):
    """A process of an unprivileged user (`uid`) with the command line of a sandbox's VMM or helper."""

    thread: ThreadId
    sandbox: SandboxId
    uid: int


class ClaimedVmm(NamedTuple):
    """A sandbox, and the claim that a process is its VMM."""

    sandbox: SandboxId
    claim: VmmClaim


def claims_by_pid(claims: Mapping[SandboxId, VmmClaim]) -> dict[int, ClaimedVmm]:
    return {claim.pid: ClaimedVmm(sandbox, claim) for sandbox, claim in claims.items()}


def recognize(proc: Procfs, pid: int | str, beginning: bytes, claimed: ClaimedVmm | None = None,
              before: Found | None = None) -> Found | Impostor | None:
    """Recognize a process; None if it belongs to no sandbox.
    :param beginning: the beginning of its command line, just read. :param claimed: a source's claim about its pid.
    :param before: the earlier result for its pid."""
    if claimed is None and not may_be(beginning):
        return None
    stat = proc.thread_stat(pid, pid)
    if stat is None:
        return None
    nested = proc.nested(pid)
    if nested and not _serves_its_parent(proc, stat.ppid, beginning):
        return None
    # Most arguments are the same for all VMs of a node, so they are interned.
    argv = list(map(sys.intern, proc.cmdline(pid, beginning)))
    identity = ThreadId(int(pid), stat.starttime)
    by_name = classify(argv)
    process = by_name or classify_by_arguments(argv) or _as_claimed(claimed, identity, argv)
    if process is None or (nested and (isinstance(process, VmmProcess) or process.role is not ThreadRole.VIRTIOFSD)):
        return None
    unchanged = before is not None and (before[0], before[2]) == (identity, argv)
    evidence = _Evidence(proc, identity, stat.ppid, beginning, process, argv, claimed)
    if not unchanged and (uid := evidence.unprivileged_uid()):
        return None if process.sandbox is None else Impostor(identity, process.sandbox, uid)
    if not unchanged and by_name is None and not evidence.shows_kata():
        return None
    if process.sandbox is None and by_name is None and claimed is not None:
        process = process._replace(sandbox=claimed.sandbox)
    return identity, process, argv


def _as_claimed(claimed: ClaimedVmm | None, identity: ThreadId, argv: list[str]) -> VmmProcess | None:
    """The VMM that Kata's state claims by pid and kind, whatever its command line; with the sandbox if the command
    line names the same one."""
    vmm = None if claimed is None else named_in_kata(claimed.claim.hypervisor)
    if claimed is None or vmm is None or claimed.claim.identity not in (None, identity):
        return None
    process = VmmProcess(vmm, vmm.sandbox(argv))
    same = named_by_kata(process, argv, claimed.sandbox, "")
    return process if same else process._replace(sandbox=None)


def _serves_its_parent(proc: Procfs, parent: int, beginning: bytes) -> bool:
    """Whether a process in a pid namespace of its own is the serving child of a virtiofsd. Other such processes, even
    a QEMU, belong to a container and its cpuset; Kata's VMMs and helpers run in the host's pid namespace. But with
    --sandbox=namespace virtiofsd serves from a child in a new pid namespace. Its parent is a virtiofsd, whereas the
    parent of a container's process is the runtime or a process of the container."""
    return (may_be_file_server(beginning) and proc.nested(parent) is False and proc.beginning(parent) == beginning)


class _Evidence:
    """Evidence that a process is what its command line claims."""

    def __init__(self, proc: Procfs, identity: ThreadId, parent: int, beginning: bytes,
                 process: VmmProcess | HelperProcess, argv: list[str], claimed: ClaimedVmm | None) -> None:
        self._proc, self._identity, self._parent, self._beginning = proc, identity, parent, beginning
        self._process, self._argv, self._claimed = process, argv, claimed

    def unprivileged_uid(self) -> int:
        """The uid of a process whose command line is not trusted; 0 if it is trusted."""
        uid = foreign_uid(self._proc, self._identity.tid)
        return 0 if not uid or self._is_claimed() or self._is_of_a_shim() else uid

    def shows_kata(self) -> bool:
        """Whether a program of another name is Kata's. Arguments alone prove nothing: an editor may have them, too."""
        if isinstance(self._process, HelperProcess):
            return self._is_of_a_shim()
        return self._is_claimed() or self._is_of_a_shim() or has_kvm(self._proc, self._identity.tid)

    def _is_claimed(self) -> bool:
        """Whether a source's claim and the command line agree on the VM."""
        if self._claimed is None or not isinstance(self._process, VmmProcess):
            return False
        sandbox, claim = self._claimed
        named = named_by_kata(self._process, self._argv, sandbox, claim.uuid)
        return named or (self._process.sandbox is None and claim.identity == self._identity)

    def _is_of_a_shim(self) -> bool:
        sandbox = self._process.sandbox or (self._claimed.sandbox if self._claimed is not None else None)
        return sandbox is not None and started_by_shim(self._proc, self._parent, self._beginning, sandbox)


def foreign_uid(proc: Procfs, pid: int) -> int:
    """A uid of a process that is neither root's nor this program's; 0 if there is none. The owner of /proc/PID is not
    used: it is root for every process that cannot be dumped (fs/proc/base.c: task_dump_owner)."""
    return max(set(proc.uids(pid) or ()) - {0, os.geteuid()}, default=0)


def started_by_shim(proc: Procfs, parent: int, beginning: bytes, sandbox: SandboxId) -> bool:
    """Whether root's shim of a sandbox started a process, or an ancestor of it with the same command line.
    :param parent: the process's parent. :param beginning: the beginning of the process's command line."""
    for _ in range(_GENERATIONS):
        above = proc.beginning(parent)
        process = classify(proc.cmdline(parent, above)) if may_be(above) else None
        if process is not None and is_shim(process):
            whole = process.sandbox or ""
            return (sandbox == whole or is_cut_id(sandbox, whole)) and not foreign_uid(proc, parent)
        stat = proc.stat(parent) if above == beginning else None
        if stat is None:
            return False
        parent = stat.ppid
    return False


def evidence_strength(proc: Procfs, pid: int, sandbox: SandboxId, rivals: Collection[int]) -> tuple[bool, ...]:
    """Return the evidence that a process is a sandbox's VMM, as a tuple to compare with those of its rivals; the
    strongest evidence comes first: none of the rivals forked it, the sandbox's shim started it, its cgroup is named
    after the sandbox (virtcontainers/sandbox.go: createResourceController), it has a network namespace of its own."""
    stat = proc.stat(pid)
    parent = 0 if stat is None else stat.ppid
    try:
        cgroups = read_file(f"{proc.root}/{pid}/cgroup") or b""
    except OSError:
        cgroups = b""
    named = re.search(rb"[/_:-]" + re.escape(sandbox.encode()) + rb"(?:\.scope)?(?:/|$)", cgroups, re.MULTILINE)
    own, first = proc.network_namespace(pid), proc.network_namespace(1)
    return (parent not in rivals, started_by_shim(proc, parent, proc.beginning(pid), sandbox), named is not None,
            bool(own and first and own != first))
