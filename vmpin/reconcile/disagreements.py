"""The containers on whose CPUs the sources disagree for longer than a resync: logged once, shown as long as it
lasts."""

import logging
import time
from collections.abc import Iterator, Mapping

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.assignments import Rulings
from vmpin.domain.desired_state import ContainerRecord, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.model import ContainerId, Pod, SandboxId

logger = logging.getLogger(__name__)


class SourceDisagreements:
    """Compares the sources' reports of each container."""

    def __init__(self) -> None:
        #: Exclusive CPUs by namespace, pod and container, as PodResources has them; None: not asked, or no answer.
        self.resources: Mapping[tuple[str, str, str], CpuSet] | None = None
        #: Disagreements, and since when (monotonic, seconds).
        self._found: dict[tuple[SandboxId, ContainerId], tuple[str, float]] = {}
        #: Those that last longer than a resync.
        self.lasting: dict[tuple[SandboxId, ContainerId], str] = {}
        #: What sandboxes were compared against last, and the outcome for each: hundreds of them do not change.
        self._against: tuple[object, ...] = ()
        self._compared: dict[SandboxId, tuple[SandboxState, Mapping[ContainerId, str]]] = {}

    def compare(self, state: DesiredState, rulings: Rulings, online: CpuSet, resync_seconds: float,
             now: float | None = None, nri: bool = True) -> None:
        """Compare all containers, and log those that have disagreed for longer than a resync.
        :param now: CLOCK_MONOTONIC in seconds.
        :param nri: whether the runtime has listed its containers over NRI."""
        now = time.monotonic() if now is None else now
        before, self._found = self._found, {}
        lasted, self.lasting = self.lasting, {}
        for sandbox, disagreed in self._compare(state, rulings, online, nri):
            for container, text in disagreed.items():
                key = sandbox.id, container
                old = before.get(key)
                since = old[1] if old is not None and old[0] == text else now
                self._found[key] = text, since
                if now - since >= resync_seconds:
                    self.lasting[key] = text
                    if lasted.get(key) != text:
                        logger.warning("the sources disagree on CPUs sandbox=%s container=%s: %s", sandbox.id,
                                       container, text)

    def _compare(self, state: DesiredState, rulings: Rulings, online: CpuSet,
                 nri: bool) -> Iterator[tuple[SandboxState, Mapping[ContainerId, str]]]:
        against = (rulings, self.resources, online, nri)
        before = self._compared if against == self._against else {}
        self._against, self._compared = against, {}
        for sandbox in state.sandboxes.values():
            compared = before.get(sandbox.id)
            if compared is None or compared[0] is not sandbox:
                compared = sandbox, disagreements(sandbox, rulings, self.resources, online, nri)
            self._compared[sandbox.id] = compared
            yield compared


def disagreements(sandbox: SandboxState, rulings: Rulings, resources: Mapping[tuple[str, str, str], CpuSet] | None,
                  online: CpuSet, nri: bool = True) -> dict[ContainerId, str]:
    """The containers for which the sources report different CPUs, with what each reports. For a moment that is normal:
    an update reaches one source before the other.
    :param resources: exclusive CPUs by namespace, pod and container (PodResources); None where it was not read.
    :param nri: False until the runtime has listed its containers: NRI's reports are older than that then, as after a
        restart from the state file, and are left out."""
    others = rulings.exclusive_of_others(sandbox)
    found = {}
    for record in sandbox.containers.values():
        if record.container in sandbox.live() and not record.container.pause:
            reported = list(_reported(record, nri))
            owned = list(_owned(sandbox.pod, record, rulings, resources))
            has = {cpus & online for _, cpus in reported}
            lists = {cpus & online for _, cpus in owned}
            # A cpuset may have CPUs beyond those that are listed (they are shared), but none that is another pod's.
            if len(has) > 1 or len(lists) > 1 or not all(
                    own <= cpus and cpus.isdisjoint(others) for cpus in has for own in lists):
                found[record.container.id] = ", ".join(f"{source} {cpus}" for source, cpus in (*reported, *owned))
    return found


def _reported(record: ContainerRecord, nri: bool) -> Iterator[tuple[str, CpuSet]]:
    """Each source of cpusets with the one it reports now. The bundle does not count: it is as old as the container."""
    for source, report in record.reports.items():
        if source is not Source.BUNDLE and (nri or source is not Source.NRI):
            yield source.label, report.cpuset


def _owned(pod: Pod | None, record: ContainerRecord, rulings: Rulings,
           resources: Mapping[tuple[str, str, str], CpuSet] | None) -> Iterator[tuple[str, CpuSet]]:
    """Each source of exclusive CPUs with those that it lists for a container."""
    uid = "" if pod is None else pod.uid
    ruling = rulings.assigned(uid, record.container)
    if ruling is not None:
        yield ruling.authority, ruling.assignments.cpus_of(uid, record.container) or EMPTY
    if resources is not None and pod is not None:
        listed = resources.get((pod.namespace, pod.name, record.container.name))
        # PodResources lists none for a shared container, which does not mean that it may use none.
        if listed:
            yield "podresources", listed
