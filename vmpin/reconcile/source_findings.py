"""Findings about the sources of containers and CPUs, made at each resync, logged once and shown while they last:
containers on whose CPUs the sources disagree, pods with CPUs of which no container is known, and two that decide on
the same CPUs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import is_not
from pathlib import Path
from typing import TYPE_CHECKING

from vmpin.authorities.rivals import rivals
from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.assignments import AuthorityRival, Rank, Ruling, Rulings
from vmpin.domain.desired_state import ContainerRecord, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.kubelet_cpus import CpuManagerState, UnknownOwner, orphaned, unknown_pods
from vmpin.domain.model import ContainerId, Pod, SandboxId, uid_of, valid_id
from vmpin.domain.terminal import printable

if TYPE_CHECKING:
    from vmpin.host.procfs import Procfs
    from vmpin.sources.kubelet_process import KubeletProcess

logger = logging.getLogger(__name__)

#: The patience of a watcher with unknown owners, in resyncs.
RESYNCS = 3
#: With less patience (a command without a watcher has none) the files decide: for so long (s) after the kubelet
#: created or removed a pod's directory, or wrote the checkpoint, it may be admitting a pod without a directory, or may
#: not yet have freed its CPUs.
SETTLING = 30.0


class SourceDisagreements:
    """The containers on whose CPUs the sources disagree."""

    def __init__(self) -> None:
        #: Exclusive CPUs by namespace, pod and container, from PodResources; None without an answer.
        self.resources: Mapping[tuple[str, str, str], CpuSet] | None = None
        #: Since when each disagreement is as it is (monotonic, seconds).
        self._since: dict[tuple[SandboxId, ContainerId, str], float] = {}
        #: Those that have lasted for longer than a resync.
        self.lasting: dict[tuple[SandboxId, ContainerId], str] = {}
        #: The input of the last comparison, and its outcome for each sandbox: most of them do not change.
        self._against: tuple[object, ...] = ()
        self._compared: dict[SandboxId, tuple[SandboxState, Mapping[ContainerId, str]]] = {}

    def compare(self, state: DesiredState, rulings: Rulings, online: CpuSet, resync_seconds: float,
                now: float | None = None, nri: bool = True) -> None:
        """Compare all containers, and log those that have disagreed for longer than a resync.
        :param now: CLOCK_MONOTONIC in seconds.
        :param nri: whether the runtime has listed its containers over NRI."""
        now = time.monotonic() if now is None else now
        differing = [(sandbox.id, container, text) for sandbox, texts in self._compare(state, rulings, online, nri)
                     for container, text in texts.items()]
        self._since = {difference: self._since.get(difference, now) for difference in differing}
        lasting = {(name, container): text for (name, container, text), since in self._since.items()
                   if now - since >= resync_seconds}
        for (name, container), text in lasting.items():
            if self.lasting.get((name, container)) != text:
                logger.warning("the sources disagree on CPUs sandbox=%s container=%s: %s", name, container, text)
        self.lasting = lasting

    def _compare(self, state: DesiredState, rulings: Rulings, online: CpuSet,
                 nri: bool) -> Iterator[tuple[SandboxState, Mapping[ContainerId, str]]]:
        against = (rulings, self.resources, online, nri)
        before = self._compared if against == self._against else {}
        self._against, self._compared = against, {}
        for sandbox in state.sandboxes.values():
            compared = before.get(sandbox.id)
            if compared is None or compared[0] is not sandbox:
                compared = sandbox, disagreements(sandbox, rulings, self.resources, online, nri)
            self._compared[sandbox.id] = compared
            yield compared


def disagreements(sandbox: SandboxState, rulings: Rulings, resources: Mapping[tuple[str, str, str], CpuSet] | None,
                  online: CpuSet, nri: bool = True) -> dict[ContainerId, str]:
    """The containers for which the sources report different CPUs, with the CPUs of each source. For a moment that is
    normal: an update reaches one source before another.
    :param resources: exclusive CPUs by namespace, pod and container (PodResources); None if it was not read.
    :param nri: False until the runtime has listed its containers: older reports by NRI, from the state file, are then
        ignored."""
    foreign = rulings.exclusive_of_others(sandbox)
    texts = {}
    for record in sandbox.containers.values():
        if record.container in sandbox.live() and not record.container.pause:
            reported = list(_reported(record, nri))
            listed = list(_listed(sandbox.pod, record, rulings, resources))
            cpusets = {cpus & online for _, cpus in reported}
            exclusive = {cpus & online for _, cpus in listed}
            # A cpuset may have shared CPUs in addition to the exclusive ones, but none that is another pod's.
            if len(cpusets) > 1 or len(exclusive) > 1 or not all(
                    own <= cpuset and cpuset.isdisjoint(foreign) for cpuset in cpusets for own in exclusive):
                texts[record.container.id] = ", ".join(f"{source} {cpus}" for source, cpus in (*reported, *listed))
    return texts


def _reported(record: ContainerRecord, nri: bool) -> Iterator[tuple[str, CpuSet]]:
    """The sources of a container's cpuset, with the cpuset of each. The bundle has only that of the creation."""
    for source, report in record.reports.items():
        if source is not Source.BUNDLE and (nri or source is not Source.NRI):
            yield source.label, report.cpuset


def _listed(pod: Pod | None, record: ContainerRecord, rulings: Rulings,
            resources: Mapping[tuple[str, str, str], CpuSet] | None) -> Iterator[tuple[str, CpuSet]]:
    """The sources of exclusive CPUs, with the CPUs that each lists for a container."""
    uid = uid_of(pod)
    ruling = rulings.assigned(uid, record.container)
    if ruling is not None:
        yield ruling.authority, ruling.assignments.cpus_of(uid, record.container) or EMPTY
    # PodResources lists no CPUs of shared containers.
    name = record.container.name
    if pod is not None and name and (cpus := (resources or {}).get((pod.namespace, pod.name, name))):
        yield "podresources", cpus


class AuthorityRivals:
    """Two that decide on the same CPUs (`authorities.rivals`)."""

    def __init__(self) -> None:
        self._since: dict[AuthorityRival, float] = {}  #: monotonic, seconds
        #: Those that have lasted.
        self.lasting: list[AuthorityRival] = []
        #: The input of the last comparison, and its outcome: most often nothing has changed.
        self._against: list[object] = []
        self._rivals: list[AuthorityRival] = []

    def compare(self, state: DesiredState, listing: Sequence[Ruling], rulings: Rulings, online: CpuSet,
                patience: float, now: float | None = None) -> None:
        """Compare the authorities' lists, and the cpusets, and log new rivals that last.
        :param listing: of `Authorities.listing`.
        :param patience: how long (s) they must have lasted; 0 for a command, which cannot wait: it shows only those
            that do not follow from cpusets, as these are rewritten later.
        :param now: CLOCK_MONOTONIC in seconds."""
        now = time.monotonic() if now is None else now
        against = [state, rulings, online, *(ruling.assignments for ruling in listing)]
        if len(against) != len(self._against) or any(map(is_not, against, self._against)):
            self._against, self._rivals = against, rivals(listing, rulings, state.sandboxes.values(), online)
        logged = set(self.lasting)
        self._since = {rival: self._since.get(rival, now) for rival in self._rivals
                       if patience or Rank.OBSERVED.label not in rival.authorities}
        self.lasting = [rival for rival, since in self._since.items() if now - since >= patience]
        for rival in self.lasting if patience else ():
            if rival not in logged:
                logger.warning("two decide on the same CPUs sandboxes=%s: %s", ",".join(rival.sandboxes), rival.what)


class UnknownOwners:
    """Pods to which the kubelet's checkpoint gives CPUs and of which no source has reported a container.

    That is a finding once it lasts. Either a source was lost (a state file, if OCI hooks are the only source), and the
    pod's VM is not placed on its CPUs; or the pod is not on this node, and its CPUs lie idle. It is normal while the
    kubelet admits a pod, or has not yet freed the CPUs of one that ended (up to 24 s were seen), and for a runc pod
    that only NRI would report.
    :param pods: the kubelet's directory of pods."""

    def __init__(self, proc: Procfs, pods: Path) -> None:
        self._proc, self._pods = proc, pods
        #: Since when each pod is unknown (monotonic, seconds).
        self._since: dict[str, float] = {}
        #: The findings, by pod uid.
        self.lasting: dict[str, UnknownOwner] = {}

    def compare(self, state: DesiredState, kubelet: CpuManagerState | None, nameless_vm: bool, listed: bool,
                patience: float, now: float | None = None, doubt: Callable[[], str] = lambda: "") -> None:
        """Look again for such pods, and log new findings. A pod that is on this node counts only if NRI is missing and
        a VM is nameless, as it may be that VM's.
        :param nameless_vm: whether a VM runs of which neither a container nor the pod is known.
        :param listed: whether the runtime has listed its containers over NRI, those of VMs included.
        :param patience: how long (s) a pod must be unknown to be a finding; 0 for a command, which cannot wait.
        :param now: CLOCK_MONOTONIC in seconds.
        :param doubt: returns why the checkpoint may be out of date, "" for no reason; called only for a finding."""
        now = time.monotonic() if now is None else now
        unknown = unknown_pods(state, kubelet)
        self._since = {uid: self._since.get(uid, now) for uid in unknown}
        before, self.lasting = self.lasting, {}
        for uid, cpus in unknown.items():
            if now - self._since[uid] < patience:
                continue
            owner = UnknownOwner(uid, cpus, valid_id(uid) and os.path.isdir(self._pods / uid))
            if owner.here and not (nameless_vm and not listed):
                continue  # it is being created or ends, or is a runc pod that no source reports
            if not owner.here and patience < SETTLING and self._settles(kubelet):
                continue
            owner = owner._replace(doubt=doubt())
            self.lasting[uid] = owner
            if before.get(uid) != owner and patience:  # a command without a watcher shows it itself
                logger.warning("%s", owner.text)

    @cached_property
    def _kubelet_process(self) -> KubeletProcess:
        from vmpin.sources.kubelet_process import KubeletProcess  # not at the top: most passes do not need it

        return KubeletProcess(self._proc)

    def checkpoint_doubt(self, kubelet: CpuManagerState) -> str:
        """Why a checkpoint may be out of date, "" for no reason: no kubelet runs to update it, or one that has another
        directory."""
        if self._kubelet_process.runs() is False:
            return orphaned(kubelet)
        other = self._kubelet_process.other_directory(self._pods.parent)
        return orphaned(kubelet, f"the kubelet's directory is {printable(other)} now") if other else ""

    def _settles(self, kubelet: CpuManagerState | None) -> bool:
        """Whether the kubelet has just created or removed a pod's directory, or written the checkpoint."""
        try:
            changed = os.stat(self._pods).st_mtime_ns
        except OSError:
            return False
        return 0 <= time.time_ns() - max(changed, kubelet.written if kubelet else 0) < SETTLING * 1e9
