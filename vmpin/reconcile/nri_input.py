"""The runtime's reports over NRI, as the state of a node needs them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from vmpin.domain.desired_state import DesiredState
from vmpin.domain.events import Event
from vmpin.host.procfs import Procfs

if TYPE_CHECKING:
    from vmpin.sources.nri.nri_reports import NriCpusetReports
    from vmpin.sources.nri.processes import NriProcesses

logger = logging.getLogger(__name__)


class NriInput:
    """The reports' CPUs and processes. Both are created when they are first used: loading them would take 3 ms of a
    starting watcher's first pass."""

    def __init__(self, proc: Procfs) -> None:
        self._proc = proc

    @cached_property
    def reports(self) -> NriCpusetReports:
        """The CPUs of containers as the runtime has reported them."""
        from vmpin.sources.nri.nri_reports import NriCpusetReports

        return NriCpusetReports()

    @cached_property
    def processes(self) -> NriProcesses:
        """The processes whose pids the runtime has reported."""
        from vmpin.sources.nri.processes import NriProcesses

        return NriProcesses(self._proc, later=True)

    def postponed(self, state: DesiredState) -> Iterator[Event]:
        """Look up the reported processes of containers that no event needed."""
        if "processes" not in vars(self):
            return
        try:
            yield from self.processes.postponed(state)
        except OSError as err:  # out of descriptors, for instance
            logger.error("containers' processes not looked up, the next resync goes on: %s", err)
