"""Drift of runc containers (`policy.runc_repair`): those that the runtime is to give their CPUs back.

A container counts only if its cgroup has had other CPUs than it was given for longer than a resync, so that an update
under way is not mistaken for a drift.
"""

import logging
import time
from collections.abc import Container, Iterable, Mapping

from vmpin.config.timeouts import TIMEOUTS
from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.assignments import Rulings
from vmpin.domain.desired_state import DesiredState
from vmpin.domain.events import Source
from vmpin.domain.model import ContainerId, SandboxId

logger = logging.getLogger(__name__)

#: A container is given its CPUs back so often within so many seconds; then it is left to the other writer.
TRIES, WITHIN = 3, 600.0


class RuncDriftRepairs:
    """The repairs of the last minutes: after three of them a container is left to the other writer.

    :param pause: seconds between two tries."""

    def __init__(self, pause: float = TIMEOUTS.runc_repair_pause) -> None:
        self._pause = pause
        #: When (monotonic) each container was repaired, and those that are reported as left alone.
        self._times: dict[ContainerId, list[float]] = {}
        self._left: set[ContainerId] = set()

    def due(self, state: DesiredState, rulings: Rulings, vms: Container[SandboxId],
            lasting: Iterable[tuple[SandboxId, ContainerId]], announced: Mapping[ContainerId, CpuSet],
            now: float | None = None) -> dict[ContainerId, CpuSet]:
        """The CPUs to ask for, by container; `began` counts the tries.
        :param vms: the sandboxes that are VMs: their containers' CPUs are not set by a cgroup of the host.
        :param lasting: the containers on which the sources have disagreed for longer than a resync.
        :param announced: what the runtime reported as it happened (sources.nri.nri_reports).
        :param now: CLOCK_MONOTONIC in seconds."""
        now = time.monotonic() if now is None else now
        self._times = {container: recent for container, times in self._times.items()
                       if (recent := [each for each in times if each > now - WITHIN])}
        self._left &= self._times.keys()
        found: dict[ContainerId, CpuSet] = {}
        for sandbox, container in lasting:
            wanted = None if sandbox in vms else _wanted(state, rulings, sandbox, container, announced)
            if wanted is None:
                continue
            times = self._times.get(container, [])
            if len(times) < TRIES:
                if not times or now >= times[-1] + self._pause:
                    found[container] = wanted
            elif container not in self._left:
                self._left.add(container)
                logger.warning("CPUs lost again container=%s cpus=%s: given back %d times, and another writer takes "
                               "them: left alone for some minutes", container, wanted, TRIES)
        return found

    def began(self, container: ContainerId, cpus: CpuSet, way: str, now: float | None = None) -> None:
        """Record a try, by `way` ("CRI" or "NRI"). :param now: CLOCK_MONOTONIC in seconds."""
        self._times.setdefault(container, []).append(time.monotonic() if now is None else now)
        logger.info("giving CPUs back container=%s by=%s cpus=%s", container, way, cpus)


def _wanted(state: DesiredState, rulings: Rulings, sandbox: SandboxId, container: ContainerId,
            announced: Mapping[ContainerId, CpuSet]) -> CpuSet | None:
    """The CPUs that a container was given, when its cgroup has others; None else, and for one that NRI does not
    report."""
    found = state.sandboxes.get(sandbox)
    record = None if found is None else found.containers.get(container)
    if found is None or record is None or record.pending or not {Source.NRI, Source.CGROUP} <= record.reports.keys():
        return None
    has = record.reports[Source.CGROUP].cpuset
    wanted = announced.get(container)
    uid = "" if found.pod is None else found.pod.uid
    ruling = rulings.assigned(uid, record.container)
    if ruling is not None:
        own = ruling.assignments.cpus_of(uid, record.container) or EMPTY
        # What its cpuset has beyond its own is shared (mixed CPUs), and stays, unless it is another pod's.
        with_shared = has if has >= own else wanted or record.reports[Source.NRI].cpuset
        shared = with_shared - rulings.exclusive_of_others(found) if with_shared >= own else EMPTY
        wanted = own | shared
    return wanted if wanted is not None and has != wanted else None
