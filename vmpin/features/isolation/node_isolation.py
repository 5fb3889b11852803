"""What isolation does in a watcher: it listens to the sampler, answers the request `isolation`, and has foreign time
for the metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from vmpin.feature import SocketRequest, WatcherPart
from vmpin.reconcile.view import NodeView

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from vmpin.domain.model import SandboxId
    from vmpin.features.isolation.isolation_keeper import IsolationKeeper
    from vmpin.features.isolation.isolation_observer import IsolationObserver
    from vmpin.residency.sampler import Sampler
    from vmpin.status.prometheus import ScrapeData


class NodeIsolation:
    """Loads what it needs when sampling begins: with `proof.sample_seconds: off` it never does.
    :param settled: waits until sampling has begun, where it is to. :param owned: whether the run directory is this
        watcher's."""

    def __init__(self, view: NodeView, settled: Callable[[], Awaitable[object]], owned: Callable[[], bool]) -> None:
        self._view, self._settled, self._owned = view, settled, owned
        self._sampler: Sampler | None = None
        self._observer: IsolationObserver | None = None
        #: Of the first sampling on: it goes on with its books when samples are taken again.
        self._keeper: IsolationKeeper | None = None

    def part(self) -> WatcherPart:
        return WatcherPart(requests={"isolation": SocketRequest(self._answer, reading=True)}, listen=self._listen,
                           after_pass=self._after_pass, metrics=self._metrics, end=self._end)

    @property
    def observer(self) -> IsolationObserver | None:
        """None while no samples are taken."""
        return None if self._observer is None or self._observer.closed else self._observer

    async def _listen(self, sampler: Sampler) -> IsolationObserver:
        from vmpin.features.isolation.isolation_keeper import IsolationKeeper
        from vmpin.features.isolation.isolation_observer import IsolationObserver

        if self._keeper is None:
            self._keeper = IsolationKeeper(self._view.config.paths.run / "isolation", self._view.boot_id, self._owned)
        if not self._keeper.loaded:
            await self._keeper.load()
        self._sampler, self._observer = sampler, IsolationObserver(self._view, self._keeper)
        return self._observer

    def _end(self) -> None:
        if self._keeper is not None:
            self._keeper.close()

    def _after_pass(self) -> None:
        """Read the exclusive CPUs that have other owners since the last pass, so that what comes is theirs."""
        if self._sampler is None or (observer := self.observer) is None:
            return
        with contextlib.suppress(OSError):  # the next round begins with it
            for sandbox in observer.refresh():
                self._sampler.sample(sandbox)
                observer.begin(sandbox)

    async def _answer(self, request: dict[str, Any], _: SandboxId | None) -> dict[str, Any]:
        from vmpin.errors import WatcherError

        await self._settled()
        if self._sampler is None or (observer := self.observer) is None:
            raise WatcherError("vmpin takes no samples of what runs on exclusive CPUs", "set proof.sample_seconds")
        from vmpin.features.isolation.isolation_answers import isolation

        self._sampler.round()
        return await isolation(self._view, observer.keeper, request)

    def _metrics(self, scrape: ScrapeData) -> Iterator[Metric]:
        from vmpin.features.isolation.isolation_metrics import foreign_families

        return foreign_families(scrape, self.observer)
