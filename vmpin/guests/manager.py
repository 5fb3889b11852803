"""The guests of the node's VMs: one VmGuest for each, with a task that runs its sessions. The owner of guests' maps.

After each pass `update` finds the placements that have changed; the tasks do the rest. A guest that does not answer,
or answers nonsense, does not delay the others."""

from __future__ import annotations

import asyncio
import importlib
import logging
import operator
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from vmpin.config.timeouts import TIMEOUTS, Timeouts

if TYPE_CHECKING:
    from vmpin.domain.guest_report import GuestData, GuestReport
    from vmpin.domain.model import SandboxId
    from vmpin.guests.vm_guest import VmGuest
    from vmpin.reconcile.view import NodeView
    from vmpin.vmm.virtual_machine import Vm

logger = logging.getLogger(__name__)


class GuestManager:
    """`run` is one of the watcher's tasks; all other methods are called in the same event loop."""

    def __init__(self, early: bool = False, timeouts: Timeouts = TIMEOUTS) -> None:
        """Make a manager without guests.
        :param early: whether `run` imports soon what the first guest needs: 50 ms in which no thread of its VM would
            be placed."""
        self._early = early
        self._timeouts = timeouts
        self._guests: dict[SandboxId, VmGuest] = {}
        self._tasks: dict[VmGuest, asyncio.Task[None]] = {}
        #: Tasks in which a former guest takes everything back; the next guest of that sandbox waits for its end.
        self.leaving: dict[SandboxId, asyncio.Task[None]] = {}
        #: By vsock CID, the sandboxes whose VMMs name it, in the order of their appearance.
        self._cids: dict[int, dict[SandboxId, None]] = {}
        self._running = False
        #: The last error of a guest's update, so that it is logged once.
        self._errors: dict[SandboxId, str] = {}

    async def run(self) -> None:
        """Keep the sessions with all guests until cancelled. The guests keep their last map."""
        self._running = True
        try:
            for sandbox, guest in self._guests.items():
                self._start(sandbox, guest)
            if self._early and not self._guests:
                await asyncio.sleep(self._timeouts.settling)
                await asyncio.to_thread(_load)
            await asyncio.Event().wait()
        finally:
            self._running = False
            tasks = [*self._tasks.values(), *self.leaving.values()]
            self._tasks = {}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def update(self, view: NodeView) -> None:
        """Give each guest what has changed since the last call; an unchanged one costs a microsecond."""
        vms = view.vms
        for sandbox in self._guests.keys() - vms.keys():
            excluded = not fnmatchcase(sandbox, view.config.watch.pattern)  # else its VMM has ended
            self._end(sandbox, take_back_from=self._guests[sandbox].vm if excluded else None)
        for sandbox in self._errors.keys() - vms.keys():
            del self._errors[sandbox]
        for vm in vms.values():
            try:
                self._update(vm, view)
            except Exception as err:  # a defect here must not stop the placement on the host
                if self._errors.get(vm.sandbox) != repr(err):
                    logger.error("guest not updated sandbox=%s: %r", vm.sandbox, err)
                    logger.debug("sandbox=%s", vm.sandbox, exc_info=True)
                self._errors[vm.sandbox] = repr(err)

    def _update(self, vm: Vm, view: NodeView) -> None:
        state, placement = view.sandboxes.get(vm.sandbox), view.placements.get(vm.sandbox)
        guest, config = self._guests.get(vm.sandbox), view.config
        seen = (vm.vmm.id, vm.vcpus, vm.vcpus_identified, state, placement, config)
        if guest is not None and _same(guest.seen, seen):
            return
        via = config.guest.via_for("" if state is None else state.handler)
        if guest is not None and (guest.vmm != vm.vmm.id or via != guest.via or guest.port != config.guest.port):
            self._end(vm.sandbox, take_back_from=vm if guest.vmm == vm.vmm.id else None)
            guest = None
        if via == "off":
            return
        if guest is None:
            guest = self._begin(via, vm, view)
        guest.config = config
        guest.update(vm, placement, state)
        guest.seen = seen
        self._errors.pop(vm.sandbox, None)

    def retry_now(self) -> None:
        """Try to reach every guest's agent now; a guest without one is tried every five minutes only."""
        for guest in self._guests.values():
            guest.retry_now()

    def _begin(self, via: str, vm: Vm, view: NodeView) -> VmGuest:
        from vmpin.guests.vm_guest import VmGuest  # a node without VMs need not load it

        kata = view.kata(vm.sandbox)
        guest = self._guests[vm.sandbox] = VmGuest(via, vm, "" if kata is None else kata.agent_url, view.proc,
                                                   view.config, self._rival, self._timeouts)
        if guest.cid is not None:
            self._cids.setdefault(guest.cid, {})[vm.sandbox] = None
        if self._running:
            self._start(vm.sandbox, guest)
        return guest

    def _rival(self, cid: int, sandbox: SandboxId) -> SandboxId | None:
        """Another sandbox whose VMM names this CID; the kernel gives it to only one. Called at each attempt of each
        guest, so its cost does not grow with the number of VMMs that name the same CID."""
        return next((other for other in self._cids.get(cid, ()) if other != sandbox), None)

    def _start(self, sandbox: SandboxId, guest: VmGuest) -> None:
        self._tasks[guest] = asyncio.create_task(self._supervised(sandbox, guest, self.leaving.get(sandbox)))

    async def _supervised(self, sandbox: SandboxId, guest: VmGuest, after: asyncio.Task[None] | None) -> None:
        """Run the guest's sessions. A plain pause, not `attempts`: what ends here is a defect, not a connection."""
        if after is not None:
            await asyncio.wait([after])
        while True:
            try:
                await guest.run()
                return
            except Exception as err:
                logger.error("sessions with guest failed sandbox=%s: %r; they start again in %g s", sandbox, err,
                             self._timeouts.guest_restart)
                logger.debug("sandbox=%s", sandbox, exc_info=True)
            await asyncio.sleep(self._timeouts.guest_restart)

    def _end(self, sandbox: SandboxId, take_back_from: Vm | None) -> None:
        """End a guest's sessions. :param take_back_from: the VM, if it still runs: its guest first gives everything
        back; None if its VMM has ended."""
        guest = self._guests.pop(sandbox)
        if guest.cid is not None:
            self._cids[guest.cid].pop(sandbox, None)
            if not self._cids[guest.cid]:
                del self._cids[guest.cid]
        task = self._tasks.pop(guest, None)
        if task is None:
            return
        if take_back_from is not None:
            guest.unpin(take_back_from)
        seconds = 0.0 if take_back_from is None else self._timeouts.guest_unpin
        leaving = asyncio.create_task(_leave(guest, task, seconds, self.leaving.get(sandbox)))
        self.leaving[sandbox] = leaving

        def left(done: asyncio.Task[None]) -> None:
            if self.leaving.get(sandbox) is done:
                del self.leaving[sandbox]

        leaving.add_done_callback(left)

    def report(self, sandbox: SandboxId) -> GuestReport | None:
        """Return a guest's report for the status; None for a sandbox whose guest gets no map."""
        guest = self._guests.get(sandbox)
        return None if guest is None else guest.report()

    def data(self, sandbox: SandboxId) -> GuestData | None:
        """The status document's part of a guest, and of each placed container; None as in `report`."""
        guest = self._guests.get(sandbox)
        if guest is None:
            return None
        report = guest.report()
        return report.data(), {container: report.of(container).data() for container in guest.placed}

    def managed(self, sandboxes: Iterable[SandboxId]) -> list[SandboxId]:
        """Return those of these sandboxes whose guests get a map."""
        return [sandbox for sandbox in sandboxes if sandbox in self._guests]

    async def unpin_results(self, sandboxes: Iterable[SandboxId]) -> dict[SandboxId, str]:
        """Wait a few seconds at most until the guests of these sandboxes have taken everything back. :returns: the
        result in each, as a text; without sandboxes whose guests get no map."""
        guests = {sandbox: self._guests[sandbox] for sandbox in sandboxes if sandbox in self._guests}
        results = await asyncio.gather(*(guest.unpin_result(self._timeouts.guest_unpin) for guest in guests.values()))
        return dict(zip(guests, results, strict=True))

    async def unpin_once(self, view: NodeView, sandboxes: Iterable[SandboxId]) -> dict[SandboxId, str]:
        """Have these guests take back what an earlier watcher sent; for a command, while none runs. :returns: as
        `unpin_results`."""
        for sandbox in sandboxes:
            vm, state = view.vms.get(sandbox), view.sandboxes.get(sandbox)
            via = view.config.guest.via_for("" if state is None else state.handler)
            if vm is not None and via != "off":
                guest = self._begin(via, vm, view)
                guest.adopt(container.id for container in (() if state is None else state.live()))
                guest.unpin(vm)
        task = asyncio.create_task(self.run())
        try:
            return await self.unpin_results(self._guests)
        finally:
            task.cancel()
            await asyncio.wait([task])


def _load() -> None:
    for name in "attempts", "vm_guest":
        importlib.import_module(f"vmpin.guests.{name}")


async def _leave(guest: VmGuest, task: asyncio.Task[None], seconds: float, before: asyncio.Task[None] | None) -> None:
    try:
        if before is not None:
            await asyncio.wait([before])
        if seconds:
            await guest.unpin_result(seconds)
    finally:
        task.cancel()
        await asyncio.wait([task])


def _same(first: tuple[object, ...], second: tuple[object, ...]) -> bool:
    """Compare by identity: a change of a placement or a state makes a new object."""
    return len(first) == len(second) and all(map(operator.is_, first, second))
