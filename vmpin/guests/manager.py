"""The guests of the node's VMs: each is told which vCPUs its containers have, and asked what became of it.

After each pass `update` looks which placements are others than before; the sessions do the rest, in tasks of their
own. A guest that answers nothing, or nonsense, costs nobody else anything, and nothing it says changes anything on the
host.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vmpin.domain.guest_report import GuestData, GuestReport
    from vmpin.domain.model import SandboxId
    from vmpin.guests.vm_guest import VmGuest
    from vmpin.reconcile.view import NodeView
    from vmpin.vmm.inventory import Vm

logger = logging.getLogger(__name__)

#: How long a guest is waited for that is to take everything back before nothing is told to it any more (seconds).
GOODBYE = 3.0


class GuestManager:
    """`run` is one of the watcher's tasks; everything else is called in the same loop."""

    def __init__(self, early: bool = False) -> None:
        """:param early: whether to load at once what the first guest takes: a twentieth of a second in which no thread
        of its VM would be placed."""
        self._early = early
        self._guests: dict[SandboxId, VmGuest] = {}
        self._tasks: dict[VmGuest, asyncio.Task[None]] = {}
        #: What was told is being taken back; who is told next waits for it.
        self._leaving: dict[SandboxId, asyncio.Task[None]] = {}
        #: By CID of vsock, the sandboxes whose VMMs name it, in the order they came.
        self._cids: dict[int, dict[SandboxId, None]] = {}
        self._running = False
        #: What was last wrong with telling a guest, so that it is logged once.
        self._odd: dict[SandboxId, str] = {}

    async def run(self) -> None:
        """Until cancelled. The guests stay as they were told to be."""
        if self._early:
            await asyncio.to_thread(_load)
        self._running = True
        try:
            for sandbox, guest in self._guests.items():
                self._start(sandbox, guest)
            await asyncio.Event().wait()
        finally:
            self._running = False
            tasks = [*self._tasks.values(), *self._leaving.values()]
            self._tasks = {}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def update(self, view: NodeView) -> None:
        """Tell the guests what is another than at the last call; takes a microsecond for each where nothing is."""
        vms = view.vms
        for sandbox in self._guests.keys() - vms.keys():
            excluded = not fnmatchcase(sandbox, view.config.watch.pattern)  # else its VMM has ended
            self._end(sandbox, goodbye=self._guests[sandbox].vm if excluded else None)
        for sandbox in self._odd.keys() - vms.keys():
            del self._odd[sandbox]
        for vm in vms.values():
            try:
                self._update(vm, view)
            except Exception as err:  # whatever it is, the host's half goes on
                if self._odd.get(vm.sandbox) != repr(err):
                    logger.error("sandbox=%s its guest cannot be told: %r", vm.sandbox, err)
                    logger.debug("sandbox=%s", vm.sandbox, exc_info=True)
                self._odd[vm.sandbox] = repr(err)

    def _update(self, vm: Vm, view: NodeView) -> None:
        state = view.sandboxes.get(vm.sandbox)
        placement = view.placements.get(vm.sandbox)
        guest = self._guests.get(vm.sandbox)
        config = view.config
        seen = (vm.vmm.id, vm.vcpus, vm.known, state, placement, config)
        if guest is not None and _same(guest.seen, seen):
            return
        via = config.guest.via_for("" if state is None else state.handler)
        if guest is not None and (guest.vmm != vm.vmm.id or via != guest.via or guest.port != config.guest.port):
            self._end(vm.sandbox, goodbye=vm if guest.vmm == vm.vmm.id else None)
            guest = None
        if via == "off":
            return
        if guest is None:
            guest = self._begin(via, vm, view)
        guest.config = config
        guest.tell(vm, placement, state)
        guest.seen = seen
        self._odd.pop(vm.sandbox, None)

    def look(self) -> None:
        """Look for whoever is in the guests now; where nobody is, that is done every five minutes only."""
        for guest in self._guests.values():
            guest.look()

    def _begin(self, via: str, vm: Vm, view: NodeView) -> VmGuest:
        from vmpin.guests.vm_guest import VmGuest  # a node without VMs need not load it

        kata = view.kata(vm.sandbox)
        made = self._guests[vm.sandbox] = VmGuest(via, vm, "" if kata is None else kata.agent_url, view.proc,
                                                view.config, self._rival)
        if made.cid is not None:
            self._cids.setdefault(made.cid, {})[vm.sandbox] = None
        if self._running:
            self._start(vm.sandbox, made)
        return made

    def _rival(self, cid: int, sandbox: SandboxId) -> SandboxId | None:
        """The first other sandbox whose VMM says that this CID is its own; the kernel gives it to one. Asked for at
        each attempt of each guest, so it takes no longer where a thousand name the same."""
        return next((other for other in self._cids.get(cid, ()) if other != sandbox), None)

    def _start(self, sandbox: SandboxId, guest: VmGuest) -> None:
        self._tasks[guest] = asyncio.create_task(_supervised(sandbox, guest, self._leaving.get(sandbox)))

    def _end(self, sandbox: SandboxId, goodbye: Vm | None = None) -> None:
        guest = self._guests.pop(sandbox)
        if guest.cid is not None:
            self._cids[guest.cid].pop(sandbox, None)
            if not self._cids[guest.cid]:
                del self._cids[guest.cid]
        task = self._tasks.pop(guest, None)
        if task is None:
            return
        if goodbye is not None:
            guest.take_back(goodbye)
        leaving = asyncio.create_task(_leave(guest, task, GOODBYE if goodbye is not None else 0.0,
                                             self._leaving.get(sandbox)))
        self._leaving[sandbox] = leaving

        def left(done: asyncio.Task[None]) -> None:
            if self._leaving.get(sandbox) is done:
                del self._leaving[sandbox]

        leaving.add_done_callback(left)

    def report(self, sandbox: SandboxId) -> GuestReport | None:
        """For the status; None where guests are told nothing."""
        guest = self._guests.get(sandbox)
        return None if guest is None else guest.report()

    def data(self, sandbox: SandboxId) -> GuestData | None:
        """What the status document has of a guest, and of each container that was placed; None as `report`."""
        guest = self._guests.get(sandbox)
        if guest is None:
            return None
        found = guest.report()
        return found.data(), {container: found.of(container).data() for container in guest.placed}

    def told(self, sandboxes: Iterable[SandboxId]) -> list[SandboxId]:
        """Those of these sandboxes whose guests get a map."""
        return [sandbox for sandbox in sandboxes if sandbox in self._guests]

    async def taken_back(self, sandboxes: Iterable[SandboxId]) -> dict[SandboxId, str]:
        """What becomes, within a few seconds, of what is being taken back in the guests of these sandboxes. One that
        is told nothing is left out."""
        asked = {sandbox: self._guests[sandbox] for sandbox in sandboxes if sandbox in self._guests}
        words = await asyncio.gather(*(guest.taken_back(GOODBYE) for guest in asked.values()))
        return dict(zip(asked, words, strict=True))

    async def take_back(self, view: NodeView, sandboxes: Iterable[SandboxId]) -> dict[SandboxId, str]:
        """Where no watcher runs: have the guests of these sandboxes take back what one before told them.

        :returns: what became of it in each, within a few seconds. One that is told nothing is left out.
        """
        for sandbox in sandboxes:
            vm, state = view.vms.get(sandbox), view.sandboxes.get(sandbox)
            via = view.config.guest.via_for("" if state is None else state.handler)
            if vm is not None and via != "off":
                guest = self._begin(via, vm, view)
                guest.adopt(container.id for container in (() if state is None else state.live()))
                guest.take_back(vm)
        task = asyncio.create_task(self.run())
        try:
            return await self.taken_back(self._guests)
        finally:
            task.cancel()
            await asyncio.wait([task])


def _load() -> None:
    from vmpin.guests import (
        attempts,  # noqa: F401
        vm_guest,  # noqa: F401
    )


async def _supervised(sandbox: SandboxId, guest: VmGuest, after: asyncio.Task[None] | None) -> None:
    if after is not None:
        await asyncio.wait([after])
    while True:
        try:
            await guest.run()
        except Exception as err:
            logger.error("sandbox=%s its guest cannot be looked after: %r", sandbox, err)
            logger.debug("sandbox=%s", sandbox, exc_info=True)
        else:
            return
        await asyncio.sleep(30.0)


async def _leave(guest: VmGuest, task: asyncio.Task[None], seconds: float, before: asyncio.Task[None] | None) -> None:
    try:
        if before is not None:
            await asyncio.wait([before])
        if seconds:
            await guest.taken_back(seconds)
    finally:
        task.cancel()
        await asyncio.wait([task])


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """By identity: placements and states are made anew when anything in them changes."""
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
