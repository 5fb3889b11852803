"""Annotations that change while containers run (`allocate.live_annotations`): when the allocator decides on which.

Keeps the annotations that the reporter handed over last, until it is silent for too long, and has the allocator decide
on one container at a time, with pauses: neither a reporter that sends without end nor many pods that change at once
hold up the watcher."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping

from vmpin.domain.model import ContainerId
from vmpin.features.allocator.cpu_allocator import CpuAllocator
from vmpin.features.allocator.grants.ledger import Answer
from vmpin.features.allocator.grants.live_change import changed_containers

#: Refusals that are kept; the oldest is forgotten.
MAX_REFUSED = 64
#: Seconds between two decisions on one container, at the least. What is handed over meanwhile is replaced by what is
#: handed over later.
PAUSE = 10.0
#: A pause after each decision: as many times as long as the decision took, for the loop's other work.
REST = 4.0
#: Seconds for which what was handed over last counts: three times the reporter's longest pause.
HANDED_KEPT = 180.0
#: Seconds for which the time of a decision is kept.
_KEPT = 600.0


class LiveAnnotations:
    """`run` is one of the watcher's tasks. :param decided: called after each decision.
    :param now: the time in seconds, as time.monotonic()."""

    def __init__(self, allocator: CpuAllocator, decided: Callable[[], None],
                 now: Callable[[], float] = time.monotonic) -> None:
        self._allocator, self._after, self._now = allocator, decided, now
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
        """Called after the runtime's events: a container may have started."""
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
        """Decide on the next container, if its decision is due. :returns: whether it was."""
        container, wait = self._next() or (None, 0.0)
        if container is None or wait:
            return False
        now = self._now()
        answer = self._allocator.follow(container, self._handed)
        if answer is None:
            return False
        self._note(answer, container)
        self._decided = {key: time for key, time in self._decided.items() if time > now - _KEPT} | {container: now}
        self._after()
        return True

    def _note(self, answer: Answer, container: ContainerId) -> None:
        grant = answer.ledger.grants[container]
        key = grant.pod_uid, grant.name
        self._refused.pop(key, None)
        if answer.refusal:
            self._refused = dict([*self._refused.items(), (key, answer.refusal)][-MAX_REFUSED:])

    def pause(self) -> float | None:
        """Return the seconds until the next container's decision is due; None: it is due now, or none is waiting."""
        _, wait = self._next() or (None, 0.0)
        return wait or None

    def _next(self) -> tuple[ContainerId, float] | None:
        if self._now() - self._taken >= HANDED_KEPT:
            self._handed = {}
        ledger = self._allocator.ledger() if self._handed else None
        return None if ledger is None else next_change(changed_containers(ledger, self._handed), self._decided,
                                                       self._now())


def next_change(changed: Iterable[ContainerId], decided: Mapping[ContainerId, float],
                now: float) -> tuple[ContainerId, float] | None:
    """The container to decide on next, and in how many seconds: of several the one whose last decision is the oldest,
    so that none waits for others for ever. :param decided: the times of containers' last decisions."""
    never = float("-inf")
    first = min(changed, key=lambda container: (decided.get(container, never), container), default=None)
    return None if first is None else (first, max(0.0, decided.get(first, never) + PAUSE - now))
