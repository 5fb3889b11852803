"""NRI's calls, one method for each: from its values to its answer and the events that it reports.

A call is answered whatever happens: what the decider raises is logged, and the answer is then empty.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.domain.runtime_call import Listed, SideUpdate
from vmpin.sources.nri.answer_encoding import encode_answer, encode_list_answer
from vmpin.sources.nri.call_decoding import POD_VERBS, NriCall, NriList
from vmpin.sources.nri.decider import CpuAnswer, CpuDecider
from vmpin.sources.nri.nri_events import ContainerEvent, CpusGiven, NriCounters, NriEvent, NriUpdate, PodEvent, Synced
from vmpin.wire.nri_enums import Verb

logger = logging.getLogger(__name__)


class CallOutcome(NamedTuple):
    """What follows from a call: the payload of its answer, or the error that it fails with, and its events. They are
    queued before the answer is sent."""

    payload: bytes = b""
    refusal: str = ""
    events: tuple[NriEvent, ...] = ()


class NriCalls:
    """The calls of one connection.
    :param updates: CPUs for the answer to the list. :param peer: the pid of the runtime's process, 0 when not known.
    :param decider: asked from the list on."""

    def __init__(self, counters: NriCounters, updates: Mapping[ContainerId, NriUpdate], peer: int,
                 decider: CpuDecider | None) -> None:
        self._counters, self._updates, self._peer, self._decider = counters, updates, peer, decider
        self.listed = False  #: Whether the runtime has listed everything.

    def synchronize(self, everything: NriList, stored: bool) -> CallOutcome:
        """The list of all pods and containers, answered with the CPUs that some are to have.
        :param stored: as `Synced` has it."""
        repairs = {container.id: update.cpus for container in everything.containers
                   if (update := self._updates.get(container.id)) is not None and update.cpus
                   and update.listed in (None, container.cpus)}
        given = {update.container: update.cpus for update in self._list_updates(everything) if update.cpus}
        updates = repairs | given
        payload = encode_list_answer([SideUpdate(*update) for update in updates.items()], more=False)
        self.listed = True
        self._counters.syncs += 1
        logger.debug("nri: SYNCHRONIZE pods=%d containers=%d updates=%d", len(everything.pods),
                     len(everything.containers), len(updates))
        synced = Synced(everything.pods, everything.containers, everything.time_ns, tuple(repairs), self._peer,
                        stored=stored)
        return self._outcome(synced, given, everything.time_ns, payload)

    def run_pod_sandbox(self, call: NriCall) -> CallOutcome:
        return self._report(call)

    def stop_pod_sandbox(self, call: NriCall) -> CallOutcome:
        return self._report(call)

    def remove_pod_sandbox(self, call: NriCall) -> CallOutcome:
        return self._report(call)

    def create_container(self, call: NriCall) -> CallOutcome:
        """Answered with the container's CPUs, and with those that others keep."""
        return self._decide(call)

    def post_create_container(self, call: NriCall) -> CallOutcome:
        return self._report(call)

    def start_container(self, call: NriCall) -> CallOutcome:
        return self._report(call)

    def post_start_container(self, call: NriCall) -> CallOutcome:
        return self._report(call)

    def update_container(self, call: NriCall) -> CallOutcome:
        """Answered with the CPUs that the container is to have in place of those requested, and with others'."""
        return self._decide(call)

    def post_update_container(self, call: NriCall) -> CallOutcome:
        return self._report(call)

    def stop_container(self, call: NriCall) -> CallOutcome:
        """Answered with the CPUs that others get back."""
        return self._decide(call)

    def remove_container(self, call: NriCall) -> CallOutcome:
        return self._report(call)

    def _report(self, call: NriCall) -> CallOutcome:
        """A call whose answer is empty: the decider takes its event in."""
        event = _event_of(call)
        if event is None:
            return CallOutcome()
        logger.debug("nri: %s %s", call.verb.name, call)
        if self._decider is not None and self.listed and call.verb not in DECIDED:
            try:
                self._decider.record(event)
            except Exception:
                logger.exception("NRI: deciding after %s failed %s; the runtime's next list corrects it",
                                 call.verb.name, call)
        return self._outcome(event, {}, call.time_ns)

    def _decide(self, call: NriCall) -> CallOutcome:
        """A call whose answer the decider may fill; what that gives other containers is an event of its own."""
        container = call.container
        if self._decider is None or call.request is None or container is None:
            return self._report(call)
        try:
            answer = self._decider.decide(call.verb, call.request, call.pod)
            payload = encode_answer(call.verb, answer)
        except Exception:  # whatever it is, the container is created all the same
            logger.exception("NRI: deciding on %s failed %s: its CPUs are left as they are", call.verb.name, call)
            answer, payload = CpuAnswer(), b""
        logger.debug("nri: %s %s updates=%d%s", call.verb.name, call, len(answer.updates),
                     f" refused: {answer.refusal}" if answer.refusal else "")
        if answer.refusal:
            return CallOutcome(refusal=answer.refusal)
        given = {update.container: update.cpus for update in answer.updates if update.cpus}
        requested = given.pop(container.id, call.requested)
        if answer.adjustment is not None and answer.adjustment.cpus:
            container = container._replace(cpus=answer.adjustment.cpus)
        event = ContainerEvent(call.verb, call.pod, container, call.time_ns, requested)
        return self._outcome(event, given, call.time_ns, payload)

    def _outcome(self, event: NriEvent, given: Mapping[ContainerId, CpuSet], time_ns: int,
                 payload: bytes = b"") -> CallOutcome:
        """A call's event, and that of what its answer gives other containers."""
        self._counters.events += 1
        return CallOutcome(payload, events=(event, CpusGiven(given, time_ns)) if given else (event,))

    def _list_updates(self, everything: NriList) -> Sequence[SideUpdate]:
        if self._decider is None:
            return ()
        try:
            return self._decider.synchronize(Listed(frozenset(pod.id for pod in everything.pods), everything.requests),
                                             everything.pods).updates
        except Exception:
            logger.exception("NRI: deciding on the runtime's list failed; containers keep their CPUs")
            return ()


def _event_of(call: NriCall) -> PodEvent | ContainerEvent | None:
    """The event of a call; None where what it is about cannot be used."""
    if call.verb in POD_VERBS:
        return None if call.pod is None else PodEvent(call.verb, call.pod, call.time_ns)
    return None if call.container is None else ContainerEvent(
        call.verb, call.pod, call.container, call.time_ns, call.requested)


#: The method of each call about a pod or a container; the other verbs change no container's CPUs.
CALLS: Final[Mapping[Verb, Callable[[NriCalls, NriCall], CallOutcome]]] = {
    Verb.RUN_POD: NriCalls.run_pod_sandbox, Verb.STOP_POD: NriCalls.stop_pod_sandbox,
    Verb.REMOVE_POD: NriCalls.remove_pod_sandbox, Verb.CREATE: NriCalls.create_container,
    Verb.POST_CREATE: NriCalls.post_create_container, Verb.START: NriCalls.start_container,
    Verb.POST_START: NriCalls.post_start_container, Verb.UPDATE: NriCalls.update_container,
    Verb.POST_UPDATE: NriCalls.post_update_container, Verb.STOP: NriCalls.stop_container,
    Verb.REMOVE: NriCalls.remove_container,
}
#: Those whose answer the decider may fill.
DECIDED: Final = frozenset((Verb.CREATE, Verb.UPDATE, Verb.STOP))
