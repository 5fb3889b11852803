"""The ledger: which container has which CPUs, by which policy, since when, and what was refused; and the answer to a
call of the runtime, with the ledger that it leaves.

A pod holds the CPUs of its stopped containers until it ends, and its next containers use them first: init containers
and restarts. So a CPU may be in a lapsed grant and in a live one of the same pod, and in no two pods' grants.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.domain.runtime_call import Adjustment, SideUpdate
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.allocation_options import AllocationOptions
from vmpin.features.allocator.grants.cpu_request import CpuPolicy, CpuWish, RefusalKind
from vmpin.named_tuple import NamedTuple

#: Refused requests that are kept.
MAX_REFUSED = 64
#: The policies of containers that follow the shared CPUs, and of those whose requests the pool has to serve.
_FOLLOWS = frozenset({CpuPolicy.NONE, CpuPolicy.NUMA})
_IN_POOL = frozenset({CpuPolicy.NONE, CpuPolicy.NUMA, CpuPolicy.FIXED})


class GrantState(enum.StrEnum):
    RESERVED = "reserved"  #: Kept before Create was answered.
    RUNNING = "running"
    LAPSED = "lapsed"  #: The container has stopped; its pod has not ended.


class CpuAmount(NamedTuple):
    """What a container requests, in thousandths of a CPU; limit 0: none. `size`: whole CPUs, where request = limit in
    whole CPUs, else 0."""

    request: int = 0
    limit: int = 0
    size: int = 0


class PoolLoad(NamedTuple):
    """Live containers that a change of the shared CPUs updates, and what the pool's containers request, in thousandths
    of a CPU."""

    updated: int = 0
    request: int = 0


class Grant(NamedTuple):
    """What one container has.

    policy            `cpus`: held, out of the pool    the cpuset (`target`, once done `written`)
    exclusive         yes, yes                         `cpus` and `spare`
    group             yes, yes                         the CPUs of all members of the group
    fixed             yes, no                          `cpus` and `spare`; shared containers run on them, too
    none, numa, infra it has none                      shared CPUs, those of its node, or the reserved ones

    `spare` stays in the pool, and is not held; with `own_spare` it is held and out of the pool."""

    container: ContainerId
    sandbox: SandboxId
    name: str
    namespace: str
    pod: str
    pod_uid: str
    wish: CpuWish  #: As asked by annotations.
    policy: CpuPolicy  #: As granted.
    group: str = ""  #: NAMESPACE/NAME, or NAME of a configured group.
    state: GrantState = GrantState.RESERVED
    amount: CpuAmount = CpuAmount()
    cpus: CpuSet = EMPTY  #: Its own: exclusive, fixed, or what it brought into its group.
    spare: CpuSet = EMPTY  #: Of a VM: CPUs for its spare vCPUs and other threads.
    own_spare: bool = False  #: `spare` is out of the pool (cpu-spare: own).
    node: int | None = None  #: The NUMA node of policy numa.
    near: CpuSet = EMPTY  #: The NUMA nodes of what `cpu-near` names, and
    devices: CpuSet = EMPTY  #: those of its own devices, as found when it was created.
    written: CpuSet = EMPTY  #: The cpuset that the runtime has for it, or gets with the answer; empty: none.
    left_alone: bool = False  #: Its cpuset is empty or another plugin's, and vmpin sets none.
    vm: bool = False
    vm_vcpus: int = 0
    vm_most: int = 0  #: As `VmSize.most`.
    vm_part: int = 0  #: As `VmSize.part`.
    vm_overhead: int = 0
    since_ns: int = 0
    guaranteed: bool = False  #: The pod's QoS class is Guaranteed.
    least_distance: int | None = None  #: As `FoundCpus.least_distance`, of the search that chose `cpus`.
    annotated: str = ""  #: Digest of the annotations that the grant follows (`asking_digest`).

    @property
    def live(self) -> bool:
        return self.state is not GrantState.LAPSED

    @property
    def is_bare(self) -> bool:
        """True without CPUs of its own and outside a VM: it has no part in `Holdings`."""
        return not (self.cpus or self.spare or self.vm)

    @property
    def out_of_pool(self) -> CpuSet:
        """The CPUs that the pool is without because of it."""
        own = self.cpus if self.policy in (CpuPolicy.EXCLUSIVE, CpuPolicy.GROUP) else EMPTY
        return own | self.spare if self.own_spare else own

    @property
    def pool_load(self) -> PoolLoad:
        """Its part in `Grants.pool_load`."""
        if not self.live:
            return PoolLoad()
        updated = self.policy in _FOLLOWS and not self.left_alone and (bool(self.written) or not self.vm)
        return PoolLoad(updated, self.amount.request if self.policy in _IN_POOL else 0)

    @property
    def held(self) -> CpuSet:
        """The CPUs that become exclusive to no other pod's container."""
        return self.cpus | self.spare if self.own_spare else self.cpus


class RefusedRequest(NamedTuple):
    container: str
    namespace: str
    pod: str
    reason: str
    time_ns: int
    kind: RefusalKind = RefusalKind.REQUEST


class Holdings(NamedTuple):
    """What the grants that are not bare come to. `taken`: the own and spare CPUs of all; `vms`: the oldest first."""

    out_of_pool: CpuSet
    taken: CpuSet
    vms: tuple[Grant, ...]


class DueCpusets(NamedTuple):
    """The result of `pool_cpus.due`, what it followed from, and the containers whose grants have changed since."""

    machine: Topology
    options: AllocationOptions
    shared: CpuSet
    due: tuple[tuple[Grant, CpuSet], ...]
    changed: frozenset[ContainerId] = frozenset()


class Grants(dict[ContainerId, Grant]):
    """One version of all grants, by container: it does not change. What follows from all of them is worked out once,
    and the next version takes over what its changed grants have no part in: so a shared container that comes or goes
    costs the same beside any number of others."""

    __slots__ = ("_holdings", "_pool_load", "due")

    def __init__(self, grants: Mapping[ContainerId, Grant] = MappingProxyType({})) -> None:
        super().__init__(grants)
        self._holdings: Holdings | None = None
        self._pool_load: PoolLoad | None = None
        self.due: DueCpusets | None = None

    def next(self, changed: Collection[Grant], gone: Collection[ContainerId] = ()) -> Grants:
        """Return the next version, with changed and new grants, and without those that are gone."""
        after = Grants(self)
        after.update((grant.container, grant) for grant in changed)
        for container in gone:
            after.pop(container, None)
        keys = frozenset((*(grant.container for grant in changed), *gone))
        old = [self[key] for key in keys if key in self]
        new = [after[key] for key in keys if key in after]
        touched = old + new
        if self._pool_load is not None:
            after._pool_load = _sum(self._pool_load, new, old)
        if all(grant.is_bare for grant in touched):
            after._holdings = self._holdings
        # The cpuset of a group's members follows from all of them.
        if self.due is not None and all(grant.policy is not CpuPolicy.GROUP for grant in touched):
            after.due = self.due._replace(changed=self.due.changed | keys)
        return after

    @property
    def holdings(self) -> Holdings:
        if self._holdings is None:
            grants = [grant for grant in self.values() if not grant.is_bare]
            self._holdings = Holdings(union(grant.out_of_pool for grant in grants),
                                      union(grant.cpus | grant.spare for grant in grants),
                                      tuple(sorted((grant for grant in grants if grant.vm), key=age)))
        return self._holdings

    @property
    def pool_load(self) -> PoolLoad:
        if self._pool_load is None:
            self._pool_load = _sum(PoolLoad(), self.values())
        return self._pool_load


def _sum(load: PoolLoad, more: Iterable[Grant], fewer: Iterable[Grant] = ()) -> PoolLoad:
    signed = [(1, grant.pool_load) for grant in more] + [(-1, grant.pool_load) for grant in fewer]
    return PoolLoad(load.updated + sum(sign * part.updated for sign, part in signed),
                    load.request + sum(sign * part.request for sign, part in signed))


class Ledger(NamedTuple):
    """All grants by container. `shared`: the CPUs that shared containers are on, or are being updated to."""

    grants: Mapping[ContainerId, Grant] = MappingProxyType({})
    shared: CpuSet = EMPTY
    refused: tuple[RefusedRequest, ...] = ()

    @property
    def version(self) -> Grants:
        """The grants, with what follows from them."""
        return self.grants if isinstance(self.grants, Grants) else Grants(self.grants)

    def with_grants(self, *grants: Grant) -> Ledger:
        return self._replace(grants=self.version.next(grants))

    def without(self, containers: Iterable[ContainerId]) -> Ledger:
        gone = self.grants.keys() & set(containers)
        return self._replace(grants=self.version.next((), gone)) if gone else self

    def with_refusal(self, request: RefusedRequest) -> Ledger:
        """A container's refusal replaces its last one: the kubelet retries every few seconds, and the numbers in the
        reason change."""
        others = [other for other in self.refused if other[:3] != request[:3]]
        return self._replace(refused=(*others, request)[-MAX_REFUSED:])

    def of_sandbox(self, sandbox: SandboxId) -> list[Grant]:
        """Return the grants of a sandbox, the oldest first."""
        return sorted((grant for grant in self.grants.values() if grant.sandbox == sandbox), key=age)

    def of_group(self, group: str) -> list[Grant]:
        return sorted((grant for grant in self.grants.values() if grant.group == group), key=age)

    def held(self) -> CpuSet:
        """Return all CPUs that belong to some pod, and are given to no other."""
        return union(grant.held for grant in self.grants.values())

    def out_of_pool(self) -> CpuSet:
        return self.version.holdings.out_of_pool

    def foreign_cpus(self) -> CpuSet:
        """Return the CPUs to which another program has restricted containers that are left alone. They stay in the
        pool, and become exclusive to no container. Where a container may use all shared CPUs, that is no restriction.
        """
        return union(grant.written for grant in self.grants.values()
                     if grant.left_alone and grant.live and not self.shared <= grant.written)


def age(grant: Grant) -> tuple[int, ContainerId]:
    """Return the sort key of a grant: the order does not depend on that of the map."""
    return (grant.since_ns, grant.container)


class Answer(NamedTuple):
    """A decision. `ledger` is to be kept before the answer is sent. `updates` in their order: those that take CPUs
    away come first. `refusal` is the error for the call, "" for none; the grants are then as before. `notes` are
    lines for the log."""

    ledger: Ledger
    adjustment: Adjustment | None = None
    updates: tuple[SideUpdate, ...] = ()
    refusal: str = ""
    notes: tuple[str, ...] = ()
