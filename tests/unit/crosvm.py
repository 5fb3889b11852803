"""crosvm, as a module of vmpin/vmm would have it (test_fifth_vmm): its guest is reached by the kernel's vhost-vsock.

Sources: crosvm src/crosvm/cmdline.rs (run: --cpus, --vsock, --cid, --socket), src/crosvm/sys/linux/vcpu.rs.
"""

from collections.abc import Sequence

from vmpin.bounded import parse_whole
from vmpin.vmm.arguments import keyvals, long_options, vsock_cid
from vmpin.vmm.vmm_type import MAX_VCPUS, GuestChannels, VmmType, VmStart


def _start(argv: Sequence[str]) -> VmStart:
    for _, value in long_options(argv, "--cpus", "-c"):
        vcpus = parse_whole(dict(keyvals(value, "num-cores")).get("num-cores", ""), MAX_VCPUS, 1)
        if vcpus is not None:
            return VmStart(vcpus, slots=vcpus)  # it plugs none
    return VmStart()


def _cid(argv: Sequence[str]) -> int | None:
    for _, value in long_options(argv, "--vsock", "--cid"):
        return vsock_cid(dict(keyvals(value, "cid")).get("cid", ""))
    return None


CROSVM = VmmType(
    name="crosvm",
    program=r"crosvm(?:[-_.].*)?",
    beginnings=("crosvm",),
    thread_names=r"crosvm_vcpu(?P<vcpu>[0-9]{1,4})$",
    start=_start,
    channels=GuestChannels(cid=_cid),
    mask_options="--cpu-affinity",
)
