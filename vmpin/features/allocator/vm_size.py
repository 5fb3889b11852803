"""How many vCPUs a VM has without those of its containers, as the allocator needs it at a container's creation.

Kata boots the VM with `default_vcpus` before it creates any container, and plugs in the containers' vCPUs later, up to
`maxcpus`; so the vCPUs on QEMU's command line are that number. Other VMMs' command lines have none: there it is the
pod's annotation, or else that of Kata's configuration: it may be a fraction, to which the limits are added before the
sum is rounded up. With static sizing (static_sandbox_resource_mgmt) the VM boots
with all vCPUs, and `maxcpus` is their number (rounded up to whole NUMA nodes of the guest, where it has several): the
containers' CPUs make it no larger. runtime-rs (4.1) then adds a part of a vCPU (`overhead_vcpus`, 0.2) to their sum
before it rounds up.

Sources: kata-containers src/runtime/virtcontainers/sandbox.go and qemu.go, src/runtime/pkg/oci/utils.go;
src/runtime-rs/crates/resource/src/cpu_mem/initial_size.rs, src/runtime-rs/crates/hypervisor/src/qemu/inner.rs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vmpin.bounded import parse_real
from vmpin.domain.model import SandboxId
from vmpin.host.procfs import Procfs
from vmpin.named_tuple import NamedTuple
from vmpin.runtime.kata import named_for_kata
from vmpin.sources.nri.nri_events import NriPod
from vmpin.vmm.recognition import VmmProcess, classify, classify_by_arguments, is_shim
from vmpin.vmm.vmm_type import MAX_VCPUS

_DEFAULT_VCPUS = "io.katacontainers.config.hypervisor.default_vcpus"


class VmSize(NamedTuple):
    """Whether a pod is a VM, and the VM's size."""

    vm: bool = False
    vcpus: int | None = None  #: vCPUs besides those for its containers (Kata's default_vcpus); None: unknown.
    most: int = 0  #: The maximum of vCPUs; 0: unknown.
    part: int = 0  #: Thousandths of a vCPU, added to the limits of its containers before the sum is rounded up.


def vm_size_of(pod: NriPod, proc: Procfs, configured: Callable[[str], float],
             known: Callable[[SandboxId], bool] = lambda sandbox: False,
             overhead: Callable[[str], int | None] = lambda handler: None) -> VmSize:
    """Return whether a pod is a VM, and of which size. Reads /proc of one process.
    :param configured: `default_vcpus` of Kata's configuration, by runtime handler.
    :param known: whether a sandbox is known for a VM (NodeView.has_vm).
    :param overhead: `overhead_vcpus` in thousandths, by runtime handler; None without runtime-rs' static sizing."""
    # A VMM in a pid namespace of its own is the first process of a runc container.
    argv = proc.cmdline(pod.pid) if pod.pid and not proc.nested(pod.pid) else []
    if not (named_for_kata(pod.handler) or known(pod.id) or _is_vms(argv)):
        return VmSize()
    process = classify(argv) or classify_by_arguments(argv)
    start = process.type.start(tuple(argv)) if isinstance(process, VmmProcess) else None
    if start is not None and start.slots:
        return VmSize(True, start.vcpus, start.slots)
    part = overhead(pod.handler)
    if part is not None:  # then the pod's annotation does not count
        return VmSize(True, 0, part=part)
    vcpus, part = divmod(round(1000 * (parse_real(pod.annotations.get(_DEFAULT_VCPUS, ""), MAX_VCPUS)
                                       or configured(pod.handler))), 1000)
    return VmSize(True, vcpus, part=part)


def _is_vms(argv: Sequence[str]) -> bool:
    """Whether the process that a runtime reports for a pod belongs to a VM: a VMM, or Kata's shim, which is
    Dragonball's process (the runtime reports its thread `vmm_master`). A pod without a VM never has a shim as its
    process."""
    process = classify(argv) or classify_by_arguments(argv)
    return process is not None and (isinstance(process, VmmProcess) or is_shim(process))
