"""The state directories of Kata's two runtimes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from vmpin.domain.model import SandboxId
from vmpin.runtime.kata import KataSandbox, KataState

SID = SandboxId("5a" * 32)
#: As Kata 3 and 4 write it (virtcontainers/persist/api): Go's field names, most of it of no concern here.
GO: dict[str, Any] = {
    "SandboxContainer": SID, "State": "running", "PersistVersion": 2,
    "SandboxCgroupPath": f"/kubepods/kata_{SID}", "OverheadCgroupPath": f"/kata_overhead/{SID}",
    "HypervisorState": {"Type": "qemu", "UUID": "0a8b0c0e-1111-4222-8333-444455556666", "Pid": 4242,
                        "VirtiofsDaemonPid": 4240, "HotpluggedVCPUs": [{"ID": "cpu-0"}]},
    "AgentState": {"URL": "vsock://77:1024"},
    "Config": {
        "HypervisorType": "qemu", "SandboxCgroupOnly": False, "EnableVCPUsPinning": False,
        "ContainerConfigs": [
            {"ID": SID, "Annotations": {"io.kubernetes.cri.container-type": "sandbox",
                                        "io.kubernetes.cri.sandbox-namespace": "shop",
                                        "io.kubernetes.cri.sandbox-name": "web-0",
                                        "io.kubernetes.cri.sandbox-uid": "uid-1"}, "Resources": {}},
            {"ID": "c1", "Annotations": {"io.kubernetes.cri.container-type": "container",
                                         "io.kubernetes.cri.container-name": "app"},
             "Resources": {"cpu": {"shares": 1024, "cpus": "2-3"}}},
            {"ID": "c2", "Annotations": {}, "Resources": {"cpu": {"cpus": ""}}}],
        "HypervisorConfig": {"NumVCPUsF": 1, "DefaultMaxVCPUs": 8}}}
RS: dict[str, Any] = {
    "sandbox_type": "virt_container",
    "resource": {"endpoint": [], "cgroup_state": {"path": f"/kubepods/{SID}", "overhead_path": "",
                                                  "sandbox_cgroup_only": True, "enable_vcpus_pinning": False}},
    "hypervisor": {"hypervisor_type": "qemu", "id": SID, "pid": None, "virtiofs_daemon_pid": 0, "netns": None,
                   "config": {}}}
#: Long enough ago to be known by its stamp.
AGO = 1_700_000_000_000_000_000


class Disk:
    """Both runtimes' state directories, and what was complained of."""

    def __init__(self, root: Path) -> None:
        self.go, self.rs = root / "vc", root / "kata"
        self.complaints: list[str] = []
        self.state = KataState(self.go, self.rs, self.complaints.append)

    def write(self, content: object, *under: str, sid: str = SID, at: int = AGO, rs: bool = False) -> Path:
        path = self.rs.joinpath(sid, "state.json") if rs else self.go.joinpath("sbs", sid, *under, "persist.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        os.utime(path, ns=(at, at))
        return path

    def only(self) -> KataSandbox:
        (found,) = self.state.sandboxes().values()
        return found


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def containers(*cpusets: tuple[str, str]) -> dict[str, Any]:
    """GO with other containers."""
    configs = [{"ID": name, "Resources": {"cpu": {"cpus": cpus}}} for name, cpus in cpusets]
    return {**GO, "Config": {**GO["Config"], "ContainerConfigs": configs}}


def shown(sandbox: KataSandbox) -> dict[str, str]:
    return {each.id: str(each.cpuset) for each in sandbox.containers or ()}
