"""The watch of a node's pods: how its pauses grow. What it is sent is tested at an API server (tests/cluster)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import pytest
from counted_pauses import CountedPauses

from vmpin.features.cluster.cluster_errors import ClusterError
from vmpin.features.cluster.reporter.api_server import ApiServer
from vmpin.features.cluster.reporter.pod_watch import PodWatch

BOOKMARK = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "2"}}}


class Server:
    """Each watch breaks. :param events: of a watch before it does."""

    def __init__(self, *events: Mapping[str, Any]) -> None:
        self.events, self.stopping = events, threading.Event()
        self.lists = self.watches = 0
        self.pauses = CountedPauses(self.stopping)
        self.watch = PodWatch(cast(ApiServer, self), "node", lambda: None, self.stopping, pauses=self.pauses)

    def pods(self, node: str, version: str) -> tuple[list[Mapping[str, Any]], str]:
        self.lists += 1
        return [], "1"

    def watch_pods(self, node: str, version: str, seconds: int,
                   begun: Callable[[], None]) -> Iterator[Mapping[str, Any]]:
        self.watches += 1
        if self.events:
            begun()
        yield from self.events
        if self.watches == 6:
            self.stopping.set()
        raise ClusterError("timed out")


@pytest.mark.parametrize(("events", "pauses"), [((), 6), ((BOOKMARK,), 1)])
def test_a_watch_that_was_never_answered_has_not_lasted_however_long_it_took(
        events: tuple[Mapping[str, Any], ...], pauses: int) -> None:
    server = Server(*events)
    server.watch.run()
    assert server.lists == 1
    assert server.pauses.in_a_row == pauses
