"""The pool, the cpuset that each container is to have, and the updates that lead there: those that take CPUs away come
first.

The pool is what is no container's own. Shared containers are on `ledger.shared`: the pool without its headroom
(grants.headroom).
"""

from __future__ import annotations

from collections.abc import Iterable

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import ContainerId
from vmpin.domain.runtime_call import SideUpdate
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.allocation_options import AllocationOptions
from vmpin.features.allocator.grants.cpu_request import CpuPolicy
from vmpin.features.allocator.grants.eligibility import OWN, configured_groups
from vmpin.features.allocator.grants.ledger import DueCpusets, Grant, Ledger, age


def pool(machine: Topology, ledger: Ledger, options: AllocationOptions) -> CpuSet:
    """The CPUs that are no container's own."""
    never = machine.isolated | configured_groups(options) | (options.reserved if options.strict_reserved else EMPTY)
    return machine.online - never - ledger.out_of_pool()


def target(machine: Topology, ledger: Ledger, grant: Grant, options: AllocationOptions) -> CpuSet:
    """The cpuset that the container is to have, of online CPUs. Empty: vmpin sets none. Kata makes a VM as large as
    the cpusets of its containers without a limit, so these get none. Nor do a VM's containers on the pool, unless they
    had CPUs of their own before: a runtime cannot take a cpuset away."""
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
    """The containers whose cpuset is not the one they are to have, with that one. The runtime applies updates to all
    that are created or running, also to those that have no cpuset, as vmpin did not answer at their creation. Only
    grants that have changed since the last time are looked at, unless what all follow has changed."""
    grants = ledger.version
    last, changed, result = grants.due, list(grants.values()), []
    if last is not None and last.machine is machine and last.options is options and last.shared == ledger.shared:
        changed = [grants[container] for container in last.changed if container in grants]
        result = [(grant, cpus) for grant, cpus in last.due if grant.container not in last.changed]
    wanted = ((grant, target(machine, ledger, grant, options)) for grant in changed)
    result += [(grant, cpus) for grant, cpus in wanted if cpus and cpus != grant.written]
    result.sort(key=lambda grant_with_cpus: age(grant_with_cpus[0]))
    grants.due = DueCpusets(machine, options, ledger.shared, tuple(result))
    return result


def shrinking(machine: Topology, ledger: Ledger, options: AllocationOptions,
              call: ContainerId | None = None) -> list[SideUpdate]:
    """The updates for containers that have to lose CPUs, or whose own CPUs have changed; the one for the call's
    container is the last. A shared container that is to lose no more than headroom is not among them: nothing waits
    for that. In every prefix of the updates no container gets a CPU that is another's own: CPUs that a
    container is yet to lose are added only to the call's, and to a container of the pool that would have no others."""
    return _shrinking(machine, due(machine, ledger, options), pool(machine, ledger, options) - ledger.shared, call)


def _shrinking(machine: Topology, wanted: list[tuple[Grant, CpuSet]], headroom: CpuSet,
               call: ContainerId | None) -> list[SideUpdate]:
    """See `shrinking`. Two exclusive containers swap CPUs: A is on 2-3 and is to have 3-4, B is on 4-5 and is to have
    2 and 5. A has yet to leave 2, and B 4. So first A gets 3 (3-4 without B's 4), and B gets 5 (2 and 5 without A's
    2); then `all_updates` gives A 3-4 and B 2 and 5. If the call is for B, A gets 3, and then B gets 2 and 5 at once.
    """
    yet_to_leave = [(grant.container, grant.written - cpus) for grant, cpus in wanted if grant.policy in OWN]
    ordered = []
    for grant, cpus in wanted:
        shared, called = grant.policy not in OWN, grant.container == call
        before = grant.written or machine.online  # without a cpuset a container is on all CPUs
        loses = not before - (headroom if shared else EMPTY) <= cpus
        if not loses and not called and shared:
            continue
        if not called:
            # CPUs that are to be a container's own count as added, whatever it runs on.
            others = union(left for container, left in yet_to_leave if container != grant.container) - (
                before if shared else grant.written)
            # One on the pool has to leave what becomes another's own, also where nothing else is left to it yet.
            cpus = cpus - others or (cpus if shared else EMPTY)
        if cpus and cpus != grant.written:
            # False sorts first: shared containers, then those that lose CPUs, then others; the call's is the last.
            ordered.append(((called, not shared, not loses, age(grant)), SideUpdate(grant.container, cpus)))
    return [update for _, update in sorted(ordered)]


def all_updates(machine: Topology, ledger: Ledger, options: AllocationOptions) -> tuple[SideUpdate, ...]:
    """Return every update that is due: those of `shrinking`, and then headroom and what containers get back."""
    wanted = due(machine, ledger, options)
    if not wanted:
        return ()  # after most answers: they have carried everything
    first = _shrinking(machine, wanted, pool(machine, ledger, options) - ledger.shared, None)
    later = due(machine, applied(ledger, first), options)
    return (*first, *(SideUpdate(grant.container, cpus) for grant, cpus in later))


def with_written(ledger: Ledger, container: ContainerId, cpus: CpuSet | None) -> Ledger:
    """The ledger with the cpuset that the runtime has for a container: read back from its cgroup, or in an answer."""
    return applied(ledger, [SideUpdate(container, cpus or EMPTY)])


def applied(ledger: Ledger, updates: Iterable[SideUpdate]) -> Ledger:
    """The ledger with the cpusets of these updates, in their order."""
    written = {update.container: update.cpus for update in updates}
    changed = [grant._replace(written=cpus) for container, cpus in written.items()
               if (grant := ledger.grants.get(container)) is not None and grant.written != cpus]
    return ledger.with_grants(*changed) if changed else ledger
