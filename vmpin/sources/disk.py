"""The sources that are read completely at every resync: Kata's state, the containers' cgroups, and the bundles and
processes of containers that hooks reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from vmpin.cpuset import EMPTY, CpuSet
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
from vmpin.domain.model import ContainerId, ContainerState, SandboxId, ThreadId, named
from vmpin.host import boottime
from vmpin.host.cgroup import Cgroups, CpusetCgroup, Layout
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import cpu_list
from vmpin.named_tuple import NamedTuple
from vmpin.runtime.kata import KataSandbox, KataState
from vmpin.vmm.process_table import ROUNDS

#: How long (ns) a sandbox without VM and containers is kept, so that a late message of a hook has no effect.
FORGET_AFTER_NS = 60 * 10**9


class _CgroupReading(NamedTuple):
    """A container's record, its cgroup and the online CPUs when it was read: with the same ones there is no event."""

    record: ContainerRecord
    cgroup: CpusetCgroup | None
    online: CpuSet
    reported: bool  #: Whether writes to the cgroup were reported then.


class DiskSources:
    """The files of runtimes and the kernel. `read` reads them, `events` compares them with the state."""

    def __init__(self, proc: Procfs, cgroups: Cgroups, kata: KataState) -> None:
        self.proc = proc
        self.cgroups = cgroups
        self.kata = kata
        #: Whether the runtime reports every end (an NRI connection is up). Otherwise a container that NRI reported
        #: ends with its VM. Set by the watcher.
        self.nri = False
        #: The online CPUs; EMPTY until the reconciler has set them.
        self.online: CpuSet = EMPTY
        #: The sandboxes in Kata's state, as read last.
        self.kata_sandboxes: dict[SandboxId, KataSandbox] = {}
        #: Each sandbox's file and state at the last comparison.
        self._compared: dict[SandboxId, tuple[KataSandbox, SandboxState | None]] = {}
        #: When each sandbox's file got its current contents (CLOCK_BOOTTIME ns), and when files were read before that.
        self._written: dict[SandboxId, tuple[KataSandbox, int]] = {}
        #: The states in which no container ends before its VM without an event, and none has a cgroup to read.
        self._unchecked: dict[SandboxId, SandboxState] = {}
        #: Whether writes to the cpuset of a process's cgroup, and of those above, are reported. Set by the watcher.
        self.reports_writes: Callable[[ThreadId], bool] = lambda init: False
        #: The readings since the last comparison, and before.
        self._cgroups_read: dict[ContainerId, _CgroupReading] = {}
        self._cgroups_before = self._cgroups_read
        self._comparisons = 0
        self._read_before = self._read_last = 0

    def read(self) -> None:
        """Read Kata's state again."""
        self._read_before, self._read_last = self._read_last, boottime.now()
        self.kata_sandboxes = self.kata.sandboxes()

    def events(self, state: DesiredState, with_vm: set[SandboxId]) -> list[Event]:
        """The events that update `state` to the files. :param with_vm: the sandboxes whose VM runs."""
        now = boottime.now()
        events: list[Event] = []
        compared, self._compared = self._compared, {}
        for kata in self.kata_sandboxes.values():
            sandbox = state.sandboxes.get(kata.id)
            kata_before, sandbox_before = compared.get(kata.id, (None, None))
            if kata_before is not kata or sandbox_before is not sandbox:
                events += _kata_events(kata, sandbox, self._written_at(kata), now)
            self._compared[kata.id] = (kata, sandbox)
        for gone in self._written.keys() - self.kata_sandboxes.keys():
            del self._written[gone]
        self._cgroups_before, self._cgroups_read = self._cgroups_read, {}
        self._comparisons += 1
        before_this, self._unchecked = self._unchecked, {}
        for name, sandbox in state.sandboxes.items():
            if name in with_vm and (before_this.get(name) is sandbox
                                    or all(map(_ends_with_vm, sandbox.containers.values()))):
                self._unchecked[name] = sandbox
            else:
                events += self._check(sandbox, with_vm, now)
        return events

    def lists_containers(self, sandbox: SandboxId) -> bool:
        """Whether a file of Kata's lists a sandbox's containers."""
        kata = self.kata_sandboxes.get(sandbox)
        return kata is not None and kata.containers is not None

    def pins_vcpus(self, sandbox: SandboxId) -> bool:
        """Whether Kata also sets the masks of a sandbox's vCPUs (enable_vcpus_pinning)."""
        kata = self.kata_sandboxes.get(sandbox)
        return kata is not None and kata.pins_vcpus

    def _written_at(self, kata: KataSandbox) -> int:
        """When a sandbox's file was written (CLOCK_BOOTTIME ns), by its mtime; but never before the last reading with
        other contents, whatever happened to the wall clock."""
        before, when = self._written.get(kata.id, (None, 0))
        if before != kata:
            when = boottime.of_wall(kata.written, self._read_before)
            self._written[kata.id] = kata, when
        return when

    def claims(self, state: DesiredState) -> dict[SandboxId, VmmClaim]:
        """The process that runtimes and hooks report as each sandbox's VMM."""
        claims = {sandbox.id: VmmClaim(sandbox.vmm.tid, identity=sandbox.vmm)
                  for sandbox in state.sandboxes.values() if sandbox.vmm is not None}
        for kata in self.kata_sandboxes.values():
            if kata.vmm_pid:
                claims[kata.id] = named(VmmClaim, (kata.vmm_pid, kata.uuid, None, kata.hypervisor))
        return claims

    def _check(self, sandbox: SandboxState, with_vm: set[SandboxId], now: int) -> Iterator[Event]:
        """The ends of a sandbox's containers, the cpusets of their cgroups, and the end of the sandbox."""
        alive = sandbox.id in with_vm or sandbox.id in self.kata_sandboxes
        latest = 0
        for record in sandbox.containers.values():
            latest = max(latest, record.time)
            if record.stopped:
                continue
            if record.init is not None and self._is_unchanged(record, record.init):
                alive = True
                continue
            if self._has_ended(sandbox, record, with_vm, now):
                yield ContainerStopped(sandbox.id, record.container.id, max(now, record.time))
                continue
            alive = alive or record.init is not None or bool(record.bundle) or record.reported_by(Source.NRI)
            if record.init is not None:
                yield from self.cgroup_events(sandbox.id, record, record.init)
        if not alive and latest < now - FORGET_AFTER_NS:
            yield SandboxGone(sandbox.id)

    def _has_ended(self, sandbox: SandboxState, record: ContainerRecord, with_vm: set[SandboxId], now: int) -> bool:
        if record.reported_by(Source.KATA):
            # Its CPUs are in use until the runtime has removed the sandbox.
            return sandbox.id not in with_vm and sandbox.id not in self.kata.listed
        # Of a container in a VM that NRI reports, it is a process in the guest (Kuasar).
        if record.init is not None and not (record.reported_by(Source.NRI) and sandbox.id in with_vm):
            stat = self.proc.stat(record.init.tid)
            return stat is None or stat.starttime != record.init.starttime
        if record.reported_by(Source.NRI) and not record.bundle:
            # A container in a VM. Without a connection to the runtime only the end of its VM shows its end.
            return not self.nri and sandbox.id not in with_vm and record.time < now - FORGET_AFTER_NS
        if not record.bundle:
            return False
        from vmpin.runtime.oci import bundle_gone  # not at the top: a first pass seldom has a bundle to check

        return bundle_gone(record.bundle)

    def _is_unchanged(self, record: ContainerRecord, init: ThreadId) -> bool:
        """Whether a container's cgroup is there, and as it was at the last comparison; it is not read if each write
        since then was reported. False where the end of the container is not reported otherwise, and in one of ROUNDS
        comparisons: its process is then read, too."""
        before, turn = self._cgroups_before.get(record.container.id), self._comparisons % ROUNDS == init.tid % ROUNDS
        if (before is None or before.record is not record or before.cgroup is None or record.container.cpuset is None
                or turn or not (self.nri and record.reported_by(Source.NRI)) or before.online != self.online):
            return False
        reported = self.reports_writes(init) and before.cgroup.configured is not None
        if not (reported and before.reported) and self.cgroups.reread(before.cgroup) != before.cgroup:
            return False
        self._cgroups_read[record.container.id] = (
            before if before.reported is reported else before._replace(reported=reported))
        return True

    def cgroup_events(self, sandbox: SandboxId, record: ContainerRecord, init: ThreadId) -> Iterator[Event]:
        """Read the cpuset in the cgroup of a container's first process. No event if that cgroup is as at the last
        comparison, or not the container's own."""
        reported, container = self.reports_writes(init), record.container
        cgroup = self.cgroups.container_cpuset(init.tid, container.id)
        before = self._cgroups_read.get(container.id) or self._cgroups_before.get(container.id)
        readable = cgroup is not None and cgroup.configured is not None  # else it is read again at each comparison
        self._cgroups_read[container.id] = _CgroupReading(record, cgroup, self.online, reported and readable)
        if (before is not None and before.record is record and (before.cgroup, before.online) == (cgroup, self.online)
                and container.cpuset is not None):
            return
        if cgroup is None or not cgroup.configured or self.cgroups.is_top(cgroup.path):
            return  # no container is in the top cgroup: the pid belongs to another process
        if record.reported_by(Source.NRI) and container.id not in cgroup.path.as_posix():
            return  # each container's cgroup is named after it: this one is another container's
        # On cgroup v1 every cgroup has CPUs, its parent's by default: they are not the cpuset of a container that was
        # created without one.
        if container.cpuset is None and self.cgroups.layout is not Layout.V2 and (
                cgroup.configured == cpu_list(str(self.cgroups.cpus_file(cgroup.path.parent)))):
            return
        # CPUs that are offline come back, but CPUs that a cgroup above withholds do not count.
        withheld = (cgroup.configured & self.online) - cgroup.effective if cgroup.effective else EMPTY
        yield CpusetSeen(sandbox, container.id, cgroup.configured - withheld, Source.CGROUP, boottime.now())


def _ends_with_vm(record: ContainerRecord) -> bool:
    """Whether a container cannot end before its VM without an event, and has no cgroup to read."""
    return record.stopped or (record.reported_by(Source.KATA) and record.init is None)


def _kata_events(kata: KataSandbox, sandbox: SandboxState | None, written: int, now: int) -> Iterator[Event]:
    """The events for a sandbox in Kata's state. :param written: when its file was written, CLOCK_BOOTTIME ns."""
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
        # Kata's list is complete: a container that it no longer has, has ended. One that only a hook has reported is
        # not in the list yet.
        if record.reported_by(Source.KATA) and record.container.id not in listed:
            yield ContainerStopped(kata.id, record.container.id, now)
