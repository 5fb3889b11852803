"""What the kubelet's CPU manager gave to whom, and whether the sources agree on it.

Pure. The kubelet decides who owns a CPU; what a container really has is told by its runtime and its cgroup. What stays
out: reading the checkpoint (runtime/kubelet), and whose word on a cpuset counts (state.decide).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from vmpin.cpuset import EMPTY, CpuSet, union
from vmpin.events import Source
from vmpin.model import Container, ContainerId, Pod
from vmpin.state import DesiredState, Known, SandboxState


@dataclass(frozen=True)
class CpuManagerState:
    """What a checkpoint of the kubelet's CPU manager says. None of the CPU sets in the mappings is empty.

    Two containers of one pod may have the same CPUs: the static policy hands an init container's on to the next.
    """

    #: `static` or `none`, kubelets' own names; anything printable else.
    policy: str
    #: The shared pool. Empty for policy none, and in the moment before the static policy has written its first.
    default: CpuSet
    #: Exclusive CPUs by (pod uid, container name).
    entries: Mapping[tuple[str, str], CpuSet] = field(default_factory=dict)
    #: By pod uid, of pods that have CPUs as a whole (V3, V4); the exclusive ones of their containers are among them.
    pods: Mapping[str, CpuSet] = field(default_factory=dict)
    #: Exclusive CPUs by container id (V1).
    by_id: Mapping[str, CpuSet] = field(default_factory=dict)
    version: int = 2
    #: None where there is none to check: 0 is what kubelets write that leave it out.
    checksum_ok: bool | None = None
    #: What is odd about it, "" for nothing. It is to be used all the same.
    trouble: str = ""

    @property
    def static(self) -> bool:
        """Whether the kubelet gives out CPUs at all."""
        return self.policy == "static"

    @property
    def exclusive(self) -> CpuSet:
        """All CPUs that are a container's or a pod's own."""
        return union([*self.entries.values(), *self.pods.values(), *self.by_id.values()])

    def exclusive_of(self, pod_uid: str, container: str, container_id: str = "") -> CpuSet | None:
        """The CPUs that a container has for itself, None when it has none."""
        return self.entries.get((pod_uid, container)) or self.by_id.get(container_id)


def given(kubelet: CpuManagerState | None, pod: Pod | None, container: Container) -> CpuSet | None:
    """The CPUs that the kubelet gave a container alone, None for none."""
    if kubelet is None or not kubelet.static:
        return None
    return kubelet.exclusive_of("" if pod is None else pod.uid, container.name, container.id)


def judged(sandbox: SandboxState, kubelet: CpuManagerState | None) -> tuple[Container, ...]:
    """The live containers of a sandbox, with what the kubelet gave them: those are exclusive, and one whose CPUs
    nobody else told has the kubelet's. Of one that has more it is what both say; one that has others altogether is
    left to the rule of the pool."""
    live = sandbox.live()
    if kubelet is None or not kubelet.static:
        return live
    found = []
    for container in live:
        cpus = given(kubelet, sandbox.pod, container)
        has = (container.cpuset or cpus) & cpus if cpus else None
        found.append(replace(container, exclusive=True, cpuset=has) if has else container)
    return tuple(found)


def unseen(state: DesiredState, kubelet: CpuManagerState | None) -> dict[tuple[str, str], CpuSet]:
    """CPUs that the kubelet gave to containers that nobody has them of, by pod uid and container: it is yet to be
    created, or was and is started again, or is a runc pod's where there is no NRI.

    Those that a container of the pod has are none of them: an init container's are handed on. Nor are those of a
    container whose pod's uid nobody told.
    """
    if kubelet is None or not kubelet.static or not kubelet.entries:
        return {}
    taken: dict[str, CpuSet] = {}
    nameless = []
    for sandbox in state.sandboxes.values():
        uid = sandbox.pod.uid if sandbox.pod is not None else ""
        for container in judged(sandbox, kubelet):
            if not container.cpuset:
                continue
            if not uid:
                nameless.append(container.cpuset)
            elif container.exclusive:
                taken[uid] = taken.get(uid, EMPTY) | container.cpuset
    left = {key: cpus - taken.get(key[0], EMPTY) for key, cpus in kubelet.entries.items()}
    return {key: cpus for key, cpus in left.items() if cpus and not any(has <= cpus for has in nameless)}


def disagreements(sandbox: SandboxState, kubelet: CpuManagerState | None, resources: Mapping[tuple[str, str, str],
                  CpuSet] | None, online: CpuSet) -> dict[ContainerId, str]:
    """The containers on whose CPUs the sources do not agree, with what each says. For a moment that is normal: one
    hears of an update before the other.

    :param resources: exclusive CPUs by namespace, pod and container (PodResources); None where nobody was asked.
    """
    found = {}
    for known in sandbox.containers.values():
        if known.container in sandbox.live() and not known.container.pause:
            said = list(_said(sandbox.pod, known, kubelet, resources))
            if len({cpus & online for _, cpus in said}) > 1:
                found[known.container.id] = ", ".join(f"{who} {cpus}" for who, cpus in said)
    return found


def _said(pod: Pod | None, known: Known, kubelet: CpuManagerState | None,
          resources: Mapping[tuple[str, str, str], CpuSet] | None) -> Iterator[tuple[str, CpuSet]]:
    """Who says what now. The bundle does not count: it is as old as the container."""
    for source, word in known.words.items():
        if source is not Source.BUNDLE:
            yield source.word, word.cpuset
    cpus = given(kubelet, pod, known.container)
    if cpus is not None:
        yield "kubelet", cpus
    if resources is not None and pod is not None:
        listed = resources.get((pod.namespace, pod.name, known.container.name))
        # None listed is normal for a shared container, and says nothing of which CPUs it may use.
        if listed:
            yield "podresources", listed
