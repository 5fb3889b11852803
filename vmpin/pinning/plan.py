"""The difference between what was decided and what the kernel shows, as operations that describe themselves.

Pure: equal input gives the empty plan.
"""

from collections.abc import Iterable
from typing import NamedTuple

from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, VmThread, named
from vmpin.placement.rules import Placement


class Observed(NamedTuple):
    """A thread and the mask the kernel shows for it now (empty on Linux 6.1 for a sleeping task whose only CPU went
    offline).

    `asked` is the mask vmpin set last, None if never; `shown` what the kernel made of it then. They differ where a
    cpuset cgroup leaves less than was asked. `limit` is the thread's cpuset cgroup where it is known."""

    thread: VmThread
    actual: CpuSet
    asked: CpuSet | None = None
    shown: CpuSet | None = None
    limit: CpuSet | None = None


class SetAffinity(NamedTuple):
    """Set one thread's mask."""

    sandbox: SandboxId
    thread: VmThread
    cpus: CpuSet
    was: CpuSet

    def describe(self) -> str:
        role = self.thread.role if self.thread.vcpu is None else f"{self.thread.role} {self.thread.vcpu}"
        return (f"sandbox {self.sandbox}: set {role} (thread {self.thread.id.tid}, {self.thread.name}) "
                f"to CPUs {self.cpus}, was {self.was or 'none'}")


def needs_setting(seen: Observed, wanted: CpuSet) -> bool:
    """Whether a mask has to be set. Always when another mask was asked for before: since Linux 6.2 the kernel
    remembers what was asked and shows only what the cpuset leaves of it, so equal masks may hide different requests.
    Otherwise when the kernel shows anything but what it can show."""
    if seen.asked is not None and seen.asked != wanted:
        return True
    if seen.actual == wanted:
        return False
    # A cpuset cgroup leaves some of what was asked for: a mask that shows more was set by another writer meanwhile.
    if seen.shown is not None and seen.shown == seen.actual and seen.asked == wanted and seen.shown <= wanted:
        return False
    return seen.limit is None or seen.actual != (wanted & seen.limit)


def diff(placement: Placement, observed: Iterable[Observed]) -> tuple[SetAffinity, ...]:
    """The operations that make a sandbox's threads what `placement` wants."""
    operations = []
    sandbox, cpus_for = placement.sandbox, placement.cpus_for
    for seen in observed:
        thread = seen.thread
        wanted = cpus_for(thread.role, thread.vcpu)
        if wanted is not None and needs_setting(seen, wanted):
            operations.append(named(SetAffinity, (sandbox, thread, wanted, seen.actual)))
    return tuple(operations)


def ordered(operations: Iterable[SetAffinity]) -> tuple[SetAffinity, ...]:
    """Main threads first, as threads born meanwhile inherit from them; then those that only take CPUs away: CPUs are
    left before they are taken."""
    return tuple(sorted(operations, key=_rank))


def _rank(operation: SetAffinity) -> int:
    _, thread, cpus, was = operation
    return 2 * (thread.id.tid != thread.pid) + (not cpus <= was)
