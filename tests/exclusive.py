"""Owners of exclusive CPUs that are no VMs, on a real reconciler: what they ran is in files of the test's own."""

from __future__ import annotations

from pathlib import Path

from strayed import Spinners, thread_of

from vmpin.cpuset import CpuSet
from vmpin.domain.desired_state import ContainerRecord, DesiredState, SandboxState
from vmpin.domain.events import Source
from vmpin.domain.model import Container, ContainerId, Pod, SandboxId
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs
from vmpin.placement.ownership import CpuClaims, Ownership


class Owner:
    """A pod of one container, whose first process is a real one; its cgroup (`/pod/ID` and what is below) is not."""

    def __init__(self, node: Spinners, pid: int, cpus: CpuSet, below: str = "") -> None:
        self.sandbox, self.container = SandboxId(f"{node.prefix}pod"), ContainerId("a1" * 32)
        self.cgroup = f"/pod/{self.container}"
        made = Container(self.container, "web", cpus, exclusive=True)
        record = ContainerRecord(made, Source.CGROUP, 1, init=thread_of(pid).id)
        reconciler = self._reconciler = node.reconciler
        reconciler.node_state.state = DesiredState({self.sandbox: SandboxState(
            self.sandbox, pod=Pod("shop", "web"), containers={self.container: record})})
        reconciler.node_state.placement_cache.own = Ownership(
            {self.sandbox: CpuClaims(((self.container, cpus),), ())}, cpus, CpuSet())
        self._root = node.root / "cgroup"
        self._proc = node.root / "proc"
        self._root.mkdir(exist_ok=True)
        (self._root / "cgroup.controllers").write_text("cpu\n")
        vars(reconciler.view)["cgroups"] = Cgroups(self._root, Procfs(self._proc))
        self.holds(pid, below)
        self.ran("", 0)
        if below:
            self.ran(below, 0)

    def holds(self, pid: int, below: str = "") -> None:
        """Put a process into the container's cgroup, or into one below it."""
        (self._proc / str(pid)).mkdir(parents=True)
        (self._proc / str(pid) / "cgroup").write_text(f"0::{self.cgroup}{below}\n")

    def gone(self) -> None:
        self._reconciler.node_state.state = DesiredState({})
        self.shares()

    def shares(self) -> None:
        """It is there, and its CPUs are not exclusive to it any more."""
        self._reconciler.node_state.placement_cache.own = Ownership({}, CpuSet(), CpuSet())

    def ran(self, below: str, seconds: int) -> None:
        """What the kernel has counted in the container's cgroup, or in one below it."""
        file = Path(f"{self._root}{self.cgroup}{below}/cpu.stat")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"usage_usec {seconds * 1_000_000}\nuser_usec 0\n")
