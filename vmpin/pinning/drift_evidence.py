"""Evidence for the cause of drift: replugged CPUs, written cgroups, rival programs that set masks.

Gathered when threads are repaired; the latest evidence of each sandbox is kept for the status.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.counters import Counters
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs, linux
from vmpin.host.sysfs import Sysfs
from vmpin.vmm.virtual_machine import Vm

if TYPE_CHECKING:
    from vmpin.domain.drift import Explanation, MaskRepair, Rival

#: Seconds for which the list of the node's daemons is reused.
_FRESH = 60.0


class History:
    """One sandbox's drift since it was first seen; `last` is when (CLOCK_REALTIME, seconds), `why` the evidence."""

    def __init__(self) -> None:
        self.repairs: Counter[str] = Counter()
        self.last = 0.0
        self.why = ""

    def data(self) -> dict[str, object]:
        return {"repairs": dict(self.repairs), "last": round(self.last, 3), "why": self.why}


class DriftEvidence:
    """The drift evidence of all VMs. Counts causes in `counters`, and keeps a `History` of each sandbox.
    :param root: the host's root directory, for the configuration of its daemons.
    :param vms: the inventory's VMs; only read.
    :param pinned_by_kata: returns whether Kata also pins a sandbox's vCPUs, by Kata's state."""

    def __init__(self, proc: Procfs, sysfs: Sysfs, cgroups: Cgroups, counters: Counters,
                 root: str | Path, vms: Mapping[SandboxId, Vm],
                 pinned_by_kata: Callable[[SandboxId], bool]) -> None:
        self.proc, self.sysfs, self.cgroups, self.root = proc, sysfs, cgroups, root
        self.counters = counters
        self._vms, self._pinned_by_kata = vms, pinned_by_kata
        self.remembers = remembers_masks(os.uname().release)
        self.histories: dict[SandboxId, History] = {}
        self._written: set[SandboxId] = set()
        #: The cpuset cgroup of each VMM, on kernels that do not remember masks.
        self._cgroups: dict[SandboxId, Path] = {}
        self._cpus = EMPTY
        self._plugged: dict[int, int] = {}
        self._daemons: tuple[Rival, ...] = ()
        self._read_at = float("-inf")
        #: The rivals of each VMM, derived from `_daemons`.
        self._rivals: dict[ThreadId, tuple[Rival, ...]] = {}

    def record_write(self, sandbox: SandboxId) -> None:
        """Record that the cpuset of the VMM's cgroup was written."""
        self._written.add(sandbox)

    def replugged(self) -> CpuSet:
        """The CPUs that went offline or came back since `forget_evidence`."""
        now = self.sysfs.plugged(self._cpus)
        return CpuSet(cpu for cpu in now.keys() | self._plugged.keys() if now.get(cpu) != self._plugged.get(cpu))

    def forget_evidence(self, cpus: CpuSet, vms: Iterable[Vm]) -> None:
        """Discard the evidence gathered so far, after a pass that compared and repaired all threads.
        :param cpus: all CPUs of the machine."""
        self._cpus = cpus
        self._plugged = self.sysfs.plugged(cpus)
        self._written.clear()
        if not self.remembers:  # a newer kernel keeps the mask of a thread that is moved into another cgroup
            for vm in vms:
                if vm.sandbox not in self._cgroups:
                    self._moved(vm)

    def _rivals_of(self, vm: Vm) -> tuple[Rival, ...]:
        """The programs that may set masks of a VM's threads."""
        from vmpin.pinning import rival_writers  # rarely needed

        if time.monotonic() - self._read_at > _FRESH:
            self._read_at = time.monotonic()  # first: what fails now is not tried at each repair
            self._daemons = ()
            self._rivals.clear()
            self._daemons = rival_writers.rivals(self.proc, self.root)
        if vm.vmm.id not in self._rivals:
            self._rivals[vm.vmm.id] = rival_writers.of_vm(self.proc, vm, self._daemons)
        return self._rivals[vm.vmm.id]

    def explain_repairs(self, changes: Mapping[SandboxId, Counter[MaskRepair]]) -> dict[SandboxId, list[Explanation]]:
        """Explain and count the repairs of a pass. :returns: the causes by sandbox, the most frequent first.
        :param changes: by sandbox, the repairs with their numbers of threads."""
        replugged = self.replugged()
        return {sandbox: self.explain(vm, changed, replugged, self._pinned_by_kata(sandbox))
                for sandbox, changed in changes.items() if (vm := self._vms.get(sandbox)) is not None}

    def explain(self, vm: Vm, changes: Mapping[MaskRepair, int], replugged: CpuSet = EMPTY,
                kata_pins: bool = False) -> list[Explanation]:
        """Explain the repairs of one VM, count their causes, and record them in its history.
        :param changes: the repairs with their numbers of threads.
        :param kata_pins: whether Kata also pins the vCPUs, by Kata's state.
        :returns: the causes, the most frequent first."""
        from vmpin.domain.drift import VCPUS_ONLY, Cause, DriftFacts, Rival, explain_drift

        try:
            rivals, cgroup = self._rivals_of(vm), "" if self.remembers else self._moved(vm)
        except OSError:  # out of descriptors, for instance: the repair goes on without this evidence
            rivals, cgroup = (), ""
        if kata_pins:
            rivals = (Rival(Cause.KATA, "Kata pins the vCPUs, too (enable_vcpus_pinning)", VCPUS_ONLY), *rivals)
        if not cgroup and vm.sandbox in self._written:
            cgroup = "its cpuset cgroup was written"
        limits = self._limits(vm, {change.role for change in changes if cgroup or change.left is None})
        facts = DriftFacts(self.remembers, replugged, cgroup, rivals, limits)
        history = self.histories.setdefault(vm.sandbox, History())
        counts: Counter[Explanation] = Counter()
        for change, threads in changes.items():
            explained = explain_drift(change, facts)
            counts[explained] += threads
            for counter in (self.counters.drift, history.repairs):
                counter[explained.cause.value] += threads
        causes = [explained for explained, _ in counts.most_common()]
        history.last, history.why = time.time(), causes[0].evidence
        return causes

    def _limits(self, vm: Vm, roles: set[ThreadRole]) -> dict[ThreadRole, CpuSet]:
        """The CPUs of the cpuset cgroup of each role's threads. Read for one thread per role, because Kata and libvirt
        assign threads to cgroups by role."""
        limits = {}
        for role in roles:
            thread = next((candidate for candidate in vm.threads() if candidate.role is role), None)
            try:
                cgroup = None if thread is None else self.cgroups.cpuset_of(thread.pid, thread.id.tid)
            except OSError:
                cgroup = None  # out of descriptors, for instance: the limit stays unknown
            if cgroup is not None:
                limits[role] = cgroup.effective
        return limits

    def _moved(self, vm: Vm) -> str:
        """Describe a move of the VMM to another cgroup since the last call; "" if it was not moved."""
        path, before = self.cgroups.cpuset_path(vm.vmm.pid), self._cgroups.get(vm.sandbox)
        if path is not None:
            self._cgroups[vm.sandbox] = path
        return f"the VMM was moved from cgroup {before} to {path}" if before and path and path != before else ""

    def keep_only(self, sandboxes: Iterable[SandboxId]) -> None:
        """Forget VMs that have ended."""
        kept = set(sandboxes)
        for table in (self.histories, self._cgroups):
            for sandbox in table.keys() - kept:
                del table[sandbox]
        self._written &= kept
        if self._rivals:
            alive = {vm.vmm.id for vm in self._vms.values()}
            self._rivals = {vmm: rivals for vmm, rivals in self._rivals.items() if vmm in alive}


def remembers_masks(release: str) -> bool:
    """Whether a kernel remembers the requested mask when the cpuset cgroup changes (since Linux 6.2). True for a
    release that cannot be parsed."""
    version = linux(release)
    return version is None or version >= (6, 2)
