"""Changed annotations of pods that run, as the reporter hands them over: for which containers, when, and what follows.

They are text of the pods' authors, by way of a process without rights on the node. So they decide nothing but what
annotations decide at a container's creation: names, namespace, size and QoS class are the ledger's, and pods are found
by the uid that the runtime has for them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vmpin.domain.model import ContainerId
from vmpin.domain.runtime_call import RequestedContainer
from vmpin.domain.topology import Topology
from vmpin.features.allocator.grants.admission import about, refused
from vmpin.features.allocator.grants.allocation_options import AllocationOptions
from vmpin.features.allocator.grants.answer import Answer
from vmpin.features.allocator.grants.eligibility import as_required, ruling
from vmpin.features.allocator.grants.ledger import Grant, GrantState, Ledger
from vmpin.features.allocator.grants.live_change import with_wish
from vmpin.features.allocator.grants.refusal import Refusal, RefusalKind
from vmpin.features.allocator.texts.annotations import AskedCpus, asked
from vmpin.features.allocator.texts.asking_annotations import asking_digest
from vmpin.features.allocator.texts.wish_values import AnnotationError

#: Seconds between two decisions on one container, at the least. What is handed over meanwhile is replaced by what is
#: handed over later.
PAUSE = 10.0
_REFUSED = "a changed annotation: the container stays as it is"


def changed_containers(ledger: Ledger, handed: Mapping[str, Mapping[str, str]]) -> list[ContainerId]:
    """The running containers whose annotations are others than those that were decided on last.
    :param handed: the annotations of pods, by uid; a pod that is not there has those that it had."""
    return [grant.container for grant in ledger.grants.values()
            if grant.state is GrantState.RUNNING and grant.pod_uid and grant.pod_uid in handed
            and asking_digest(handed[grant.pod_uid], grant.name) != grant.annotated]


def next_change(changed: Iterable[ContainerId], decided: Mapping[ContainerId, float],
                now: float) -> tuple[ContainerId, float] | None:
    """The container that is decided on next, and in how many seconds: of several the one whose last decision is the
    oldest, so that none is kept waiting by others. :param decided: when containers were decided on last."""
    never = float("-inf")
    first = min(changed, key=lambda container: (decided.get(container, never), container), default=None)
    return None if first is None else (first, max(0.0, decided.get(first, never) + PAUSE - now))


def follow_annotations(machine: Topology, ledger: Ledger, container: ContainerId, annotations: Mapping[str, str],
                       options: AllocationOptions, time_ns: int) -> Answer:
    """Decide on a container's changed annotations, as at its creation. Whatever comes of it, the ledger of the answer
    has their digest, so that the same text is decided on once; a refusal leaves all else as it is. Without annotations
    the container gets what `allocate.default` sets."""
    grant = ledger.grants.get(container)
    if grant is None or grant.state is not GrantState.RUNNING:
        return Answer(ledger)
    digest = asking_digest(annotations, grant.name)
    if digest == grant.annotated:
        return Answer(ledger)
    grant = grant._replace(annotated=digest)
    ledger = ledger.with_grants(grant)
    answer = _answer(machine, ledger, grant, annotations, options)
    if isinstance(answer, Answer):
        return answer
    request = RequestedContainer(grant.container, grant.sandbox, grant.name, grant.namespace, grant.pod,
                                 time_ns=time_ns)
    return refused(ledger, request, answer._replace(reason=f"{answer.reason} ({_REFUSED})"))


def _answer(machine: Topology, ledger: Ledger, grant: Grant, annotations: Mapping[str, str],
            options: AllocationOptions) -> Answer | Refusal:
    try:
        found = as_required(asked(annotations, grant.name, options.honour), options)
    except AnnotationError as err:
        return Refusal(RefusalKind.REQUEST, str(err))
    if grant.left_alone:
        return Refusal(RefusalKind.REQUEST, f"{about(grant)} has a cpuset that vmpin does not set")
    if found.left_alone:
        return Refusal(RefusalKind.REQUEST, "a cpuset can be left alone from a container's creation on")
    answer = _decided(machine, ledger, grant, found, options)
    if isinstance(answer, Refusal) and found.second is not None:
        answer = _decided(machine, ledger, grant, found._replace(wish=found.second), options)
    if isinstance(answer, Refusal):
        return answer
    return answer._replace(notes=(*(f"{note}: its annotations were changed" for note in answer.notes),
                                  *(f"{about(grant)}: {note}" for note in found.notes)))


def _decided(machine: Topology, ledger: Ledger, grant: Grant, found: AskedCpus,
             options: AllocationOptions) -> Answer | Refusal:
    ruled = ruling(machine, found, grant.namespace, grant.guaranteed, grant.amount, options)
    if isinstance(ruled, Refusal):
        return ruled
    if ruled.note and found.wish.policy is not None:
        # A peer's key, in vain: what runs is not moved for it.
        return Refusal(RefusalKind.REQUEST, ruled.note)
    if (found.wish, ruled.policy, ruled.group) == (grant.wish, grant.policy, grant.group):
        return Answer(ledger)
    return with_wish(machine, ledger, grant, found.wish, ruled, options)
