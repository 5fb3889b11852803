"""The CPUs that the kubelet's CPU manager assigned to containers, and whether the other sources agree.

Pure. The kubelet decides which container owns a CPU; which CPUs a container really has is reported by its runtime and
its cgroup. The static policy writes its checkpoint first (at admission), and the cpusets of running containers up to
its reconcile period later (pkg/kubelet/cm/cpumanager: cpuManagerReconcilePeriod, 10 s).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.desired_state import ContainerRecord, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.granted_cpus import GrantedCpus
from vmpin.domain.model import Container, ContainerId, Pod
from vmpin.domain.terminal import printable

_COMPARED = 8  #: How many of its fields are compared.


class _Contents(NamedTuple):
    """The fields of a checkpoint."""

    policy: str  #: `static` or `none`, kubelets' own names; anything printable else.
    #: The shared pool. Empty for policy none, and in the moment before the static policy has written its first.
    default: CpuSet
    #: Exclusive CPUs by (pod uid, container name).
    entries: Mapping[tuple[str, str], CpuSet] = MappingProxyType({})
    #: By pod uid, of pods that have CPUs as a whole (V3, V4); the exclusive ones of their containers are among them.
    pods: Mapping[str, CpuSet] = MappingProxyType({})
    #: Exclusive CPUs by container id (V1).
    by_id: Mapping[str, CpuSet] = MappingProxyType({})
    version: int = 2
    checksum_ok: bool | None = None  #: None where there is none to check: kubelets that leave it out write 0.
    trouble: str = ""  #: What is wrong with it, "" for nothing. It is used all the same.
    #: By container, when its entry got these CPUs: the CLOCK_BOOTTIME ns at which the file was written that had them
    #: first. Not compared: a file with the same contents changes nothing.
    since: Mapping[tuple[str, str], int] = MappingProxyType({})
    #: When the file was written that had these contents first: its modification time (CLOCK_REALTIME ns), 0 where it
    #: could not be read.
    written: int = 0


class CpuManagerState(_Contents):
    """The contents of a checkpoint of the kubelet's CPU manager. None of the CPU sets in the mappings is empty. Two
    containers of one pod may have the same CPUs: the static policy hands an init container's on to the next."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CpuManagerState) and self[:_COMPARED] == other[:_COMPARED]

    def __ne__(self, other: object) -> bool:
        return not self == other

    @property
    def static(self) -> bool:
        """Whether the kubelet assigns exclusive CPUs at all."""
        return self.policy == "static"

    @cached_property
    def exclusive(self) -> CpuSet:
        """All CPUs that the kubelet has given to a container or a pod alone."""
        return union([*self.by_pod.values(), *self.by_id.values()])

    @cached_property
    def by_pod(self) -> Mapping[str, CpuSet]:
        """The CPUs that a pod and its containers have alone, by pod uid; a V1 checkpoint has no uids."""
        cpus = dict(self.pods)
        for (uid, _), more in self.entries.items():
            cpus[uid] = cpus.get(uid, EMPTY) | more
        return cpus

    def exclusive_of_others(self, sandbox: SandboxState) -> CpuSet:
        """The CPUs that pods other than a sandbox's own have alone."""
        own = EMPTY if sandbox.pod is None else self.by_pod.get(sandbox.pod.uid, EMPTY)
        if self.by_id:
            own |= union(cpus for container, cpus in self.by_id.items() if container in sandbox.containers)
        return self.exclusive - own

    def exclusive_of(self, pod_uid: str, container: str, container_id: str = "") -> CpuSet | None:
        """The CPUs that a container has for itself, None when it has none."""
        return self.entries.get((pod_uid, container)) or self.by_id.get(container_id)

    def dated(self, written: int, before: CpuManagerState | None) -> CpuManagerState:
        """Fill in `since`, for a file written at `written` (CLOCK_BOOTTIME ns) that followed `before`."""
        old, since = ({}, {}) if before is None else (before.entries, before.since)
        return self._replace(since={key: since.get(key, written) if old.get(key) == cpus else written
                                    for key, cpus in self.entries.items()})


def assigned_cpus(kubelet: CpuManagerState | None, pod: Pod | None, container: Container) -> CpuSet | None:
    """The exclusive CPUs that the kubelet's static policy assigned to a container, None for none."""
    if kubelet is None or not kubelet.static:
        return None
    return kubelet.exclusive_of("" if pod is None else pod.uid, container.name, container.id)


def effective_containers(sandbox: SandboxState, kubelet: CpuManagerState | None,
                         granted: GrantedCpus | None = None) -> tuple[Container, ...]:
    """The live containers of a sandbox, with the CPUs and the ownership that the kubelet's static checkpoint gives
    them, else the allocator's ledger; without either as their sources reported them. A container that the checkpoint
    lists owns the listed CPUs; what its cpuset has beyond them it shares (`spare`). Where its cpuset was reported
    later than that entry was written, and has only some of them, it owns those. A container that the checkpoint does
    not list owns nothing, whatever an annotation: it shares its cpuset. Either loses the CPUs that are another pod's
    alone; where nothing is left of a shared cpuset, it shares the pool."""
    live = sandbox.live()
    if kubelet is None or not kubelet.static:
        return live if granted is None else granted.apply(live)
    others = kubelet.exclusive_of_others(sandbox)
    return tuple(_listed(sandbox, container, kubelet, cpus, others)
                 if (cpus := assigned_cpus(kubelet, sandbox.pod, container)) else _unlisted(container, others)
                 for container in live)


def _listed(sandbox: SandboxState, container: Container, kubelet: CpuManagerState, cpus: CpuSet,
            others: CpuSet) -> Container:
    """A container with an entry. A cpuset that lacks some of its CPUs is stale, unless it is newer than the entry.
    :param others: other pods' exclusive CPUs."""
    has = container.cpuset or EMPTY
    both, spare = has & cpus, has - cpus - others
    stale = has if has and (not has >= cpus or has & others) else None
    if both and both != cpus:
        uid = "" if sandbox.pod is None else sandbox.pod.uid
        record = sandbox.containers[container.id]
        report = record.reports.get(record.source)
        if report is not None and report.time >= kubelet.since.get((uid, container.name), 0):
            cpus, stale = both, has if has & others else None
    return container._replace(exclusive=True, cpuset=cpus | spare, spare=spare, stale_cpuset=stale)


def _unlisted(container: Container, others: CpuSet) -> Container:
    """A container without an entry: it shares. A cpuset with other pods' exclusive CPUs is stale.
    :param others: those CPUs."""
    has, requested = container.cpuset, container.requested_cpuset
    shared, coming = has and has - others, requested and requested - others
    if container.pause or (shared, coming) == (has, requested):
        return container if container.exclusive is False else container._replace(exclusive=False)
    return container._replace(exclusive=False, cpuset=shared or None, requested_cpuset=coming,
                              stale_cpuset=None if shared == has else has)


def unreported_assignments(state: DesiredState, kubelet: CpuManagerState | None) -> dict[tuple[str, str], CpuSet]:
    """CPUs that the kubelet assigned to a container that no source reports as live, by pod uid and container's name:
    it is yet to be created or started again, or is a runc pod's where there is no NRI. The name is "" for CPUs of a
    pod as a whole that none of its containers is listed with, and in a V1 checkpoint, where the container's id stands
    in the place of the pod's uid. CPUs that a live container of the same pod owns are left out: an init container's
    are handed on."""
    if kubelet is None or not kubelet.static or not (kubelet.entries or kubelet.pods or kubelet.by_id):
        return {}
    listed = dict.fromkeys(kubelet.pods, EMPTY)
    for (uid, _), cpus in kubelet.entries.items():
        listed[uid] = listed.get(uid, EMPTY) | cpus
    taken: dict[str, CpuSet] = {}
    live = {container.id for sandbox in (state.sandboxes.values() if kubelet.by_id else ())
            for container in sandbox.live()}
    for sandbox in state.sandboxes.values():
        uid = sandbox.pod.uid if sandbox.pod is not None else ""
        for container in effective_containers(sandbox, kubelet) if uid in listed else ():
            if container.cpuset and container.exclusive:
                taken[uid] = taken.get(uid, EMPTY) | container.own_cpus
    left = {key: cpus - taken.get(key[0], EMPTY) for key, cpus in kubelet.entries.items()}
    left |= {(uid, ""): cpus - taken.get(uid, EMPTY) - listed[uid] for uid, cpus in kubelet.pods.items()}
    left |= {(container, ""): cpus for container, cpus in kubelet.by_id.items() if container not in live}
    return {key: cpus for key, cpus in left.items() if cpus}


def orphaned(kubelet: CpuManagerState) -> str:
    """Describe a checkpoint that no kubelet keeps: it lists pods until one runs again, also those that are gone."""
    from datetime import UTC, datetime  # 2 ms of every command's start, for a rare sentence

    try:
        when = f", written {datetime.fromtimestamp(kubelet.written / 1e9, UTC):%Y-%m-%dT%H:%M:%SZ},"
    except (OverflowError, ValueError, OSError):
        when = ""  # any time can be given to a file
    return f"no kubelet runs, and the checkpoint{when if kubelet.written else ''} may be out of date"


class UnknownOwner(NamedTuple):
    """A pod and its exclusive CPUs. `here`: the kubelet has the pod's directory on this node. `doubt`: why the
    checkpoint may be out of date, "" where a kubelet keeps it."""

    pod: str
    cpus: CpuSet
    here: bool
    doubt: str = ""

    @property
    def where(self) -> str:
        """Describe where the pod is, and the doubt."""
        where = "that pod is on this node" if self.here else "that pod is not on this node"
        return f"{where}; {self.doubt}" if self.doubt else where

    @property
    def what(self) -> str:
        """Describe the finding."""
        noun = "CPU" if len(self.cpus) == 1 else "CPUs"
        giver = "the kubelet's checkpoint" if self.doubt else "the kubelet"
        return (f"{giver} gives {noun} {self.cpus} to pod {printable(self.pod)}, of which no container is known "
                f"({self.where})")


def unknown_pods(state: DesiredState, kubelet: CpuManagerState | None) -> dict[str, CpuSet]:
    """The pods that a static checkpoint gives CPUs and that no source has reported, by uid. One whose sandbox is known
    is none: its containers are yet to be created, or to be started again."""
    if kubelet is None or not kubelet.static:
        return {}
    known = {sandbox.pod.uid for sandbox in state.sandboxes.values() if sandbox.pod is not None}
    return {uid: cpus for uid, cpus in kubelet.by_pod.items() if uid not in known}


def compare_with_pod_resources(kubelet: CpuManagerState,
                               resources: Mapping[tuple[str, str, str], CpuSet] | None) -> str:
    """Compare PodResources with the exclusive CPUs of a checkpoint that is gone; return a text for status and log.
    :param resources: as for `disagreements`; None where it does not answer."""
    if resources is None:
        return "PodResources does not answer"
    listed = union(resources.values())
    found = [f"lists CPUs {listed - kubelet.exclusive}, which it does not have"] * bool(listed - kubelet.exclusive)
    lacks = union([*kubelet.entries.values(), *kubelet.by_id.values()]) - listed
    found += [f"does not list its CPUs {lacks}"] * bool(lacks)
    return f"PodResources {' and '.join(found)}" if found else "PodResources lists the same CPUs"


def disagreements(sandbox: SandboxState, kubelet: CpuManagerState | None, resources: Mapping[tuple[str, str, str],
                  CpuSet] | None, online: CpuSet, nri: bool = True) -> dict[ContainerId, str]:
    """The containers for which the sources report different CPUs, with what each reports. For a moment that is normal:
    an update reaches one source before the other.
    :param resources: exclusive CPUs by namespace, pod and container (PodResources); None where it was not read.
    :param nri: False until the runtime has listed its containers: NRI's reports are older than that then, as after a
        restart from the state file, and are left out."""
    others = EMPTY if kubelet is None or not kubelet.static else kubelet.exclusive_of_others(sandbox)
    found = {}
    for record in sandbox.containers.values():
        if record.container in sandbox.live() and not record.container.pause:
            reported = list(_reported(record, nri))
            owned = list(_owned(sandbox.pod, record, kubelet, resources))
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


def _owned(pod: Pod | None, record: ContainerRecord, kubelet: CpuManagerState | None,
           resources: Mapping[tuple[str, str, str], CpuSet] | None) -> Iterator[tuple[str, CpuSet]]:
    """Each source of exclusive CPUs with those that it lists for a container."""
    cpus = assigned_cpus(kubelet, pod, record.container)
    if cpus is not None:
        yield "kubelet", cpus
    if resources is not None and pod is not None:
        listed = resources.get((pod.namespace, pod.name, record.container.name))
        # PodResources lists none for a shared container, which does not mean that it may use none.
        if listed:
            yield "podresources", listed
