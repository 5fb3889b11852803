"""The watcher's answer to `vmpin isolation`: the report of every pod that has, or had, exclusive CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vmpin.bounded import real
from vmpin.domain.model import SandboxId
from vmpin.errors import WatcherError
from vmpin.features.isolation.isolation_report import document, pod_report
from vmpin.host import boottime
from vmpin.host.turns import in_turns
from vmpin.status.collector import when

if TYPE_CHECKING:
    from vmpin.daemon.watcher import Watcher

#: Seconds after which the loop's other work has its turn.
_TURN = 0.002
#: Seconds: the books have a day; a little more, as the client's clock may be another.
_LONGEST = 100_000


async def isolation(watcher: Watcher, request: dict[str, object]) -> dict[str, object]:
    """Answer the request `isolation` with the reports of all owners. :raises WatcherError: while no samples are taken.
    """
    sampling = watcher.sampling
    if sampling.sampler is None or sampling.observer is None:
        raise WatcherError("it is not sampled what runs on exclusive CPUs", "set proof.sample_seconds")
    sampling.sampler.round()
    now = boottime.now()
    offset = boottime.wall_offset()
    asked_for = real(request["since"], _LONGEST)
    if not asked_for:  # members of watch.status_group ask as well
        raise ValueError("since")
    since = now - int(asked_for * 1e9)
    books = list(sampling.observer.books.owners.values())

    def clock(moment: int) -> str:
        return when((moment + offset) / 1e9)

    def reports() -> Iterator[dict[str, object] | None]:
        for book in books:
            history = watcher.view.drift(SandboxId(book.owner))
            yield pod_report(book, since, now, clock, None if history is None else history.data())

    pods = [pod for pod in await in_turns(reports(), _TURN) if pod is not None]
    return document(pods, clock(since), clock(now))
