"""Applies hook messages: from the watcher's socket as they come, and from the spool at the start and at each resync.

Called by the watcher, by the command line before a first pass, and by one_pass. What stays out: the socket and the
spool's files (daemon, sources.spool), and what a message means (sources.hook_state).
"""

from __future__ import annotations

import logging

from vmpin import log
from vmpin.domain.model import SandboxId
from vmpin.errors import SourceError
from vmpin.reconcile.node_state import NodeState
from vmpin.runtime.oci import HookState, parse_hook
from vmpin.sources.hook_state import began_at
from vmpin.sources.spool import Spool

logger = logging.getLogger(__name__)


def take_spool(node: NodeState, spool: Spool, but: set[str], tidy: bool = True) -> list[str]:
    """Apply the spooled messages, without those named in `but`. :returns: the names of those that need no second try.

    :param tidy: whether what is no message is removed from the spool.
    """
    waiting = spool.waiting(but, tidy)
    if waiting:
        logger.info("took messages=%d from the spool", len(waiting))
    done = []
    for name, raw in waiting:
        try:
            hook = parse_hook(raw)
        except SourceError as err:
            node.tally.hooks["refused"] += 1
            logger.warning("hook message refused: %s", err)
            done.append(name)
        else:
            if take_hook(node, hook) is not None:
                done.append(name)
    return done


@log.operation()
def take_hook(node: NodeState, hook: HookState) -> set[SandboxId] | None:
    """Apply one parsed message, and count it. :returns: the sandboxes it is about; None when it has to be tried again,
    as what it names could not be read."""
    try:
        sandboxes = node.hook(hook)
    except OSError as err:
        logger.error("hook message not applied, it is tried again later: %s", err)
        return None
    tally = node.tally
    tally.hooks["taken"] += 1
    tally.last_hook_at = max(tally.last_hook_at or 0.0, began_at(hook) / 1e9)  # it may have lain in the spool
    return sandboxes
