"""Command lines of a sandbox's processes, and the inventory of a tree of /proc."""

from __future__ import annotations

from pathlib import Path

from vmpin.domain.events import VmmClaim
from vmpin.domain.model import SandboxId
from vmpin.host.procfs import Procfs
from vmpin.vmm.inventory import VmInventory

SID = "7f1d0c4be5a2f8c39b6d0e1a4c5f7788990011223344556677889900aabbccdd"
#: The uid of no account, and not that of the tests.
USER = 61234
SHIM = ["containerd-shim-kata-v2", "-namespace", "k8s.io", "-id", SID]
QEMU = ["/usr/bin/qemu-system-x86_64", "-name", f"sandbox-{SID}", "-smp", "1"]
ODD = ["/usr/local/bin/vmm", "-name", f"sandbox-{SID},debug-threads=on", "-smp", "1"]
VIRTIOFSD = ["/opt/kata/libexec/virtiofsd", "--fd=3",
             f"--shared-dir=/run/kata-containers/shared/sandboxes/{SID}/shared"]


def inventory(root: Path, claims: dict[SandboxId, VmmClaim] | None = None, rounds: int = 1) -> VmInventory:
    found = VmInventory(Procfs(root))
    for _ in range(rounds):
        found.scan(claims or {}, full=True)
    return found
