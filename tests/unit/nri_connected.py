"""The NRI plugin, connected to a runtime of the test's own (fixtures: given_nri)."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

from nri_peer import PATIENCE, NriRuntime, NriRuntimes, delivering, pod

from vmpin.sources.nri.connection import MAX_UNSENT
from vmpin.sources.nri.event_queue import NriQueue
from vmpin.sources.nri.nri_events import CpuDecider, NriEvent, Synced
from vmpin.sources.nri.plugin import NriPlugin


class Connected:
    """A plugin whose events come to `facts` and whose states come to `states`."""

    def __init__(self, runtimes: NriRuntimes, waiting: NriQueue | None = None,
                 rest: Callable[[float], None] | None = None, max_unsent: int = MAX_UNSENT,
                 decider: CpuDecider | None = None) -> None:
        self.facts: queue.Queue[NriEvent] = queue.Queue()
        self.states: queue.Queue[tuple[bool, str]] = queue.Queue()
        self.plugin = NriPlugin(runtimes.connect, waiting or delivering(self.facts.put), rest=rest,
                                on_state=lambda up, text: self.states.put((up, text)), max_unsent=max_unsent,
                                decider=decider)

    def fact(self) -> NriEvent:
        return self.facts.get(timeout=PATIENCE)

    def state(self) -> tuple[bool, str]:
        return self.states.get(timeout=PATIENCE)


def begun(runtimes: NriRuntimes, connected: Connected, *listed: Any) -> NriRuntime:
    """A connection that has listed one pod and these containers."""
    runtime = runtimes.next()
    runtime.begin([pod()], list(listed))
    assert isinstance(connected.fact(), Synced)
    return runtime
