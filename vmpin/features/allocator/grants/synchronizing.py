"""The decision on Synchronize: makes the ledger agree with what the runtime lists; likewise where CPUs went off- or
online.

With a ledger, its grants count: what the runtime has is recorded, what has gone is given back, and what was missed
gets its CPUs. Without one, it is rebuilt (adopting). Nothing that has its CPUs is moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vmpin.cpuset import EMPTY, union
from vmpin.domain.model import ContainerId, ContainerState
from vmpin.domain.runtime_call import Listed, RequestedContainer
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.admission import about, missed, observed, overtaken, refused, stopped, with_amount
from vmpin.features.allocator.grants.adopting import adopted
from vmpin.features.allocator.grants.allocation_options import AllocationOptions
from vmpin.features.allocator.grants.answer import Answer
from vmpin.features.allocator.grants.cpu_request import CpuPolicy
from vmpin.features.allocator.grants.ledger import GrantState, Ledger
from vmpin.features.allocator.grants.pool_cpus import all_updates, applied, pool
from vmpin.features.allocator.grants.refusal import Refusal
from vmpin.features.allocator.grants.spare_set import rebalanced


def on_synchronize(machine: Topology, listed: Listed, ledger: Ledger | None, options: AllocationOptions) -> Answer:
    """The ledger as the runtime's list has it. `ledger` None: it is lost. The answer has all updates that are due."""
    before = ledger or Ledger()
    notes: list[str] = []
    live = {one.id: one for one in listed.containers if one.state is not ContainerState.STOPPED}
    after = _without_the_gone(machine, before, listed, live, options)
    after = after.without([key for key, grant in after.grants.items() if key in live and overtaken(after, grant)])
    granted = [one for one in sorted(live.values(), key=_age) if one.id in after.grants]
    others = [one for one in sorted(live.values(), key=_age) if one.id not in after.grants]
    after, unknown = adopted(machine, after, others, options, notes, ledger is None)
    granted += [one for one in others if one.id in after.grants]  # a resize may have been missed, too
    after = rebalanced(machine, _shared_as_listed(machine, after, options) if ledger is None else after, options)
    # Those that are left alone first: what they run on is given to no other.
    after = _with_missed(machine, after, (one for one in unknown if one.cpuset), options, notes)
    for container in granted:
        after = _as_listed(machine, after, container, options, notes)
    after = _with_missed(machine, after, (one for one in unknown if not one.cpuset), options, notes)
    updates = all_updates(machine, after, options)
    return observed(Answer(applied(after, updates), None, updates, "", tuple(notes)), after, options)


def on_online_changed(machine: Topology, ledger: Ledger, options: AllocationOptions) -> Answer:
    """CPUs went off- or online. A grant keeps its CPUs, those that are offline too: they are its own when they are
    back. The updates are those to make by CRI; `with_written` records each that was done."""
    after = rebalanced(machine, ledger, options)
    notes = [f"{about(grant)}: its CPUs {grant.cpus - machine.online} are offline"
             for grant in sorted(after.grants.values()) if grant.live and not grant.cpus <= machine.online]
    if not after.shared:
        notes.append("the pool has no CPU that is online: shared containers keep their cpusets")
    return observed(Answer(after, None, all_updates(machine, after, options), "", tuple(notes)), after, options)


def _with_missed(machine: Topology, ledger: Ledger, containers: Iterable[RequestedContainer],
                 options: AllocationOptions, notes: list[str]) -> Ledger:
    for container in containers:
        answer = missed(machine, ledger, container, options)
        ledger = answer.ledger
        notes += answer.notes
    return ledger


def _age(container: RequestedContainer) -> tuple[bool, int, ContainerId]:
    """The sort key: what runs comes before what was created."""
    return (container.state is ContainerState.CREATED, container.time_ns, container.id)


def _without_the_gone(machine: Topology, ledger: Ledger, listed: Listed,
                      live: Mapping[ContainerId, RequestedContainer], options: AllocationOptions) -> Ledger:
    """Pods that are not listed have ended; containers that are not listed have stopped: a runtime does not list exited
    ones (containerd: internal/cri/nri/nri_api_linux.go). One that is being created meanwhile is not listed either, so
    the pod keeps reserved CPUs as well."""
    pods = listed.sandboxes | {one.sandbox for one in live.values()}
    ledger = ledger.without([key for key, grant in ledger.grants.items() if grant.sandbox not in pods])
    gone = [key for key, grant in sorted(ledger.grants.items()) if grant.live and key not in live]
    return stopped(machine, ledger, gone, options, undo=False)


def _as_listed(machine: Topology, ledger: Ledger, container: RequestedContainer, options: AllocationOptions,
               notes: list[str]) -> Ledger:
    """The ledger with the state, the cpuset and the request that the runtime has for a known container."""
    grant = ledger.grants[container.id]
    state = GrantState.RUNNING if container.state is ContainerState.RUNNING else GrantState.RESERVED
    current = (container.cpuset or EMPTY) == grant.written
    ledger = ledger.with_grants(grant._replace(state=state, written=container.cpuset or EMPTY,
                                               guaranteed=container.guaranteed))
    if not current:
        # An old list: after its own restart, CRI-O lists the resources of creation.
        return ledger
    found = with_amount(machine, ledger, container, options)
    if isinstance(found, Refusal):
        answer = refused(ledger, container, found)
        notes += answer.notes
        return answer.ledger
    notes += found[1]
    return found[0]


def _shared_as_listed(machine: Topology, ledger: Ledger, options: AllocationOptions) -> Ledger:
    """The ledger with the shared CPUs that containers on the pool have: its loss is no reason to change them."""
    listed = union(grant.written for grant in ledger.grants.values()
                   if grant.policy is CpuPolicy.NONE and not grant.left_alone)
    return ledger._replace(shared=listed & pool(machine, ledger, options))

