"""Has the allocator follow annotations that were changed while containers run (`allocate.live_annotations`).

Keeps the annotations that the reporter handed over last, until it is silent for too long, and has the allocator decide
on one container at a time, with pauses: neither a reporter that sends without end nor many pods that change at once
hold up the watcher."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

from vmpin.config.timeouts import TIMEOUTS, Timeouts
from vmpin.domain.model import ContainerId
from vmpin.features.allocator.cpu_allocator import CpuAllocator
from vmpin.features.allocator.grants.ledger import Answer
from vmpin.features.allocator.grants.live_change import changed_containers, next_change

#: Refusals that are kept; the oldest is forgotten.
MAX_REFUSED = 64
#: After a decision, the loop's other work has so many times the time that it took.
REST = 4.0


class LiveAnnotations:
    """`run` is one of the watcher's tasks. :param decided: called after each decision.
    :param now: the time in seconds, as time.monotonic()."""

    def __init__(self, allocator: CpuAllocator, decided: Callable[[], None], timeouts: Timeouts = TIMEOUTS,
                 now: Callable[[], float] = time.monotonic) -> None:
        self._allocator, self._after, self._timeouts, self._now = allocator, decided, timeouts, now
        self._handed: Mapping[str, Mapping[str, str]] = {}
        self._taken = float("-inf")
        self._decided: dict[ContainerId, float] = {}
        self._refused: dict[tuple[str, str], str] = {}
        self._wake = asyncio.Event()

    def take(self, pods: Mapping[str, Mapping[str, str]]) -> None:
        """Replace all that was handed over before. :param pods: their annotations by uid and key."""
        self._handed = pods
        self._taken = self._now()
        self._refused = {key: why for key, why in self._refused.items() if key[0] in self._handed}
        self._wake.set()

    def refused(self) -> list[dict[str, str]]:
        """Return the changes that were refused and still stand: the pod's uid, the container's name and the reason."""
        return [{"uid": uid, "container": name, "why": why} for (uid, name), why in self._refused.items()]

    def touch(self) -> None:
        """Called after the runtime's events, as a container may have begun to run."""
        self._wake.set()

    async def run(self) -> None:
        """Have changed annotations decided on, until cancelled."""
        while True:
            self._wake.clear()
            while True:
                began = self._now()
                if not self.step():
                    break
                await asyncio.sleep((self._now() - began) * REST)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.pause()):
                    await self._wake.wait()

    def step(self) -> bool:
        """Decide on the container that is next, if one is due. :returns: whether one was."""
        found = self._next()
        if found is None or found[1]:
            return False
        container, now = found[0], self._now()
        answer = self._allocator.follow(container, self._handed)
        if answer is None:
            return False
        self._note(answer, container)
        self._decided = {each: when for each, when in self._decided.items() if when > now - 600.0}
        self._decided[container] = now
        self._after()
        return True

    def _note(self, answer: Answer, container: ContainerId) -> None:
        grant = answer.ledger.grants[container]
        key = grant.pod_uid, grant.name
        self._refused.pop(key, None)
        if answer.refusal:
            self._refused = dict([*self._refused.items(), (key, answer.refusal)][-MAX_REFUSED:])

    def pause(self) -> float | None:
        """The seconds until a container that was decided on just now may be decided on again; None: none waits."""
        found = self._next()
        return found[1] if found is not None and found[1] else None

    def _next(self) -> tuple[ContainerId, float] | None:
        if self._now() - self._taken >= self._timeouts.handed_kept:
            self._handed = {}
        ledger = self._allocator.ledger() if self._handed else None
        return None if ledger is None else next_change(changed_containers(ledger, self._handed), self._decided,
                                                       self._now())
