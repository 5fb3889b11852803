"""The CPUs that a container gets as its own, and how they grow and shrink.

A pod's next container first gets the CPUs of the pod's stopped ones. A live set never moves here: growing keeps all of
it, shrinking keeps a part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from vmpin.bounded import parse_whole
from vmpin.cpuset import EMPTY, MAX_CPU, CpuSet, union
from vmpin.domain.model import SandboxId
from vmpin.domain.terminal import number_of
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.allocation_options import AllocationOptions
from vmpin.features.allocator.grants.cpu_request import (
    Alignment,
    CpuPolicy,
    CpuQuery,
    CpuWish,
    Refusal,
    RefusalKind,
    SmtUse,
)
from vmpin.features.allocator.grants.eligibility import align_required, allowed_cpus, query_of
from vmpin.features.allocator.grants.ledger import Grant, GrantState, Ledger, age
from vmpin.features.allocator.grants.pool_cpus import pool, with_shared_cpus
from vmpin.features.allocator.search.best_set import best_cpus, best_part

_CARRIES = frozenset({CpuPolicy.EXCLUSIVE, CpuPolicy.FIXED})


def vcpus_of(grants: Iterable[Grant]) -> int:
    """The vCPUs that Kata makes for a sandbox with these containers."""
    live = [grant for grant in grants if grant.live]
    base = max((1000 * grant.vm_vcpus + grant.vm_part for grant in live), default=0)
    count = -(-(base + sum(grant.amount.limit for grant in live)) // 1000)
    return min([count, *(grant.vm_most for grant in live if grant.vm_most)])


def with_spare_sets(machine: Topology, ledger: Ledger, options: AllocationOptions,
                    call: SandboxId | None = None) -> Ledger | Refusal:
    """The ledger with the spare set of every VM, moved as little as possible. :param call: the sandbox of a new or
    changed grant. :returns: why it cannot have a set of its own; other VMs then go without."""
    whole = pool(machine, ledger, options)
    vms: dict[SandboxId, list[Grant]] = {}
    for grant in sorted(ledger.grants.values(), key=age):
        if grant.vm:
            vms.setdefault(grant.sandbox, []).append(grant)
    # Sets that leave the pool first: the others are then chosen from what is left of it.
    for sandbox in sorted(vms, key=lambda one: (all(grant.wish.spare != "own" for grant in vms[one]), one)):
        grants = vms[sandbox]
        if not _is_right(grants, whole):
            result = _with_spare_set(machine, ledger, options, sandbox)
            if isinstance(result, Refusal) and sandbox == call:
                return result
            if not isinstance(result, Refusal):
                ledger = result
            else:
                ledger = ledger.with_grants(*(grant._replace(spare=EMPTY, own_spare=False) for grant in grants))
            whole = pool(machine, ledger, options)
    return ledger


def _owners(grants: Iterable[Grant]) -> list[Grant]:
    """The VM's containers with CPUs of their own; the first carries the spare set."""
    return [grant for grant in grants if grant.vm and grant.live and grant.policy in _CARRIES and grant.cpus]


def _size(grants: Iterable[Grant], carrier: Grant, own: CpuSet) -> int:
    match carrier.wish.spare:
        case "own":
            return carrier.vm_overhead
        case "match":
            return max(0, vcpus_of(grants) - len(own))
        case text:
            return parse_whole(text, MAX_CPU) or 0


def _is_right(grants: list[Grant], whole: CpuSet) -> bool:
    """True where the spare set needs no search."""
    owners = _owners(grants)
    if any(grant.spare for grant in grants if grant not in owners[:1]):
        return False
    if not owners:
        return True
    carrier, cpus = owners[0], union(grant.cpus for grant in owners)
    own = carrier.wish.spare == "own"
    return (len(carrier.spare) == _size(grants, carrier, cpus) and carrier.spare.isdisjoint(cpus)
            and own == carrier.own_spare and (own or carrier.spare <= whole))


def rebalanced(machine: Topology, ledger: Ledger, options: AllocationOptions) -> Ledger:
    """The ledger with the spare sets and the shared CPUs as they are once CPUs have come or gone."""
    found = with_spare_sets(machine, ledger, options)
    assert not isinstance(found, Refusal)  # There is no call to refuse.
    return with_shared_cpus(machine, found, options)


def _with_spare_set(machine: Topology, ledger: Ledger, options: AllocationOptions,
                    sandbox: SandboxId) -> Ledger | Refusal:
    grants = ledger.of_sandbox(sandbox)
    owners = _owners(grants)
    idle = [grant._replace(spare=EMPTY, own_spare=False) for grant in grants
            if grant.spare and grant not in owners[:1]]
    # An older container may carry it no longer: its CPUs go on to the next one.
    before = union(grant.spare for grant in grants)
    ledger = ledger.with_grants(*idle) if idle else ledger
    if not owners:
        return ledger
    carrier, own = owners[0], union(grant.cpus for grant in owners)
    if carrier.wish.spare == "own":
        return _own_spare(machine, ledger, options, carrier, own, before)
    size = _size(grants, carrier, own)
    whole = pool(machine, ledger, options) - own
    taken = union(grant.cpus | grant.spare for grant in ledger.grants.values() if grant.sandbox != sandbox)
    tiers = (whole - options.reserved - taken, whole - options.reserved, whole)
    kept = before & whole
    free = next((tier for tier in tiers if len(tier | kept) >= size), whole)
    spare = nearest(machine, free, own, kept, min(size, len(free | kept)))
    if spare == carrier.spare and not carrier.own_spare:
        return ledger
    return ledger.with_grants(carrier._replace(spare=spare, own_spare=False))


def _own_spare(machine: Topology, ledger: Ledger, options: AllocationOptions, carrier: Grant, own: CpuSet,
               before: CpuSet) -> Ledger | Refusal:
    size = carrier.vm_overhead
    if not size:
        return Refusal(RefusalKind.REQUEST,
                       "cpu-spare.vmpin.io=own: the overhead of the pod's RuntimeClass has no whole CPU")
    allowed = allowed_cpus(machine, CpuWish(), options)
    if isinstance(allowed, Refusal):
        return allowed
    others = union(grant.held for grant in ledger.grants.values() if grant is not carrier)
    free = allowed - others - own - ledger.others_own()
    if len(free) < size or (pool(machine, ledger, options) <= free and len(free) == size):
        return Refusal(RefusalKind.CPUS,
                       f"cpu-spare.vmpin.io=own: needs {number_of(size, 'CPU', 'more')}, {len(free)} "
                       f"{'is' if len(free) == 1 else 'are'} free")
    return ledger.with_grants(carrier._replace(spare=nearest(machine, free, own, before & free, size), own_spare=True))


def nearest(machine: Topology, free: CpuSet, own: CpuSet, kept: CpuSet, size: int) -> CpuSet:
    """`size` of the free CPUs near the own ones, those that are kept first."""
    if len(kept) == size:
        return kept
    own = own & machine.online
    query = CpuQuery(len(own) + size, Alignment.CACHE, False, SmtUse.PREFER, keep=own)
    if len(kept) > size:
        found = best_part(machine, free - kept, kept, query)
    else:
        found = best_cpus(machine, free - kept, query._replace(keep=own | kept))
    assert not isinstance(found, Refusal)  # There are as many, and nothing is required of them.
    return found.cpus - own


class Room(NamedTuple):
    """What there is for a grant. `free` is no container's own. `lapsed` are CPUs of its pod's stopped containers that
    no live container of the pod has; of its own group, or outside groups. `group` are the CPUs of its group's others.
    """

    free: CpuSet
    lapsed: CpuSet
    group: CpuSet


def room_for(machine: Topology, ledger: Ledger, grant: Grant, options: AllocationOptions) -> Room | Refusal:
    allowed = allowed_cpus(machine, grant.wish, options)
    if isinstance(allowed, Refusal):
        return allowed
    others = [other for other in ledger.grants.values() if other.container != grant.container]
    siblings = [other for other in others if other.sandbox == grant.sandbox and other.group == grant.group]
    live = union(other.held for other in others if other.live)
    lapsed = union(other.cpus for other in siblings if not other.live) - live
    group = union(other.cpus for other in others if grant.group and other.group == grant.group)
    own = grant.held if grant.container in ledger.grants else EMPTY
    free = allowed - union(other.held for other in others) - own - ledger.others_own()
    return Room(free, lapsed & allowed, group - lapsed)


def placed(machine: Topology, ledger: Ledger, grant: Grant, options: AllocationOptions) -> CpuSet | Refusal:
    """CPUs for a container that has none. :returns: why there are none, with numbers."""
    room = room_for(machine, ledger, grant, options)
    if isinstance(room, Refusal):
        return room
    free, lapsed, group = room
    size = grant.amount.size
    group &= machine.online
    query = query_of(grant, size + len(group), options, group)
    same = [other.cpus for other in ledger.of_sandbox(grant.sandbox)
            if other.state is GrantState.LAPSED and other.name == grant.name and len(other.cpus) == size
            and other.cpus <= lapsed]
    #: The CPUs it had before its restart, a part of the lapsed ones, all of them and more, or others.
    tries = [*((cpus, EMPTY) for cpus in same[-1:]), (lapsed, EMPTY) if len(lapsed) >= size else (free, lapsed),
             (free | lapsed, EMPTY)]
    refused: list[Refusal] = []
    for choice, keep in tries:
        kept = query._replace(keep=query.keep | keep)
        found = best_part(machine, free, choice, kept) if choice <= lapsed else best_cpus(machine, choice, kept)
        if not isinstance(found, Refusal):
            return found.cpus - group
        refused.append(found)
    return refused[-1]


def resized(machine: Topology, ledger: Ledger, grant: Grant, size: int,
            options: AllocationOptions) -> CpuSet | Refusal:
    """The CPUs of a grant once it has `size` of them. Its offline ones stay its own."""
    room = room_for(machine, ledger, grant, options)
    if isinstance(room, Refusal):
        return room
    free, lapsed, group = room
    offline, online = grant.cpus - machine.online, grant.cpus & machine.online
    if size == len(grant.cpus):
        return grant.cpus
    group &= machine.online
    query = query_of(grant, size - len(offline) + len(group), options, group)
    if size < len(grant.cpus):
        if size <= len(offline):
            return Refusal(RefusalKind.CPUS, f"{number_of(size, 'CPU is')} asked for, and {len(offline)} of the "
                           f"container's {len(grant.cpus)} are offline")
        found = best_part(machine, free, online, query)
    else:
        keep = query.keep | online
        found = best_cpus(machine, lapsed, query._replace(keep=keep))
        if isinstance(found, Refusal):
            found = best_cpus(machine, free | lapsed, query._replace(keep=keep))
    return found if isinstance(found, Refusal) else (found.cpus - group) | offline


def numa_node(machine: Topology, ledger: Ledger, grant: Grant, options: AllocationOptions) -> int | None:
    """The NUMA node whose pool CPUs a container is to have: the one with the most of them beyond what the other such
    containers request there, the lowest number of equal ones, and only its `near` ones where there are such."""
    shared = pool(machine, ledger, options)
    nodes = [node for node, cpus in machine.nodes.items() if cpus & shared]
    nodes = [node for node in nodes if node in grant.near] or nodes

    def load(node: int) -> tuple[int, int]:
        requests = sum(other.amount.request for other in ledger.grants.values()
                       if other.node == node and other.container != grant.container)
        return (requests - 1000 * len(machine.nodes[node] & shared), node)

    return min(nodes, key=load, default=None)


def balanced(machine: Topology, ledger: Ledger, options: AllocationOptions, grant: Grant) -> Ledger | Refusal:
    """The ledger with a new or changed grant, spare sets and the shared CPUs as they are then.
    :returns: why it cannot be, with numbers."""
    before = ledger
    after = with_spare_sets(machine, ledger.with_grants(grant), options, grant.sandbox)
    if isinstance(after, Refusal):
        return after
    if not pool(machine, after, options) and grant.out_of_pool:
        whole = pool(machine, before, options)
        return Refusal(RefusalKind.CPUS, f"needs {number_of(grant.amount.size, 'CPU')}: the pool has {len(whole)} "
                       f"({whole}), and must keep one")
    return with_shared_cpus(machine, after, options)


def mems_of(machine: Topology, grant: Grant, cpus: CpuSet, options: AllocationOptions) -> CpuSet | None:
    """The memory nodes of a new container: with policy numa, and where alignment is required, the nodes of its CPUs.
    None: all of them, also where a node of its CPUs has no memory. Without a requirement a limit could only
    end in the OOM killer."""
    #: The configuration requires it of a container's own CPUs alone.
    required = align_required(grant.wish, options) if grant.cpus else grant.wish.align_required
    if not (grant.policy is CpuPolicy.NUMA or required) or not cpus:
        return None
    nodes = CpuSet(node for node, held in machine.nodes.items() if held & cpus)
    memory = machine.memory_nodes or CpuSet(machine.nodes)
    return nodes if nodes and nodes < memory else None
