"""Hook messages: spooled, answered, then processed. `StateSaving` removes them from the spool."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable

from vmpin import log
from vmpin.daemon.state_saving import StateSaving
from vmpin.domain.model import SandboxId
from vmpin.errors import SourceError
from vmpin.reconcile.intake import take_hook, take_spool
from vmpin.reconcile.node_state import NodeState
from vmpin.runtime.oci import HookState, container_in, parse_hook
from vmpin.sources.hook_state import began_at
from vmpin.sources.spool import Spool

logger = logging.getLogger(__name__)


class HookIntake:
    """Mutates the spool, and the desired state through the node state.
    :param processed: called after a message, with its sandboxes and when it arrived (time.perf_counter())."""

    def __init__(self, node_state: NodeState, spool: Spool, saving: StateSaving,
                 processed: Callable[[set[SandboxId], float], None]) -> None:
        self._node_state, self._counters = node_state, node_state.counters
        self._spool, self.saving, self._processed = spool, saving, processed

    async def receive(self, raw: bytes, uid: int) -> bytes:
        """Spool a hook's message, and process it after the answer.
        :returns: the answer; at any other than ok the hook spools the message itself."""
        if uid not in (0, os.geteuid()):
            logger.warning("hook message refused: from uid=%d", uid)
            return b"refused: not root\n"
        try:
            hook = parse_hook(raw)
        except SourceError as err:
            logger.warning("hook message refused container=%s: %s", container_in(raw), err)
            self._counters.hooks["refused"] += 1
            return f"refused: {err}\n".encode("utf-8", "replace")
        arrived = time.perf_counter()
        name = self._spool.keep(raw, began_at(hook), hook.sandbox)
        if name is not None:
            asyncio.get_running_loop().call_soon(self._process, hook, name, arrived)
        elif not self._process(hook, None, arrived):
            return b"not now: cannot spool or process the message\n"
        return b"ok\n"

    @log.operation()
    def _process(self, hook: HookState, name: str | None, arrived: float) -> bool:
        """Apply a message. :param name: of its file in the spool, None when it could not be spooled.
        :returns: False if that failed: the next resync takes the message from the spool again."""
        sandboxes = take_hook(self._node_state, hook, name)
        if sandboxes is None:
            return False
        if name is not None:
            self.saving.kept.append(name)
        self._processed(sandboxes, arrived)
        self.saving.save_soon()
        return True

    def take_spool(self) -> None:
        """Process the messages in the spool."""
        names = take_spool(self._node_state, self._spool, set(self.saving.kept))
        if names:
            self.saving.kept += names
            self.saving.save_soon()
