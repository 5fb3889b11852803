"""Another policy for a container that runs, with the least movement; and giving the pool up, when vmpin stops
allocating.

Pure: an answer is the plan, and for a dry run it is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.model import ContainerId
from vmpin.domain.runtime_call import SideUpdate
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.admission import about, near_notes, observed
from vmpin.features.allocator.grants.allocation_options import AllocationOptions
from vmpin.features.allocator.grants.answer import Answer
from vmpin.features.allocator.grants.cpu_request import CpuPolicy, CpuWish
from vmpin.features.allocator.grants.eligibility import (
    OWN,
    PolicyRuling,
    allowed_cpus,
    brings_cpus,
    near_nodes,
    query_of,
    ruling,
)
from vmpin.features.allocator.grants.ledger import Grant, Ledger
from vmpin.features.allocator.grants.placing import balanced, numa_node, room_for
from vmpin.features.allocator.grants.pool_cpus import all_updates
from vmpin.features.allocator.grants.refusal import Refusal
from vmpin.features.allocator.search.best_set import best_cpus
from vmpin.features.allocator.texts.annotations import AskedCpus, changed
from vmpin.features.allocator.texts.wish_values import AnnotationError


def set_policy(machine: Topology, ledger: Ledger, container: ContainerId, changes: Mapping[str, str],
               options: AllocationOptions) -> Answer:
    """Change what a container asks for, under the checks of Create: `changes` are values of annotations by their
    keys' names (policy, cpu-policy, cpu-policy.vmpin.io). The updates are those to make by CRI, in this order;
    `with_written` records each that was done."""
    grant = ledger.grants.get(container)
    if grant is None or not grant.live:
        return Answer(ledger, refusal=f"vmpin: no running container {container} is in the ledger")
    if grant.left_alone:
        return Answer(ledger, refusal=f"vmpin: {about(grant)} has a cpuset that vmpin does not set")
    try:
        wish = changed(grant.wish, changes)
    except AnnotationError as err:
        return Answer(ledger, refusal=f"vmpin: {err}")
    asked = AskedCpus(wish._replace(policy=wish.policy or grant.policy), "vmpin")
    ruled = ruling(machine, asked, grant.namespace, True, grant.amount, options)
    if isinstance(ruled, Refusal):
        return Answer(ledger, refusal=f"vmpin: {ruled.reason}")
    answer = with_wish(machine, ledger, grant, wish, ruled, options)
    return Answer(ledger, refusal=f"vmpin: {answer.reason}") if isinstance(answer, Refusal) else answer


def with_wish(machine: Topology, ledger: Ledger, grant: Grant, wish: CpuWish, ruled: PolicyRuling,
              options: AllocationOptions) -> Answer | Refusal:
    """Carry out a wish that a running container may have, with the least movement."""
    near = grant.near if wish.near == grant.wish.near else near_nodes(machine, wish, grant.devices)
    other = grant._replace(wish=wish, policy=ruled.policy, group=ruled.group, node=None, near=near)
    cpus: CpuSet | Refusal = EMPTY
    if other.policy is CpuPolicy.NUMA:
        other = other._replace(node=numa_node(machine, ledger, other, options))
    elif brings_cpus(other.policy, other.group, options):
        cpus = grant.cpus if _fits(machine, grant, other, options) else _moved(machine, ledger, other, options)
    after = balanced(machine, ledger, options, other._replace(cpus=cpus)) if not isinstance(cpus, Refusal) else cpus
    if isinstance(after, Refusal):
        return after
    note = (f"{about(grant)}: {grant.policy}{f' {grant.cpus}' if grant.cpus else ''} becomes "
            f"{other.policy}{f' {cpus}' if cpus else ''}")
    notes = near_notes(machine, other, {}) if wish.near not in (grant.wish.near, "devices") else ()
    return observed(Answer(after, None, all_updates(machine, after, options), "", (note, *notes)), ledger, options)


def release_pool(machine: Topology, ledger: Ledger) -> tuple[tuple[SideUpdate, ...], tuple[str, ...]]:
    """Switch off: return the updates that put shared containers on all online CPUs, and the names of the containers
    that keep CPUs of their own until they end."""
    live = [grant for grant in ledger.grants.values() if grant.live and not grant.left_alone]
    updates = [SideUpdate(grant.container, machine.online) for grant in live
               if grant.policy not in OWN and grant.written and grant.written != machine.online]
    return tuple(sorted(updates)), tuple(sorted(about(grant) for grant in live if grant.cpus))


def _fits(machine: Topology, grant: Grant, other: Grant, options: AllocationOptions) -> bool:
    """Whether the present CPUs do for a changed wish: nothing that chooses CPUs has changed, and they may be had."""
    same = grant.wish._replace(policy=other.wish.policy, spare=other.wish.spare) == other.wish
    allowed = allowed_cpus(machine, other.wish, options)
    return (same and grant.group == other.group and len(grant.cpus) == other.amount.size
            and not isinstance(allowed, Refusal) and grant.cpus <= allowed)


def _moved(machine: Topology, ledger: Ledger, grant: Grant, options: AllocationOptions) -> CpuSet | Refusal:
    """The CPUs of a grant whose wish has changed, its present ones among the choice: as good as the best set there is,
    and of all such sets the one that keeps the most of them."""
    room = room_for(machine, ledger, grant, options)
    if isinstance(room, Refusal):
        return room
    group = room.group & machine.online
    query = query_of(grant, grant.amount.size + len(group), options, group)
    # The pod's own lapsed CPUs count as free: it holds them anyway.
    free = room.free | room.lapsed
    allowed = room_for(machine, ledger.without([grant.container]), grant, options)
    own = grant.cpus & allowed.free & machine.online if not isinstance(allowed, Refusal) else EMPTY
    found = best_cpus(machine, free | own, query._replace(present=own))
    return found if isinstance(found, Refusal) else found.cpus - group
