"""How many vCPUs a VM has without those of its containers, as the allocator needs it at a container's creation.

Kata boots the VM with `default_vcpus` before it creates any container, and plugs in the containers' vCPUs later, up to
`maxcpus`; so what QEMU was started with is that number. For other VMMs it is read from the pod's annotation, or else
from Kata's configuration. With static sizing (static_sandbox_resource_mgmt) the VM boots with all vCPUs, and `maxcpus`
is their number (rounded up to whole NUMA nodes of the guest, where it has several): the containers' CPUs make it no
larger.

Sources: kata-containers src/runtime/virtcontainers/sandbox.go and qemu.go, src/runtime/pkg/oci/utils.go;
src/runtime-rs/crates/resource/src/cpu_mem/initial_size.rs, src/runtime-rs/crates/hypervisor/src/qemu/inner.rs. Called
by daemon.allocating.
"""

from __future__ import annotations

from collections.abc import Callable

from vmpin.allocation.runtime_call import VmSize
from vmpin.bounded import parse_whole
from vmpin.domain.model import VmmType
from vmpin.host.procfs import Procfs
from vmpin.sources.nri.nri_events import NriPod
from vmpin.vmm.processes import VmmProcess, classify
from vmpin.vmm.qemu_cmdline import MAX_VCPUS, option_values, parse_smp

_DEFAULT_VCPUS = "io.katacontainers.config.hypervisor.default_vcpus"


def vcpus_of(pod: NriPod, proc: Procfs, configured: Callable[[str], int]) -> VmSize:
    """Whether a pod is a VM, by its runtime handler (kata…) or its process, and of which size. Reads /proc of one
    process. :param configured: `default_vcpus` of Kata's configuration, by runtime handler."""
    argv = proc.cmdline(pod.pid) if pod.pid else None
    found = classify(argv) if argv else None
    # A VMM in a pid namespace of its own is the first process of a runc container.
    vm = pod.handler.startswith("kata") or (isinstance(found, VmmProcess) and not proc.nested(pod.pid))
    if not vm:
        return VmSize()
    if argv and isinstance(found, VmmProcess) and found.type is VmmType.QEMU and option_values(argv, "smp"):
        smp = parse_smp(argv)
        return VmSize(True, smp.cpus, smp.maxcpus)
    asked = parse_whole(pod.annotations.get(_DEFAULT_VCPUS, ""), MAX_VCPUS, 1)
    return VmSize(True, configured(pod.handler) if asked is None else asked)
