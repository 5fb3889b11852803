"""A real containerd with a watcher that gives out CPUs."""

from __future__ import annotations

import json
import os
from typing import Any

from cri_node import CriNode
from process_masks import two_cpus
from real_containerd import Container, Containerd, Pod
from waiting import wait

from vmpin.cpuset import CpuSet

#: One whole CPU, requested and limited to.
WHOLE: dict[str, Any] = {"cpu_shares": 1024, "cpu_quota": 100_000, "cpu_period": 100_000}
POLICY = "cpu-policy.vmpin.io/container.main"


class AllocatingNode(CriNode):
    """One CPU can be given to a container alone; the others are reserved, and stay in the pool."""

    def __init__(self, containerd: Containerd) -> None:
        super().__init__(containerd)
        _, self.own = two_cpus()
        self.all = CpuSet(os.sched_getaffinity(0))
        self.rest = str(self.all - CpuSet.parse(self.own))
        self.configure(allocate={"mode": "on", "reserved": self.rest, "grow_delay_seconds": 0},
                       paths={"cri": str(containerd.top / "cri.sock")})

    def pod(self, name: str = "own", policy: str = "exclusive", handler: str = "") -> Pod:
        """Of whose containers `main` has a policy."""
        return self.containerd.pod(name, handler, annotations={POLICY: policy} if policy else {})

    def ledger(self) -> Any:
        """The file's content, None without one."""
        try:
            return json.loads((self.run / "ledger.json").read_text())["body"]["ledger"]
        except FileNotFoundError:
            return None

    def wait_for(self, container: Container, cpus: object) -> None:
        wait(lambda: container.cgroup_cpus() == str(cpus),
             lambda: f"{container.name} has {container.cgroup_cpus()}, not {cpus}\n{self.log()}")
