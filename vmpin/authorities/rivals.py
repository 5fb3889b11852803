"""Rivals: two that decide on the same CPUs at once. Either two authorities list owners and disagree, or the cpusets of
the node's containers contradict an authority, so that another program writes them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from vmpin.authorities.observed_authority import counted, pod_cpus, shared_cpus
from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.assignments import Assignments, AuthorityRival, Owner, Rank, Ruling, Rulings
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.model import Container, ContainerId, SandboxId, uid_of


def rivals(listing: Sequence[Ruling], rulings: Rulings, sandboxes: Collection[SandboxState],
           online: CpuSet) -> list[AuthorityRival]:
    """The rivals on a node. Those of cpusets are normal for a moment: the kubelet rewrites cpusets up to its reconcile
    period after it has assigned a CPU.
    :param listing: every authority that lists owners, also those that a stronger one keeps from ruling."""
    by_lists = [rival for first, second in combinations(listing, 2) for rival in _by_lists(first, second, sandboxes)]
    # A container without a cpuset contradicts nothing: of one in a VM none may be known.
    pods = [sandbox._replace(containers={record.container.id: record for record in counted(sandbox)
                                         if record.container.cpuset}) for sandbox in sandboxes]
    return [*by_lists, *_by_cpusets(rulings, pods, online)]


def _by_lists(first: Ruling, second: Ruling, sandboxes: Collection[SandboxState]) -> Iterator[AuthorityRival]:
    """The CPUs that the second authority gives an owner, and the first one another or, if it is complete, none."""
    for owner, given in second.assignments.exclusive.items():
        names = _OwningPod(owner, sandboxes)
        contested = given - names.cpus_by(first.assignments)
        if not first.assignments.complete:
            contested &= first.assignments.owned
        if contested:
            others = [_OwningPod(other, sandboxes) for other, cpus in first.assignments.exclusive.items()
                      if not cpus.isdisjoint(contested)]
            theirs = "to " + " and ".join(other.text for other in others) if others else "to all as shared CPUs"
            yield AuthorityRival((first.authority, second.authority), contested,
                        tuple(dict.fromkeys((names.sandbox, *(other.sandbox for other in others)))),
                        f"CPUs {contested} are given to {names.text} by {second.authority}, and {theirs} by "
                        f"{first.authority}, which counts")


class _OwningPod:
    """The pod of an owner of CPUs."""

    def __init__(self, owner: Owner, sandboxes: Iterable[SandboxState]) -> None:
        uid, name = owner
        self._pod = next((sandbox for sandbox in sandboxes if (
            uid_of(sandbox.pod) == uid if uid else name in sandbox.containers)), None)
        self.uid = uid or uid_of(self._pod.pod if self._pod else None)
        self.sandbox = SandboxId(uid or name) if self._pod is None else self._pod.id
        self.text = f"{name} of {self.sandbox}" if name else f"pod {self.sandbox}"

    def cpus_by(self, assignments: Assignments) -> CpuSet:
        """The CPUs that an authority gives the pod."""
        ids = () if self._pod is None else self._pod.containers
        return assignments.by_pod.get(self.uid, EMPTY) | union(
            cpus for container, cpus in assignments.by_id.items() if container in ids)


def _by_cpusets(rulings: Rulings, pods: Sequence[SandboxState], online: CpuSet) -> Iterator[AuthorityRival]:
    """Contradictions of cpusets to the CPUs of owners, and to the shared pool."""
    used = [pod_cpus(sandbox, online) for sandbox in pods]
    shared, unlisted = shared_cpus(used), set[SandboxId]()
    alone = {container: cpus - shared for pod in used for container, cpus in pod.cpusets}
    for sandbox in pods:
        for record in sandbox.containers.values():
            ruling, own = rulings.deciding(uid_of(sandbox.pod), record.container)
            if ruling is not None and ruling.authority == Rank.OBSERVED.label:
                continue
            if ruling is not None and own:
                yield from _of_owner(ruling.authority, sandbox, record.container, own & online, shared, pods)
            elif record.container.id in alone:
                unlisted.add(sandbox.id)
    yield from _in_pool(rulings, pods, unlisted, alone)


def _of_owner(authority: str, sandbox: SandboxState, container: Container, own: CpuSet, shared: CpuSet,
              pods: Sequence[SandboxState]) -> Iterator[AuthorityRival]:
    """The contradictions to a container's own CPUs."""
    name = f"{container.name or container.id} of {sandbox.id}"
    missing = own - (container.cpuset or EMPTY)
    if missing:
        yield AuthorityRival((authority, Rank.OBSERVED.label), missing, (sandbox.id,),
                    f"CPUs {own} are given to {name} by {authority}, and another program has set its cpuset to "
                    f"{container.cpuset}")
    for other in pods if not own.isdisjoint(shared) else ():
        for record in other.containers.values() if uid_of(other.pod) != uid_of(sandbox.pod) else ():
            both = own & (record.container.cpuset or EMPTY)
            if both:
                yield AuthorityRival((authority, Rank.OBSERVED.label), both, (sandbox.id, other.id),
                            f"CPUs {both} are given to {name} by {authority}, and another program lets "
                            f"{record.container.name or record.container.id} of {other.id} use them")


def _in_pool(rulings: Rulings, pods: Sequence[SandboxState], unlisted: Collection[SandboxId],
             alone: Mapping[ContainerId, CpuSet]) -> Iterator[AuthorityRival]:
    """CPUs of an authority's shared pool that a container without CPUs of its own has to itself, beside other pods.
    Not by DRA: its driver does not widen the cpusets of running containers when it releases a claim."""
    pooled = next((ruling for ruling in rulings.by_rank if ruling.assignments.pool is not None), None)
    if pooled is None or pooled.authority == Rank.DRA.label or len(unlisted) < 2:
        return
    for sandbox in pods:
        for record in sandbox.containers.values() if sandbox.id in unlisted else ():
            cpus = alone.get(record.container.id, EMPTY) & (pooled.assignments.pool or EMPTY)
            if cpus and rulings.deciding(uid_of(sandbox.pod), record.container)[1] == EMPTY:
                yield AuthorityRival((pooled.authority, Rank.OBSERVED.label), cpus, (sandbox.id,),
                            f"CPUs {cpus} are shared by {pooled.authority}, and another program gives them to "
                            f"{record.container.name or record.container.id} of {sandbox.id} alone")
