"""The decider: the value that the plugin is handed to decide which CPUs a container gets. Without one, every answer is
empty and the runtime's own CPUs stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from vmpin.domain.runtime_call import Adjustment, Listed, RequestedContainer, SideUpdate
from vmpin.sources.nri.nri_events import ContainerEvent, NriPod, PodEvent
from vmpin.wire.nri_enums import Verb


class CpuAnswer(NamedTuple):
    """What an answer is to have; all of it empty: the runtime goes on as without a decider. `refusal` is the error
    that the call fails with; "" for none."""

    adjustment: Adjustment | None = None
    updates: Sequence[SideUpdate] = ()
    refusal: str = ""


class CpuDecider(Protocol):
    """Decides on the runtime's calls. Called in the plugin's thread: the runtime holds every container meanwhile, so
    nothing here may wait for anything. An exception is logged, and the call answered as without a decider."""

    def decide(self, verb: Verb, container: RequestedContainer, pod: NriPod | None) -> CpuAnswer:
        """Decide on CREATE, UPDATE or STOP. :param pod: None where the call has none."""

    def synchronize(self, listed: Listed, pods: Sequence[NriPod]) -> CpuAnswer:
        """Take in the runtime's list, which begins a connection. Only `CpuAnswer.updates` can be sent."""

    def record(self, event: PodEvent | ContainerEvent) -> None:
        """Take in a call whose answer can carry nothing: every one but those of `decide`."""
