"""The pool, and the cpuset that each container is to have; the updates that lead there, those that take away first.

The pool is what is no container's own. Shared containers are on `ledger.shared`: the pool without its headroom, so
that one exclusive container is often no reason to update hundreds of shared ones.
"""

from __future__ import annotations

from collections.abc import Iterable

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import ContainerId
from vmpin.domain.runtime_call import SideUpdate
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.allocation_options import AllocationOptions
from vmpin.features.allocator.grants.cpu_request import CpuPolicy, CpuQuery, Refusal
from vmpin.features.allocator.grants.eligibility import configured_groups
from vmpin.features.allocator.grants.ledger import Grant, Ledger, age
from vmpin.features.allocator.search.best_set import best_cpus

_SHARED = frozenset({CpuPolicy.NONE, CpuPolicy.NUMA, CpuPolicy.INFRA})


def pool(machine: Topology, ledger: Ledger, options: AllocationOptions) -> CpuSet:
    """The CPUs that are no container's own."""
    never = machine.isolated | configured_groups(options) | (options.reserved if options.strict_reserved else EMPTY)
    return machine.online - never - ledger.out_of_pool()


def with_shared_cpus(machine: Topology, ledger: Ledger, options: AllocationOptions) -> Ledger:
    """The ledger with `shared` within the pool, and at most `pool_headroom` CPUs smaller. It changes only where CPUs
    of it are no longer in the pool, or where the headroom has become too large."""
    whole = pool(machine, ledger, options)
    apart = whole - ledger.shared
    if ledger.shared and ledger.shared <= whole and len(apart) <= options.pool_headroom:
        return ledger
    open_ = whole - options.reserved - union(grant.cpus | grant.spare for grant in ledger.grants.values())
    most = min(options.pool_headroom, len(open_), len(whole) - 1)
    if most <= 0:
        return ledger._replace(shared=whole)
    headroom = best_cpus(machine, open_, CpuQuery(most, options.align, False, options.smt))
    return ledger._replace(shared=whole if isinstance(headroom, Refusal) else whole - headroom.cpus)


def target(machine: Topology, ledger: Ledger, grant: Grant, options: AllocationOptions) -> CpuSet:
    """The cpuset that the container is to have, of CPUs that are online. Empty: vmpin sets none. Kata makes a VM as
    large as the cpusets of containers without a limit, so these get none, and those on the pool none either, unless
    they have had CPUs of their own before: a runtime cannot take a cpuset away."""
    if grant.left_alone or not grant.live or (grant.vm and not grant.amount.limit):
        return EMPTY
    match grant.policy:
        case CpuPolicy.EXCLUSIVE | CpuPolicy.FIXED:
            cpus = grant.cpus | grant.spare
        case CpuPolicy.GROUP:
            cpus = group_cpus(ledger, grant.group, options)
        case CpuPolicy.INFRA:
            cpus = options.reserved
        case CpuPolicy.NUMA:
            node = machine.nodes.get(grant.node, EMPTY) if grant.node is not None else EMPTY
            cpus = (ledger.shared & node) or ledger.shared
        case _:
            cpus = EMPTY if grant.vm and not grant.written else ledger.shared
    if grant.wish.exclude_reserved and grant.policy in (CpuPolicy.NONE, CpuPolicy.NUMA):
        cpus = (cpus - options.reserved) or cpus
    return cpus & machine.online


def group_cpus(ledger: Ledger, group: str, options: AllocationOptions) -> CpuSet:
    """The set of a group: its fixed one, or what its members brought."""
    rule = options.groups.get(group)
    fixed = rule.cpus - options.reserved if rule is not None else EMPTY
    return fixed or union(grant.cpus for grant in ledger.of_group(group))


def due(machine: Topology, ledger: Ledger, options: AllocationOptions) -> list[tuple[Grant, CpuSet]]:
    """The containers whose cpuset is not what it is to be, with what it is to be. One without a cpuset that was not
    created by vmpin's answer is among them; the runtime applies updates to all that are created or running."""
    wanted = ((grant, target(machine, ledger, grant, options))
              for grant in sorted(ledger.grants.values(), key=age) if grant.live and not grant.left_alone)
    return [(grant, cpus) for grant, cpus in wanted if cpus and cpus != grant.written]


def shrinking(machine: Topology, ledger: Ledger, options: AllocationOptions,
              call: ContainerId | None = None) -> list[SideUpdate]:
    """The updates for containers that have to lose CPUs, or whose own CPUs have changed, and for the call's container,
    whose is the last. CPUs that a container is yet to lose are added to no other but the call's, and to one of the
    pool that would have none else: in every prefix of the updates no container gets a CPU that is another's own."""
    return _shrinking(machine, due(machine, ledger, options), call)


def _shrinking(machine: Topology, wanted: list[tuple[Grant, CpuSet]], call: ContainerId | None) -> list[SideUpdate]:
    leaving = [(grant.container, grant.written - cpus) for grant, cpus in wanted if grant.policy not in _SHARED]
    found = []
    for grant, cpus in wanted:
        had = grant.written or machine.online
        loses, called = not had <= cpus, grant.container == call
        if not loses and not called and grant.policy in _SHARED:
            continue
        if not called:
            others = union(left for container, left in leaving if container != grant.container) - had
            # One of the pool has to leave what becomes another's own, also where nothing else is left to it yet.
            cpus = cpus - others or (cpus if grant.policy in _SHARED else EMPTY)
        if cpus and cpus != grant.written:
            order = (called, grant.policy not in _SHARED, not loses, age(grant))
            found.append((order, SideUpdate(grant.container, cpus)))
    return [update for _, update in sorted(found)]


def all_updates(machine: Topology, ledger: Ledger, options: AllocationOptions) -> tuple[SideUpdate, ...]:
    """Return every update that is due: those of `shrinking`, and then what containers get back."""
    wanted = due(machine, ledger, options)
    if not wanted:
        return ()  # after most answers: they have carried everything
    first = _shrinking(machine, wanted, None)
    later = due(machine, applied(ledger, first), options)
    return (*first, *(SideUpdate(grant.container, cpus) for grant, cpus in later))


def with_written(ledger: Ledger, container: ContainerId, cpus: CpuSet | None) -> Ledger:
    """The ledger with the cpuset that the runtime has for a container: read back from its cgroup, or answered."""
    grant = ledger.grants.get(container)
    if grant is None or grant.written == (cpus or EMPTY):
        return ledger
    return ledger.with_grants(grant._replace(written=cpus or EMPTY))


def applied(ledger: Ledger, updates: Iterable[SideUpdate]) -> Ledger:
    for update in updates:
        ledger = with_written(ledger, update.container, update.cpus)
    return ledger
