"""What the decisions have in common: letting a container in, another request, the end of one, and refusals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.model import ContainerId, ContainerState
from vmpin.domain.runtime_call import RequestedContainer
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions
from vmpin.features.allocator.grants.cpu_request import CpuPolicy, Refusal, RefusalKind
from vmpin.features.allocator.grants.eligibility import (
    amount_after,
    amount_of,
    as_required,
    brings_cpus,
    decided_by,
    near_nodes,
    ruling,
    whole_cpus_needed,
)
from vmpin.features.allocator.grants.ledger import Answer, Grant, GrantState, Ledger, RefusedRequest
from vmpin.features.allocator.grants.placing import balanced, numa_node, placed, rebalanced, resized
from vmpin.features.allocator.grants.pool_cpus import with_written
from vmpin.features.allocator.texts.annotation_values import AnnotationError, shown
from vmpin.features.allocator.texts.annotations import AskedCpus, asked, asking_digest

#: Devices without a node that a line of the log names.
_SHOWN = 8
_MISSED = "created while vmpin was away: it is on the pool"


def admitted(machine: Topology, ledger: Ledger, container: RequestedContainer,
             options: AllocationOptions) -> tuple[Ledger, tuple[str, ...]] | Refusal:
    """The ledger with the grant of a new container, and lines for the log. :returns: why it is refused."""
    grant = _plain_grant(machine, container)
    if container.cpuset:
        return _granted(machine, ledger, grant._replace(left_alone=True, written=container.cpuset), options,
                        (f"{about(grant)} has the cpuset {container.cpuset} of another plugin: left alone",))
    try:
        found = as_required(asked(container.pod_annotations, container.name, options.honour), options)
    except AnnotationError as err:
        return Refusal(RefusalKind.REQUEST, str(err))
    made = _asked_for(machine, ledger, grant, found, container, options)
    if found.second is None or (not isinstance(made, Refusal) and made[0].grants[grant.container].policy is not
                                CpuPolicy.NONE):
        return made
    why = f": {made.reason}" if isinstance(made, Refusal) else ""
    found = found._replace(wish=found.second, notes=(*found.notes, f"what it prefers cannot be had{why}"))
    return _asked_for(machine, ledger, grant, found, container, options)


def _plain_grant(machine: Topology, container: RequestedContainer) -> Grant:
    """The grant of a new container that asks for nothing: it is on the pool."""
    return Grant(container.id, container.sandbox, container.name, container.namespace, container.pod,
                 container.pod_uid, AskedCpus().wish, CpuPolicy.NONE,
                 amount=amount_of(container.shares, container.quota, container.period, container.guaranteed),
                 vm=container.vm, vm_vcpus=container.vm_vcpus or 0, vm_most=container.vm_most,
                 vm_part=container.vm_part, vm_overhead=container.vm_overhead, since_ns=container.time_ns,
                 devices=CpuSet(machine.devices[one] for one in container.devices if one in machine.devices),
                 guaranteed=container.guaranteed, annotated=asking_digest(container.pod_annotations, container.name))


def _asked_for(machine: Topology, ledger: Ledger, grant: Grant, found: AskedCpus, container: RequestedContainer,
               options: AllocationOptions) -> tuple[Ledger, tuple[str, ...]] | Refusal:
    """The ledger with the grant that the annotations ask for, or the default."""
    ruled = ruling(machine, found, grant.namespace, container.guaranteed, grant.amount, options)
    if isinstance(ruled, Refusal):
        return ruled
    notes = tuple(f"{about(grant)}: {note}" for note in found.notes)
    notes += (f"{about(grant)} is left alone, as {found.by} would",) if found.left_alone else ()
    notes += (f"{about(grant)} is on the pool: {ruled.note}",) if ruled.note else ()
    grant = grant._replace(wish=found.wish, policy=ruled.policy, group=ruled.group, left_alone=found.left_alone,
                           near=near_nodes(machine, found.wish, grant.devices))
    notes += near_notes(machine, grant, container.devices)
    return _granted(machine, ledger, grant, options, notes)


def _granted(machine: Topology, ledger: Ledger, grant: Grant, options: AllocationOptions,
             notes: tuple[str, ...]) -> tuple[Ledger, tuple[str, ...]] | Refusal:
    """The ledger with the grant and the CPUs that its policy brings."""
    if grant.policy is CpuPolicy.NUMA and not grant.left_alone:
        grant = grant._replace(node=numa_node(machine, ledger, grant, options))
    elif brings_cpus(grant.policy, grant.group, options) and not grant.left_alone:
        cpus = placed(machine, ledger, grant, options)
        if isinstance(cpus, Refusal):
            return cpus
        grant = grant._replace(cpus=cpus)
        notes = (*notes, f"{about(grant)} gets the CPUs {cpus} ({grant.policy})")
    after = balanced(machine, ledger, options, grant)
    if isinstance(after, Refusal):
        return after
    if not after.shared and grant.policy in (CpuPolicy.NONE, CpuPolicy.NUMA) and not (grant.vm or grant.left_alone):
        notes = (*notes, f"{about(grant)} gets no cpuset: no CPU of the pool is online")
    return after, notes


def near_notes(machine: Topology, grant: Grant, devices: Mapping[str, str]) -> tuple[str, ...]:
    """Return what `cpu-near` was resolved to, for the log."""
    asked = f"{about(grant)}: cpu-near.vmpin.io={shown(grant.wish.near)}"
    if grant.wish.near != "devices":
        return (f"{asked} is in no known NUMA node",) if grant.wish.near and not grant.near else ()
    found = [f"{shown(path)} ({name}) node {machine.devices[name]}" for name, path in devices.items()
             if name in machine.devices]
    others = [shown(path) for name, path in devices.items() if name not in machine.devices]
    if others:
        found.append(f"ignored, without a NUMA node: {', '.join(others[:_SHOWN])}"
                     + (f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""))
    return (f"{asked}: {'; '.join(found) or 'the container has no devices'}",)


def with_amount(machine: Topology, ledger: Ledger, container: RequestedContainer,
                options: AllocationOptions) -> tuple[Ledger, tuple[str, ...]] | Refusal:
    """The ledger once a container of it requests what the call has. :returns: why that is refused."""
    grant = ledger.grants[container.id]
    amount = amount_after(grant.amount, container.shares, container.quota, container.period, container.guaranteed)
    if amount == grant.amount:
        return rebalanced(machine, ledger, options), ()
    changed = grant._replace(amount=amount)
    if brings_cpus(grant.policy, grant.group, options) and not grant.left_alone:
        if not amount.size:
            return Refusal(RefusalKind.REQUEST, whole_cpus_needed(decided_by(grant, options), amount))
        cpus = resized(machine, ledger, grant, amount.size, options)
        if isinstance(cpus, Refusal):
            return cpus
        changed = changed._replace(cpus=cpus)
    notes = ((f"{about(grant)} gets the CPUs {changed.cpus} instead of {grant.cpus}: resized",)
             if changed.cpus != grant.cpus else ())
    after = balanced(machine, ledger, options, changed)
    return after if isinstance(after, Refusal) else (after, notes)


def overtaken(ledger: Ledger, grant: Grant) -> bool:
    """True for a lapsed grant whose CPUs a live container of its pod has: it cannot be live again."""
    return not grant.live and any(other.live and other is not grant and not other.held.isdisjoint(grant.cpus)
                                  for other in ledger.of_sandbox(grant.sandbox))


def missed(machine: Topology, ledger: Ledger, container: RequestedContainer, options: AllocationOptions) -> Answer:
    """A container that was created without vmpin: its grant. A refusal stops nothing any more: it is reported, and
    the container is on the pool, so that it does not run on CPUs that are another's own."""
    found = admitted(machine, ledger, container, options)
    notes: tuple[str, ...] = ()
    if isinstance(found, Refusal):
        answer = refused(ledger, container, found._replace(reason=f"{found.reason} ({_MISSED})"))
        notes = answer.notes
        grant = _plain_grant(machine, container)._replace(left_alone=bool(container.cpuset),
                                                          written=container.cpuset or EMPTY)
        found = rebalanced(machine, answer.ledger.with_grants(grant), options), ()
    after, more = found
    state = GrantState.RESERVED if container.state is ContainerState.CREATED else GrantState.RUNNING
    return Answer(after.with_grants(after.grants[container.id]._replace(state=state)), notes=(*notes, *more))


def stopped(machine: Topology, ledger: Ledger, containers: Iterable[ContainerId], options: AllocationOptions,
            undo: bool = True) -> Ledger:
    """The ledger once these containers have stopped. The pod keeps their CPUs; a stopped container whose CPUs other
    ones of the pod have as well leaves no trace, so that a container that restarts for ever does not fill it.
    :param undo: one that never ran leaves none either: its creation has failed."""
    for container in containers:
        grant = ledger.grants.get(container)
        if grant is None:
            continue
        if (undo and grant.state is GrantState.RESERVED) or not grant.cpus:
            ledger = ledger.without([container])
        else:
            ledger = _pruned(ledger.with_grants(grant._replace(state=GrantState.LAPSED, written=EMPTY)), grant)
    return rebalanced(machine, ledger, options)


def _pruned(ledger: Ledger, stopped: Grant) -> Ledger:
    """The ledger without those lapsed grants of a pod whose CPUs others of the pod have that have run."""
    for old in ledger.of_sandbox(stopped.sandbox):
        others = union(other.cpus for other in ledger.of_sandbox(old.sandbox)
                       if other is not old and (other.group, other.policy) == (old.group, old.policy)
                       and other.state is not GrantState.RESERVED)
        if not old.live and old.cpus <= others:
            ledger = ledger.without([old.container])
    return ledger


def refused(ledger: Ledger, container: RequestedContainer, why: Refusal) -> Answer:
    """The answer to what cannot be: the grants as before."""
    name = shown(container.name or container.id)
    entry = RefusedRequest(name, container.namespace, container.pod, why.reason, container.time_ns, why.kind)
    return Answer(ledger.with_refusal(entry), refusal=f"vmpin: {why.reason}",
                  notes=(f"{container.namespace}/{container.pod}/{name} is refused: {why.reason}",))


def observed(answer: Answer, before: Ledger, options: AllocationOptions) -> Answer:
    """The answer; in mode observe, one that changes nothing: the cpusets are as the runtime has them."""
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
