"""Whether the runtime has yet to list its containers over NRI: until then, containers that are not known are no
evidence that a VM has none.

A watcher that starts without a state file meets VMs of which no source but the runtime reports the containers
(runtime-rs): placed on the shared pool for the seconds before the list, an exclusive VM would leave its CPUs."""

import logging
import time
from collections.abc import Callable, Set

from vmpin.config.settings import Config
from vmpin.domain.desired_state import DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.model import SandboxId
from vmpin.placement.ownership import is_counted

logger = logging.getLogger(__name__)

#: The runtime's first list after the start is awaited for so long (s).
AWAITED_FOR = 30.0
#: What a placement waits for that follows from what was known before the start.
WAITS = "waits for the runtime to list its containers (NRI)"


class FirstList:
    """:param awaited: whether there is a runtime that will list its containers.
    :param known: the sandboxes whose containers an earlier watcher has had reported.
    :param in_files: whether the runtime's own files list a sandbox's containers (Kata's Go runtime).
    :param saved: whether the state file has the containers of an earlier list."""

    def __init__(self, awaited: bool = False, known: Set[SandboxId] = frozenset(),
                 in_files: Callable[[SandboxId], bool] = lambda sandbox: False, saved: bool = False) -> None:
        self.awaited = awaited
        self._known, self._in_files, self._saved = known, in_files, saved
        self._until: float | None = None
        self._listed = False

    @property
    def complete(self) -> bool:
        """Whether every container of the node is known: the runtime has listed them (and reports each since), or the
        state file has those of an earlier list while the next one is awaited."""
        return self._listed or (self.awaited and self._saved)

    @staticmethod
    def of(config: Config, saved: DesiredState, in_files: Callable[[SandboxId], bool]) -> "FirstList":
        """Decide from the configuration whether a list is awaited. :param saved: what a state file has."""
        return FirstList(config.watch.nri != "off" and config.paths.nri.exists(),
                         {sandbox.id for sandbox in saved.sandboxes.values() if sandbox.containers}, in_files,
                         any(record.reported_by(Source.NRI) for sandbox in saved.sandboxes.values()
                             for record in sandbox.containers.values()))

    def connect(self, wanted: bool, seconds: float = AWAITED_FOR) -> None:
        """Note that this process connects to the runtime, and so gets the list.
        :param wanted: whether the runtime has to be there (`watch.nri: on`).
        :param seconds: how long it is awaited."""
        self.awaited = self.awaited or wanted
        self._until = time.monotonic() + seconds

    def came(self) -> bool:
        """Note that the list came. :returns: whether it was awaited."""
        self._listed = True
        return self._end_wait()

    def _end_wait(self) -> bool:
        awaited, self.awaited = self.awaited, False
        return awaited

    def overdue(self) -> bool:
        """Whether it has just been awaited for too long; it is not any more then."""
        if not self.awaited or self._until is None or time.monotonic() < self._until:
            return False
        logger.warning("nri: the runtime has not listed its containers yet: VMs are placed by other sources' reports")
        return self._end_wait()

    def holds(self, sandbox: SandboxId, state: SandboxState | None) -> bool:
        """Whether a VM is left as it is until the list comes. A command without a watcher gets none: it goes by the
        containers that there are.
        :param state: what sources have reported of it."""
        if not self.awaited or sandbox in self._known or self._in_files(sandbox):
            return False
        return self._until is not None or state is None or not any(map(is_counted, state.live()))

    def waits(self, sandbox: SandboxId) -> str:
        """Describe what a sandbox's placement waits for, as its containers may have other CPUs by now; "" for nothing.
        """
        return WAITS if self.awaited and self._until is not None and not self._in_files(sandbox) else ""
