"""OpenVMM, in a process of its own, as Kata's runtime-rs starts it since 4.1. It is configured over ttrpc, so its
command line has only that socket.

Sources: kata-containers src/runtime-rs/crates/hypervisor/src/openvmm (vmm_instance.rs, inner_hypervisor.rs); the
threads' names: OpenVMM, openvmm_core/src/worker/dispatch.rs.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from vmpin.domain.model import SandboxId
from vmpin.vmm.arguments import run_directory_with, socket_path
from vmpin.vmm.vmm_type import GuestChannels, VmmType


def _hybrid_sockets(sandbox: SandboxId, argv: Sequence[str], go: Path, rs: Path) -> Iterator[Path]:
    socket = socket_path(argv, "--ttrpc")
    for directory in (*([Path(socket).parent] if socket else []), rs / sandbox):
        yield directory / "vsock.sock"


OPENVMM = VmmType(
    name="openvmm",
    program=r"openvmm(?:[-_.].*)?",
    beginnings=("openvmm",),
    thread_names=r"vp-(?P<vcpu>[0-9]{1,5})$",
    sandbox_by_arguments=run_directory_with("--ttrpc"),
    channels=GuestChannels(hybrid=_hybrid_sockets),
)
