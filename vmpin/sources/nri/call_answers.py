"""The calls of the runtime's whose answers may give containers CPUs, and the allocator that decides on them.

Fail-open: what the allocator raises is logged, and the call answered as without one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from vmpin.domain.runtime_call import Adjustment, Listed, RequestedContainer, SideUpdate, VmSize
from vmpin.sources.nri.container_requests import adjustment_of, requested, updates_of
from vmpin.sources.nri.nri_events import ContainerEvent, NriContainer, NriPod, PodEvent
from vmpin.wire.nri_enums import Verb
from vmpin.wire.nri_messages import MESSAGES

logger = logging.getLogger(__name__)

#: The calls, with their answers.
DECIDED = {Verb.CREATE: "CreateContainerResponse", Verb.UPDATE: "UpdateContainerResponse",
           Verb.STOP: "StopContainerResponse"}


class CpuAnswer(NamedTuple):
    """What an answer is to have; all of it empty: the runtime goes on as without an allocator."""

    adjustment: Adjustment | None = None
    updates: Sequence[SideUpdate] = ()
    refusal: str = ""


class CpuDecisions(Protocol):
    """Decides on the runtime's calls. Called in the plugin's thread: the runtime holds every container meanwhile, so
    nothing here may wait for anything."""

    def vcpus_of(self, pod: NriPod) -> VmSize:
        """Whether a pod is a VM, and of which size."""

    def asked(self, verb: Verb, container: RequestedContainer) -> CpuAnswer:
        """Decide on CREATE, UPDATE or STOP."""

    def listed(self, listed: Listed) -> CpuAnswer:
        """Take in the runtime's list, which begins a connection."""

    def happened(self, event: PodEvent | ContainerEvent) -> None:
        """Take in an event whose answer can carry nothing."""


class CallAnswers:
    """Answers the calls of one connection."""

    def __init__(self, decisions: CpuDecisions) -> None:
        self._decisions = decisions

    def answer(self, verb: Verb, message: Any, pod: NriPod | None,
               container: NriContainer | None) -> tuple[CpuAnswer, Any]:
        """Decide on a call. :param message: an UpdateContainerRequest.
        :returns: the decision, and the answer's message; None for an empty answer."""
        answer = CpuAnswer()
        if container is None:
            return answer, None
        try:
            vm = VmSize() if pod is None else self._decisions.vcpus_of(pod)
            wanted = message.linux_resources if verb is Verb.UPDATE else None
            answer = self._decisions.asked(verb, requested(container, message.container, pod, vm, wanted))
            if answer.adjustment is None and not answer.updates:
                return answer, None
            made = MESSAGES[DECIDED[verb]](update=updates_of(answer.updates))
            if verb is Verb.CREATE and answer.adjustment is not None:
                made.adjust.CopyFrom(adjustment_of(answer.adjustment))
            return answer, made
        except Exception:  # whatever it is, the container is created all the same
            logger.exception("NRI: the allocator failed container=%s: its CPUs are left as they are", container.id)
            return CpuAnswer(), None

    def listed(self, pods: Iterable[NriPod], listed: Iterable[tuple[NriContainer, Any]]) -> Sequence[SideUpdate]:
        """The updates for the answer to a list. :param listed: containers, each with its message."""
        by_id = {pod.id: pod for pod in pods}
        try:
            vms = {pod.id: self._decisions.vcpus_of(pod) for pod in by_id.values()}
            found = [requested(container, message, by_id.get(container.pod), vms.get(container.pod, VmSize()))
                     for container, message in listed]
            return self._decisions.listed(Listed(frozenset(by_id), tuple(found))).updates
        except Exception:
            logger.exception("NRI: the allocator failed at the runtime's list; containers keep their CPUs")
            return ()

    def take(self, event: PodEvent | ContainerEvent) -> None:
        """Have the allocator take in an event, unless it has decided on that."""
        if event.verb in DECIDED:
            return
        try:
            self._decisions.happened(event)
        except Exception:
            logger.exception("NRI: the allocator failed at %s; the runtime's next list corrects it", event.verb.name)
