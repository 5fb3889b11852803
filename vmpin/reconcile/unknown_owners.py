"""Pods to which the kubelet's checkpoint gives CPUs and of which no source has reported a container.

That is a finding once it lasts: the pod's VM is not placed on its CPUs if a source was lost (a state file, where OCI
hooks are the only source), or the pod is not on this node and its CPUs lie idle. It is none while the kubelet admits a
pod, or has yet to take back the CPUs of one that ended (up to 24 s were seen), nor for a runc pod that only NRI would
report.
"""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from vmpin.domain.desired_state import DesiredState
from vmpin.domain.kubelet_cpus import CpuManagerState, UnknownOwner, unknown_pods
from vmpin.domain.model import valid_id

logger = logging.getLogger(__name__)

#: A watcher waits for so many resyncs.
RESYNCS = 3
#: Who waits for less (a command without a watcher waits for nothing) goes by the files: so long (s) after the kubelet
#: has made or removed a pod's directory, or written the checkpoint, a pod without a directory is one that it admits,
#: or whose CPUs it has yet to take back.
SETTLING = 30.0


class UnknownOwners:
    """:param pods: the kubelet's directory of pods."""

    def __init__(self, pods: Path) -> None:
        self._pods = pods
        #: Since when each is unknown (monotonic, seconds).
        self._since: dict[str, float] = {}
        #: Those that are a finding, by pod uid.
        self.lasting: dict[str, UnknownOwner] = {}

    def compare(self, state: DesiredState, kubelet: CpuManagerState | None, nameless_vm: bool, listed: bool,
                patience: float, now: float | None = None, doubt: Callable[[], str] = lambda: "") -> None:
        """Look again for pods without a container, and log those that are new.
        :param nameless_vm: whether a VM runs of which neither a container nor the pod is known.
        :param listed: whether the runtime has listed its containers over NRI: then no VM's are unknown to it.
        :param patience: how long (s) a pod is unknown before that counts.
        :param now: CLOCK_MONOTONIC in seconds.
        :param doubt: returns why the checkpoint may be out of date, "" for nothing; called only for a finding."""
        now = time.monotonic() if now is None else now
        unknown = unknown_pods(state, kubelet)
        self._since = {uid: self._since.get(uid, now) for uid in unknown}
        before, self.lasting = self.lasting, {}
        for uid, cpus in unknown.items():
            if now - self._since[uid] < patience:
                continue
            owner = UnknownOwner(uid, cpus, valid_id(uid) and os.path.isdir(self._pods / uid))
            if owner.here and (listed or not nameless_vm):
                continue  # it is created or ends just now, or is a runc pod of which nothing is reported
            if not owner.here and patience < SETTLING and self._settles(kubelet):
                continue
            owner = owner._replace(doubt=doubt())
            self.lasting[uid] = owner
            if before.get(uid) != owner and patience:  # a command without a watcher shows it itself
                logger.warning("%s", owner.what)

    def _settles(self, kubelet: CpuManagerState | None) -> bool:
        """Whether the kubelet has made or removed a pod's directory, or written the checkpoint, just now."""
        try:
            changed = os.stat(self._pods).st_mtime_ns
        except OSError:
            return False
        return 0 <= time.time_ns() - max(changed, kubelet.written if kubelet else 0) < SETTLING * 1e9
