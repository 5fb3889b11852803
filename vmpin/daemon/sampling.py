"""Samples where threads run, in slices between which the loop's other work has its turn.

What stays out: a sample (reports/residency). Called by the watcher."""

from __future__ import annotations

import asyncio
import logging

from vmpin.reconcile.reconciler import Reconciler
from vmpin.reports.residency.sampler import Sampler

logger = logging.getLogger(__name__)


class Sampling:
    """`sampler` is None while no samples are taken (`proof.sample_seconds`)."""

    def __init__(self, reconciler: Reconciler) -> None:
        self._reconciler = reconciler
        self.sampler: Sampler | None = None

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            config = self._reconciler.view.config
            seconds = config.proof.sample_seconds
            if not seconds:
                if self.sampler is not None:
                    self._reconciler.report_strays(None)
                    self.sampler.close()
                    self.sampler = None
                await asyncio.sleep(config.watch.resync_seconds)
                continue
            if self.sampler is None:
                self.sampler = Sampler(self._reconciler.view, config.paths.proof_file)
                self._reconciler.report_strays(self.sampler.strayed)
            await asyncio.sleep(self.sampler.turn(seconds))

    def close(self) -> None:
        """Take the last sample, and write the books."""
        if self.sampler is None:
            return
        try:
            self.sampler.close()
        except Exception as err:  # whatever it is, the watcher ends in order
            logger.error("the last sample failed: %r", err)
