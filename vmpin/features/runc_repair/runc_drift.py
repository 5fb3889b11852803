"""Which runc containers have lost the CPUs that they were given, and when to repair them."""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Iterable, Mapping

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.assignments import Rulings
from vmpin.domain.desired_state import DesiredState
from vmpin.domain.events import Source
from vmpin.domain.model import ContainerId, SandboxId, uid_of

logger = logging.getLogger(__name__)

#: A container is given its CPUs back so often within so many seconds; then it is left to the other writer.
TRIES, WITHIN = 3, 600.0
PAUSE = 5.0  #: Seconds between two repairs of a container: a runtime answers before it writes.


class RuncDriftRepairs:
    """Decides which containers to repair: those whose cgroup has had other CPUs than given for longer than a resync
    (an update in progress is no drift). After three repairs a container is left to the other writer for some minutes.
    :param pause: seconds between two tries."""

    def __init__(self, pause: float = PAUSE) -> None:
        self._pause = pause
        #: The times (monotonic) of each container's repairs, and the containers reported as left alone.
        self._times: dict[ContainerId, list[float]] = {}
        self._left: set[ContainerId] = set()

    def due(self, state: DesiredState, rulings: Rulings, vms: Container[SandboxId],
            lasting: Iterable[tuple[SandboxId, ContainerId]], announced: Mapping[ContainerId, CpuSet],
            now: float | None = None) -> dict[ContainerId, CpuSet]:
        """The CPUs to request now, by container.
        :param vms: the sandboxes that are VMs: no cgroup of the host sets their containers' CPUs.
        :param lasting: the containers on whose CPUs the sources have disagreed for longer than a resync.
        :param announced: the CPUs that the runtime reported as they changed (sources.nri.nri_reports).
        :param now: CLOCK_MONOTONIC in seconds."""
        now = time.monotonic() if now is None else now
        self._times = {container: recent for container, times in self._times.items()
                       if (recent := [tried for tried in times if tried > now - WITHIN])}
        self._left &= self._times.keys()
        due: dict[ContainerId, CpuSet] = {}
        for sandbox, container in lasting:
            wanted = None if sandbox in vms else _wanted(state, rulings, sandbox, container, announced)
            if wanted is None:
                continue
            times = self._times.get(container, [])
            if len(times) < TRIES:
                if not times or now >= times[-1] + self._pause:
                    due[container] = wanted
            elif container not in self._left:
                self._left.add(container)
                logger.warning("CPUs lost again container=%s cpus=%s: given back %d times, and another writer takes "
                               "them: left alone for some minutes", container, wanted, TRIES)
        return due

    def began(self, container: ContainerId, cpus: CpuSet, protocol: str, now: float | None = None) -> None:
        """Record a try, over "CRI" or "NRI". :param now: CLOCK_MONOTONIC in seconds."""
        self._times.setdefault(container, []).append(time.monotonic() if now is None else now)
        logger.info("giving CPUs back container=%s by=%s cpus=%s", container, protocol, cpus)


def _wanted(state: DesiredState, rulings: Rulings, sandbox: SandboxId, container: ContainerId,
            announced: Mapping[ContainerId, CpuSet]) -> CpuSet | None:
    """The CPUs that a container should have, if its cgroup has others; None otherwise, and if NRI does not report
    it."""
    sandbox_state = state.sandboxes.get(sandbox)
    record = None if sandbox_state is None else sandbox_state.containers.get(container)
    if (sandbox_state is None or record is None or record.pending
            or not {Source.NRI, Source.CGROUP} <= record.reports.keys()):
        return None
    cpuset = record.reports[Source.CGROUP].cpuset
    wanted = announced.get(container)
    uid = uid_of(sandbox_state.pod)
    ruling = rulings.assigned(uid, record.container)
    if ruling is not None:
        own = ruling.assignments.cpus_of(uid, record.container) or EMPTY
        # The other CPUs of its cpuset are shared (mixed CPUs), and stay unless they are another pod's.
        with_shared = cpuset if cpuset >= own else wanted or record.reports[Source.NRI].cpuset
        shared = with_shared - rulings.exclusive_of_others(sandbox_state) if with_shared >= own else EMPTY
        wanted = own | shared
    return wanted if wanted is not None and cpuset != wanted else None
