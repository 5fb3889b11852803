"""Hook messages: spooled, answered, then processed; and the state file, after which a spooled message is removed.

A message is in the spool before its hook is answered, and leaves it when the state file has it: no kill loses one."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable

from vmpin import log
from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.domain.model import SandboxId
from vmpin.errors import SourceError
from vmpin.host.lock import Lock
from vmpin.reconcile.intake import take_hook, take_spool
from vmpin.reconcile.reconciler import Reconciler
from vmpin.runtime.oci import HookState, parse_hook
from vmpin.sources.hook_state import began_at
from vmpin.sources.spool import Spool

logger = logging.getLogger(__name__)


class HookIntake:
    """Mutates the spool, and the desired state through the reconciler.
    :param kept: spooled messages that the reconciler has processed and the state file does not hold yet.
    :param processed: called after a message, with its sandboxes and when it arrived (time.perf_counter()).
    :param lost: called when the lock is not this watcher's: whose state file it is has to be found out first."""

    def __init__(self, reconciler: Reconciler, spool: Spool, kept: list[str], lock: Lock,
                 processed: Callable[[set[SandboxId], float], None], lost: Callable[[], None],
                 timeouts: Timeouts = TIMEOUTS) -> None:
        self._reconciler, self._counters = reconciler, reconciler.counters
        self._spool = spool
        self.kept = kept
        self._lock = lock
        self._processed, self._lost = processed, lost
        self._timeouts = timeouts
        self._due = asyncio.Event()

    async def receive(self, raw: bytes, uid: int) -> bytes:
        """Spool a hook's message, and process it after the answer. :returns: the answer; a hook spools the message
        itself at any other than ok."""
        if uid not in (0, os.geteuid()):
            logger.warning("hook message refused: from uid=%d", uid)
            return b"refused: not root\n"
        try:
            hook = parse_hook(raw)
        except SourceError as err:
            logger.warning("hook message refused: %s", err)
            self._counters.hooks["refused"] += 1
            return f"refused: {err}\n".encode("utf-8", "replace")
        arrived = time.perf_counter()
        name = self._spool.keep(raw, began_at(hook))
        if name is not None:
            asyncio.get_running_loop().call_soon(self._process, hook, name, arrived)
        elif not self._process(hook, None, arrived):
            return b"not now: cannot spool or process the message\n"
        return b"ok\n"

    @log.operation()
    def _process(self, hook: HookState, name: str | None, arrived: float) -> bool:
        """Apply a message. :returns: False when that has to be tried again: the next resync takes it from the spool.
        :param name: of its file in the spool, None when it could not be spooled."""
        sandboxes = take_hook(self._reconciler, hook)
        if sandboxes is None:
            return False
        if name is not None:
            self.kept.append(name)
        self._processed(sandboxes, arrived)
        self.save_soon()
        return True

    def take_spool(self) -> None:
        """Process the messages that lie in the spool."""
        names = take_spool(self._reconciler, self._spool, set(self.kept))
        if names:
            self.kept += names
            self.save_soon()

    def prepare_again(self) -> None:
        """The run directory was made again: the spool's directory and the state file are to be there again, too."""
        self._spool.prepare()
        self._reconciler.save_again()

    # The state file

    def save_soon(self, only_if_unsaved: bool = False) -> None:
        """Have the state file written a moment later. :param only_if_unsaved: only where it is behind the state."""
        if not only_if_unsaved or self._reconciler.unsaved:
            self._due.set()

    async def saving(self) -> None:
        """Write the state file whenever that is due, until cancelled."""
        while True:
            await self._due.wait()
            await asyncio.sleep(self._timeouts.save)
            self._due.clear()
            self.save()

    def save(self) -> None:
        """Bring the state file up to date, and remove the spooled messages that it holds."""
        if not self._lock.held():
            self._lost()
            return
        kept, self.kept = self.kept, []
        if self._reconciler.unsaved and not self._reconciler.save():
            self.kept = kept + self.kept
        else:
            self._spool.remove(kept)
