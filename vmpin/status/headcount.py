"""Counts of sandboxes and threads by verdict, role and place, from the masks in the kernel: for metrics.

Reads like a status document, at less cost: no texts, and sandbox by sandbox, so that the caller can do other work in
between."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from vmpin.domain.model import Pod, SandboxId, ThreadRole
from vmpin.placement.ownership import Collision, find_collisions
from vmpin.placement.rules import Verdict
from vmpin.reconcile.view import NodeView
from vmpin.status.collector import shown, visited
from vmpin.status.document import ThreadStatus, judge, trespasses


class ThreadPlace(enum.StrEnum):
    """The difference between a thread's mask and its placement."""

    PLACED = "placed"
    TRIMMED = "trimmed"  #: On a part of it: its cpuset cgroup has no other CPUs.
    ELSEWHERE = "elsewhere"
    UNASKED = "unasked"  #: Left alone, by policy or by hand.


class SandboxCount(NamedTuple):
    pod: Pod | None
    verdict: Verdict
    threads: Counter[tuple[ThreadRole, ThreadPlace]]


@dataclass
class Headcount:
    """The counts of the node. Each sandbox is counted at one moment, the node's own figures after all of them."""

    sandboxes: dict[SandboxId, SandboxCount] = field(default_factory=dict)
    collisions: int = 0  #: As status lists them.
    #: How many of these each sandbox takes part in, with a VM or without: as an owner, or by its threads or cpuset.
    collided: Counter[SandboxId] = field(default_factory=Counter)

    def take(self, view: NodeView) -> Iterator[None]:
        """Count one sandbox a step."""
        collisions: list[Collision] = []
        listing = shown(view)
        yield
        for sandbox, vm, threads in visited(view, listing):
            verdict, _ = judge(sandbox, view.placements.get(sandbox.id), None if vm is None else {}, threads,
                               unmanaged=view.unmanaged.get(sandbox.id, ""))
            self.sandboxes[sandbox.id] = SandboxCount(
                sandbox.pod, verdict, Counter((seen.thread.role, _place(seen)) for seen in threads))
            collisions += trespasses(view.ownership, sandbox.id, threads)
            yield
        collisions += find_collisions(view.ownership, {sandbox.id for sandbox in listing})
        self.collisions = len(collisions)
        self.collided.update(owner for collision in collisions for owner in collision.sandboxes)

    def verdicts(self) -> Counter[Verdict]:
        return Counter(count.verdict for count in self.sandboxes.values())

    def threads(self) -> Counter[tuple[ThreadRole, ThreadPlace]]:
        threads: Counter[tuple[ThreadRole, ThreadPlace]] = Counter()
        for count in self.sandboxes.values():
            threads.update(count.threads)
        return threads


def _place(seen: ThreadStatus) -> ThreadPlace:
    if seen.wanted is None:
        return ThreadPlace.UNASKED
    if seen.ok:
        return ThreadPlace.PLACED
    return ThreadPlace.TRIMMED if seen.less else ThreadPlace.ELSEWHERE
