"""The process table: the VMMs, helper processes and kernel threads of sandboxes, among all processes of the node.

It is kept from pass to pass, so that a pass without new or ended processes lists /proc and reads little more. A
process is classified by its command line. That of a container's process is never believed, nor read beyond its
beginning: its author can make it as long, and change it as often, as he likes. What stays out: which sandbox's VM a
VMM is, and its threads (inventory, which owns this). Called by inventory, vm_nics and reconcile.reconciler.
"""

import sys
from collections.abc import Iterable

from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, VmmType, VmThread
from vmpin.host.procfs import Procfs
from vmpin.vmm.processes import HelperProcess, VmmProcess, classify, kernel_thread_owner, may_be, may_be_virtiofsd
from vmpin.vmm.threads import is_dragonball

#: A process of a sandbox: its main thread, classification and command line.
Found = tuple[ThreadId, VmmProcess | HelperProcess, list[str]]

#: A process of no sandbox is read again (it may execute a VMM) in the first passes after it came, and then in one of
#: ROUNDS passes, its turn given by its pid.
ROUNDS = 16
YOUNG_PASSES = 3


class ProcessTable:
    """The processes below `proc`."""

    def __init__(self, proc: Procfs) -> None:
        self.proc = proc
        #: How many scans there were.
        self.round = 0
        self.vmms: dict[int, tuple[ThreadId, VmmProcess, list[str]]] = {}
        self.helpers: dict[int, tuple[ThreadId, HelperProcess, list[str]]] = {}
        #: Kernel threads by tid, each with the pid that it works for.
        self.kernel: dict[int, tuple[int, VmThread]] = {}
        #: Every pid listed, with the round in which it was first listed.
        self._seen: dict[str, int] = {}

    def scan(self, claimed: Iterable[int], full: bool) -> None:
        """List the processes, and classify those that are new or may have changed.
        :param claimed: pids that a source reports as VMMs: they may have executed one long after they came.
        :param full: classify every process again."""
        self.round += 1
        pids = self.proc.pids()
        here = set(pids)
        for gone in self._seen.keys() - here:
            del self._seen[gone]
            self._drop(int(gone))
        turn = self.round % ROUNDS
        for pid in pids:
            since = self._seen.setdefault(pid, self.round)
            if full or self.round - since < YOUNG_PASSES or int(pid) % ROUNDS == turn:
                self._inspect(pid)
        for number in claimed:
            if number not in self.vmms and (pid := str(number)) in here:
                self._inspect(pid)

    def inspect(self, pid: int) -> Found | None:
        """Classify one process that has just executed a program, or was created. :returns: None if unrelated to a
        sandbox."""
        # Most are of containers, or have ended: those cost one system call. virtiofsd's child executes nothing.
        if pid not in self.helpers and self.proc.nested(pid) is not False:
            self._drop(pid)
            return None
        self._inspect(str(pid))
        found = self.vmms.get(pid) or self.helpers.get(pid)
        if found is not None or pid in self.kernel:
            self._seen.setdefault(str(pid), self.round)
        return found

    def forget(self, pid: int) -> None:
        """A VMM has ended: the next process with its pid is new."""
        self.vmms.pop(pid, None)
        self._seen.pop(str(pid), None)

    def is_running(self, main: ThreadId) -> bool:
        """Whether a process, by its main thread, has not ended, waited for or not."""
        stat = self.proc.thread_stat(main.tid, main.tid)
        return stat is not None and stat.starttime == main.starttime and stat.state not in "ZX"

    def sandboxes_with_helpers(self, *roles: ThreadRole) -> set[SandboxId]:
        """The sandboxes that have helpers, of these roles where some are given."""
        return {found.sandbox for _, found, _ in self.helpers.values()
                if found.sandbox is not None and (not roles or found.role in roles)}

    def _drop(self, pid: int) -> None:
        self.vmms.pop(pid, None)
        self.helpers.pop(pid, None)
        self.kernel.pop(pid, None)

    def _inspect(self, pid: str) -> None:
        """Read and classify a process, whatever its pid was before."""
        beginning = self.proc.beginning(pid)
        number = int(pid)
        if not beginning:  # a kernel thread, or a zombie
            stat = self.proc.stat(pid)
            owner = kernel_thread_owner(stat.comm) if stat is not None and stat.kernel_thread else None
            if stat is None or owner is None:
                self._drop(number)
                return
            self.vmms.pop(number, None)
            self.helpers.pop(number, None)
            role, owner_pid = owner
            self.kernel[number] = (owner_pid, VmThread(ThreadId(number, stat.starttime), role, stat.comm, number))
            return
        classified = self._classify(pid, beginning)
        if classified is None:
            self._drop(number)
            return
        self.kernel.pop(number, None)  # the number's former holder
        identity, found, argv = classified
        if isinstance(found, VmmProcess):
            self.helpers.pop(number, None)
            self.vmms[number] = (identity, found, argv)
        else:
            self.vmms.pop(number, None)
            self.helpers[number] = (identity, found, argv)

    def _classify(self, pid: str, beginning: bytes) -> Found | None:
        stat = self.proc.thread_stat(pid, pid) if may_be(beginning) else None
        nested = stat is not None and self.proc.nested(pid)
        if stat is None or (nested and not self._own_sandbox(stat.ppid, beginning)):
            return None
        # Most arguments are the same for every VM of a node: each is kept once.
        argv = list(map(sys.intern, self.proc.cmdline(pid, beginning)))
        found, identity = classify(argv), ThreadId(int(pid), stat.starttime)
        if found is None or (nested and (isinstance(found, VmmProcess) or found.role is not ThreadRole.VIRTIOFSD)):
            return None
        if isinstance(found, VmmProcess):
            found = self._whole(identity, found)
        elif found.role is ThreadRole.SHIM and self._runs_dragonball(pid):
            found = VmmProcess(VmmType.DRAGONBALL, found.sandbox)
        return identity, found, argv

    def _own_sandbox(self, parent: int, beginning: bytes) -> bool:
        """Whether a process in a pid namespace of its own may be a sandbox's all the same. A QEMU that is a
        container's process is in its container's cpuset, and the runtime's business: Kata's VMMs and their helpers are
        processes of the host. But with virtiofsd's --sandbox=namespace what serves is a child, in a pid namespace that
        it was given. A container's first process has its runtime above it, and all others have one of the
        container's."""
        return (may_be_virtiofsd(beginning) and self.proc.nested(parent) is False
                and self.proc.beginning(parent) == beginning)

    def _whole(self, identity: ThreadId, vmm: VmmProcess) -> VmmProcess:
        """Restore the sandbox's whole id where Kata has cut it: as its shim has it, or had when it was there."""
        if vmm.sandbox is None or not vmm.cut:
            return vmm
        before = self.vmms.get(identity.tid)
        names = {before[1].sandbox} if before is not None and before[0] == identity else set()
        whole = [name for name in self.sandboxes_with_helpers() | names
                 if name is not None and name.startswith(vmm.sandbox)]
        return vmm._replace(sandbox=max(whole, key=len)) if whole else vmm

    def _runs_dragonball(self, pid: str) -> bool:
        """Dragonball is a library: its VM lives in the shim's own process."""
        stats = (self.proc.thread_stat(pid, tid) for tid in self.proc.tids(pid))
        return is_dragonball(stat.comm for stat in stats if stat is not None)
