"""Which calls of the runtime's may wait for those that follow. Only a watcher needs it, in the thread of NRI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmpin.domain.assignments import Rank
from vmpin.placement.rules import outlasts_creations
from vmpin.runtime.kata import named_for_kata
from vmpin.wire.nri_enums import Verb

if TYPE_CHECKING:
    from vmpin.reconcile.view import NodeView
    from vmpin.sources.nri.nri_events import CallFacts


def can_wait(view: NodeView, call: CallFacts) -> bool:
    """Whether an event of the runtime's may wait for those that follow it, as it moves no CPUs. Called in the thread
    of NRI. Without a VM: an event of a pod, or of a container without a cpuset, or with the shared pool, unless CPUs
    are owned as far as no other container may use them (authority `observed`)."""
    pod, cpus = call.pod, call.cpus
    if pod in view.vms:
        return _is_expected(view, call)
    ownership = view.ownership
    if cpus not in (None, ownership.pool) or named_for_kata(call.handler):
        return False
    if call.verb is Verb.RUN_POD and view.may_get_vm(pod):
        return False
    return not ownership.exclusive or Rank.OBSERVED.label not in view.rulings.authorities


def _is_expected(view: NodeView, call: CallFacts) -> bool:
    """Whether a container of a settled VM is recorded, is about to start or has started, with the CPUs that its
    creation was requested with, or is removed after its end. What the runtime changes on the host for a container
    (vCPUs, cgroup), Kata changes at its creation, or with the end of its process. The kernel reports new threads, and
    writes to cgroups that are watched; what it does not report, the rechecks find."""
    recorded = call.creates_late and call.verb is Verb.POST_CREATE  # nothing has happened on the host yet
    starts = call.verb in (Verb.START, Verb.POST_START)
    if not (recorded or starts or call.verb is Verb.REMOVE) or not view.is_settled(call.pod):
        return False
    sandbox = view.sandboxes.get(call.pod)
    record = None if sandbox is None else sandbox.containers.get(call.container)
    if record is None:
        return False
    if record.stopped:
        return call.verb is Verb.REMOVE
    if call.cpus not in (None, record.container.cpuset) or record.container.requested_cpuset is not None:
        return False
    if recorded:
        return record.requested
    if not starts:
        return False
    placement, claims = view.placements.get(call.pod), view.ownership.claims.get(call.pod)
    return not record.pending or (placement is not None and claims is not None
                                  and outlasts_creations(placement, claims))
