"""Samples where threads run, and what was foreign on exclusive CPUs, in slices between which the loop's other work has
its turn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from vmpin.features.isolation.isolation_observer import IsolationObserver
from vmpin.reconcile.node_state import NodeState
from vmpin.reconcile.view import NodeView
from vmpin.reports.residency.sampler import BREATH, SLICE, Sampler

logger = logging.getLogger(__name__)


class Sampling:
    """`sampler` and `observer` are None while no samples are taken (`proof.sample_seconds`)."""

    def __init__(self, node_state: NodeState) -> None:
        self._node_state = node_state
        self._view: NodeView = node_state
        self.sampler: Sampler | None = None
        self.observer: IsolationObserver | None = None

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            config = self._view.config
            seconds = config.proof.sample_seconds
            if not seconds:
                if self.sampler is not None:
                    self._node_state.report_strays(None)
                    self.sampler.close()
                    if self.observer is not None:
                        self.observer.save()
                    self.sampler = self.observer = None
                await asyncio.sleep(config.watch.resync_seconds)
                continue
            if self.sampler is None or self.observer is None:
                self.observer = IsolationObserver(self._view, config.paths.isolation_file)
                self.sampler = Sampler(self._view, config.paths.proof_file, self.observer)
                self.observer.keeper.load()
                self.sampler.load()
                self._node_state.report_strays(self.sampler.strayed)
                self.touch()
            due = time.monotonic() + self.sampler.turn(seconds)
            # What else is to be done has the time between two rounds, and goes on after the next one.
            while time.monotonic() + BREATH < due and self.observer.go_on(SLICE):  # noqa: ASYNC110  # work
                await asyncio.sleep(BREATH)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    def touch(self) -> None:
        """Read the exclusive CPUs that have other owners since the last pass, so that what comes is theirs."""
        if self.sampler is None or self.observer is None:
            return
        with contextlib.suppress(OSError):  # the next round begins with it
            for sandbox in self.observer.refresh():
                self.sampler.sample(sandbox)
                self.observer.begin(sandbox)

    def close(self) -> None:
        """Take the last sample, and write the books."""
        if self.sampler is None:
            return
        try:
            self.sampler.close()
            if self.observer is not None:
                self.observer.save()
        except Exception as err:  # whatever it is, the watcher ends in order
            logger.error("the last sample failed: %r", err)
