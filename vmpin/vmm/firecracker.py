"""Firecracker. Kata's Go shim passes it a prefix of the sandbox's id, and may start it in a jail.

Sources: virtcontainers/fc.go; runtime-rs: hypervisor/src/firecracker.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from vmpin.domain.model import SandboxId
from vmpin.vmm.arguments import go_flag, run_directory_sandbox, run_directory_with, socket_path
from vmpin.vmm.vmm_type import GuestChannels, VmmType

_ID_LENGTH = 32
_ID = r"(?:[0-9a-f]{32}){1,2}"


def _sandbox(argv: Sequence[str]) -> SandboxId | None:
    # Firecrackers that are not Kata's have ids, too. Kata gives one only to its jailer: a runtime's id, or its half.
    name = go_flag(argv, "id")
    return SandboxId(name) if re.fullmatch(_ID, name) else run_directory_sandbox(argv)


def _hybrid_in_jail(argv: Sequence[str]) -> Path:
    # Its API's socket is in `run` of the same directory, which is the root in a jail.
    return Path(socket_path(argv, "--api-sock") or "/run/firecracker.socket").parent.parent / "kata.hvsock"


def _hybrid_sockets(sandbox: SandboxId, argv: Sequence[str], go: Path, rs: Path) -> Iterator[Path]:
    for directory in (go / "firecracker" / sandbox[:_ID_LENGTH] / "root", go / "vm" / sandbox, rs / sandbox,
                      rs / sandbox / "root", rs / "firecracker" / sandbox / "root"):
        yield directory / "kata.hvsock"


FIRECRACKER = VmmType(
    name="firecracker",
    kata_name="firecracker",
    # Not firecracker-containerd and firecracker-ctr, which are no VMMs.
    program=r"firecracker(?!-c)(?:[-_.].*)?",
    beginnings=("firecracker",),
    thread_names=r"fc_vcpu (?P<vcpu>[0-9]{1,5})$",
    sandbox=_sandbox,
    sandbox_by_arguments=run_directory_with("--api-sock"),
    id_length=_ID_LENGTH,
    channels=GuestChannels(hybrid=_hybrid_sockets, hybrid_in_jail=_hybrid_in_jail),
)
