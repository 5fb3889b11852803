"""The state file, and after it the spool: a message leaves the spool once the state file has what it changed, so that
no kill loses one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from vmpin.config.timeouts import Timeouts
from vmpin.host.lock import Lock
from vmpin.reconcile.node_state import NodeState
from vmpin.sources.spool import Spool


class StateSaving:
    """Writes the node state's file, and mutates the spool.
    :param kept: spooled messages that were processed and the state file does not hold yet.
    :param lost: called when the lock is not this watcher's: the owner of the state file has to be found first."""

    def __init__(self, node_state: NodeState, spool: Spool, kept: list[str], lock: Lock, lost: Callable[[], None],
                 timeouts: Timeouts) -> None:
        self._node_state, self._spool, self._lock, self._lost = node_state, spool, lock, lost
        self.kept = kept
        self._pause = timeouts.save
        self._due = asyncio.Event()

    def prepare_again(self) -> None:
        """The run directory was made again: the spool's directory and the state file must exist again as well."""
        self._spool.prepare()
        self._node_state.save_again()

    def save_soon(self, only_if_unsaved: bool = False) -> None:
        """Have the state file written a moment later. :param only_if_unsaved: only where it is behind the state."""
        if not only_if_unsaved or self._node_state.unsaved:
            self._due.set()

    async def run(self) -> None:
        """Write the state file whenever that is due, until cancelled."""
        while True:
            await self._due.wait()
            await asyncio.sleep(self._pause)
            self._due.clear()
            self.save()

    def save(self) -> None:
        """Bring the state file up to date, and remove the spooled messages that it holds."""
        if not self._lock.held():
            self._lost()
            return
        kept, self.kept = self.kept, []
        if self._node_state.unsaved and not self._node_state.save():
            self.kept = kept + self.kept
        else:
            self._spool.remove(kept)
