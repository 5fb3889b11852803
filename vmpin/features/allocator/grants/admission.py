"""The parts that decisions have in common: a new container's grant, a changed request, the end of a container, and
refusals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import ContainerId, ContainerState, Pod
from vmpin.domain.runtime_call import RequestedContainer
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions
from vmpin.features.allocator.grants.cpu_request import CpuPolicy, CpuWish, Refusal, RefusalKind
from vmpin.features.allocator.grants.eligibility import (
    amount_after,
    as_required,
    brings_cpus,
    decided_by,
    near_nodes,
    requested_amount,
    ruling,
    whole_cpus_needed,
)
from vmpin.features.allocator.grants.ledger import Answer, Grant, GrantState, Ledger, RefusedRequest
from vmpin.features.allocator.grants.placing import balanced, numa_node, placed, rebalanced, resized
from vmpin.features.allocator.grants.pool_cpus import with_written
from vmpin.features.allocator.texts.annotation_values import AnnotatedWish, AnnotationError, shown
from vmpin.features.allocator.texts.annotations import annotated_wish, asking_digest

#: Devices without a NUMA node that a line of the log names.
_SHOWN = 8
_MISSED = "created while vmpin was away: it is on the pool"


def admitted(machine: Topology, ledger: Ledger, container: RequestedContainer,
             options: AllocationOptions) -> tuple[Ledger, tuple[str, ...]] | Refusal:
    """The ledger with the grant of a new container, and lines for the log. :returns: why it is refused."""
    grant = plain_grant(machine, container)
    if container.cpuset:
        return _granted(machine, ledger, grant._replace(left_alone=True, written=container.cpuset), options,
                        (f"{about(grant)} has the cpuset {container.cpuset} of another plugin: left alone",))
    try:
        annotated = as_required(annotated_wish(container.pod_annotations, container.name, options.honour), options)
    except AnnotationError as err:
        return Refusal(RefusalKind.REQUEST, str(err))
    first = _as_annotated(machine, ledger, grant, annotated, container, options)
    if annotated.second is None or (not isinstance(first, Refusal) and first[0].grants[grant.container].policy is not
                                    CpuPolicy.NONE):
        return first
    why = f": {first.reason}" if isinstance(first, Refusal) else ""
    second = annotated._replace(wish=annotated.second,
                                notes=(*annotated.notes, f"what it prefers cannot be had{why}"))
    return _as_annotated(machine, ledger, grant, second, container, options)


def plain_grant(machine: Topology, container: RequestedContainer) -> Grant:
    """The grant of a container that is on the pool."""
    return Grant(container.id, container.sandbox, container.name, container.namespace, container.pod,
                 container.pod_uid, CpuWish(), CpuPolicy.NONE, amount=requested_amount(container),
                 vm=container.vm, vm_vcpus=container.vm_vcpus or 0, vm_most=container.vm_most,
                 vm_part=container.vm_part, vm_overhead=container.vm_overhead, since_ns=container.time_ns,
                 devices=CpuSet(machine.devices[name] for name in container.devices if name in machine.devices),
                 guaranteed=container.guaranteed, annotated=asking_digest(container.pod_annotations, container.name))


def _as_annotated(machine: Topology, ledger: Ledger, grant: Grant, annotated: AnnotatedWish,
                  container: RequestedContainer, options: AllocationOptions
                  ) -> tuple[Ledger, tuple[str, ...]] | Refusal:
    """The ledger with the grant that the annotations ask for, or the default."""
    ruled = ruling(machine, annotated, grant.namespace, container.guaranteed, grant.amount, options)
    if isinstance(ruled, Refusal):
        return ruled
    notes = [f"{about(grant)}: {note}" for note in annotated.notes]
    if annotated.left_alone:
        notes.append(f"{about(grant)} is left alone, as {annotated.by} would")
    if ruled.note:
        notes.append(f"{about(grant)} is on the pool: {ruled.note}")
    grant = grant._replace(wish=annotated.wish, policy=ruled.policy, group=ruled.group,
                           left_alone=annotated.left_alone, near=near_nodes(machine, annotated.wish, grant.devices))
    return _granted(machine, ledger, grant, options, (*notes, *near_notes(machine, grant, container.devices)))


def _granted(machine: Topology, ledger: Ledger, grant: Grant, options: AllocationOptions,
             notes: tuple[str, ...]) -> tuple[Ledger, tuple[str, ...]] | Refusal:
    """The ledger with the grant and the CPUs that its policy brings."""
    if grant.policy is CpuPolicy.NUMA and not grant.left_alone:
        grant = grant._replace(node=numa_node(machine, ledger, grant, options))
    elif brings_cpus(grant.policy, grant.group, options) and not grant.left_alone:
        with_cpus = placed(machine, ledger, grant, options)
        if isinstance(with_cpus, Refusal):
            return with_cpus
        grant = with_cpus
        notes = (*notes, f"{about(grant)} gets the CPUs {grant.cpus} ({grant.policy})")
    after = balanced(machine, ledger, options, grant)
    if isinstance(after, Refusal):
        return after
    if not after.shared and grant.policy in (CpuPolicy.NONE, CpuPolicy.NUMA) and not (grant.vm or grant.left_alone):
        notes = (*notes, f"{about(grant)} gets no cpuset: no CPU of the pool is online")
    return after, notes


def near_notes(machine: Topology, grant: Grant, devices: Mapping[str, str]) -> tuple[str, ...]:
    """The NUMA nodes that `cpu-near` names, for the log. :param devices: the container's own: paths by name."""
    near = f"{about(grant)}: cpu-near.vmpin.io={shown(grant.wish.near)}"
    if grant.wish.near != "devices":
        return (f"{near} is in no known NUMA node",) if grant.wish.near and not grant.near else ()
    places = [f"{shown(path)} ({name}) node {machine.devices[name]}" for name, path in devices.items()
              if name in machine.devices]
    others = [shown(path) for name, path in devices.items() if name not in machine.devices]
    if others:
        places.append(f"ignored, without a NUMA node: {', '.join(others[:_SHOWN])}"
                      + (f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""))
    return (f"{near}: {'; '.join(places) or 'the container has no devices'}",)


def with_amount(machine: Topology, ledger: Ledger, container: RequestedContainer,
                options: AllocationOptions) -> tuple[Ledger, tuple[str, ...]] | Refusal:
    """The ledger with the request that a call has for a container of it. :returns: why that is refused."""
    grant = ledger.grants[container.id]
    amount = amount_after(grant.amount, container.shares, container.quota, container.period, container.guaranteed)
    if amount == grant.amount:
        return rebalanced(machine, ledger, options), ()
    changed = grant._replace(amount=amount)
    if brings_cpus(grant.policy, grant.group, options) and not grant.left_alone:
        if not amount.size:
            return Refusal(RefusalKind.REQUEST, whole_cpus_needed(decided_by(grant, options), amount))
        with_cpus = resized(machine, ledger, changed, amount.size, options)
        if isinstance(with_cpus, Refusal):
            return with_cpus
        changed = with_cpus
    notes = ((f"{about(grant)} gets the CPUs {changed.cpus} instead of {grant.cpus}: resized",)
             if changed.cpus != grant.cpus else ())
    after = balanced(machine, ledger, options, changed)
    return after if isinstance(after, Refusal) else (after, notes)


def overtaken(ledger: Ledger, grant: Grant) -> bool:
    """True for a lapsed grant whose CPUs a live container of its pod has: it cannot be live again."""
    return not grant.live and any(other.live and other is not grant and not other.held.isdisjoint(grant.cpus)
                                  for other in ledger.of_sandbox(grant.sandbox))


def missed(machine: Topology, ledger: Ledger, container: RequestedContainer, options: AllocationOptions) -> Answer:
    """Grant CPUs to a container that was created without vmpin. A refusal cannot stop it: it is reported, and the
    container is on the pool, so that it does not run on CPUs that are another's own."""
    outcome = admitted(machine, ledger, container, options)
    if isinstance(outcome, Refusal):
        answer = refused(ledger, container, outcome._replace(reason=f"{outcome.reason} ({_MISSED})"))
        grant = plain_grant(machine, container)._replace(left_alone=bool(container.cpuset),
                                                         written=container.cpuset or EMPTY)
        outcome = rebalanced(machine, answer.ledger.with_grants(grant), options), answer.notes
    after, notes = outcome
    return Answer(after.with_grants(after.grants[container.id]._replace(state=listed_state(container))), notes=notes)


def listed_state(container: RequestedContainer) -> GrantState:
    """The state of a live container's grant, as the runtime lists the container."""
    return GrantState.RESERVED if container.state is ContainerState.CREATED else GrantState.RUNNING


def stopped(machine: Topology, ledger: Ledger, containers: Iterable[ContainerId], options: AllocationOptions,
            undo: bool = True) -> Ledger:
    """The ledger once these containers have stopped. The pod keeps their CPUs. The grant of one whose CPUs others of
    the pod have as well is dropped, so that a container that restarts for ever does not fill the ledger.
    :param undo: drop also the grant of one that never ran: its creation has failed."""
    before = ledger
    for container in containers:
        grant = ledger.grants.get(container)
        if grant is None:
            continue
        if (undo and grant.state is GrantState.RESERVED) or not grant.cpus:
            ledger = ledger.without([container])
        else:
            ledger = _pruned(ledger.with_grants(grant._replace(state=GrantState.LAPSED, written=EMPTY)), grant)
    return ledger if ledger is before else rebalanced(machine, ledger, options)


def _pruned(ledger: Ledger, stopped: Grant) -> Ledger:
    """The ledger without those lapsed grants of a pod whose CPUs its other containers have, which have run."""
    for old in ledger.of_sandbox(stopped.sandbox):
        others = union(other.cpus for other in ledger.of_sandbox(old.sandbox)
                       if other is not old and (other.group, other.policy) == (old.group, old.policy)
                       and other.state is not GrantState.RESERVED)
        if not old.live and old.cpus <= others:
            ledger = ledger.without([old.container])
    return ledger


def refused(ledger: Ledger, container: RequestedContainer, why: Refusal) -> Answer:
    """The answer that refuses a container: the grants stay as before."""
    name = shown(container.name or container.id)
    entry = RefusedRequest(name, container.namespace, container.pod, why.reason, container.time_ns, why.kind)
    return Answer(ledger.with_refusal(entry), refusal=f"vmpin: {why.reason}",
                  notes=(f"{container.namespace}/{container.pod}/{name} is refused: {why.reason}",))


def as_sent(answer: Answer, before: Ledger, options: AllocationOptions) -> Answer:
    """The answer as it is sent: in mode observe it changes nothing, and the cpusets stay as the runtime has them."""
    if options.mode is AllocationMode.ON:
        return answer
    ledger = answer.ledger
    for grant in answer.ledger.grants.values():
        previous = before.grants.get(grant.container)
        if not grant.left_alone:
            ledger = with_written(ledger, grant.container, previous.written if previous is not None else None)
    return Answer(ledger, notes=answer.notes)


def about(grant: Grant) -> str:
    return f"{grant.namespace}/{grant.pod}/{shown(grant.name or grant.container)}"


def pod_of_note(note: str) -> Pod | None:
    """The pod of the container that a line of `Answer.notes` begins with (`about`); None for a line about the node."""
    namespace, _, rest = note.partition("/")
    name, slash, _ = rest.partition("/")
    return Pod(namespace, name) if slash and " " not in namespace + name else None
