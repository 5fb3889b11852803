"""What the allocator does in a watcher: its tasks, requests, metrics, and when it is called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from vmpin.config.settings import Config
from vmpin.config.timeouts import Timeouts
from vmpin.feature import SocketRequest, WatcherPart
from vmpin.features.allocator import allocation_answers
from vmpin.features.allocator.node_allocator import NodeAllocator
from vmpin.features.allocator.pool_updates import RuntimeLists
from vmpin.reconcile.node_state import NodeState

if TYPE_CHECKING:
    from vmpin.status.prometheus import ScrapeData


def watcher_part(node_state: NodeState, runtime: Callable[[], RuntimeLists | None],
                 timeouts: Timeouts) -> WatcherPart:
    """Make the part, with `allocate.mode` observe or on. :param runtime: None without NRI.
    :raises SourceError: when the topology cannot be read."""
    node = NodeAllocator(node_state, runtime, timeouts)
    tasks = {"allocate": node.updates.run, "ended": node.ended.run}
    if node.live is not None:
        tasks["annotations"] = node.live.run
    return WatcherPart(
        tasks, {"allocations": SocketRequest(lambda request, _: allocation_answers.allocations(node, request)),
                "set": SocketRequest(lambda request, _: allocation_answers.set_policy(node, request))},
        decider=node.allocator, begin=node.check, before_events=node.take, after_events=node.started,
        after_resync=node.resynced, take_annotations=None if node.live is None else node.live.take,
        status=node.data, brief=node.brief, metrics=partial(_metrics, node))


def _metrics(node: NodeAllocator, scrape: ScrapeData) -> Iterator[Any]:
    view = node.view()
    if view is not None:
        from vmpin.features.allocator.allocation_metrics import allocation_families  # prometheus_client

        yield from allocation_families(view, scrape.per_sandbox)


def release_task(config: Config, timeouts: Timeouts) -> Callable[[], Coroutine[Any, Any, None]]:
    """The task that gives up the ledger of an allocator that was switched off. As every task that ends, it is made
    again."""
    async def run() -> None:
        from vmpin.features.allocator.ledger_release import release_ledger

        if await asyncio.to_thread(release_ledger, config, timeouts.cri_call):
            await asyncio.Event().wait()

    return run
