"""Writes the state file, then removes the spooled messages whose changes it has: no kill loses a message."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from vmpin.config.timeouts import Timeouts
from vmpin.host.lock import Lock
from vmpin.reconcile.node_state import NodeState
from vmpin.sources.spool import Spool


class StateSaving:
    """Mutates the spool. :param kept: messages in the spool that were processed, and that the state file lacks yet.
    :param lost: called when this watcher does not hold the lock: find the state file's owner first."""

    def __init__(self, node_state: NodeState, spool: Spool, kept: list[str], lock: Lock, lost: Callable[[], None],
                 timeouts: Timeouts) -> None:
        self._node_state, self._spool, self._lock, self._lost = node_state, spool, lock, lost
        self.kept = kept
        self._pauses = timeouts.save
        self._changed, self._due = asyncio.Event(), asyncio.Event()
        self._early = math.inf  #: From then on it may be written in a turn of the loop that has other work.

    def prepare_again(self) -> None:
        """Create the spool's directory and the state file again, after the run directory was."""
        self._spool.prepare()
        self._node_state.changed = True

    def save_soon(self, only_if_unsaved: bool = False) -> None:
        """Have the state file written a moment later. :param only_if_unsaved: only if it lacks something that no list
        of the runtime's repeats."""
        state = self._node_state
        if (state.unsaved if only_if_unsaved else state.outdated or self.kept) and not self._changed.is_set():
            self._early = time.monotonic() + self._pauses[0]
            self._changed.set()

    def save_with_others(self) -> None:
        """Have it written in this turn of the loop, if it is early enough: each wake-up costs as much as the write."""
        if self._changed.is_set() and time.monotonic() >= self._early:
            self._due.set()

    async def run(self) -> None:
        """Write the state file whenever it is due, until cancelled."""
        while True:
            await self._changed.wait()
            timer = asyncio.get_running_loop().call_later(self._pauses[1], self._due.set)
            try:
                await self._due.wait()
            finally:
                timer.cancel()
            self._changed.clear()
            self._due.clear()
            self.save()

    def save(self) -> None:
        """Write the state file if the state has changed, and remove the messages that it has from the spool."""
        if not self._lock.held():
            self._lost()
            return
        kept, self.kept = self.kept, []
        if self._node_state.outdated and not self._node_state.save():
            self.kept = kept + self.kept
        else:
            self._spool.remove(kept)
