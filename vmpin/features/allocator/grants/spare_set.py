"""The spare CPUs of a VM: as many as Kata makes more vCPUs than the VM's containers have CPUs of their own.

Kata makes Σ quotas + default_vcpus vCPUs, rounded up (virtcontainers/sandbox.go), with runtime-rs' static sizing Σ
quotas + overhead_vcpus (resource/src/cpu_mem/initial_size.rs), but no more than the VM has slots for, and pins
one-to-one only where the cpuset has as many CPUs. So the oldest container with CPUs of its own gets CPUs of the pool
besides, near them: spare vCPUs and the VMM's threads have a legal place, and no CPU is wasted. With `own` they are out
of the pool: as many as the whole CPUs of the RuntimeClass's overhead.
"""

from __future__ import annotations

from collections.abc import Iterable

from vmpin.bounded import parse_whole
from vmpin.cpuset import EMPTY, MAX_CPU, CpuSet, union
from vmpin.domain.model import SandboxId
from vmpin.domain.terminal import number_of
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.allocation_options import AllocationOptions
from vmpin.features.allocator.grants.cpu_request import Alignment, CpuPolicy, CpuQuery, CpuWish, SmtUse
from vmpin.features.allocator.grants.eligibility import allowed_cpus
from vmpin.features.allocator.grants.ledger import Grant, Ledger, age
from vmpin.features.allocator.grants.pool_cpus import pool, with_shared_cpus
from vmpin.features.allocator.grants.refusal import Refusal, RefusalKind
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
