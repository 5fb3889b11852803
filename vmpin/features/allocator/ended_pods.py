"""Ends the pods of the ledger whose end the runtime has not reported: their CPUs were held for ever.

A containerd that is started again reports over NRI the end of no pod that was there before (containerd#8426; so does
2.1). A pod all of whose containers have stopped is looked for in the runtime's own list after two resyncs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from pathlib import Path

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.domain.model import SandboxId
from vmpin.errors import SourceError
from vmpin.features.allocator.cpu_allocator import CpuAllocator
from vmpin.features.allocator.pool_updates import RuntimeLists

logger = logging.getLogger(__name__)


class EndedPods:
    """`run` is one of the watcher's tasks. :param configured: the CRI socket of the configuration.
    :param ended: called after a pod has been ended. :param runtime: None without NRI."""

    def __init__(self, allocator: CpuAllocator, configured: Path | None, ended: Callable[[], None],
                 runtime: Callable[[], RuntimeLists | None], timeouts: Timeouts = TIMEOUTS) -> None:
        self._allocator, self._configured, self._ended, self._runtime = allocator, configured, ended, runtime
        self._timeouts = timeouts
        self._wake = asyncio.Event()
        self._before: Set[SandboxId] = frozenset()

    def touch(self) -> None:
        """Called after a resync: have pods of the ledger looked for."""
        self._wake.set()

    async def run(self) -> None:
        """Look for ended pods whenever that is due, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.refresh()

    async def refresh(self) -> None:
        """End the pods that were idle at the last refresh, too, and that the runtime does not run."""
        idle = self._allocator.idle_pods()
        waiting, self._before = idle & self._before, idle
        if not waiting:
            return
        from vmpin.sources import cri  # protobuf and gRPC, which a node whose pods run does not load for this

        try:
            ready = await asyncio.to_thread(cri.ready_pods, cri.sockets(self._configured), self._timeouts.cri_call)
        except cri.NoRuntime as err:
            if (lists := self._runtime()) is not None:
                lists.request_list_for("ended pods are found in the runtime's next list",
                                       self._timeouts.ended_pods, err)
            return
        except SourceError as err:
            logger.debug("allocate: pods not listed (%s): pods that ended unreported keep their CPUs until the next "
                         "resync", err)
            return
        for sandbox in sorted(waiting - ready):
            if self._allocator.end_idle(sandbox):
                logger.info("pod ended unreported sandbox=%s: its CPUs are free", sandbox)
                self._ended()
