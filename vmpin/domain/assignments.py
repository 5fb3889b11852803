"""Which CPUs the containers of a node own, as an authority decides it: the values that placement follows.

Several programs may decide that: the kubelet's static policy, an allocator, a DRA driver, an annotation. `Rank` is
their order. The authorities obtain them, and `placement.rulings` has what follows for a container.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.model import Container

#: Whose CPUs: (pod uid, container's name), (pod uid, "") for those of a pod as a whole, ("", container's id).
Owner = tuple[str, str]


class Rank(enum.IntEnum):
    """The order of authorities, the strongest first. On each container the first one decides that lists it or is
    complete."""

    KUBELET = 1  #: The checkpoint of the CPU manager's static policy.
    LEDGER = 2  #: An allocator of vmpin's own.
    DRA = 3  #: Claims of a DRA driver.
    DECLARED = 4  #: An annotation.
    POOL = 5  #: The shared pool: CPUs outside it are their container's own.
    OBSERVED = 6  #: The cpusets of all other containers.


class _AssignmentFields(NamedTuple):
    """The fields of assignments."""

    #: The CPUs that each owner has for itself; empty for a container that is listed and owns none.
    exclusive: Mapping[Owner, CpuSet] = MappingProxyType({})
    #: The CPUs that all other containers share; None where the authority names none. It may be empty.
    pool: CpuSet | None = None
    #: A container that is not listed owns nothing, and no weaker authority is asked.
    complete: bool = False
    #: When owners got their CPUs (CLOCK_BOOTTIME ns), where that is known.
    since: Mapping[Owner, int] = MappingProxyType({})
    #: The authority writes the cpusets itself, and repairs them: what it lists counts, whatever a source reports.
    writes: bool = False
    #: With `writes`: the CPUs that a container's cpuset has beside its own.
    spare: Mapping[Owner, CpuSet] = MappingProxyType({})
    #: Decides on a container that is not listed, by itself and the pool: its own CPUs (empty: none); None where it
    #: does not decide.
    rule: Callable[[Container, CpuSet | None], CpuSet | None] | None = None


class Assignments(_AssignmentFields):
    """The decision of one authority on all containers of the node."""

    def listed(self, pod_uid: str, container: Container) -> Owner | None:
        """Return the key under which a container is listed, None where it is not."""
        if pod_uid and container.name and (pod_uid, container.name) in self.exclusive:
            return pod_uid, container.name
        return ("", container.id) if ("", container.id) in self.exclusive else None

    def cpus_of(self, pod_uid: str, container: Container) -> CpuSet | None:
        """Return the listed CPUs of a container, empty where it owns none; None where it is not listed."""
        owner = self.listed(pod_uid, container)
        return None if owner is None else self.exclusive[owner]

    @cached_property
    def owned(self) -> CpuSet:
        """All CPUs that a container or a pod has for itself."""
        return union(self.exclusive.values())

    @cached_property
    def by_pod(self) -> Mapping[str, CpuSet]:
        """The CPUs that a pod and its containers own, by pod uid; those that are listed by container id are left
        out."""
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
        """Return the CPUs that pods other than a sandbox's own have for themselves."""
        own = EMPTY if sandbox.pod is None else self.by_pod.get(sandbox.pod.uid, EMPTY)
        if self.by_id:
            own |= union(cpus for container, cpus in self.by_id.items() if container in sandbox.containers)
        return self.owned - own


class Ruling(NamedTuple):
    """The assignments of an authority that rules on this node. `authority` is its name, as status shows it."""

    authority: str
    assignments: Assignments


class Rulings(NamedTuple):
    """The rulings in force, the strongest authority's first; a complete one is the last. `pool`: the shared pool, of
    the strongest authority that names one; None where none does."""

    by_rank: tuple[Ruling, ...] = ()
    pool: CpuSet | None = None

    @property
    def complete(self) -> Ruling | None:
        """The ruling that decides on every container, None without one."""
        return self.by_rank[-1] if self.by_rank and self.by_rank[-1].assignments.complete else None

    @property
    def written(self) -> bool:
        """Whether an authority writes cpusets itself."""
        return any(ruling.assignments.writes for ruling in self.by_rank)

    def exclusive_of_others(self, sandbox: SandboxState) -> CpuSet:
        """Return the CPUs that are certainly other pods' alone: without a complete ruling none are."""
        return EMPTY if self.complete is None else self.complete.assignments.exclusive_of_others(sandbox)

    def deciding(self, pod_uid: str, container: Container) -> tuple[Ruling | None, CpuSet]:
        """Return the ruling that decides on a container, and the CPUs that it owns; (None, empty) where none does."""
        for ruling in self.by_rank:
            assignments = ruling.assignments
            cpus = assignments.cpus_of(pod_uid, container)
            if cpus is None and assignments.rule is not None:
                cpus = assignments.rule(container, self.pool)
            if cpus is not None or assignments.complete:
                return ruling, cpus or EMPTY
        return None, EMPTY

    def by_authority(self, name: str, pod_uid: str, container: Container) -> CpuSet | None:
        """Return the CPUs that an authority lists for a container, None where it lists none or does not rule."""
        return next((ruling.assignments.cpus_of(pod_uid, container) or None for ruling in self.by_rank
                     if ruling.authority == name), None)

    def assigned(self, pod_uid: str, container: Container) -> Ruling | None:
        """Return the first ruling that lists CPUs of a container which another program writes to its cpuset; None
        where there is none."""
        return next((ruling for ruling in self.by_rank
                     if not ruling.assignments.writes and ruling.assignments.cpus_of(pod_uid, container)), None)


_WRITERS = {"kubelet": "the kubelet", "dra": "the DRA driver"}


def writer_of(container: Container) -> str:
    """Return the program that is to rewrite a stale cpuset, as texts name it."""
    return _WRITERS.get(container.ruled_by, "the runtime")
