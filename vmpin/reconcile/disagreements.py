"""The containers on whose CPUs the sources disagree for longer than a resync: logged once, shown as long as it
lasts."""

import logging
import time
from collections.abc import Iterator, Mapping

from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import DesiredState, SandboxState
from vmpin.domain.kubelet_cpus import CpuManagerState, disagreements
from vmpin.domain.model import ContainerId, SandboxId

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

    def compare(self, state: DesiredState, kubelet: CpuManagerState | None, online: CpuSet, resync_seconds: float,
             now: float | None = None, nri: bool = True) -> None:
        """Compare all containers, and log those that have disagreed for longer than a resync.
        :param now: CLOCK_MONOTONIC in seconds.
        :param nri: whether the runtime has listed its containers over NRI."""
        now = time.monotonic() if now is None else now
        before, self._found = self._found, {}
        lasted, self.lasting = self.lasting, {}
        for sandbox, disagreed in self._compare(state, kubelet, online, nri):
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

    def _compare(self, state: DesiredState, kubelet: CpuManagerState | None, online: CpuSet,
                 nri: bool) -> Iterator[tuple[SandboxState, Mapping[ContainerId, str]]]:
        against = (kubelet, self.resources, online, nri)
        before = self._compared if against == self._against else {}
        self._against, self._compared = against, {}
        for sandbox in state.sandboxes.values():
            compared = before.get(sandbox.id)
            if compared is None or compared[0] is not sandbox:
                compared = sandbox, disagreements(sandbox, kubelet, self.resources, online, nri)
            self._compared[sandbox.id] = compared
            yield compared
