"""The authority `observed`: if no other one decides, a container owns the CPUs that no other pod's container may use.

It needs no configuration, and works with any program that sets the cpusets of all containers (the policies balloons
and topology-aware, koordinator). It errs towards sharing: a single container without a cpuset may use every CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.assignments import Assignments, Owner, Rank
from vmpin.domain.desired_state import ContainerRecord, DesiredState, SandboxState, is_full
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.named_tuple import NamedTuple

#: A CPU that its owner lost to a new container stays shared for at least so long (s), even if that container ends
#: sooner: a container that is created and removed every second must not move another pod's vCPUs every second. For so
#: long a CPU that had an owner stays out of the pool, too.
SHARED_FOR = 10.0


def counted(sandbox: SandboxState) -> list[ContainerRecord]:
    """The containers of a sandbox that may run. One whose creation is only requested does not count: another plugin
    may still give it a cpuset, and nothing runs in it before the runtime reports its creation."""
    return [record for record in sandbox.containers.values()
            if not record.stopped and not record.requested and not record.container.pause]


def usable_cpus(record: ContainerRecord, online: CpuSet) -> CpuSet:
    """The online CPUs that a container may use: all without a cpuset; during an update also the requested ones."""
    container = record.container
    if not container.cpuset:
        return online
    return (container.cpuset | (container.requested_cpuset or EMPTY)) & online


class PodCpus(NamedTuple):
    """The CPUs that a pod may use, and those of its containers' cpusets, as a state of the sandbox has them. A cpuset
    of all CPUs is left out: its container owns none."""

    state: SandboxState
    usable: CpuSet
    cpusets: tuple[tuple[ContainerId, CpuSet], ...]


def pod_cpus(sandbox: SandboxState, online: CpuSet) -> PodCpus:
    """The CPUs of a sandbox's counted containers."""
    records = counted(sandbox)
    cpusets = ((record.container.id, (record.container.cpuset or EMPTY) & online) for record in records)
    return PodCpus(sandbox, union(usable_cpus(record, online) for record in records),
                   tuple((container, cpus) for container, cpus in cpusets if cpus and cpus != online))


def shared_cpus(pods: Iterable[PodCpus]) -> CpuSet:
    """The CPUs that two pods may use."""
    used = shared = 0
    for pod in pods:
        shared |= used & pod.usable.bits
        used |= pod.usable.bits
    return CpuSet.from_bits(shared)


class ObservedAuthority:
    """:param online: the online CPUs now. :param clock: monotonic seconds."""

    rank = Rank.OBSERVED

    def __init__(self, online: Callable[[], CpuSet], clock: Callable[[], float] = time.monotonic) -> None:
        self._online, self._clock = online, clock
        #: When each CPU that its owner lost was last shared (s): until `SHARED_FOR` later it counts as shared.
        self._shared_at: dict[int, float] = {}
        #: When each CPU that is owned, or had an owner recently, was last owned (s).
        self._owned_at: dict[int, float] = {}
        self._shared = EMPTY  #: The CPUs that were shared in the state looked at last.
        self._state: DesiredState | None = None  #: The state looked at last; None for a full one.
        self._online_then = EMPTY  #: The online CPUs at that time.
        self._pods: dict[SandboxId, PodCpus] = {}  #: Of the state looked at last.
        self._assignments = Assignments()

    def assignments(self, state: DesiredState) -> Assignments | None:
        """Return the containers' own CPUs; None where the state is full, as containers may then be missing in it.
        :param state: every container of the node."""
        if is_full(state):
            self._state = None
            return None
        now, online = self._clock(), self._online()
        if self._state is state and self._online_then == online and not self._expired(now):
            return self._assignments
        before = self._pods if self._state is not None and self._online_then == online else {}
        self._state, self._online_then = state, online
        self._pods = {name: pod if (pod := before.get(name)) is not None and pod.state is sandbox
                      else pod_cpus(sandbox, online) for name, sandbox in state.sandboxes.items()}
        shared = shared_cpus(self._pods.values())
        # A CPU is lost if it was owned and is shared now, or was shared with a container that has ended: another may
        # follow. It counts as shared until `SHARED_FOR` after it last was: a CPU that was shared when last looked at
        # has been so until now.
        losable = self._assignments.owned | CpuSet(self._shared_at) | self._left(before, online)
        for cpu in (shared | self._shared) & losable:
            self._shared_at[cpu] = now
        self._shared = shared
        self._shared_at = {cpu: since for cpu, since in self._shared_at.items() if now < since + SHARED_FOR}
        counted_shared = shared | CpuSet(self._shared_at)
        owned: dict[Owner, CpuSet] = {
            ("", container): own for pod in self._pods.values() for container, cpus in pod.cpusets
            if (own := cpus - counted_shared)}
        recent = self._recent(now, union(owned.values()), shared)
        if (owned, recent) != (self._assignments.exclusive, self._assignments.recent):
            self._assignments = Assignments(owned, recent=recent)
        return self._assignments

    def _left(self, before: Mapping[SandboxId, PodCpus], online: CpuSet) -> CpuSet:
        """The CPUs that containers could use which have ended since."""
        ended = EMPTY
        for name, pod in before.items():
            now = self._pods.get(name)
            if now is not pod:
                ids = set() if now is None else {record.container.id for record in counted(now.state)}
                ended |= union(usable_cpus(record, online) for record in counted(pod.state)
                               if record.container.id not in ids)
        return ended

    def _recent(self, now: float, owned: CpuSet, shared: CpuSet) -> CpuSet:
        """Note which CPUs are owned, and return those that stay out of the pool although they are not: for
        `SHARED_FOR` after they last were, and longer if their owner is about to have them back."""
        for cpu in owned | self._assignments.owned:
            self._owned_at[cpu] = now
        returning = CpuSet(self._shared_at) - shared
        self._owned_at = {cpu: since for cpu, since in self._owned_at.items()
                          if cpu in owned or now < since + SHARED_FOR or cpu in returning}
        return CpuSet(self._owned_at) - owned

    def _expired(self, now: float) -> bool:
        """Whether a CPU may change sides because time has passed: a lost one may be its container's own again, and
        one that had an owner may be in the pool."""
        return any(now >= since + SHARED_FOR for since in (
            *self._shared_at.values(), *(self._owned_at[cpu] for cpu in self._assignments.recent)))
