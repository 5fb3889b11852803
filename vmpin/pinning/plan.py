"""The difference between a placement and the masks that the kernel shows, as operations that describe themselves.

Pure. If the masks are as placed, the plan is empty.
"""

from __future__ import annotations

from collections.abc import Iterable

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, VmThread, named
from vmpin.domain.sandbox_placement import Placement
from vmpin.named_tuple import NamedTuple


class Observed(NamedTuple):
    """A thread and the mask the kernel shows for it now (empty on Linux 6.1 for a sleeping task whose only CPU went
    offline).

    `requested` is the mask that vmpin set last, None if never; `shown` is the mask that the kernel showed then, which
    is smaller if the cpuset cgroup trimmed it. `limit` are the CPUs of the thread's cpuset cgroup, None if unknown."""

    thread: VmThread
    actual: CpuSet
    requested: CpuSet | None = None
    shown: CpuSet | None = None
    limit: CpuSet | None = None


class SetAffinity(NamedTuple):
    """Set one thread's mask."""

    sandbox: SandboxId
    thread: VmThread
    cpus: CpuSet
    was: CpuSet

    def describe(self) -> str:
        return f"sandbox {self.sandbox}: set {self._described()} to CPUs {self.cpus}, was {self.was or 'none'}"

    def _described(self) -> str:
        role = self.thread.role if self.thread.vcpu is None else f"{self.thread.role} {self.thread.vcpu}"
        return f"{role} (thread {self.thread.id.tid}, {self.thread.name})"


def needs_setting(seen: Observed, wanted: CpuSet) -> bool:
    """Whether a mask has to be set. True if another mask was requested before: since Linux 6.2 the kernel remembers
    the requested mask and shows it trimmed by the cpuset, so equal shown masks may hide different requests. Otherwise
    true if the shown mask is not the wanted one as trimmed by the cpuset."""
    if seen.requested is not None and seen.requested != wanted:
        return True
    if seen.actual == wanted:
        return False
    # A trimmed mask is within the wanted one; a mask with other CPUs was set by another writer meanwhile.
    if seen.shown is not None and seen.shown == seen.actual and seen.requested == wanted and seen.shown <= wanted:
        return False
    return seen.limit is None or seen.actual != (wanted & seen.limit)


def diff(placement: Placement, observed: Iterable[Observed]) -> tuple[SetAffinity, ...]:
    """Return the operations that give a sandbox's threads the masks of `placement`."""
    operations = []
    sandbox, cpus_for = placement.sandbox, placement.cpus_for
    for seen in observed:
        thread = seen.thread
        wanted = cpus_for(thread.role, thread.vcpu)
        if wanted is not None and needs_setting(seen, wanted):
            operations.append(named(SetAffinity, (sandbox, thread, wanted, seen.actual)))
    return tuple(operations)


def ordered(operations: Iterable[SetAffinity]) -> tuple[SetAffinity, ...]:
    """Sort operations: those that add CPUs come last, so that CPUs are vacated before other threads get them. Main
    threads never do, because new threads inherit their masks. The rest of the order is kept: /proc lists a process's
    main thread first, and its threads are set together (`affinity.pin_threads`)."""
    return tuple(sorted(operations, key=_adds_cpus))


def _adds_cpus(operation: SetAffinity) -> bool:
    _, thread, cpus, was = operation
    return thread.id.tid != thread.pid and not cpus <= was
