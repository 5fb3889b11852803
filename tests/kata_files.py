"""The files that Kata's Go runtime keeps about its sandboxes (persist.json), written as it writes them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol


class Sandboxed(Protocol):
    """A VM of a sandbox, real or a stand-in."""

    @property
    def sandbox(self) -> str:
        ...

    @property
    def pid(self) -> int:
        ...


class KataFiles:
    """Below `root`, which is /run/vc on a node."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, vm: Sandboxed, containers: Mapping[str, str], *, virtiofsd: int = 0,
              stopped: Collection[str] = (), ids: Mapping[str, str] | None = None, hypervisor: str = "qemu") -> None:
        """The sandbox with its pause container and `containers`: names with their CPU lists ("": none given). Those
        of `stopped` have ended and are not yet removed. `ids` are theirs, by name."""
        directory = self.root / "sbs" / vm.sandbox
        configs = [_container(vm.sandbox, vm.sandbox, "", "sandbox", "")]
        given = ids or {}
        configs += [_container(vm.sandbox, given.get(name) or f"{name}-{vm.sandbox[:12]}", name, "container", cpus)
                    for name, cpus in containers.items()]
        for config in configs:
            (directory / config["ID"]).mkdir(parents=True, exist_ok=True)
            name = config["Annotations"]["io.kubernetes.cri.container-name"]
            _replace(directory / config["ID"] / "persist.json", {"State": "stopped" if name in stopped else "running"})
        _replace(directory / "persist.json", {
            "SandboxContainer": vm.sandbox, "State": "running", "Config": {"ContainerConfigs": configs},
            "HypervisorState": {"Pid": vm.pid, "Type": hypervisor, "VirtiofsDaemonPid": virtiofsd}})

    def remove(self, vm: Sandboxed) -> None:
        shutil.rmtree(self.root / "sbs" / vm.sandbox)


def _container(sandbox: str, identity: str, name: str, kind: str, cpus: str) -> dict[str, Any]:
    return {"ID": identity, "Resources": {"cpu": {"cpus": cpus}}, "Annotations": {
        "io.kubernetes.cri.container-name": name, "io.kubernetes.cri.container-type": kind,
        "io.kubernetes.cri.sandbox-id": sandbox, "io.kubernetes.cri.sandbox-name": f"pod-{sandbox[:6]}",
        "io.kubernetes.cri.sandbox-namespace": "lab"}}


def _replace(path: Path, data: object) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(data))
    new.rename(path)
