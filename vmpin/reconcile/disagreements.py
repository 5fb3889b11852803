"""Which containers the sources disagree about for longer than a resync: said once, and shown as long as it lasts."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping

from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import DesiredState, SandboxState
from vmpin.domain.kubelet_cpus import CpuManagerState, disagreements
from vmpin.domain.model import ContainerId, SandboxId

logger = logging.getLogger(__name__)


class SourceDisagreements:
    """What the sources say of each container, compared at every resync."""

    def __init__(self) -> None:
        #: Exclusive CPUs by namespace, pod and container, as PodResources has them; None: not asked, or no answer.
        self.resources: Mapping[tuple[str, str, str], CpuSet] | None = None
        #: What was found, with the monotonic time since when.
        self._found: dict[tuple[SandboxId, ContainerId], tuple[str, float]] = {}
        #: Those that last longer than a resync.
        self.lasting: dict[tuple[SandboxId, ContainerId], str] = {}
        #: What was compared, and of each sandbox as it was then what came of it: hundreds stay as they are.
        self._against: tuple[object, ...] = ()
        self._compared: dict[SandboxId, tuple[SandboxState, Mapping[ContainerId, str]]] = {}

    def set_pod_resources(self, resources: Mapping[tuple[str, str, str], CpuSet] | None) -> None:
        """What PodResources says from now on."""
        self.resources = resources

    def compare(self, state: DesiredState, kubelet: CpuManagerState | None, online: CpuSet, resync_seconds: float,
             now: float | None = None, nri: bool = True) -> None:
        """Compare what is known now.

        :param now: CLOCK_MONOTONIC in seconds.
        :param nri: whether the runtime has listed its containers over NRI.
        """
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
                        logger.warning("sandbox=%s container=%s: the sources disagree on its CPUs: %s", sandbox.id,
                                       container, text)

    def _compare(self, state: DesiredState, kubelet: CpuManagerState | None, online: CpuSet,
                 nri: bool) -> Iterator[tuple[SandboxState, Mapping[ContainerId, str]]]:
        against = (kubelet, self.resources, online, nri)
        before = self._compared if against == self._against else {}
        self._against, self._compared = against, {}
        for sandbox in state.sandboxes.values():
            known = before.get(sandbox.id)
            if known is None or known[0] is not sandbox:
                known = sandbox, disagreements(sandbox, kubelet, self.resources, online, nri)
            self._compared[sandbox.id] = known
            yield known
