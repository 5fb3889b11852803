"""What Kata's runtimes keep of a sandbox on disk, and which VM the watcher finds for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from real_node import Node
from runtime_bundle import cri
from waiting import wait


class Go:
    """What Kata's Go runtime keeps of a sandbox: the keys are Go's field names, and the file is not replaced but
    written anew (O_TRUNC)."""

    def __init__(self, node: Node, sandbox: str, pid: int, vm_uuid: str = "") -> None:
        self.sandbox = sandbox
        self.pid = pid
        self.uuid = vm_uuid
        self.at = node.top / "vc" / "sbs" / sandbox
        self.at.mkdir(parents=True)
        self.cpusets: dict[str, str] = {}
        self.pins = False

    def text(self) -> str:
        pause = {"ID": self.sandbox, "Annotations": {**cri(self.sandbox, ""), "io.kubernetes.cri.container-type":
                                                     "sandbox"}, "Resources": {"cpu": {}}}
        return json.dumps({
            "SandboxContainer": self.sandbox, "State": "running", "PersistVersion": 2,
            "HypervisorState": {"Type": "qemu", "UUID": self.uuid, "Pid": self.pid, "VirtiofsDaemonPid": 0},
            "Config": {"HypervisorType": "qemu", "EnableVCPUsPinning": self.pins, "ContainerConfigs": [pause] + [
                {"ID": name, "Annotations": cri(self.sandbox, name), "Resources": {"cpu": {"cpus": cpus}}}
                for name, cpus in self.cpusets.items()]}})

    def write(self, **cpusets: str) -> None:
        self.cpusets.update(cpusets)
        (self.at / "persist.json").write_text(self.text())

    def state_of(self, container: str, state: str) -> None:
        (self.at / container).mkdir(exist_ok=True)
        (self.at / container / "persist.json").write_text(json.dumps({"State": state}))


def rust(node: Node, sandbox: str, pid: int | None = None) -> Path:
    """What runtime-rs writes once, when a sandbox has started."""
    at = node.top / "kata" / sandbox
    at.mkdir(parents=True)
    (at / "state.json").write_text(json.dumps({
        "sandbox_type": "virt_container",
        "resource": {"endpoint": [], "cgroup_state": {"path": "/x", "sandbox_cgroup_only": True}},
        "hypervisor": {"hypervisor_type": "qemu", "id": sandbox, "pid": pid, "virtiofs_daemon_pid": 0,
                       "netns": None, "config": {}}}))
    return at


def nameless(*more: str) -> list[str]:
    """Arguments that take the sandbox's id off QEMU's command line's last word on its name."""
    return ["-name", "guest,debug-threads=on", *more]


def shown(node: Node) -> dict[str, tuple[str, int | None]]:
    """Runtime and VMM by sandbox."""
    return {entry["id"]: (entry["runtime"], entry["vmm"] and entry["vmm"]["pid"])
            for entry in node.status()["sandboxes"]}


def wait_for(node: Node, wanted: Mapping[str, tuple[str, int | None]]) -> None:
    wait(lambda: shown(node) == wanted, lambda: f"{shown(node)} is not {wanted}")
