"""The ways into a guest, and the numbers that its vCPUs have there, as its VMM's command line gives them.

Pure. What cannot be read is left out, never guessed: argv is not ours. What stays out: whether anybody answers there,
and connecting (guests.transport).
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from vmpin.domain.model import VcpuId, VmmType
from vmpin.protocol.frames import MAX_HW
from vmpin.vmm.qemu_cmdline import keyvals, kvm_ids, option_values

#: include/uapi/linux/vm_sockets.h: 0 to 2 are the hypervisor, this machine and the host; the last one is "any".
_FIRST_GUEST_CID, _ANY_CID = 3, 0xFFFFFFFF

_VSOCK = re.compile(r"vhost-vsock-(?:pci|ccw|device)(?:-(?:non-)?transitional)?")
_VHOST_USER_VSOCK = re.compile(r"vhost-user-vsock-(?:pci|device)(?:-(?:non-)?transitional)?")
_ON = frozenset(("on", "yes", "true", "y"))


def hardware_ids(vmm: VmmType, argv: Sequence[str], vcpus: Iterable[VcpuId]) -> dict[VcpuId, int]:
    """What the guest can know each vCPU by: on x86 its APIC id, on arm64 its MPIDR's affinity fields, else its number.

    A number that is none is left out.
    """
    ids = kvm_ids(argv, vcpus) if vmm is VmmType.QEMU else {vcpu: int(vcpu) for vcpu in vcpus}
    if _is_arm64(argv):
        ids = {vcpu: mpidr(number) for vcpu, number in ids.items()}
    return {vcpu: number for vcpu, number in ids.items() if 0 <= number <= MAX_HW}


def mpidr(vcpu_id: int) -> int:
    """Aff2.Aff1.Aff0 of KVM's vcpu id on arm64: 16 vCPUs a cluster (arch/arm64/kvm/sys_regs.c: reset_mpidr).

    >>> mpidr(17)
    257
    """
    return vcpu_id & 0x0F | (vcpu_id >> 4 & 0xFF) << 8 | (vcpu_id >> 12 & 0xFF) << 16


def _is_arm64(argv: Sequence[str]) -> bool:
    program = argv[0].rpartition("/")[2] if argv else ""
    if program.startswith("qemu-system-"):
        return program.startswith("qemu-system-aarch64")
    return platform.machine() == "aarch64"


def guest_cid(argv: Sequence[str]) -> int | None:
    """The guest's vsock address, from QEMU's `-device vhost-vsock-…,guest-cid=N`."""
    for device in _devices(argv):
        text = device.get("guest-cid", "")
        if _VSOCK.fullmatch(device.get("driver", "")) and text.isascii() and text.isdigit() and len(text) <= 10 \
                and _FIRST_GUEST_CID <= int(text) < _ANY_CID:
            return int(text)
    return None


def vhost_user_vsock(argv: Sequence[str]) -> str | None:
    """The socket between QEMU and the daemon that is its vsock device; the guest is reached by another one of that
    daemon's (`daemon_uds`)."""
    chardevs = _chardevs(argv)
    for device in _devices(argv):
        if _VHOST_USER_VSOCK.fullmatch(device.get("driver", "")):
            path = chardevs.get(device.get("chardev", ""), {}).get("path", "")
            if path:
                return path
    return None


def api_socket(argv: Sequence[str]) -> str | None:
    """The path of Cloud Hypervisor's `--api-socket` (bare or as `path=`) or Firecracker's `--api-sock`."""
    for at, arg in enumerate(argv):
        name, equals, value = arg.partition("=")
        if name in ("--api-socket", "--api-sock"):
            value = value if equals else argv[at + 1] if at + 1 < len(argv) else ""
            path = value.removeprefix("path=")
            return path if path and "\0" not in path and not path.startswith("fd=") else None
    return None


def daemon_uds(argv: Sequence[str], socket: str) -> str | None:
    """Where vhost-device-vsock takes connections for the guest that it serves over `socket`; None when this is not the
    command line of such a daemon."""
    if not argv or not argv[0].rpartition("/")[2].startswith("vhost-device-vsock"):
        return None
    given: dict[str, str] = {}
    for at, arg in enumerate(argv):
        name, equals, value = arg.partition("=")
        if name in ("--socket", "--uds-path"):
            given[name] = value if equals else argv[at + 1] if at + 1 < len(argv) else ""
        elif name == "--vm":  # several guests in one daemon: guest-cid=3,socket=…,uds-path=…
            pairs = dict(keyvals(value if equals else argv[at + 1] if at + 1 < len(argv) else "", "guest-cid"))
            if pairs.get("socket") == socket and pairs.get("uds-path"):
                return pairs["uds-path"]
    return given.get("--uds-path") or None if given.get("--socket") == socket else None


def serial_socket(argv: Sequence[str], name: str) -> str | None:
    """The Unix socket on which QEMU offers the virtio-serial port `name`, as written: a relative one starts at QEMU's
    directory."""
    chardevs = _chardevs(argv)
    for device in _devices(argv):
        if device.get("driver") == "virtserialport" and device.get("name") == name:
            options = chardevs.get(device.get("chardev", ""), {})
            if options.get("path") and options.get("server", "off") in _ON and "fd" not in options:
                return options["path"]
    return None


def _chardevs(argv: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    """The sockets among the character devices, by id."""
    found: dict[str, Mapping[str, str]] = {}
    for value in option_values(argv, "chardev"):
        options = dict(keyvals(value, "backend"))
        if options.get("backend") == "socket" and "id" in options and options.get("abstract") not in _ON:
            found[options["id"]] = options
    return found


def _devices(argv: Sequence[str]) -> Iterator[Mapping[str, str]]:
    """`-device`, plain or JSON, as words."""
    for value in option_values(argv, "device"):
        if not value.startswith("{"):
            yield dict(keyvals(value, "driver"))
            continue
        try:
            options = json.loads(value)
        except (ValueError, RecursionError):
            continue
        if isinstance(options, dict):
            yield {str(key): str(item) for key, item in options.items() if isinstance(item, str | int)}
