"""The watcher's answer to `vmpin isolation`: the report of every pod that has, or had, exclusive CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vmpin.bounded import real
from vmpin.domain.model import SandboxId
from vmpin.features.isolation.isolation_books import IsolationBooks
from vmpin.features.isolation.isolation_report import document, pod_report
from vmpin.host import boottime
from vmpin.host.turns import in_turns
from vmpin.reconcile.view import NodeView
from vmpin.status.collector import when

#: Seconds after which the loop's other work has its turn.
_TURN = 0.002
#: Seconds: the books have a day; a little more, as the client's clock may be another.
_LONGEST = 100_000


async def isolation(view: NodeView, books: IsolationBooks, request: dict[str, Any]) -> dict[str, object]:
    """Answer the request `isolation` with the reports of all owners."""
    now = boottime.now()
    offset = boottime.wall_offset()
    asked_for = real(request["since"], _LONGEST)
    if not asked_for:  # members of watch.status_group ask as well
        raise ValueError("since")
    since = now - int(asked_for * 1e9)
    owners = list(books.owners.values())

    def clock(moment: int) -> str:
        return when((moment + offset) / 1e9)

    def reports() -> Iterator[dict[str, object] | None]:
        for book in owners:
            history = view.drift(SandboxId(book.owner))
            yield pod_report(book, since, now, clock, None if history is None else history.data())

    pods = [pod for pod in await in_turns(reports(), _TURN) if pod is not None]
    return document(pods, clock(since), clock(now))
