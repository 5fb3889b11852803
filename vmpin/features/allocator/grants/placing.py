"""The CPUs that a container gets, and a VM's spare CPUs beside them; how they grow and shrink.

A pod's next container first gets the CPUs of the pod's stopped ones. A live set never moves here: growing keeps all of
it, shrinking keeps a part.

Spare CPUs: Kata makes Σ quotas + default_vcpus vCPUs, rounded up (virtcontainers/sandbox.go), with runtime-rs' static
sizing Σ quotas + overhead_vcpus (resource/src/cpu_mem/initial_size.rs), but no more than the VM has slots for, and
pins one-to-one only where the cpuset has as many CPUs. So the oldest container with CPUs of its own gets CPUs of the
pool besides, near them: spare vCPUs and the VMM's threads have a legal place, and no CPU is wasted. With `own` they
leave the pool: as many as the whole CPUs of the RuntimeClass's overhead.
"""

from __future__ import annotations

from collections.abc import Iterable

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
from vmpin.features.allocator.grants.eligibility import SINGLE, align_required, allowed_cpus, query_of
from vmpin.features.allocator.grants.headroom import with_shared_cpus
from vmpin.features.allocator.grants.ledger import Grant, GrantState, Ledger
from vmpin.features.allocator.grants.pool_cpus import pool
from vmpin.features.allocator.search.best_set import best_cpus, best_part
from vmpin.named_tuple import NamedTuple


class Room(NamedTuple):
    """The CPUs that a grant may get. `free` are no container's own. `lapsed` are those of its pod's stopped containers
    (of its own group, or outside groups) that no live container of the pod has. `group` are those that other members
    of its group brought."""

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
    free = allowed - union(other.held for other in others) - own - ledger.foreign_cpus()
    return Room(free, lapsed & allowed, group - lapsed)


def placed(machine: Topology, ledger: Ledger, grant: Grant, options: AllocationOptions) -> Grant | Refusal:
    """The grant, of a container that has no CPUs, with CPUs. :returns: why there are none, with numbers."""
    room = room_for(machine, ledger, grant, options)
    if isinstance(room, Refusal):
        return room
    free, lapsed, group = room
    size = grant.amount.size
    group &= machine.online
    query = query_of(grant, size + len(group), options, group)
    before = [other.cpus for other in ledger.of_sandbox(grant.sandbox)
              if other.state is GrantState.LAPSED and other.name == grant.name and len(other.cpus) == size
              and other.cpus <= lapsed]
    as_before_restart = [(cpus, EMPTY) for cpus in before[-1:]]
    of_the_pod = (lapsed, EMPTY) if len(lapsed) >= size else (free, lapsed)  # a part of the lapsed, or all and more
    anything_free = (free | lapsed, EMPTY)
    refusals: list[Refusal] = []
    for choice, keep in (*as_before_restart, of_the_pod, anything_free):
        kept = query._replace(keep=query.keep | keep)
        best = best_part(machine, free, choice, kept) if choice <= lapsed else best_cpus(machine, choice, kept)
        if not isinstance(best, Refusal):
            return grant._replace(cpus=best.cpus - group, least_distance=best.least_distance)
        refusals.append(best)
    return refusals[-1]


def resized(machine: Topology, ledger: Ledger, grant: Grant, size: int,
            options: AllocationOptions) -> Grant | Refusal:
    """The grant once it has `size` CPUs. Its offline ones stay its own."""
    room = room_for(machine, ledger, grant, options)
    if isinstance(room, Refusal):
        return room
    free, lapsed, group = room
    offline, online = grant.cpus - machine.online, grant.cpus & machine.online
    if size == len(grant.cpus):
        return grant
    group &= machine.online
    query = query_of(grant, size - len(offline) + len(group), options, group)
    if size < len(grant.cpus):
        if size <= len(offline):
            return Refusal(RefusalKind.CPUS, f"{number_of(size, 'CPU is')} asked for, and {len(offline)} of the "
                           f"container's {len(grant.cpus)} are offline")
        best = best_part(machine, free, online, query)
    else:
        query = query._replace(keep=query.keep | online)
        best = best_cpus(machine, lapsed, query)
        if isinstance(best, Refusal):
            best = best_cpus(machine, free | lapsed, query)
    if isinstance(best, Refusal):
        return best
    return grant._replace(cpus=(best.cpus - group) | offline, least_distance=best.least_distance)


def numa_node(machine: Topology, ledger: Ledger, grant: Grant, options: AllocationOptions) -> int | None:
    """The NUMA node whose pool CPUs a container is to have, of its `near` nodes where these have any: the one with the
    most of them beyond what other such containers request there; of equal ones the lowest number."""
    shared = pool(machine, ledger, options)
    nodes = [node for node, cpus in machine.nodes.items() if cpus & shared]
    nodes = [node for node in nodes if node in grant.near] or nodes

    def load(node: int) -> tuple[int, int]:
        requests = sum(other.amount.request for other in ledger.grants.values()
                       if other.node == node and other.container != grant.container)
        return (requests - 1000 * len(machine.nodes[node] & shared), node)

    return min(nodes, key=load, default=None)


def mems_of(machine: Topology, grant: Grant, cpus: CpuSet, options: AllocationOptions) -> CpuSet | None:
    """The memory nodes of a new container: with policy numa, and where alignment is required, the nodes of its CPUs.
    None: all nodes, also where a node of its CPUs has no memory, and without a requirement: a limit could only end in
    the OOM killer."""
    # The configuration requires it of a container's own CPUs alone.
    required = align_required(grant.wish, options) if grant.cpus else grant.wish.align_required
    if not (grant.policy is CpuPolicy.NUMA or required) or not cpus:
        return None
    nodes = CpuSet(node for node, held in machine.nodes.items() if held & cpus)
    memory = machine.memory_nodes or CpuSet(machine.nodes)
    return nodes if nodes and nodes < memory else None


def kata_vcpus(grants: Iterable[Grant]) -> int:
    """The vCPUs that Kata makes for a sandbox with these containers."""
    live = [grant for grant in grants if grant.live]
    base = max((1000 * grant.vm_vcpus + grant.vm_part for grant in live), default=0)
    count = -(-(base + sum(grant.amount.limit for grant in live)) // 1000)
    return min([count, *(grant.vm_most for grant in live if grant.vm_most)])


def with_spare_sets(machine: Topology, ledger: Ledger, options: AllocationOptions,
                    call: SandboxId | None = None) -> Ledger | Refusal:
    """The ledger with the spare set of every VM, moved as little as possible. :param call: the sandbox of a new or
    changed grant. :returns: why it cannot have a set of its own; other VMs then go without."""
    vms: dict[SandboxId, list[Grant]] = {}
    for grant in ledger.version.holdings.vms:
        vms.setdefault(grant.sandbox, []).append(grant)
    leaving = {sandbox for sandbox, grants in vms.items()
               if any(carrier.wish.spare == "own" for carrier in _owners(grants)[:1])}
    # What was given up is the pool's before any set is chosen. Sets that leave the pool come first: the others are
    # chosen from what is left of it.
    given_up = [grant._replace(own_spare=False) for grant in ledger.version.holdings.vms
                if grant.own_spare and grant.sandbox not in leaving]
    ledger = ledger.with_grants(*given_up) if given_up else ledger
    whole_pool = pool(machine, ledger, options)
    for sandbox in sorted(vms, key=lambda sandbox: (sandbox not in leaving, sandbox)):
        if _has_its_spare_set(vms[sandbox], whole_pool):
            continue
        after = _with_spare_set(machine, ledger, options, sandbox)
        if isinstance(after, Refusal):
            if sandbox == call:
                return after
            after = ledger.with_grants(*(grant._replace(spare=EMPTY, own_spare=False) for grant in vms[sandbox]))
        ledger = after
        whole_pool = pool(machine, ledger, options)
    return ledger


def _owners(grants: Iterable[Grant]) -> list[Grant]:
    """The VM's containers with CPUs of their own, without a group's; the first carries the spare set."""
    return [grant for grant in grants if grant.vm and grant.live and grant.policy in SINGLE and grant.cpus]


def _spare_size(grants: Iterable[Grant], carrier: Grant, own: CpuSet) -> int:
    match carrier.wish.spare:
        case "own":
            return carrier.vm_overhead
        case "match":
            return max(0, kata_vcpus(grants) - len(own))
        case text:
            return parse_whole(text, MAX_CPU) or 0


def _has_its_spare_set(grants: list[Grant], whole_pool: CpuSet) -> bool:
    """True where the spare set of a VM needs no search."""
    owners = _owners(grants)
    if any(grant.spare for grant in grants if grant not in owners[:1]):
        return False
    if not owners:
        return True
    carrier, cpus = owners[0], union(grant.cpus for grant in owners)
    own = carrier.wish.spare == "own"
    return (len(carrier.spare) == _spare_size(grants, carrier, cpus) and carrier.spare.isdisjoint(cpus)
            and own == carrier.own_spare and (own or carrier.spare <= whole_pool))


def _with_spare_set(machine: Topology, ledger: Ledger, options: AllocationOptions,
                    sandbox: SandboxId) -> Ledger | Refusal:
    grants = ledger.of_sandbox(sandbox)
    owners = _owners(grants)
    # Where the container that carried the set has stopped, the next one takes its CPUs over.
    before = union(grant.spare for grant in grants)
    idle = [grant._replace(spare=EMPTY, own_spare=False) for grant in grants
            if grant.spare and grant not in owners[:1]]
    ledger = ledger.with_grants(*idle) if idle else ledger
    if not owners:
        return ledger
    carrier, own = owners[0], union(grant.cpus for grant in owners)
    if carrier.wish.spare == "own":
        return _own_spare(machine, ledger, options, carrier, own, before)
    size = _spare_size(grants, carrier, own)
    others = pool(machine, ledger, options) - own
    taken = union(grant.cpus | grant.spare for grant in ledger.grants.values() if grant.sandbox != sandbox)
    kept = before & others
    free = next((tier for tier in (others - options.reserved - taken, others - options.reserved)
                 if len(tier | kept) >= size), others)
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
    free = allowed - others - own - ledger.foreign_cpus()
    if len(free) < size or (pool(machine, ledger, options) <= free and len(free) == size):
        return Refusal(RefusalKind.CPUS,
                       f"cpu-spare.vmpin.io=own: needs {number_of(size, 'CPU', 'more')}, {len(free)} "
                       f"{'is' if len(free) == 1 else 'are'} free")
    return ledger.with_grants(carrier._replace(spare=nearest(machine, free, own, before & free, size), own_spare=True))


def nearest(machine: Topology, free: CpuSet, own: CpuSet, kept: CpuSet, size: int) -> CpuSet:
    """`size` of the free CPUs near the own ones, of `kept` as many as possible."""
    if len(kept) == size:
        return kept
    own = own & machine.online
    query = CpuQuery(len(own) + size, Alignment.CACHE, False, SmtUse.PREFER, keep=own)
    if len(kept) > size:
        best = best_part(machine, free - kept, kept, query)
    else:
        best = best_cpus(machine, free - kept, query._replace(keep=own | kept))
    assert not isinstance(best, Refusal)  # There are as many, and nothing is required of them.
    return best.cpus - own


def balanced(machine: Topology, ledger: Ledger, options: AllocationOptions, grant: Grant) -> Ledger | Refusal:
    """The ledger with a new or changed grant, and with the spare sets and the shared CPUs that follow.
    :returns: why it cannot be, with numbers."""
    after = with_spare_sets(machine, ledger.with_grants(grant), options, grant.sandbox)
    if isinstance(after, Refusal):
        return after
    if not pool(machine, after, options) and grant.out_of_pool:
        before = pool(machine, ledger, options)
        return Refusal(RefusalKind.CPUS, f"needs {number_of(grant.amount.size, 'CPU')}: the pool has {len(before)} "
                       f"({before}), and must keep one")
    return with_shared_cpus(machine, after, options)


def rebalanced(machine: Topology, ledger: Ledger, options: AllocationOptions) -> Ledger:
    """The ledger with the spare sets and the shared CPUs that follow once CPUs have come or gone."""
    after = with_spare_sets(machine, ledger, options)
    assert not isinstance(after, Refusal)  # There is no call to refuse.
    return with_shared_cpus(machine, after, options)
