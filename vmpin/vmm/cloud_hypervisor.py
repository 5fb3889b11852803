"""Cloud Hypervisor. It is configured over its API, so its command line has little more than the API's socket: neither
the guest's NUMA nodes nor the nodes of its memory.

Kata puts the socket for the guest beside the API's. The directory is named after the sandbox, or after a VM from
Kata's factory (virtcontainers/clh.go; runtime-rs: hypervisor/src/ch).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from vmpin.domain.model import SandboxId
from vmpin.vmm.arguments import run_directory_with, socket_path
from vmpin.vmm.vmm_type import GuestChannels, VmmType


def _hybrid_sockets(sandbox: SandboxId, argv: Sequence[str], go: Path, rs: Path) -> Iterator[Path]:
    api = socket_path(argv, "--api-socket")
    beside = [Path(api).parent] if api else []
    for directory in (*beside, go / "vm" / sandbox, rs / sandbox):
        for name in ("clh.sock", "ch-vm.sock"):
            yield directory / name


CLOUD_HYPERVISOR = VmmType(
    name="cloud-hypervisor",
    kata_name="clh",
    program=r"cloud-hypervisor(?:[-_.].*)?",
    beginnings=("cloud-h",),
    thread_names=r"vcpu(?P<vcpu>[0-9]{1,5})$",
    sandbox_by_arguments=run_directory_with("--api-socket"),
    channels=GuestChannels(hybrid=_hybrid_sockets),
    mask_options=r"affinity=\[",
)
