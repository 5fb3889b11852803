"""The ways into a guest, and the numbers that its vCPUs have there, as its VMM's command line gives them.

Pure. What cannot be read is left out, never guessed: argv is not ours.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from vmpin.bounded import parse_whole
from vmpin.domain.model import VcpuId, VmmType
from vmpin.protocol.frames import MAX_HW
from vmpin.vmm.qemu_cmdline import ON, architecture, chardev_sockets, keyvals, kvm_ids, option_values, options_of

#: include/uapi/linux/vm_sockets.h: 0 to 2 are the hypervisor, this machine and the host; the last one is "any".
_FIRST_GUEST_CID, _ANY_CID = 3, 0xFFFFFFFF

_VSOCK = re.compile(r"vhost-vsock-(?:pci|ccw|device)(?:-(?:non-)?transitional)?")
_VHOST_USER_VSOCK = re.compile(r"vhost-user-vsock-(?:pci|device)(?:-(?:non-)?transitional)?")


def hardware_ids(vmm: VmmType, argv: Sequence[str], vcpus: Iterable[VcpuId]) -> dict[VcpuId, int]:
    """Return the number by which the guest can identify each vCPU. On x86 it is the APIC id, on arm64 the MPIDR's
    affinity fields, else its number. A number that is none is left out."""
    ids = kvm_ids(argv, vcpus) if vmm is VmmType.QEMU else {vcpu: vcpu for vcpu in vcpus}
    if architecture(argv) == "aarch64":
        ids = {vcpu: mpidr(number) for vcpu, number in ids.items()}
    return {vcpu: number for vcpu, number in ids.items() if 0 <= number <= MAX_HW}


def mpidr(vcpu_id: int) -> int:
    """Aff2.Aff1.Aff0 of KVM's vcpu id on arm64: 16 vCPUs a cluster (arch/arm64/kvm/sys_regs.c: reset_mpidr).

    >>> mpidr(17)
    257"""
    return vcpu_id & 0x0F | (vcpu_id >> 4 & 0xFF) << 8 | (vcpu_id >> 12 & 0xFF) << 16


def guest_cid(argv: Sequence[str]) -> int | None:
    """The guest's vsock address, from QEMU's `-device vhost-vsock-…,guest-cid=N`."""
    for device in _devices(argv):
        cid = parse_whole(device.get("guest-cid", ""), _ANY_CID - 1, _FIRST_GUEST_CID)
        if cid is not None and _VSOCK.fullmatch(device.get("driver", "")):
            return cid
    return None


def vhost_user_vsock(argv: Sequence[str]) -> str | None:
    """The socket between QEMU and the daemon that is its vsock device; the guest is reached by another one of that
    daemon's (`daemon_uds`)."""
    chardevs = chardev_sockets(argv)
    for device in _devices(argv):
        path = chardevs.get(device.get("chardev", ""), {}).get("path")
        if path and _VHOST_USER_VSOCK.fullmatch(device.get("driver", "")):
            return path
    return None


def api_socket(argv: Sequence[str]) -> str | None:
    """The path of Cloud Hypervisor's `--api-socket` (bare or as `path=`) or Firecracker's `--api-sock`."""
    for _, value in _long_options(argv, "--api-socket", "--api-sock"):
        path = value.removeprefix("path=")
        return path if path and "\0" not in path and not path.startswith("fd=") else None
    return None


def daemon_uds(argv: Sequence[str], socket: str) -> str | None:
    """Where vhost-device-vsock takes connections for the guest that it serves over `socket`; None when this is not the
    command line of such a daemon."""
    if not argv or not argv[0].rpartition("/")[2].startswith("vhost-device-vsock"):
        return None
    for _, value in _long_options(argv, "--vm"):  # several guests in one daemon: guest-cid=3,socket=…,uds-path=…
        pairs = dict(keyvals(value, "guest-cid"))
        if pairs.get("socket") == socket and pairs.get("uds-path"):
            return pairs["uds-path"]
    given = dict(_long_options(argv, "--socket", "--uds-path"))
    return given.get("--uds-path") or None if given.get("--socket") == socket else None


def _long_options(argv: Sequence[str], *names: str) -> Iterator[tuple[str, str]]:
    """The options of these names, each with its value, as `--name=value` or `--name value`."""
    for at, arg in enumerate(argv):
        name, equals, value = arg.partition("=")
        if name in names:
            yield name, value if equals else "".join(argv[at + 1:at + 2])


def serial_socket(argv: Sequence[str], name: str) -> str | None:
    """The Unix socket on which QEMU offers the virtio-serial port `name`, as written: a relative one starts at QEMU's
    directory."""
    chardevs = chardev_sockets(argv)
    for device in _devices(argv):
        if device.get("driver") == "virtserialport" and device.get("name") == name:
            options = chardevs.get(device.get("chardev", ""), {})
            if options.get("path") and options.get("server") in ON and "fd" not in options:
                return options["path"]
    return None


def _devices(argv: Sequence[str]) -> list[dict[str, str]]:
    return [options_of(value, "driver") for value in option_values(argv, "device")]
