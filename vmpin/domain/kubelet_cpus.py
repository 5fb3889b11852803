"""The CPUs that the kubelet's CPU manager assigned to containers, as in its checkpoint.

Pure. authorities.kubelet_authority derives assignments from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.domain.desired_state import DesiredState
from vmpin.domain.terminal import printable
from vmpin.named_tuple import NamedTuple

_COMPARED = 7  #: How many of its fields are compared.


class CpuManagerState(NamedTuple):
    """The contents of a checkpoint of the kubelet's CPU manager. The CPU sets in the mappings are never empty.
    Containers of one pod may have the same CPUs: the static policy reuses an init container's CPUs."""

    policy: str  #: `static` or `none` with upstream's kubelet; any printable text with others.
    #: The shared pool. EMPTY for policy none, and until the static policy has written its first checkpoint.
    default: CpuSet
    #: Exclusive CPUs by (pod uid, container name).
    entries: Mapping[tuple[str, str], CpuSet] = MappingProxyType({})
    #: CPUs of whole pods by pod uid (V3, V4), including the exclusive CPUs of their containers.
    pods: Mapping[str, CpuSet] = MappingProxyType({})
    version: int = 2
    checksum_ok: bool | None = None  #: None if there is no checksum (written as 0).
    trouble: str = ""  #: Errors in the checkpoint, which is used nevertheless; "" for none.
    #: When each container got its CPUs: when the first file with them was written (CLOCK_BOOTTIME ns). Not compared.
    since: Mapping[tuple[str, str], int] = MappingProxyType({})
    #: When the first file with these contents was written: its mtime (CLOCK_REALTIME ns), 0 if unknown. Not compared.
    written: int = 0
    #: Reserved CPUs that it lists for system pods, which own them not (runtime.kubelet). Not compared.
    reserved: frozenset[CpuSet] = frozenset()

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
        """All exclusive CPUs."""
        return union(self.by_pod.values())

    @cached_property
    def by_pod(self) -> Mapping[str, CpuSet]:
        """The exclusive CPUs of each pod with its containers, by pod uid."""
        cpus = dict(self.pods)
        for (uid, _), more in self.entries.items():
            cpus[uid] = cpus.get(uid, EMPTY) | more
        return cpus

    def dated(self, written: int, before: CpuManagerState | None) -> CpuManagerState:
        """Return a copy with `since` filled in.
        :param written: when the file was written (CLOCK_BOOTTIME, ns). :param before: the previous checkpoint."""
        old, since = ({}, {}) if before is None else (before.entries, before.since)
        return self._replace(since={key: since.get(key, written) if old.get(key) == cpus else written
                                    for key, cpus in self.entries.items()})


def orphaned(kubelet: CpuManagerState, why: str = "no kubelet runs") -> str:
    """Describe a checkpoint that no kubelet updates: it may list pods that no longer exist."""
    from datetime import UTC, datetime  # not at the top: it takes 2 ms of every command's start

    try:
        when = f", written {datetime.fromtimestamp(kubelet.written / 1e9, UTC):%Y-%m-%dT%H:%M:%SZ},"
    except (OverflowError, ValueError, OSError):
        when = ""  # a file can have any mtime
    return f"{why}, and the checkpoint{when if kubelet.written else ''} may be out of date"


class UnknownOwner(NamedTuple):
    """A pod with exclusive CPUs but without known containers. `here`: whether the kubelet has a directory for the pod.
    `doubt`: why the checkpoint may be out of date; "" if a kubelet keeps it up to date."""

    pod: str
    cpus: CpuSet
    here: bool
    doubt: str = ""

    @property
    def where(self) -> str:
        """Where the pod is, and the doubt, for a sentence."""
        where = "that pod is on this node" if self.here else "that pod is not on this node"
        return f"{where}; {self.doubt}" if self.doubt else where

    @property
    def text(self) -> str:
        """A sentence on the finding."""
        noun = "CPU" if len(self.cpus) == 1 else "CPUs"
        giver = "the kubelet's checkpoint" if self.doubt else "the kubelet"
        return (f"{giver} gives {noun} {self.cpus} to pod {printable(self.pod)}, of which no container is known "
                f"({self.where})")


def unknown_pods(state: DesiredState, kubelet: CpuManagerState | None) -> dict[str, CpuSet]:
    """The exclusive CPUs of pods that no source has reported, by uid. A pod with a known sandbox is left out: its
    containers are about to be created or restarted."""
    if kubelet is None or not kubelet.static:
        return {}
    uids = {sandbox.pod.uid for sandbox in state.sandboxes.values() if sandbox.pod is not None}
    return {uid: cpus for uid, cpus in kubelet.by_pod.items() if uid not in uids}


def compare_with_pod_resources(kubelet: CpuManagerState,
                               resources: Mapping[tuple[str, str, str], CpuSet] | None) -> str:
    """Compare PodResources with the exclusive CPUs of a checkpoint whose file is gone, as a text for the status.
    :param resources: exclusive CPUs by namespace, pod and container; None if PodResources does not answer."""
    if resources is None:
        return "PodResources does not answer"
    listed = union(resources.values())
    surplus = listed - kubelet.exclusive
    # PodResources leaves out init containers that have ended (server_v1.go: List); the checkpoint keeps their CPUs.
    names = {name for _, _, name in resources}
    seen = {uid for (uid, _), cpus in kubelet.entries.items() if cpus <= listed}
    missing = union(cpus for (uid, name), cpus in kubelet.entries.items() if uid not in seen or name in names) - listed
    differences = [f"lists CPUs {surplus}, which it does not have"] * bool(surplus)
    differences += [f"does not list its CPUs {missing}"] * bool(missing)
    return f"PodResources {' and '.join(differences)}" if differences else "PodResources lists the same CPUs"
