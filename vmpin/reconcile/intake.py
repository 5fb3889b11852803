"""Applies reports to the state of a node: hook messages, from the watcher's socket and from the spool, and the
runtime's reports over NRI."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vmpin import log
from vmpin.domain.events import ContainerMisplaced
from vmpin.domain.model import SandboxId
from vmpin.errors import SourceError
from vmpin.named_tuple import NamedTuple
from vmpin.reconcile.node_state import NodeState
from vmpin.sources.spool import Spool

if TYPE_CHECKING:
    from vmpin.runtime.oci import HookState
    from vmpin.sources.nri.nri_events import NriEvent

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


@log.operation()
def take_nri(node_state: NodeState, events: Iterable[NriEvent]) -> NriOutcome:
    """Apply the runtime's reports."""
    from vmpin.sources.nri.translation import events_of  # not at the top: a first pass has no events

    touched: set[SandboxId] = set()
    lost = False
    for event in events:
        try:
            changes = events_of(node_state.nri_reports.take(event), node_state.state, node_state.nri_processes,
                                node_state.config.policy.exclusive_annotation)
        except OSError as err:  # out of descriptors, for instance; the other events are applied
            logger.error("NRI event not applied, everything is listed again: %s", err)
            lost = True
            continue
        for change in changes:
            touched.add(change.sandbox)
            if isinstance(change, ContainerMisplaced):
                node_state.counters.dispute(change.by)
                logger.warning("container misplaced by an annotation sandbox=%s container=%s: the runtime has it in "
                               "another", change.sandbox, change.container)
        node_state.apply_events(changes, listed=True)
    return NriOutcome(received("nri", touched), lost)


def received(source: str, sandboxes: set[SandboxId]) -> set[SandboxId]:
    """Log that a source's reports concern `sandboxes`, and return these."""
    if sandboxes and logger.isEnabledFor(logging.DEBUG):
        logger.debug("received source=%s sandboxes=%s", source, ",".join(sorted(sandboxes)))
    return sandboxes
