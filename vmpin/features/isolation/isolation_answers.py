"""The watcher's answer to `vmpin isolation`: the report of every pod that has, or had, exclusive CPUs."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

from vmpin.bounded import real
from vmpin.domain.model import SandboxId
from vmpin.errors import WatcherError
from vmpin.features.isolation.isolation_keeper import IsolationKeeper
from vmpin.features.isolation.isolation_report import MAX_BINS, document, pod_report
from vmpin.host import boottime
from vmpin.reconcile.view import NodeView
from vmpin.status.collector import when

#: Seconds: the books have a day; a little more, as the client's clock may be another.
_LONGEST = 100_000


async def isolation(view: NodeView, keeper: IsolationKeeper, request: dict[str, Any]) -> dict[str, object]:
    """Answer the request `isolation` with the reports of all owners.

    :raises WatcherError: the books cannot be read."""
    now = boottime.now()
    offset = boottime.wall_offset()
    asked_for = real(request["since"], _LONGEST)
    if not asked_for:  # members of watch.status_group ask as well
        raise ValueError("since")
    since = now - int(asked_for * 1e9)

    def clock(moment: int) -> str:
        return when((moment + offset) / 1e9)

    keeper.write(0.0)
    pods = []
    try:
        for owner in [book.described for book in keeper.books.owners.values()]:
            figures = await asyncio.wrap_future(keeper.figures(owner, since, now, MAX_BINS))
            if figures is not None:
                history = view.drift(SandboxId(owner.owner))
                pods.append(pod_report(figures, clock, None if history is None else history.data()))
    except sqlite3.Error as err:
        raise WatcherError(f"the books of isolation cannot be read: {err}",
                           "free space in the run directory, or restart the watcher") from err
    return document(pods, clock(since), clock(now))
