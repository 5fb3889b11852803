"""Applies messages to the state of a node: hook messages from the watcher's socket and from the spool, and what the
runtime reports over NRI."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from vmpin import log
from vmpin.domain.events import ContainerMisplaced
from vmpin.domain.model import SandboxId
from vmpin.errors import SourceError
from vmpin.reconcile.node_state import NodeState, received
from vmpin.sources.spool import Spool

if TYPE_CHECKING:
    from vmpin.runtime.oci import HookState
    from vmpin.sources.nri.nri_events import NriEvent

logger = logging.getLogger(__name__)


class NriOutcome(NamedTuple):
    """What became of the runtime's events: the sandboxes they are about, and whether some could not be used, so that
    everything has to be listed again."""

    sandboxes: set[SandboxId]
    lost: bool


def take_spool(node_state: NodeState, spool: Spool, but: set[str], tidy: bool = True) -> list[str]:
    """Apply the spooled messages, without those named in `but`. :returns: the names of those that need no second try.
    :param tidy: whether what is no message is removed from the spool."""
    waiting = spool.waiting(but, tidy)
    if not waiting:
        return []
    from vmpin.runtime.oci import parse_hook  # most starts have no message

    logger.info("took messages=%d from the spool", len(waiting))
    done = []
    for name, raw in waiting:
        try:
            hook = parse_hook(raw)
        except SourceError as err:
            node_state.counters.hooks["refused"] += 1
            logger.warning("hook message refused: %s", err)
            done.append(name)
        else:
            if take_hook(node_state, hook) is not None:
                done.append(name)
    return done


@log.operation()
def take_hook(node_state: NodeState, hook: HookState) -> set[SandboxId] | None:
    """Apply one parsed message, and count it. :returns: the sandboxes it is about; None when it has to be tried again,
    as what it names could not be read."""
    from vmpin.sources.hook_state import began_at

    try:
        sandboxes = node_state.apply_hook(hook)
    except OSError as err:
        logger.error("hook message not applied, it is tried again later: %s", err)
        return None
    counters = node_state.counters
    counters.hooks["taken"] += 1
    counters.last_hook_at = max(counters.last_hook_at or 0.0, began_at(hook) / 1e9)  # it may have lain in the spool
    return sandboxes


@log.operation()
def take_nri(node_state: NodeState, events: Iterable[NriEvent]) -> NriOutcome:
    """Apply what the runtime reported."""
    from vmpin.sources.nri import translation  # not at the top: the first pass of a starting watcher has no events

    touched: set[SandboxId] = set()
    lost = False
    for event in events:
        try:
            found = translation.events_of(node_state.reports.take(event), node_state.state, node_state.proc,
                                          node_state.config.policy.exclusive_annotation)
        except OSError as err:  # out of descriptors, for instance: the other events count all the same
            logger.error("NRI event not applied, everything is listed again: %s", err)
            lost = True
            continue
        for each in found:
            if isinstance(each, ContainerMisplaced):
                node_state.counters.dispute(each.by)
                logger.warning("container misplaced by an annotation sandbox=%s container=%s: the runtime has it in "
                               "another", each.sandbox, each.container)
        node_state.apply_events(found)
        touched.update(each.sandbox for each in found)
    return NriOutcome(received("nri", touched), lost)
