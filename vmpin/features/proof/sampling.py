"""Samples where threads run in a watcher, in slices between which the loop's other work has its turn; answers the
request `proof`.

It loads what it needs when sampling begins: with `proof.sample_seconds: off` it never does."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from vmpin.bounded import real
from vmpin.errors import WatcherError
from vmpin.feature import SocketRequest, WatcherPart
from vmpin.reconcile.reconciler import Reconciler
from vmpin.reconcile.view import NodeView

if TYPE_CHECKING:
    from vmpin.domain.desired_state import SandboxState
    from vmpin.domain.model import SandboxId
    from vmpin.features.common.metric_families import Metric
    from vmpin.features.common.samples import RunListener
    from vmpin.features.proof.residency_ledger import ResidencyLedger
    from vmpin.features.proof.run_time_books import RunTimeBooks
    from vmpin.features.proof.sampler import Sampler

logger = logging.getLogger(__name__)


class Sampling:
    """`sampler` is None while no samples are taken (`proof.sample_seconds`).
    :param owned: whether the run directory is this watcher's.
    :param listen: makes the receiver of samples, or None where no feature wants them; None: there is never one."""

    def __init__(self, reconciler: Reconciler, owned: Callable[[], bool] = lambda: True,
                 listen: Callable[[Sampler], Awaitable[RunListener | None]] | None = None) -> None:
        self._node_state, self._view = reconciler.node_state, reconciler.view
        self._owned, self._listen = owned, listen
        self._counters = reconciler.node_state.counters
        self.reconfigured = asyncio.Event()  #: The configuration may have another value.
        self._settled = asyncio.Event()
        self._books: RunTimeBooks | None = None
        self._ledger: ResidencyLedger | None = None
        self.sampler: Sampler | None = None

    def part(self, run: Callable[[], Coroutine[Any, Any, None]]) -> WatcherPart:
        """The part of a watcher that samples. :param run: its task."""
        return WatcherPart(tasks={"proof": run}, requests={"proof": SocketRequest(answer=self._answer, reading=True)},
                           settled=self.settled, after_resync=self.reconfigured.set, end=self.close,
                           wide_members=self._members, metrics=self._metrics)

    @property
    def ledger(self) -> ResidencyLedger:
        """The run times of threads, if samples are taken."""
        if self._ledger is None:
            from vmpin.features.proof.residency_ledger import ResidencyLedger

            self._ledger = ResidencyLedger(self._counters.drift)
        return self._ledger

    async def run(self, pause: float = 0.0) -> None:
        """Sample until cancelled. :param pause: seconds to wait first."""
        await asyncio.sleep(pause)
        while True:
            seconds: float = self._view.config.of_features["proof"].sample_seconds
            if not seconds:
                if self.sampler is not None:
                    self._node_state.report_strays(None)
                    self.sampler.close()
                    self.sampler = None
                self.reconfigured.clear()
                self._settled.set()
                await self.reconfigured.wait()
                continue
            if self.sampler is None:
                try:
                    self.sampler = await self._begun()
                finally:
                    self._settled.set()
            from vmpin.features.proof.sampler import BREATH, SLICE

            due = time.monotonic() + self.sampler.turn(seconds)
            listener = self.sampler.listener
            # What else is to be done has the time between two rounds, and goes on after the next one.
            while listener and time.monotonic() + BREATH < due and listener.go_on(SLICE):  # noqa: ASYNC110  # work
                await asyncio.sleep(BREATH)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _begun(self) -> Sampler:
        """A sampler with its listener, once the books of an earlier watcher are read."""
        from vmpin.features.proof.run_time_books import RunTimeBooks
        from vmpin.features.proof.sampler import Sampler

        view = self._view
        if self._books is None:
            self._books = RunTimeBooks(view.config.paths.run / "proof", view.boot_id, self.ledger, self._owned)
        if self.ledger.began is None:
            self.ledger.begin(await asyncio.wrap_future(self._books.read()), time.time())
        sampler = Sampler(view, self.ledger, self._books)
        if self._listen is not None:
            sampler.listener = await self._listen(sampler)
        self._node_state.report_strays(sampler.strayed)
        return sampler

    async def settled(self) -> Sampler | None:
        """Wait until earlier books are read, and return the sampler; None where no samples are taken."""
        await self._settled.wait()
        return self.sampler

    async def _answer(self, request: dict[str, Any], only: SandboxId | None) -> dict[str, Any]:
        """The run times in the last `since` seconds. :raises WatcherError: no samples are taken."""
        from vmpin.features.proof.proof_document import proved

        sampler = await self.settled()
        if sampler is None:
            raise WatcherError("the watcher does not sample where threads run", "set proof.sample_seconds")
        since = real(request["since"], 1e9)
        if since is None:
            raise ValueError("since")
        return proved(self._view, sampler.since(time.time() - since), only)

    def _members(self, sandbox: SandboxState) -> dict[str, object]:
        account = self.ledger.sandboxes.get(sandbox.id)
        return {"proof": None if account is None else account.data()}

    def _metrics(self, view: NodeView, per_sandbox: bool) -> Iterable[Metric]:
        from vmpin.features.proof.proof_metrics import families

        return families(self.ledger, view, per_sandbox)

    def close(self) -> None:
        """Take the last sample, and write the books."""
        if self.sampler is not None:
            try:
                self.sampler.close()
            except Exception as err:  # whatever it is, the watcher ends in order
                logger.error("the last sample failed: %r", err)
        if self._books is not None:
            self._books.close()
