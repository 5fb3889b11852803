"""`follow`: clients of the control and status sockets that get the node's changes as they come, so that none polls.

A line is a JSON object: {"follow": "all", …} with everything at first, then {"follow": "change", …} with the sandboxes
that are different now and the ids of those that are `gone`, and the node's part where that is different; without
either, the line only shows that the watcher runs. Sandboxes are the status document's without their
threads; sentences have pods and containers by name, as every reader cuts them to a length of its own. A client that
reads too slowly is dropped: it connects again, and gets everything. Without a client nothing wakes the task, and only
for one that asks for it the kubelet's configuration is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from vmpin.domain.pod_names import with_names
from vmpin.domain.topology import Topology
from vmpin.errors import WatcherError
from vmpin.feature import WatcherPart, briefs_of
from vmpin.host.sockets import in_turns
from vmpin.install.own_version import installed_version
from vmpin.placement.ownership import find_collisions
from vmpin.reconcile.view import NodeView
from vmpin.status import health
from vmpin.status.collector import names_by_id, sandbox_entry, shown, visited
from vmpin.status.document import trespasses, with_doubts
from vmpin.status.health import SourceHealth

if TYPE_CHECKING:
    from vmpin.domain.guest_report import GuestData
    from vmpin.domain.model import SandboxId

logger = logging.getLogger(__name__)

VERSION = 1
MAX_FOLLOWERS = 8
#: Seconds between a pass and the survey that follows it, as passes come in bursts.
CALM = 0.1
#: The longest time without a line (seconds), so that a client notices a watcher that hangs.
BEAT = 10.0
#: Lines that wait for one client, beyond what the kernel and the transport hold.
MAX_WAITING = 32
#: How often the kubelet's configuration is read (seconds): it takes that over at its start alone.
KUBELET_PAUSE = 600.0
#: The most of the event loop's time that surveys take: passes follow each other while many VMs start.
_SHARE = 0.05


class GuestReports(Protocol):
    """The reports from guests."""

    def data(self, sandbox: SandboxId, /) -> GuestData | None: ...


class FollowedWatcher(Protocol):
    """The parts of a watcher that clients follow. `resynced` is the time of its last resync (time.monotonic())."""

    view: NodeView
    resynced: float
    parts: Mapping[str, WatcherPart]

    @property
    def guests(self) -> GuestReports: ...

    def source_health(self) -> Iterable[SourceHealth]: ...


class Followers:
    """The clients and their queues. `run` is a task of the watcher."""

    def __init__(self, watcher: FollowedWatcher, calm: float = CALM, beat: float = BEAT) -> None:
        self._watcher = watcher
        self._calm, self._beat = calm, beat
        self._wake = asyncio.Event()
        #: The lines that wait for each client; None in place of the last one ends it.
        self._queues: set[asyncio.Queue[bytes | None]] = set()
        self._new: set[asyncio.Queue[bytes | None]] = set()
        self._last = 0.0  #: When the last line was sent, by time.monotonic().
        self._sent: dict[SandboxId, dict[str, object]] = {}
        self._node: dict[str, object] = {}
        self._version = ""
        self._kubelet: dict[str, str] | None = None  #: None until a client asks for it.
        self._kubelet_due = 0.0  #: By time.monotonic().

    def __len__(self) -> int:
        return len(self._queues) + len(self._new)

    def touch(self) -> None:
        """Wake the task: a pass has ended, or something else may have changed."""
        if self:
            self._wake.set()

    def stream(self, kubelet: bool = False) -> AsyncGenerator[bytes, None]:
        """The lines for a new client. :param kubelet: include the kubelet's configuration in the node's part.
        :raises WatcherError: too many clients follow already."""
        if len(self) >= MAX_FOLLOWERS:
            raise WatcherError(f"follow: {MAX_FOLLOWERS} clients follow already", "end one of them")
        if kubelet and self._kubelet is None:
            self._kubelet, self._kubelet_due = {}, 0.0
        return self._lines()

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_WAITING)
        self._new.add(queue)
        self._wake.set()
        try:
            while (line := await queue.get()) is not None:
                yield line
        finally:
            self._queues.discard(queue)
            self._new.discard(queue)

    async def run(self) -> None:
        """Send changes to followers until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._beat if self else None):
                    await self._wake.wait()
            self._wake.clear()
            if not self:
                self._sent, self._node = {}, {}
                continue
            await self._read_kubelet()
            began = time.monotonic()
            survey = Survey()
            await in_turns(survey.take(self._watcher.view, self._watcher.guests.data))
            self._send(survey)
            await asyncio.sleep(max(self._calm, (time.monotonic() - began) / _SHARE))

    async def _read_kubelet(self) -> None:
        if self._kubelet is not None and time.monotonic() >= self._kubelet_due:
            from vmpin.features.common.kubelet_config import running_kubelet  # here, as few nodes need it

            self._kubelet = await asyncio.to_thread(running_kubelet, self._watcher.view.proc)
            self._kubelet_due = time.monotonic() + KUBELET_PAUSE

    def _send(self, survey: Survey) -> None:
        node = {**survey.node, **self._readiness(), "kubelet": self._kubelet or {},
                "features": briefs_of(self._watcher.parts)}
        changed = [entry for sandbox, entry in survey.sandboxes.items() if self._sent.get(sandbox) != entry]
        gone = [sandbox for sandbox in self._sent if sandbox not in survey.sandboxes]
        self._sent = survey.sandboxes
        change = {} if node == self._node else {"node": node}
        idle = not (change or changed or gone) and time.monotonic() - self._last < self._beat / 2
        if self._queues and not idle:
            self._last = time.monotonic()
            line = _line("change", **change, sandboxes=changed, gone=gone)
            for queue in [queue for queue in self._queues if not _put(queue, line)]:
                logger.warning("a client of follow reads too slowly and is dropped")
                self._queues.discard(queue)
        self._node = node
        if self._new:
            line = _line("all", node=node, sandboxes=list(survey.sandboxes.values()), gone=[])
            joined, self._new = self._new, set()
            for queue in joined:
                _put(queue, line)
            self._queues |= joined

    def _readiness(self) -> dict[str, object]:
        watcher, self._version = self._watcher, self._version or installed_version() or ""
        passes = health.alive(time.monotonic() - watcher.resynced, watcher.view.config.watch.resync_seconds)
        checks = [passes._replace(why="" if passes.up else passes.why), *watcher.source_health()]
        down = [f"{check.name}: {check.why or 'down'}" for check in checks if check.needed and not check.up]
        return {"ready": not down, "why": "; ".join(down), "version": self._version, "watcher": os.getpid()}


def _put(queue: asyncio.Queue[bytes | None], line: bytes) -> bool:
    """Queue a line. :returns: False where the queue was full: then it holds the end alone."""
    try:
        queue.put_nowait(line)
    except asyncio.QueueFull:
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)
        return False
    return True


def _line(kind: str, **parts: object) -> bytes:
    return json.dumps({"version": VERSION, "follow": kind, "time": round(time.time(), 3), **parts},
                      separators=(",", ":")).encode() + b"\n"


class Survey:
    """The node in brief, at about one moment; each sandbox at exactly one. Filled by `take`."""

    def __init__(self) -> None:
        self.sandboxes: dict[SandboxId, dict[str, object]] = {}
        self.node: dict[str, object] = {}

    def take(self, view: NodeView, guest: Callable[[SandboxId], GuestData | None]) -> Iterator[None]:
        """Survey a sandbox at each step. :param guest: the reports from guests."""
        collisions = []
        names = names_by_id(view.sandboxes.values())
        listing = shown(view)
        yield
        for sandbox, vm, threads in visited(view, listing):
            collisions += trespasses(view.ownership, sandbox.id, threads)
            entry = sandbox_entry(view, sandbox, vm, threads, False, guest(sandbox.id))
            self.sandboxes[sandbox.id] = brief(entry, sandbox.suspended, names)
            yield
        collisions += find_collisions(view.ownership, {sandbox.id for sandbox in listing})
        names = names_by_id(view.sandboxes.values())  # pods may have come since
        node, own = view.node, view.ownership
        collisions = with_doubts(collisions, view.unknown_owners, view.checkpoint_doubt)
        self.node = {"online": str(node.online), "shared_pool": str(own.pool), "exclusive": str(own.exclusive),
                     "housekeeping": str(node.housekeeping), "topology": _topology(node.topology),
                     "trouble": view.checkpoint.trouble,
                     "collisions": [{**collision._asdict(), "what": with_names(collision.what, names)}
                                    for collision in collisions]}


def brief(entry: Mapping[str, Any], suspended: bool, names: Mapping[str, str]) -> dict[str, object]:
    """A sandbox's entry of the status document without its threads.
    :param suspended: whether it was unpinned by hand. :param names: of pods and containers by their ids."""
    threads, drift = entry["threads"], entry["drift"]
    guest = entry["guest"]
    return {**{key: entry[key] for key in ("id", "pod", "runtime", "handler", "vmm", "mask", "verdict")},
            "reasons": [with_names(reason, names) for reason in entry["reasons"]],
            "drift": None if drift is None else {**drift, "why": with_names(drift["why"], names)},
            "suspended": suspended,
            # No number of all threads: a VMM's worker threads come and go, and each would be a change.
            "misplaced": sum(not thread["ok"] for thread in threads),
            "vcpus": {str(thread["vcpu"]): thread["actual"] for thread in threads if thread["vcpu"] is not None},
            "guest": None if guest is None else {"by": guest["by"], "state": guest["state"]},
            "containers": [{"name": container["name"], "cpus": container["cpuset"],
                            "exclusive": container["exclusive"], "vcpus": container["vcpus"],
                            "guest": (container["guest"] or {}).get("text")}
                           for container in entry["containers"] if not container["pause"]]}


def _topology(topology: Topology) -> dict[str, object]:
    return {"cores": len(topology.cores), "threads_per_core": max((len(core) for core in topology.cores), default=0),
            "caches": [str(cpus) for cpus in topology.caches],
            "nodes": {str(node): str(cpus) for node, cpus in topology.nodes.items()},
            "distances": {str(node): {str(other): far for other, far in row.items()}
                          for node, row in topology.distances.items()},
            "isolated": str(topology.isolated)}
