"""Other CPUs for a container that runs, by `vmpin alloc set` or by changed annotations, with the least movement; and
giving the pool up, when vmpin stops allocating.

Annotations that change are text of the pods' authors, by way of a process without rights on the node. So they decide
nothing but what annotations decide at a container's creation: names, namespace, size and QoS class are the ledger's,
and pods are found by the uid that the runtime has for them.
"""

from __future__ import annotations

from collections.abc import Mapping

from vmpin.cpuset import EMPTY
from vmpin.domain.model import ContainerId
from vmpin.domain.runtime_call import RequestedContainer, SideUpdate
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.admission import about, as_sent, near_notes, refused
from vmpin.features.allocator.grants.allocation_options import AllocationOptions
from vmpin.features.allocator.grants.cpu_request import CpuPolicy, CpuWish, Refusal, RefusalKind
from vmpin.features.allocator.grants.eligibility import (
    OWN,
    PolicyRuling,
    allowed_cpus,
    as_required,
    brings_cpus,
    near_nodes,
    query_of,
    ruling,
)
from vmpin.features.allocator.grants.ledger import Answer, Grant, GrantState, Ledger
from vmpin.features.allocator.grants.placing import balanced, numa_node, room_for
from vmpin.features.allocator.grants.pool_cpus import all_updates
from vmpin.features.allocator.search.best_set import best_cpus
from vmpin.features.allocator.texts.annotation_values import AnnotatedWish, AnnotationError
from vmpin.features.allocator.texts.annotations import annotated_wish, asking_digest, with_changes


def set_policy(machine: Topology, ledger: Ledger, container: ContainerId, changes: Mapping[str, str],
               options: AllocationOptions) -> Answer:
    """Change what a container asks for, under the checks of Create. The updates are those to make by CRI, in this
    order; `with_written` records each that was done.
    :param changes: values of annotations by their keys' names (policy, cpu-policy, cpu-policy.vmpin.io)."""
    grant = ledger.grants.get(container)
    if grant is None or not grant.live:
        return Answer(ledger, refusal=f"vmpin: no running container {container} is in the ledger")
    if grant.left_alone:
        return Answer(ledger, refusal=f"vmpin: {about(grant)} has a cpuset that vmpin does not set")
    try:
        wish = with_changes(grant.wish, changes)
    except AnnotationError as err:
        return Answer(ledger, refusal=f"vmpin: {err}")
    annotated = AnnotatedWish(wish._replace(policy=wish.policy or grant.policy), "vmpin")
    ruled = ruling(machine, annotated, grant.namespace, True, grant.amount, options)
    if isinstance(ruled, Refusal):
        return Answer(ledger, refusal=f"vmpin: {ruled.reason}")
    answer = _with_wish(machine, ledger, grant, wish, ruled, options)
    return Answer(ledger, refusal=f"vmpin: {answer.reason}") if isinstance(answer, Refusal) else answer


def _with_wish(machine: Topology, ledger: Ledger, grant: Grant, wish: CpuWish, ruled: PolicyRuling,
               options: AllocationOptions) -> Answer | Refusal:
    """Grant a wish that a running container may have, with the least movement."""
    near = grant.near if wish.near == grant.wish.near else near_nodes(machine, wish, grant.devices)
    other = grant._replace(wish=wish, policy=ruled.policy, group=ruled.group, node=None, near=near)
    moved: Grant | Refusal
    if brings_cpus(other.policy, other.group, options):
        moved = other if _fits(machine, grant, other, options) else _moved(machine, ledger, other, options)
    else:
        node = numa_node(machine, ledger, other, options) if other.policy is CpuPolicy.NUMA else None
        moved = other._replace(cpus=EMPTY, least_distance=None, node=node)
    if isinstance(moved, Refusal):
        return moved
    after = balanced(machine, ledger, options, moved)
    if isinstance(after, Refusal):
        return after
    note = (f"{about(grant)}: {grant.policy}{f' {grant.cpus}' if grant.cpus else ''} becomes "
            f"{moved.policy}{f' {moved.cpus}' if moved.cpus else ''}")
    notes = near_notes(machine, other, {}) if wish.near not in (grant.wish.near, "devices") else ()
    return as_sent(Answer(after, None, all_updates(machine, after, options), "", (note, *notes)), ledger, options)


def _fits(machine: Topology, grant: Grant, other: Grant, options: AllocationOptions) -> bool:
    """True where the present CPUs fit a changed wish: its change affects no choice of CPUs, and they are allowed."""
    same = grant.wish._replace(policy=other.wish.policy, spare=other.wish.spare) == other.wish
    allowed = allowed_cpus(machine, other.wish, options)
    return (same and grant.group == other.group and len(grant.cpus) == other.amount.size
            and not isinstance(allowed, Refusal) and grant.cpus <= allowed)


def _moved(machine: Topology, ledger: Ledger, grant: Grant, options: AllocationOptions) -> Grant | Refusal:
    """A grant whose wish has changed, with its CPUs, of which the present ones are among the choice: as good as the
    best set there is, and of all such sets the one that keeps the most of them."""
    room = room_for(machine, ledger, grant, options)
    if isinstance(room, Refusal):
        return room
    group = room.group & machine.online
    query = query_of(grant, grant.amount.size + len(group), options, group)
    # The pod's own lapsed CPUs count as free: it holds them anyway.
    free = room.free | room.lapsed
    allowed = room_for(machine, ledger.without([grant.container]), grant, options)
    own = grant.cpus & allowed.free & machine.online if not isinstance(allowed, Refusal) else EMPTY
    best = best_cpus(machine, free | own, query._replace(present=own))
    if isinstance(best, Refusal):
        return best
    return grant._replace(cpus=best.cpus - group, least_distance=best.least_distance)


def changed_containers(ledger: Ledger, handed: Mapping[str, Mapping[str, str]]) -> list[ContainerId]:
    """The running containers whose annotations are not those that their grant follows.
    :param handed: the annotations of pods, by uid, as the reporter handed them over; those of other pods are as
    before."""
    return [grant.container for grant in ledger.grants.values()
            if grant.state is GrantState.RUNNING and grant.pod_uid and grant.pod_uid in handed
            and asking_digest(handed[grant.pod_uid], grant.name) != grant.annotated]


def follow_annotations(machine: Topology, ledger: Ledger, container: ContainerId, annotations: Mapping[str, str],
                       options: AllocationOptions, time_ns: int) -> Answer:
    """Decide on a container's changed annotations, as at its creation. The ledger of the answer has their digest, so
    that the same text is decided on once; a refusal leaves all else as it is. Without annotations the container gets
    what `allocate.default` sets."""
    grant = ledger.grants.get(container)
    if grant is None or grant.state is not GrantState.RUNNING:
        return Answer(ledger)
    digest = asking_digest(annotations, grant.name)
    if digest == grant.annotated:
        return Answer(ledger)
    grant = grant._replace(annotated=digest)
    ledger = ledger.with_grants(grant)
    answer = _followed(machine, ledger, grant, annotations, options)
    if isinstance(answer, Answer):
        return answer
    request = RequestedContainer(grant.container, grant.sandbox, grant.name, grant.namespace, grant.pod,
                                 time_ns=time_ns)
    return refused(ledger, request, answer._replace(
        reason=f"{answer.reason} (a changed annotation: the container stays as it is)"))


def _followed(machine: Topology, ledger: Ledger, grant: Grant, annotations: Mapping[str, str],
              options: AllocationOptions) -> Answer | Refusal:
    try:
        annotated = as_required(annotated_wish(annotations, grant.name, options.honour), options)
    except AnnotationError as err:
        return Refusal(RefusalKind.REQUEST, str(err))
    if grant.left_alone:
        return Refusal(RefusalKind.REQUEST, f"{about(grant)} has a cpuset that vmpin does not set")
    if annotated.left_alone:
        return Refusal(RefusalKind.REQUEST, "a cpuset can be left alone from a container's creation on")
    answer = _as_annotated(machine, ledger, grant, annotated, options)
    if isinstance(answer, Refusal) and annotated.second is not None:
        answer = _as_annotated(machine, ledger, grant, annotated._replace(wish=annotated.second), options)
    if isinstance(answer, Refusal):
        return answer
    return answer._replace(notes=(*(f"{note}: its annotations were changed" for note in answer.notes),
                                  *(f"{about(grant)}: {note}" for note in annotated.notes)))


def _as_annotated(machine: Topology, ledger: Ledger, grant: Grant, annotated: AnnotatedWish,
                  options: AllocationOptions) -> Answer | Refusal:
    ruled = ruling(machine, annotated, grant.namespace, grant.guaranteed, grant.amount, options)
    if isinstance(ruled, Refusal):
        return ruled
    if ruled.note and annotated.wish.policy is not None:
        # A peer's key, in vain: a running container is not moved for it.
        return Refusal(RefusalKind.REQUEST, ruled.note)
    if (annotated.wish, ruled.policy, ruled.group) == (grant.wish, grant.policy, grant.group):
        return Answer(ledger)
    return _with_wish(machine, ledger, grant, annotated.wish, ruled, options)


def release_pool(machine: Topology, ledger: Ledger) -> tuple[tuple[SideUpdate, ...], tuple[str, ...]]:
    """Return the updates that put shared containers on all online CPUs, once vmpin stops allocating; and the names of
    the containers that keep CPUs of their own until they end."""
    live = [grant for grant in ledger.grants.values() if grant.live and not grant.left_alone]
    updates = [SideUpdate(grant.container, machine.online) for grant in live
               if grant.policy not in OWN and grant.written and grant.written != machine.online]
    return tuple(sorted(updates)), tuple(sorted(about(grant) for grant in live if grant.cpus))
