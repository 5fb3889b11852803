"""Applies reports to the state of a node: hook messages, from the watcher's socket and from the spool, and the
runtime's reports over NRI."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vmpin import log
from vmpin.domain.assignments import Rank
from vmpin.domain.events import ContainerMisplaced
from vmpin.domain.model import SandboxId
from vmpin.errors import SourceError
from vmpin.named_tuple import NamedTuple
from vmpin.placement.rules import outlasts_creations
from vmpin.reconcile.node_state import NodeState
from vmpin.runtime.kata import named_for_kata
from vmpin.sources.spool import Spool

if TYPE_CHECKING:
    from vmpin.reconcile.view import NodeView
    from vmpin.runtime.oci import HookState
    from vmpin.sources.nri.nri_events import CallFacts, NriEvent

logger = logging.getLogger(__name__)


class NriOutcome(NamedTuple):
    """The sandboxes of the runtime's events, and whether some events could not be applied, so that the runtime has to
    list everything again."""

    sandboxes: set[SandboxId]
    lost: bool


def take_spool(node_state: NodeState, spool: Spool, but: set[str], tidy: bool = True) -> list[str]:
    """Apply the spooled messages except those named in `but`. :returns: the names of those that need no second try.
    :param tidy: whether to remove unusable files from the spool."""
    waiting = spool.waiting(but, tidy)
    if not waiting:
        return []
    from vmpin.runtime.oci import container_in, parse_hook  # not at the top: at most starts there is no message

    logger.info("took messages=%d from the spool", len(waiting))
    done = []
    for name, raw in waiting:
        try:
            hook = parse_hook(raw)
        except SourceError as err:
            node_state.counters.hooks["refused"] += 1
            logger.warning("hook message refused container=%s: %s", container_in(raw), err)
            done.append(name)
        else:
            if take_hook(node_state, hook, name) is not None:
                done.append(name)
    return done


@log.operation()
def take_hook(node_state: NodeState, hook: HookState, name: str | None = None) -> set[SandboxId] | None:
    """Apply a parsed message, and count it. :param name: of its file in the spool, None for no file.
    :returns: the sandboxes it is about; None if it has to be tried again, because its process or bundle could not be
    read."""
    from vmpin.sources.hook_state import began_at, events_of

    counters = node_state.counters
    try:
        events = events_of(hook, node_state.state, node_state.proc, node_state.config.policy.exclusive_annotation,
                           counters)
        node_state.apply_events(events)
    except OSError as err:
        logger.error("hook message not applied sandbox=%s container=%s: it is tried again later: %s", hook.sandbox,
                     hook.container, err)
        return None
    except Exception as err:  # it would fail again at each resync, and no other message nor any pass would follow it
        logger.error("hook message dropped sandbox=%s container=%s file=%s: a mistake of vmpin's in %s: %r",
                     hook.sandbox, hook.container, name, log.raised_at(err), err)
        logger.debug("hook message", exc_info=True)
        counters.hooks["refused"] += 1
        return set()
    counters.hooks["applied"] += 1
    counters.last_hook_at = max(counters.last_hook_at or 0.0, began_at(hook) / 1e9)  # it may have lain in the spool
    return received("hook", {event.sandbox for event in events})


def can_wait(view: NodeView, call: CallFacts) -> bool:
    """Whether an event of the runtime's may wait for those that follow it, as it moves no CPUs. Called in the thread
    of NRI. Without a VM: an event of a pod, or of a container without a cpuset, or with the shared pool, unless CPUs
    are owned as far as no other container may use them (authority `observed`)."""
    from vmpin.wire.nri_enums import Verb  # not at the top: without NRI there is no call

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
    from vmpin.wire.nri_enums import Verb

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


@log.operation()
def take_nri(node_state: NodeState, events: Iterable[NriEvent]) -> NriOutcome:
    """Apply the runtime's reports."""
    from vmpin.sources.nri import translation  # not at the top: a starting watcher's first pass has no events

    touched: set[SandboxId] = set()
    lost = False
    for event in events:
        try:
            changes = translation.events_of(node_state.nri_reports.take(event), node_state.state,
                                            node_state.nri_processes, node_state.config.policy.exclusive_annotation)
        except OSError as err:  # out of descriptors, for instance; the other events are applied
            logger.error("NRI event not applied, everything is listed again: %s", err)
            lost = True
            continue
        for change in changes:
            if isinstance(change, ContainerMisplaced):
                node_state.counters.dispute(change.by)
                logger.warning("container misplaced by an annotation sandbox=%s container=%s: the runtime has it in "
                               "another", change.sandbox, change.container)
        node_state.apply_events(changes, listed=True)
        touched.update(change.sandbox for change in changes)
    return NriOutcome(received("nri", touched), lost)


def received(source: str, sandboxes: set[SandboxId]) -> set[SandboxId]:
    """Log that a source's reports concern `sandboxes`, and return these."""
    if sandboxes and logger.isEnabledFor(logging.DEBUG):
        logger.debug("received source=%s sandboxes=%s", source, ",".join(sorted(sandboxes)))
    return sandboxes
