"""Rivals: two that decide on the same CPUs at once. Either two authorities list owners and disagree, or the cpusets of
the node's containers contradict an authority, so that another program writes them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations

from vmpin.authorities.observed_authority import counted, pod_cpus, shared_cpus
from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.assignments import Assignments, AuthorityRival, Owner, Rank, Ruling, Rulings
from vmpin.domain.desired_state import SandboxState
from vmpin.domain.model import Container, SandboxId, uid_of


def rivals(listing: Sequence[Ruling], rulings: Rulings, sandboxes: Collection[SandboxState],
           online: CpuSet) -> list[AuthorityRival]:
    """The rivals on a node. Those of cpusets are normal for a moment: the kubelet rewrites cpusets up to its reconcile
    period after it has assigned a CPU.
    :param listing: every authority that lists owners, also those that a stronger one keeps from ruling."""
    by_lists = [rival for first, second in combinations(listing, 2) for rival in _by_lists(first, second, sandboxes)]
    # A container without a cpuset contradicts nothing: of one in a VM none may be known.
    pods = [sandbox._replace(containers={record.container.id: record for record in counted(sandbox)
                                         if record.container.cpuset}) for sandbox in sandboxes]
    cpusets = _Cpusets(rulings, pods, online)
    return [*by_lists, *cpusets.with_owners(), *cpusets.with_pool()]


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
            to_others = "to " + " and ".join(other.text for other in others) if others else "to all as shared CPUs"
            yield AuthorityRival((first.authority, second.authority), contested,
                        tuple(dict.fromkeys((names.sandbox, *(other.sandbox for other in others)))),
                        f"CPUs {contested} are given to {names.text} by {second.authority}, and {to_others} by "
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


class _Cpusets:
    """The cpusets of the node's pods, compared with the rulings."""

    def __init__(self, rulings: Rulings, pods: Sequence[SandboxState], online: CpuSet) -> None:
        self._rulings, self._online = rulings, online
        self._containers = [(pod, record.container) for pod in pods for record in pod.containers.values()]
        used = [pod_cpus(pod, online) for pod in pods]
        self._shared = shared_cpus(used)
        self._alone = {container: cpus - self._shared for pod in used for container, cpus in pod.cpusets}

    def with_owners(self) -> Iterator[AuthorityRival]:
        """The contradictions to the CPUs of owners."""
        for pod, container in self._containers:
            ruling, given = self._rulings.deciding(uid_of(pod.pod), container)
            if ruling is None or not given or ruling.authority == Rank.OBSERVED.label:
                continue
            own, by = given & self._online, (ruling.authority, Rank.OBSERVED.label)
            to = f"are given to {_name(pod, container)} by {ruling.authority}, and another program"
            if missing := own - (container.cpuset or EMPTY):
                yield AuthorityRival(by, missing, (pod.id,), f"CPUs {own} {to} has set its cpuset to "
                                                             f"{container.cpuset}")
            for other, user in self._containers if not own.isdisjoint(self._shared) else ():
                listed = ruling.assignments.cpus_of(uid_of(other.pod), user)  # a claim may be several pods'
                used = (own & (user.cpuset or EMPTY)) - (listed or EMPTY)
                if used and uid_of(other.pod) != uid_of(pod.pod):
                    yield AuthorityRival(by, used, (pod.id, other.id),
                                         f"CPUs {used} {to} lets {_name(other, user)} use them")

    def with_pool(self) -> Iterator[AuthorityRival]:
        """CPUs of an authority's shared pool that a container without CPUs of its own has to itself, beside other
        pods. Not of a container with the whole pool, as it is given to all: the others may be system pods on reserved
        CPUs (CRI-O's workloads). Not by DRA: its driver does not widen the cpusets of running containers when it
        releases a claim."""
        pooled = next((ruling for ruling in self._rulings.by_rank if ruling.assignments.pool is not None), None)
        if pooled is None or pooled.authority == Rank.DRA.label:
            return
        sharing = [(pod, container) for pod, container in self._containers if container.id in self._alone
                   and not self._rulings.deciding(uid_of(pod.pod), container)[1]]
        pool = (pooled.assignments.pool or EMPTY) & self._online
        for pod, container in sharing if len({pod.id for pod, _ in sharing}) > 1 else ():
            cpus = self._alone[container.id] & pool
            if cpus and not pool <= (container.cpuset or EMPTY):
                yield AuthorityRival((pooled.authority, Rank.OBSERVED.label), cpus, (pod.id,),
                                     f"CPUs {cpus} are shared by {pooled.authority}, and another program gives them "
                                     f"to {_name(pod, container)} alone")


def _name(pod: SandboxState, container: Container) -> str:
    return f"{container.name or container.id} of {pod.id}"
