"""Samples where threads run, in slices between which the loop's other work has its turn."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from vmpin.reconcile.node_state import NodeState
from vmpin.reconcile.view import NodeView

if TYPE_CHECKING:
    from vmpin.residency.run_time_books import RunTimeBooks
    from vmpin.residency.sampler import RunListener, Sampler

logger = logging.getLogger(__name__)


class Sampling:
    """`sampler` is None while no samples are taken (`proof.sample_seconds`).
    :param owned: whether the run directory is this watcher's.
    :param listen: makes the sampler's listener; None for none."""

    def __init__(self, node_state: NodeState, owned: Callable[[], bool] = lambda: True,
                 listen: Callable[[Sampler], Awaitable[RunListener]] | None = None) -> None:
        self._node_state, self._owned, self._listen = node_state, owned, listen
        self._view: NodeView = node_state
        self._reconfigured = asyncio.Event()
        self._settled = asyncio.Event()
        self._books: RunTimeBooks | None = None
        self.sampler: Sampler | None = None

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            seconds = self._view.config.proof.sample_seconds
            if not seconds:
                if self.sampler is not None:
                    self._node_state.report_strays(None)
                    self.sampler.close()
                    self.sampler = None
                self._reconfigured.clear()
                self._settled.set()
                await self._reconfigured.wait()
                continue
            if self.sampler is None:
                try:
                    self.sampler = await self._begun()
                finally:
                    self._settled.set()
            from vmpin.residency.sampler import BREATH, SLICE

            sampler = self.sampler
            due = time.monotonic() + sampler.turn(seconds)
            # What else is to be done has the time between two rounds, and goes on after the next one.
            while time.monotonic() + BREATH < due and _goes_on(sampler, SLICE):  # noqa: ASYNC110  # work
                await asyncio.sleep(BREATH)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _begun(self) -> Sampler:
        """A sampler with its listener, once the books of an earlier watcher are read."""
        from vmpin.residency.run_time_books import RunTimeBooks
        from vmpin.residency.sampler import Sampler

        view = self._view
        if self._books is None:
            self._books = RunTimeBooks(view.config.paths.proof_file, view.boot_id, view.ledger, self._owned)
        if view.ledger.began is None:
            view.ledger.begin(await asyncio.wrap_future(self._books.read()), time.time())
        sampler = Sampler(view, self._books)
        if self._listen is not None:
            sampler.listener = await self._listen(sampler)
        self._node_state.report_strays(sampler.strayed)
        return sampler

    async def settled(self) -> Sampler | None:
        """Wait until earlier books are read, and return the sampler; None where no samples are taken."""
        await self._settled.wait()
        return self.sampler

    def reconfigured(self) -> None:
        """The configuration may have another value."""
        self._reconfigured.set()

    def close(self) -> None:
        """Take the last sample, and write the books."""
        if self.sampler is not None:
            try:
                self.sampler.close()
            except Exception as err:  # whatever it is, the watcher ends in order
                logger.error("the last sample failed: %r", err)
        if self._books is not None:
            self._books.close()


def _goes_on(sampler: Sampler, seconds: float) -> bool:
    return sampler.listener is not None and sampler.listener.go_on(seconds)
