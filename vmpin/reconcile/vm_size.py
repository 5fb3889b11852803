"""How many vCPUs a VM has without those of its containers, as the allocator needs it at a container's creation.

Kata boots the VM with `default_vcpus` before it creates any container, and plugs in the containers' vCPUs later; so
what the VMM was started with is that number, unless the pod's annotation names it. What stays out: Kata with static
sizing (static_sandbox_resource_mgmt), whose VM boots with all vCPUs: there the number is too large by the containers'
CPUs.

Sources: kata-containers src/runtime/virtcontainers/sandbox.go, src/runtime/pkg/oci/utils.go.
"""

from __future__ import annotations

from vmpin.domain.model import VmmType
from vmpin.host.procfs import Procfs
from vmpin.sources.nri.nri_events import NriPod
from vmpin.vmm.processes import VmmProcess, classify
from vmpin.vmm.qemu_cmdline import option_values, parse_smp

_DEFAULT_VCPUS = "io.katacontainers.config.hypervisor.default_vcpus"


def vcpus_of(pod: NriPod, proc: Procfs) -> tuple[bool, int | None]:
    """Whether a pod is a VM, by its runtime handler (kata…) or its process, and its vCPUs at boot; None: not known.
    Reads /proc of one process."""
    argv = proc.cmdline(pod.pid) if pod.pid else None
    found = classify(argv) if argv else None
    # A VMM in a pid namespace of its own is the first process of a runc container.
    vm = pod.handler.startswith("kata") or (isinstance(found, VmmProcess) and not proc.nested(pod.pid))
    if not vm:
        return False, None
    text = pod.annotations.get(_DEFAULT_VCPUS, "")
    if text.isascii() and text.isdigit() and 0 < int(text[:6]) <= 8192:
        return True, int(text)
    if argv and isinstance(found, VmmProcess) and found.type is VmmType.QEMU and option_values(argv, "smp"):
        return True, parse_smp(argv).cpus
    return True, None
