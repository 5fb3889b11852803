"""A second NRI plugin beside vmpin's, which takes part in the creation of one pod's containers:

    with rival(containerd, "05", CpuAnswer(Adjustment(cpus, None, {}, {}))):    # before vmpin's; "99": after it
        pod = containerd.pod("rival")
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from nri_peer import delivering
from real_containerd import Containerd
from waiting import PATIENCE, wait

from vmpin.cpuset import CpuSet
from vmpin.domain.runtime_call import Adjustment, Listed, RequestedContainer
from vmpin.sources.nri.connection import connect_to
from vmpin.sources.nri.nri_events import ContainerEvent, CpuAnswer, NriEvent, NriPod, PodEvent, Synced
from vmpin.sources.nri.plugin import NriPlugin
from vmpin.wire.nri_enums import Verb

#: The name of the pod whose containers it answers for.
POD = "rival"


def giving(cpus: CpuSet) -> CpuAnswer:
    """To each new container, whatever it asks for."""
    return CpuAnswer(Adjustment(cpus, None, {}, {}))


class Rival:
    """Gives each creation in pod `rival` the same answer. While `held` is set, it gives none: the runtime waits."""

    records: AbstractSet[Verb] = frozenset()

    def __init__(self, answer: CpuAnswer) -> None:
        self.answer = answer
        self.asked_for: list[str] = []
        self._go = threading.Event()
        self._go.set()

    def hold(self) -> None:
        self._go.clear()

    def release(self) -> None:
        self._go.set()

    def decide(self, verb: Verb, container: RequestedContainer, pod: NriPod | None) -> CpuAnswer:
        if verb is not Verb.CREATE or container.pod != POD:
            return CpuAnswer()
        self.asked_for.append(container.id)
        self._go.wait(PATIENCE)
        return self.answer

    def synchronize(self, listed: Listed, pods: Sequence[NriPod]) -> CpuAnswer:
        return CpuAnswer()

    def record(self, event: PodEvent | ContainerEvent) -> None:
        """It keeps no account."""


@contextlib.contextmanager
def rival(containerd: Containerd, index: str, answer: CpuAnswer) -> Iterator[Rival]:
    """It is connected."""
    events: list[NriEvent] = []
    made = Rival(answer)
    plugin = NriPlugin(connect_to(containerd.nri_socket), delivering(events.append), name="rival", index=index,
                       decider=made)
    plugin.start()
    try:
        wait(lambda: any(isinstance(event, Synced) for event in events), lambda: f"not connected: {events}")
        yield made
    finally:
        made.release()
        plugin.stop(PATIENCE)
