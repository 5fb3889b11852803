"""Samples where threads run, in slices between which the loop's other work has its turn."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from vmpin.reconcile.node_state import NodeState
from vmpin.reconcile.view import NodeView
from vmpin.reports.residency.sampler import BREATH, SLICE, RunListener, Sampler

logger = logging.getLogger(__name__)


class Sampling:
    """`sampler` is None while no samples are taken (`proof.sample_seconds`).
    :param listen: makes the sampler's listener; None for none."""

    def __init__(self, node_state: NodeState,
                 listen: Callable[[Sampler], RunListener] | None = None) -> None:
        self._node_state, self._listen = node_state, listen
        self._view: NodeView = node_state
        self._reconfigured = asyncio.Event()
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
                await self._reconfigured.wait()
                continue
            sampler = self.sampler = self.sampler or self._begun()
            due = time.monotonic() + sampler.turn(seconds)
            # What else is to be done has the time between two rounds, and goes on after the next one.
            while time.monotonic() + BREATH < due and _goes_on(sampler):  # noqa: ASYNC110  # work
                await asyncio.sleep(BREATH)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    def _begun(self) -> Sampler:
        sampler = Sampler(self._view, self._view.config.paths.proof_file)
        sampler.load()
        if self._listen is not None:
            sampler.listener = self._listen(sampler)
        self._node_state.report_strays(sampler.strayed)
        return sampler

    def reconfigured(self) -> None:
        """The configuration may have another value."""
        self._reconfigured.set()

    def close(self) -> None:
        """Take the last sample, and write the books."""
        if self.sampler is None:
            return
        try:
            self.sampler.close()
        except Exception as err:  # whatever it is, the watcher ends in order
            logger.error("the last sample failed: %r", err)


def _goes_on(sampler: Sampler) -> bool:
    return sampler.listener is not None and sampler.listener.go_on(SLICE)
