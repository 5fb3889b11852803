"""Takes hook messages in: from the watcher's socket as they come, and from the spool at the start and at each resync.

Called by the watcher, by the command line before a first pass, and by one_pass. What stays out: the socket and the
spool's files (daemon, sources.spool), and what a message means (sources.hook_state).
"""

from __future__ import annotations

import logging

from vmpin import log
from vmpin.domain.model import SandboxId
from vmpin.errors import SourceError
from vmpin.reconcile.node_state import NodeState
from vmpin.runtime.oci import parse_message
from vmpin.sources.hook_state import moment
from vmpin.sources.spool import Spool

logger = logging.getLogger(__name__)


def take_spool(node: NodeState, spool: Spool, but: set[str], tidy: bool = True) -> list[str]:
    """Apply the spooled messages, without those named in `but`. :returns: the names of those that need no second try.

    :param tidy: whether what is no message is removed from the spool.
    """
    waiting = spool.waiting(but, tidy)
    if waiting:
        logger.info("took messages=%d from the spool", len(waiting))
    return [name for name, raw in waiting if take_message(node, raw) is not None]


@log.operation()
def take_message(node: NodeState, raw: bytes) -> set[SandboxId] | None:
    """Apply one message, and count it. :returns: the sandboxes it is about, none for a message that cannot be used;
    None when it has to be tried again, as what it names could not be read."""
    tally = node.tally
    try:
        message = parse_message(raw)
        sandboxes = node.hook(message)
    except SourceError as err:
        tally.hooks["refused"] += 1
        logger.warning("hook message refused: %s", err)
        return set()
    except OSError as err:
        logger.error("hook message not applied, it is tried again later: %s", err)
        return None
    tally.hooks["taken"] += 1
    tally.last_hook_at = max(tally.last_hook_at or 0.0, moment(message) / 1e9)  # it may have lain in the spool
    return sandboxes
