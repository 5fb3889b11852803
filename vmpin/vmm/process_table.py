"""The process table: the VMMs, helper processes and kernel threads of sandboxes, among all processes of the node.

It is kept between passes, so that a pass without new or ended processes does little more than list /proc. A process is
recognized by its command line and by evidence that confirms it (recognition). The command line of a container's
process is never read: a container can make that take for ever (recognition.is_containers).
"""

import logging
from collections.abc import Mapping

from vmpin.domain.events import VmmClaim
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole, VmThread
from vmpin.host.procfs import Procfs
from vmpin.vmm.recognition import (
    ClaimedVmm,
    HelperProcess,
    Impostor,
    Recognized,
    VmmProcess,
    is_containers,
    kernel_thread_owner,
    recognize,
)
from vmpin.vmm.vmm_type import VmmType
from vmpin.vmm.vmms import library_with

logger = logging.getLogger(__name__)

#: A process that belongs to no sandbox is read again, as it may execute a VMM: in the first passes after it appeared,
#: then in one of ROUNDS passes, chosen by its pid. While the kernel reports executed programs and new threads' names,
#: that only makes up for what no event shows (a zombie), and is done in one of SELDOM passes.
ROUNDS, SELDOM = 16, 64
YOUNG_PASSES = 3
#: The most impostors that are recorded: any user can create as many as the process limit allows.
MAX_IMPOSTORS = 64


class ProcessTable:
    """The processes below `proc`."""

    def __init__(self, proc: Procfs) -> None:
        self.proc = proc
        self.round = 0  #: The number of scans so far.
        self.vmms: dict[int, tuple[ThreadId, VmmProcess, list[str]]] = {}
        self.helpers: dict[int, tuple[ThreadId, HelperProcess, list[str]]] = {}
        #: Kernel threads by tid, with the pid of the process that each works for.
        self.kernel: dict[int, tuple[int, VmThread]] = {}
        #: Processes of unprivileged users that pose as a sandbox's, by pid; the first MAX_IMPOSTORS.
        self.impostors: dict[int, Impostor] = {}
        #: Every pid listed, with the round in which it was first listed.
        self._seen: dict[str, int] = {}
        self._claims: dict[int, ClaimedVmm] = {}
        #: Users (uids) whose impostors were logged.
        self._warned: set[int] = set()

    def scan(self, claims: Mapping[SandboxId, VmmClaim], full: bool, reported: bool = False) -> None:
        """List the processes, and recognize those that are new or may have changed.
        :param claims: claims of sources about the VMMs' pids; claimed processes are always read, because a process may
            execute a VMM long after its creation.
        :param full: whether to recognize every process again.
        :param reported: whether events report every executed program.
        :raises PermissionError: other programs' processes cannot be read, as with hidepid=."""
        self.round += 1
        self._claims = {claim.pid: ClaimedVmm(sandbox, claim) for sandbox, claim in claims.items()}
        pids = self.proc.pids()
        present = set(pids)
        for ended in self._seen.keys() - present:
            del self._seen[ended]
            self._drop(int(ended))
        rounds = SELDOM if reported else ROUNDS
        turn = self.round % rounds
        for pid in pids:
            since = self._seen.setdefault(pid, self.round)
            if full or self.round - since < YOUNG_PASSES or int(pid) % rounds == turn:
                self._inspect_readable(pid)
        for number in self._claims:
            if number not in self.vmms and (pid := str(number)) in present:
                self._inspect_readable(pid)

    def is_turn(self, pid: int, rounds: int) -> bool:
        """Whether this is the one of `rounds` passes in which a process is read again although nothing changed."""
        return pid % rounds == self.round % rounds

    def inspect(self, pid: int) -> Recognized | None:
        """Recognize one process that was just created or executed a program. :returns: None if it belongs to no
        sandbox."""
        # Most belong to containers or have ended; they cost one system call. virtiofsd's child does not call exec.
        if pid not in self.helpers and self.proc.nested(pid) is not False:
            self._drop(pid)
            return None
        self._inspect_readable(str(pid), on_host=pid not in self.helpers)
        recognized = self.vmms.get(pid) or self.helpers.get(pid)
        if recognized is not None or pid in self.kernel or pid in self.impostors:
            self._seen.setdefault(str(pid), self.round)
        return recognized

    def forget(self, pid: int) -> None:
        """Forget a VMM that has ended: the next process with its pid is a new one."""
        self.vmms.pop(pid, None)
        self._seen.pop(str(pid), None)

    def is_running(self, main: ThreadId) -> bool:
        """Whether a process is running. False for a zombie."""
        stat = self.proc.thread_stat(main.tid, main.tid)
        return stat is not None and stat.starttime == main.starttime and stat.state not in "ZX"

    def sandboxes_with_helpers(self, *roles: ThreadRole) -> set[SandboxId]:
        """The sandboxes that have helpers of these roles, and so a VM; without arguments, of any role."""
        # A copy: the thread of NRI asks, too, and helpers may come and go meanwhile.
        return {helper.sandbox for _, helper, _ in list(self.helpers.values())
                if helper.sandbox is not None and helper.vms and (not roles or helper.role in roles)}

    def _drop(self, pid: int, but: Mapping[int, object] | None = None) -> None:
        """Remove a pid from all tables except `but`, in which its position is kept."""
        for table in (self.vmms, self.helpers, self.kernel, self.impostors):
            if table is not but:
                table.pop(pid, None)

    def _inspect_readable(self, pid: str, on_host: bool = False) -> None:
        """Inspect a process. One that a security module lets no program read stays as it was.
        :param on_host: whether it is known to be in the host's pid namespace.
        :raises PermissionError: process 1 cannot be read, either."""
        try:
            self._inspect(pid, False if on_host else self.proc.nested(pid))
        except PermissionError as err:
            self.proc.beginning(1)
            logger.debug("ignored process=%s: %s", pid, err)

    def _inspect(self, pid: str, nested: bool | None) -> None:
        """Read and recognize a process, without regard to earlier entries of its pid.
        :param nested: the result of `Procfs.nested`."""
        number = int(pid)
        if is_containers(self.proc, pid, nested):
            self._drop(number)
            return
        beginning = self.proc.beginning(pid)
        if not beginning:  # a kernel thread, or a zombie
            stat = self.proc.stat(pid)
            owner = kernel_thread_owner(stat.comm) if stat is not None and stat.kernel_thread else None
            if stat is None or owner is None:
                self._drop(number)
                return
            self._drop(number, but=self.kernel)
            role, owner_pid = owner
            self.kernel[number] = (owner_pid, VmThread(ThreadId(number, stat.starttime), role, stat.comm, number))
            return
        recognized = recognize(self.proc, pid, beginning, nested, self._claims.get(number),
                               self.vmms.get(number) or self.helpers.get(number))
        if isinstance(recognized, Impostor):
            self._keep_impostor(number, recognized)
            return
        if recognized is None:
            self._drop(number)
            return
        identity, process, argv = recognized
        if isinstance(process, VmmProcess):
            process = self._complete(identity, process)
        elif process.role is ThreadRole.SHIM and (vmm := self._vmm_within(pid)) is not None:
            process = VmmProcess(vmm, process.sandbox)
        if isinstance(process, VmmProcess):
            self._drop(number, but=self.vmms)
            self.vmms[number] = (identity, process, argv)
        else:
            self._drop(number, but=self.helpers)
            self.helpers[number] = (identity, process, argv)

    def _keep_impostor(self, pid: int, impostor: Impostor) -> None:
        self._drop(pid, but=self.impostors)
        if pid in self.impostors or len(self.impostors) < MAX_IMPOSTORS:
            self.impostors[pid] = impostor
        if impostor.uid not in self._warned and len(self._warned) < MAX_IMPOSTORS:
            self._warned.add(impostor.uid)  # once per user, who can create a thousand per second
            logger.warning("process ignored pid=%d uid=%d sandbox=%s: an unprivileged user's process has the command "
                           "line of a sandbox's VM, and neither a shim nor Kata's state confirms it",
                           pid, impostor.uid, impostor.sandbox)

    def _complete(self, identity: ThreadId, vmm: VmmProcess) -> VmmProcess:
        """Complete a sandbox id that Kata truncated, by the command line of its shim, which may have ended since."""
        if vmm.sandbox is None or not vmm.cut:
            return vmm
        before = self.vmms.get(identity.tid)
        names = {before[1].sandbox} if before is not None and before[0] == identity else set()
        whole = [name for name in self.sandboxes_with_helpers() | names
                 if name is not None and name.startswith(vmm.sandbox)]
        return vmm._replace(sandbox=max(whole, key=len)) if whole else vmm

    def _vmm_within(self, pid: str) -> VmmType | None:
        """The library VMM that runs in a shim's process; None if the shim has a separate VMM process."""
        stats = (self.proc.thread_stat(pid, tid) for tid in self.proc.tids(pid))
        return library_with(stat.comm for stat in stats if stat is not None)
