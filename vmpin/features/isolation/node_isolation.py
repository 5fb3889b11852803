"""What isolation does in a watcher: it listens to the sampler, answers the request `isolation`, and has foreign time
for the metrics.

It loads what it needs when sampling begins: with `proof.sample_seconds: off` it never does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vmpin.feature import SocketRequest, WatcherPart
from vmpin.reconcile.view import NodeView

if TYPE_CHECKING:
    from vmpin.domain.model import SandboxId
    from vmpin.features.common.metric_families import Metric
    from vmpin.features.common.samples import SampleSource
    from vmpin.features.isolation.books_database import IsolationKeeper
    from vmpin.features.isolation.isolation_observer import IsolationObserver

#: Seconds that a report may go back: the books have a day; a little more, as the client's clock may be another.
_LONGEST = 100_000


class NodeIsolation:
    """:param settled: waits until sampling has begun, where it is to. :param owned: whether the run directory is this
    watcher's."""

    def __init__(self, view: NodeView, settled: Callable[[], Awaitable[object]], owned: Callable[[], bool]) -> None:
        self._view, self._settled, self._owned = view, settled, owned
        self._sampler: SampleSource | None = None
        self._observer: IsolationObserver | None = None
        #: Of the first sampling on: it goes on with its books when samples are taken again.
        self._keeper: IsolationKeeper | None = None

    def part(self) -> WatcherPart:
        return WatcherPart(requests={"isolation": SocketRequest(answer=self._answer, reading=True)},
                           listen=self._listen, after_pass=self._after_pass, metrics=self._metrics, end=self._end)

    @property
    def observer(self) -> IsolationObserver | None:
        """None while no samples are taken."""
        return None if self._observer is None or self._observer.closed else self._observer

    async def _listen(self, sampler: SampleSource) -> IsolationObserver:
        from vmpin.features.isolation.books_database import IsolationKeeper
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
        """The reports of all pods that have, or had, exclusive CPUs in the last `since` seconds.

        :raises WatcherError: no samples are taken, or the books cannot be read."""
        import sqlite3

        from vmpin.bounded import real
        from vmpin.errors import WatcherError

        await self._settled()
        if self._sampler is None or (observer := self.observer) is None:
            raise WatcherError("vmpin takes no samples of what runs on exclusive CPUs", "set proof.sample_seconds")
        since = real(request["since"], _LONGEST)
        if not since:  # members of watch.status_group ask as well
            raise ValueError("since")
        self._sampler.round()
        try:
            return await self._document(observer, since)
        except sqlite3.Error as err:
            raise WatcherError(f"the books of isolation cannot be read: {err}",
                               "free space in the run directory, or restart the watcher") from err

    async def _document(self, observer: IsolationObserver, seconds: float) -> dict[str, Any]:
        import asyncio

        from vmpin.domain.model import SandboxId
        from vmpin.features.isolation.isolation_report import MAX_BINS, document, pod_report
        from vmpin.host import boottime
        from vmpin.status.collector import when

        now, offset = boottime.now(), boottime.wall_offset()
        since = now - int(seconds * 1e9)

        def clock(moment: int) -> str:
            return when((moment + offset) / 1e9)

        keeper = observer.keeper
        keeper.write(0.0)
        pods = []
        for owner in [book.described for book in keeper.books.owners.values()]:
            figures = await asyncio.wrap_future(keeper.figures(owner, since, now, MAX_BINS))
            if figures is not None:
                history = self._view.drift(SandboxId(owner.owner))
                pods.append(pod_report(figures, clock, None if history is None else history.data(),
                                       owner.ended is not None or observer.owns(owner.owner)))
        return document(pods, clock(since), clock(now))

    def _metrics(self, view: NodeView, per_sandbox: bool) -> Iterator[Metric]:
        if (observer := self.observer) is None:
            return foreign_families(view, per_sandbox, {}, {})
        return foreign_families(view, per_sandbox, observer.foreign_seconds(), observer.foreign_by_sandbox())


def foreign_families(view: NodeView, per_sandbox: bool, by_cpu: Mapping[int, float],
                     by_sandbox: Mapping[SandboxId, Mapping[int, float]]) -> Iterator[Metric]:
    """Foreign time (seconds) by CPU and, where the configuration has it, by owner and CPU."""
    from vmpin.features.common.metric_families import counter
    from vmpin.features.common.pod_labels import POD, pod_labels

    yield counter("vmpin_exclusive_cpu_foreign_seconds_total", "Time of a CPU, while it was exclusive, that the "
                  "kernel and foreign programs had.", {str(cpu): spent for cpu, spent in by_cpu.items()}, "cpu")
    if per_sandbox:
        yield counter("vmpin_sandbox_exclusive_cpu_foreign_seconds_total", "As vmpin_exclusive_cpu_foreign_seconds_"
                      "total, for each sandbox that owns CPUs, with a VM or without.",
                      {(*names, str(cpu)): spent for sandbox, names in pod_labels(by_sandbox, view).items()
                       for cpu, spent in by_sandbox[sandbox].items()}, *POD, "cpu")
