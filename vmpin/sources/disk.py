"""The sources that are read as a whole at every resync: Kata's state, the containers' cgroups, and whether the
containers that hooks reported still exist."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vmpin.cpuset import EMPTY, CpuSet, CpuSetError
from vmpin.domain.desired_state import ContainerRecord, DesiredState, SandboxState
from vmpin.domain.events import (
    ContainerSeen,
    ContainerStopped,
    CpusetSeen,
    Event,
    SandboxGone,
    SandboxSeen,
    Source,
    VmmClaim,
)
from vmpin.domain.model import ContainerState, SandboxId, ThreadId, named
from vmpin.host import boottime
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs, read_file
from vmpin.runtime.kata import KataSandbox, KataState

#: How long (ns) a sandbox without VM and containers is kept: a hook's late message must find its end.
FORGET_AFTER_NS = 60 * 10**9


class DiskSources:
    """What the runtimes and the kernel keep in files. `read` reads them, `events` compares them with the state."""

    def __init__(self, proc: Procfs, cgroups: Cgroups, kata: KataState) -> None:
        self.proc = proc
        self.cgroups = cgroups
        self.kata = kata
        #: Whether the runtime reports every end (an NRI connection is up): else only its VM's end ends a container
        #: that NRI reported. Set by the watcher.
        self.nri = False
        #: The online CPUs; empty until the reconciler has set them.
        self.online: CpuSet = EMPTY
        self.sandboxes: dict[SandboxId, KataSandbox] = {}
        #: Whether a file was half written when it was last read, and is to be read again soon.
        self.unsettled = False
        #: Each sandbox's file and state when events were last made of them.
        self._translated: dict[SandboxId, tuple[KataSandbox, SandboxState | None]] = {}
        #: When each sandbox's file got its present contents (CLOCK_BOOTTIME ns), and when files were read before that.
        self._written: dict[SandboxId, tuple[KataSandbox, int]] = {}
        self._read_before = self._read_last = 0

    def read(self) -> None:
        """Read Kata's state again."""
        self._read_before, self._read_last = self._read_last, boottime.now()
        self.sandboxes = self.kata.sandboxes()
        self.unsettled = self.kata.unsettled

    def events(self, state: DesiredState, with_vm: set[SandboxId]) -> list[Event]:
        """The events that follow from the files, for what differs from `state`.
        :param with_vm: the sandboxes whose VM runs."""
        now = boottime.now()
        events: list[Event] = []
        translated, self._translated = self._translated, {}
        for kata in self.sandboxes.values():
            sandbox = state.sandboxes.get(kata.id)
            before = translated.get(kata.id)
            if before is None or before[0] is not kata or before[1] is not sandbox:
                events += _kata_events(kata, sandbox, self._written_at(kata), now)
            self._translated[kata.id] = (kata, sandbox)
        for gone in self._written.keys() - self.sandboxes.keys():
            del self._written[gone]
        for sandbox in state.sandboxes.values():
            events += self._check(sandbox, with_vm, now)
        return events

    def _written_at(self, kata: KataSandbox) -> int:
        """When a sandbox's file was written (CLOCK_BOOTTIME ns), by its mtime; never before the last reading that
        still had other contents, however the wall clock was stepped meanwhile."""
        before, when = self._written.get(kata.id, (None, 0))
        if before != kata:
            when = boottime.of_wall(kata.written, self._read_before)
            self._written[kata.id] = kata, when
        return when

    def claims(self, state: DesiredState) -> dict[SandboxId, VmmClaim]:
        """The process that runtimes and hooks name as each sandbox's VMM."""
        found = {sandbox.id: VmmClaim(sandbox.vmm.tid, identity=sandbox.vmm)
                 for sandbox in state.sandboxes.values() if sandbox.vmm is not None}
        for kata in self.sandboxes.values():
            if kata.vmm_pid:
                found[kata.id] = named(VmmClaim, (kata.vmm_pid, kata.uuid, None, kata.hypervisor))
        return found

    def _check(self, sandbox: SandboxState, with_vm: set[SandboxId], now: int) -> Iterator[Event]:
        """The ends of a sandbox's containers, and their cpusets as their cgroups have them."""
        alive = sandbox.id in with_vm or sandbox.id in self.sandboxes
        latest = 0
        for record in sandbox.containers.values():
            latest = max(latest, record.time)
            if record.stopped:
                continue
            if self._has_ended(sandbox, record, with_vm, now):
                yield ContainerStopped(sandbox.id, record.container.id, max(now, record.time))
                continue
            alive = alive or record.init is not None or bool(record.bundle) or record.reported_by(Source.NRI)
            if record.init is not None:
                yield from self.cgroup(sandbox.id, record, record.init)
        if not alive and latest < now - FORGET_AFTER_NS:
            yield SandboxGone(sandbox.id)

    def _has_ended(self, sandbox: SandboxState, record: ContainerRecord, with_vm: set[SandboxId], now: int) -> bool:
        if record.reported_by(Source.KATA):
            # Its CPUs are free when the runtime has removed the sandbox.
            return sandbox.id not in with_vm and sandbox.id not in self.kata.listed
        if record.init is not None:
            stat = self.proc.stat(record.init.tid)
            return stat is None or stat.starttime != record.init.starttime
        if record.reported_by(Source.NRI) and not record.bundle:
            # A container in a VM. Without a connection to the runtime its end is not reported; its VM's end shows it.
            return not self.nri and sandbox.id not in with_vm and record.time < now - FORGET_AFTER_NS
        if not record.bundle:
            return False
        from vmpin.runtime.oci import bundle_gone  # a starting watcher's first pass mostly has no bundle to check

        return bundle_gone(record.bundle)

    def cgroup(self, sandbox: SandboxId, record: ContainerRecord, init: ThreadId) -> Iterator[Event]:
        """The cpuset in the cgroup of a container's first process, where that cgroup is the container's own."""
        found = self.cgroups.cpuset_of(init.tid)
        if found is None or not found.configured or self.cgroups.is_top(found.path):
            return  # no container is at the top: a pid that was none of its own would widen its cpuset
        if record.reported_by(Source.NRI) and record.container.id not in found.path.as_posix():
            return  # of a pod's containers each has a cgroup named after it: this is another one
        # On cgroup v1 every cgroup has CPUs, its parent's by default: for a container that was created without a
        # cpuset they mean nothing.
        if record.container.cpuset is None and found.configured == _cpus_of(self.cgroups.cpus_file(found.path.parent)):
            return
        # CPUs that are offline come back; what a cgroup above withholds, it has not.
        withheld = (found.configured & self.online) - found.effective if found.effective else EMPTY
        yield CpusetSeen(sandbox, record.container.id, found.configured - withheld, Source.CGROUP, boottime.now())


def _cpus_of(file: Path) -> CpuSet | None:
    """The CPUs in a cgroup's own file of them."""
    try:
        return CpuSet.parse((read_file(str(file)) or b"").decode("ascii", "replace"))
    except (OSError, CpuSetError):
        return None


def _kata_events(kata: KataSandbox, sandbox: SandboxState | None, written: int, now: int) -> Iterator[Event]:
    """Return the events for a sandbox in Kata's state. :param written: when its file was, in ns of CLOCK_BOOTTIME."""
    yield SandboxSeen(kata.id, kata.runtime, kata.pod)
    if kata.containers is None:
        return
    listed = set()
    for container in kata.containers:
        listed.add(container.id)
        if container.state is ContainerState.STOPPED:
            yield ContainerStopped(kata.id, container.id, written)
        else:
            yield ContainerSeen(kata.id, container, Source.KATA, written)
    for record in sandbox.containers.values() if sandbox is not None else ():
        # Kata's list is complete: a container that is no longer in it has ended; one that a hook has just reported is
        # yet to come into it.
        if record.reported_by(Source.KATA) and record.container.id not in listed:
            yield ContainerStopped(kata.id, record.container.id, now)
