"""The decision on each call of the runtime about one container or pod: Create, Start, Update, Stop, Remove, the end.

An answer has the ledger that is to be kept before the answer is sent. In mode observe the ledger has what would be
given, and answers change nothing.
"""

from __future__ import annotations

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.domain.runtime_call import Adjustment, RequestedContainer, SideUpdate
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.admission import (
    about,
    admitted,
    as_sent,
    missed,
    overtaken,
    refused,
    stopped,
    with_amount,
)
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions
from vmpin.features.allocator.grants.cpu_request import Refusal
from vmpin.features.allocator.grants.headroom import FEW
from vmpin.features.allocator.grants.ledger import Answer, Grant, GrantState, Ledger
from vmpin.features.allocator.grants.placing import mems_of, rebalanced
from vmpin.features.allocator.grants.pool_cpus import all_updates, applied, shrinking, target, with_written
from vmpin.features.allocator.grants.synchronizing import adopted
from vmpin.features.allocator.texts.grant_data import GRANT_KEY, annotation_of


def on_create(machine: Topology, ledger: Ledger, container: RequestedContainer, options: AllocationOptions) -> Answer:
    """Give a new container its CPUs, and the shared containers those that are left. The same call again is answered
    as before."""
    existing = ledger.grants.get(container.id)
    if existing is not None:
        return as_sent(Answer(ledger, _adjustment(machine, ledger, existing, container, options)), ledger, options)
    before = stopped(machine, ledger, _never_started(ledger, container), options)
    granted = admitted(machine, before, container, options)
    if isinstance(granted, Refusal):
        return as_sent(refused(ledger, container, granted), ledger, options)
    after, notes = granted
    grant = after.grants[container.id]
    adjustment = _adjustment(machine, after, grant, container, options)
    if not grant.left_alone:
        after = with_written(after, container.id, adjustment.cpus)
    updates = shrinking(machine, after, options, container.id)
    return as_sent(Answer(applied(after, updates), adjustment, tuple(updates), "", notes), ledger, options)


def on_start(machine: Topology, ledger: Ledger, container: RequestedContainer, options: AllocationOptions) -> Answer:
    """A container runs: `container.cpuset` is its cgroup's, None where it was not read. Without a call of Create, it
    gets its grant now, and its cpuset with the next updates."""
    grant = ledger.grants.get(container.id)
    if grant is not None and overtaken(ledger, grant):
        ledger, grant = ledger.without([container.id]), None
    if grant is None:
        notes: list[str] = []
        after, unproven = adopted(machine, ledger, [container], options, notes)
        answer = Answer(rebalanced(machine, after, options)) if not unproven else (
            missed(machine, ledger, container, options))
        return as_sent(answer._replace(notes=(*notes, *answer.notes)), ledger, options)
    after = ledger.with_grants(grant._replace(state=GrantState.RUNNING))
    if container.cpuset is not None and not grant.left_alone:
        after = with_written(after, container.id, container.cpuset)
        wanted = target(machine, after, grant, options)
        if wanted and container.cpuset != wanted and options.mode is AllocationMode.ON:
            return Answer(after, notes=(f"{about(grant)} has the cpuset {container.cpuset} instead of {wanted}: to be "
                                        "repaired",))
    return Answer(after)


def on_update(machine: Topology, ledger: Ledger, container: RequestedContainer, options: AllocationOptions) -> Answer:
    """The runtime is about to change a container's resources: `container` has those of the request. More or fewer
    whole CPUs grow or shrink its own ones in place. A cpuset that the container is not to have, of another program or
    of an update of vmpin's that is too old, is replaced in the answer."""
    grant = ledger.grants.get(container.id)
    if grant is None or not grant.live:
        return Answer(ledger)
    outcome = with_amount(machine, ledger, container, options)
    if isinstance(outcome, Refusal):
        return as_sent(refused(ledger, container, outcome), ledger, options)
    after, notes = outcome
    if container.cpuset:
        # The runtime writes the request's cpuset unless the answer has another.
        wanted = target(machine, after, after.grants[container.id], options)
        if wanted and container.cpuset not in (wanted, grant.written):
            notes += (f"{about(grant)}: an update asks for the cpuset {container.cpuset}: {wanted} stays",)
        after = with_written(after, container.id, container.cpuset)
    if after.grants[container.id].amount != grant.amount:
        updates = shrinking(machine, after, options, container.id)
    else:
        # Nothing was decided: other containers' updates have an order of their own (due_updates).
        updates = [update for update in shrinking(machine, after, options) if update.container == container.id]
    return as_sent(Answer(applied(after, updates), None, tuple(updates), "", notes), ledger, options)


def on_stop(machine: Topology, ledger: Ledger, container: ContainerId, options: AllocationOptions) -> Answer:
    """A container has stopped. Its pod keeps its CPUs, unless it never ran: then its creation is undone. The answer
    also gives a few shared containers the CPUs that came back earlier: the runtime's other calls wait for these."""
    after = stopped(machine, ledger, [container], options)
    updates = all_updates(machine, after, options)[:FEW]
    return as_sent(Answer(applied(after, updates), None, updates), ledger, options)


def on_remove(machine: Topology, ledger: Ledger, container: ContainerId, options: AllocationOptions) -> Answer:
    """A container is gone: its stop may have been missed."""
    return as_sent(Answer(stopped(machine, ledger, [container], options)), ledger, options)


def on_pod_end(machine: Topology, ledger: Ledger, sandbox: SandboxId, options: AllocationOptions) -> Answer:
    """A pod has ended: its CPUs are free. The shared containers get them with later updates (`due_updates`)."""
    after = ledger.without([grant.container for grant in ledger.of_sandbox(sandbox)])
    return Answer(ledger) if after is ledger else as_sent(Answer(rebalanced(machine, after, options)), ledger, options)


def due_updates(machine: Topology, ledger: Ledger, options: AllocationOptions) -> tuple[SideUpdate, ...]:
    """Return the updates to make by CRI, in order: CPUs that containers are still to lose, then those they get back.
    `with_written` records each that was done."""
    if options.mode is not AllocationMode.ON:
        return ()
    return all_updates(machine, ledger, options)


def _never_started(ledger: Ledger, container: RequestedContainer) -> list[ContainerId]:
    """Return the pod's containers of the same name that were created before and have not started. containerd does not
    report the end of one whose process it could not start (its program is missing); the kubelet then creates the next
    one, and removes the old one later."""
    return [grant.container for grant in ledger.of_sandbox(container.sandbox)
            if grant.name == container.name and grant.state is GrantState.RESERVED and grant.container != container.id]


def _adjustment(machine: Topology, ledger: Ledger, grant: Grant, container: RequestedContainer,
                options: AllocationOptions) -> Adjustment:
    """Return what a new container is given; always with the grant's annotation, which replaces one by the pod's
    author."""
    cpus = target(machine, ledger, grant, options)
    annotations = {GRANT_KEY: annotation_of(grant)}
    mems = None if container.mems else mems_of(machine, grant, cpus, options)
    env = {}
    if options.export == "cmk" and not grant.vm and cpus:
        env = _cmk_variables(cpus, ledger.shared, options.reserved)
    return Adjustment(cpus or None, mems, annotations, env)


def _cmk_variables(assigned: CpuSet, shared: CpuSet, infra: CpuSet) -> dict[str, str]:
    """Return the variables of `cmk isolate` (intel/isolate.py, util.py): no ranges, the mask in upper case."""
    lists = {"CMK_CPUS_ASSIGNED": assigned, "CMK_CPUS_SHARED": shared, "CMK_CPUS_INFRA": infra}
    return {**{name: ",".join(map(str, cpus)) for name, cpus in lists.items()},
            "CMK_CPUS_ASSIGNED_MASK": f"{assigned.bits:X}"}
