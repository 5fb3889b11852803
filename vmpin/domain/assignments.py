"""Assignments: the decision of an authority on the exclusive CPUs of the node's containers. `placement.rulings`
applies it to each container."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.model import Container, SandboxId, uid_of
from vmpin.named_tuple import NamedTuple

#: The owner of CPUs: (pod uid, container name), (pod uid, "") for a pod as a whole, or ("", container id).
Owner = tuple[str, str]


class Rank(enum.IntEnum):
    """The authorities on a node, the strongest first."""

    KUBELET = 1  #: The checkpoint of the CPU manager's static policy; complete.
    LEDGER = 2  #: The ledger of vmpin's own allocator, which writes the cpusets itself.
    DRA = 3  #: Claims of dra-driver-cpu; complete.
    DECLARED = 4  #: An annotation of the container (`by_annotation`).
    POOL = 5  #: The configured shared pool: a container without a CPU of the pool owns its CPUs (`by_pool`).
    OBSERVED = 6  #: The cpusets of all containers: CPUs that no other pod's container may use are its own.

    @property
    def label(self) -> str:
        """The name of the authority in the status and in logs."""
        return self.name.lower()


class Assignments(NamedTuple):
    """The decision of one authority on all containers of the node."""

    #: The exclusive CPUs of each owner; EMPTY for a container that is listed without exclusive CPUs.
    exclusive: Mapping[Owner, CpuSet] = MappingProxyType({})
    #: The CPUs that all other containers share, possibly EMPTY; None if the authority has no shared pool.
    pool: CpuSet | None = None
    #: Complete: a container that is not listed owns no CPUs, and weaker authorities are not considered.
    complete: bool = False
    #: When owners got their CPUs (CLOCK_BOOTTIME ns), if known.
    since: Mapping[Owner, int] = MappingProxyType({})
    #: The authority writes and repairs the cpusets itself: its list counts even if a source reports other CPUs.
    writes: bool = False
    #: With `writes`: the shared CPUs in a container's cpuset, in addition to its own.
    spare: Mapping[Owner, CpuSet] = MappingProxyType({})
    #: Decides on a container that is not listed, by itself and the pool: its own CPUs, possibly EMPTY; None if it does
    #: not decide.
    rule: Callable[[Container, CpuSet | None], CpuSet | None] | None = None
    #: CPUs without an owner that had one so recently that threads by a policy `shared` stay off them.
    recent: CpuSet = EMPTY

    def listed(self, pod_uid: str, container: Container) -> Owner | None:
        """The key under which a container is listed; None if it is not listed."""
        if pod_uid and container.name and (pod_uid, container.name) in self.exclusive:
            return pod_uid, container.name
        return ("", container.id) if ("", container.id) in self.exclusive else None

    def cpus_of(self, pod_uid: str, container: Container) -> CpuSet | None:
        """A container's exclusive CPUs, possibly EMPTY; None if it is not listed."""
        owner = self.listed(pod_uid, container)
        return None if owner is None else self.exclusive[owner]

    @cached_property
    def owned(self) -> CpuSet:
        """All exclusive CPUs."""
        return union(self.exclusive.values())

    @cached_property
    def by_pod(self) -> Mapping[str, CpuSet]:
        """The exclusive CPUs of each pod with its containers, by pod uid, without those listed by container id."""
        cpus: dict[str, CpuSet] = {}
        for (uid, _), more in self.exclusive.items():
            if uid:
                cpus[uid] = cpus.get(uid, EMPTY) | more
        return cpus

    @cached_property
    def by_id(self) -> Mapping[str, CpuSet]:
        """The CPUs of containers that are listed by their id."""
        return {name: cpus for (uid, name), cpus in self.exclusive.items() if not uid}

    def exclusive_of_others(self, sandbox: SandboxState) -> CpuSet:
        """The exclusive CPUs of all pods except the sandbox's own."""
        own = self.by_pod.get(uid_of(sandbox.pod), EMPTY)
        if self.by_id:
            own |= union(cpus for container, cpus in self.by_id.items() if container in sandbox.containers)
        return self.owned - own


def by_annotation(container: Container, pool: CpuSet | None) -> CpuSet | None:
    """The rule of the authority `declared`: a container owns its CPUs if an annotation declares it exclusive, and none
    if it declares it shared."""
    if container.exclusive is None or (container.exclusive and not container.cpuset):
        return None
    return container.own_cpus if container.exclusive else EMPTY


def by_pool(container: Container, pool: CpuSet | None) -> CpuSet | None:
    """The rule of the authority `pool`: a container without a CPU of the pool owns its CPUs. With an empty pool it
    does not decide: the kubelet's default set is empty if its policy assigns no CPUs."""
    return container.cpuset if container.cpuset and pool and container.cpuset.isdisjoint(pool) else None


class Ruling(NamedTuple):
    """The assignments of an authority that rules on this node. `authority` is its `Rank.label`."""

    authority: str
    assignments: Assignments


class Rulings(NamedTuple):
    """The rulings in force, the strongest authority's first; a complete one is the last. `pool` is the shared pool of
    the strongest authority that has one, None without one."""

    by_rank: tuple[Ruling, ...] = ()
    pool: CpuSet | None = None

    @property
    def complete(self) -> Ruling | None:
        """The complete ruling; None without one."""
        return self.by_rank[-1] if self.by_rank and self.by_rank[-1].assignments.complete else None

    @property
    def authorities(self) -> tuple[str, ...]:
        """The labels of the authorities that rule, the strongest first; without `pool` if no pool is known."""
        return tuple(ruling.authority for ruling in self.by_rank
                     if ruling.authority != Rank.POOL.label or self.pool is not None)

    @property
    def recent(self) -> CpuSet:
        """The CPUs that had an owner recently."""
        return union(ruling.assignments.recent for ruling in self.by_rank)

    @property
    def written(self) -> bool:
        """Whether one of the authorities writes cpusets itself."""
        return any(ruling.assignments.writes for ruling in self.by_rank)

    def exclusive_of_others(self, sandbox: SandboxState) -> CpuSet:
        """The CPUs that are certainly exclusive to other pods; EMPTY without a complete ruling."""
        return EMPTY if self.complete is None else self.complete.assignments.exclusive_of_others(sandbox)

    def deciding(self, pod_uid: str, container: Container) -> tuple[Ruling | None, CpuSet]:
        """The ruling that decides on a container, and the container's exclusive CPUs: the first ruling that lists the
        container, has a rule that decides on it, or is complete. (None, EMPTY) without one."""
        for ruling in self.by_rank:
            assignments = ruling.assignments
            cpus = assignments.cpus_of(pod_uid, container)
            if cpus is None and assignments.rule is not None:
                cpus = assignments.rule(container, self.pool)
            if cpus is not None or assignments.complete:
                return ruling, cpus or EMPTY
        return None, EMPTY

    def by_authority(self, label: str, pod_uid: str, container: Container) -> CpuSet | None:
        """The CPUs that an authority lists for a container; None if it lists none, or does not rule."""
        return next((ruling.assignments.cpus_of(pod_uid, container) or None for ruling in self.by_rank
                     if ruling.authority == label), None)

    def assigned(self, pod_uid: str, container: Container) -> Ruling | None:
        """The first ruling that lists CPUs of a container and whose authority has another program write the cpuset;
        None without one."""
        return next((ruling for ruling in self.by_rank
                     if not ruling.assignments.writes and ruling.assignments.cpus_of(pod_uid, container)), None)


class AuthorityRival(NamedTuple):
    """Two that decide on `cpus`: the stronger authority, and another one, or `observed` for cpusets that contradict
    it. `sandboxes` are those concerned, a pod's uid in place of one that is unknown."""

    authorities: tuple[str, str]
    cpus: CpuSet
    sandboxes: tuple[SandboxId, ...]
    what: str


_WRITERS = {"kubelet": "the kubelet", "dra": "the DRA driver"}


def writer_of(authority: str) -> str:
    """The program that has to rewrite a stale cpuset under an authority."""
    return _WRITERS.get(authority, "the runtime")
