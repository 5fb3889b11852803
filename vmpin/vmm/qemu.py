"""QEMU. Its command line is parsed in qemu_cmdline; qmp queries it over QMP."""

import re
from collections.abc import Sequence
from functools import lru_cache

from vmpin.domain.model import SandboxId
from vmpin.vmm.arguments import keyvals, option_values, sandbox_id, vsock_cid
from vmpin.vmm.qemu_cmdline import (
    ON,
    architecture,
    chardev_sockets,
    cpu_index,
    guest_vcpus,
    has_qmp,
    iothread_ids,
    kvm_ids,
    options_of,
    parse_smp,
    qmp_sockets,
)
from vmpin.vmm.vmm_type import GuestChannels, VmmType, VmStart

_VSOCK = r"vhost-vsock-(?:pci|ccw|device)(?:-(?:non-)?transitional)?"
_VHOST_USER_VSOCK = r"vhost-user-vsock-(?:pci|device)(?:-(?:non-)?transitional)?"


def _sandbox(argv: Sequence[str]) -> SandboxId | None:
    # By name only: a QEMU that is not Kata's may have a file below /run/kata among its arguments.
    name = ""
    for value in option_values(argv, "name"):
        name = dict(keyvals(value, "guest")).get("guest", name)
    return sandbox_id(name.removeprefix("sandbox-")) if name.startswith("sandbox-") else None


def _uuid(argv: Sequence[str]) -> str:
    uuids = option_values(argv, "uuid")
    return uuids[0] if len(uuids) == 1 else ""


@lru_cache(maxsize=1024)
def _start(argv: tuple[str, ...]) -> VmStart:
    smp, iothreads = parse_smp(argv), iothread_ids(argv)
    return VmStart(smp.cpus, smp.maxcpus if option_values(argv, "smp") else 0, iothreads,
                   bool(iothreads) and has_qmp(argv))


def guest_cid(argv: Sequence[str]) -> int | None:
    """The guest's vsock address, from `-device vhost-vsock-…,guest-cid=N`."""
    for device in _devices(argv):
        cid = vsock_cid(device.get("guest-cid", ""))
        if cid is not None and re.fullmatch(_VSOCK, device.get("driver", "")):
            return cid
    return None


def vhost_user_vsock(argv: Sequence[str]) -> str | None:
    """The socket between QEMU and its vhost-user vsock daemon. (The guest is reached over another socket of the
    daemon.)"""
    chardevs = chardev_sockets(argv)
    for device in _devices(argv):
        path = chardevs.get(device.get("chardev", ""), {}).get("path")
        if path and re.fullmatch(_VHOST_USER_VSOCK, device.get("driver", "")):
            return path
    return None


def serial_socket(argv: Sequence[str], name: str) -> str | None:
    """The Unix socket on which QEMU offers the virtio-serial port `name`."""
    chardevs = chardev_sockets(argv)
    for device in _devices(argv):
        if device.get("driver") == "virtserialport" and device.get("name") == name:
            options = chardevs.get(device.get("chardev", ""), {})
            if options.get("path") and options.get("server") in ON and "fd" not in options:
                return options["path"]
    return None


def _devices(argv: Sequence[str]) -> list[dict[str, str]]:
    return [options_of(value, "driver") for value in option_values(argv, "device")]


QEMU = VmmType(
    name="qemu",
    kata_name="qemu",
    # Names of QEMU builds: qemu-kiwi (RHEL), qemu-lite-, qemu-vanilla-, qemu-virtiofs-system-ARCH.
    program=r"qemu-(?:.+-)?system-.+|qemu-(?:kvm|kiwi)(?:[-_.].*)?|kvm",
    beginnings=("qemu-", "kvm"),
    # `mon_iothread` runs its own monitors. For libvirt, and here, iothreads are the declared ones.
    thread_names=r"CPU (?P<vcpu>[0-9]{1,5})/[A-Z]+$|IO (?P<monitor>mon_iothread)$|IO (?P<io>.+)",
    sandbox=_sandbox,
    sandbox_by_arguments=_sandbox,
    uuid=_uuid,
    start=_start,
    vcpus_of_kvm_ids=cpu_index,
    kvm_ids=kvm_ids,
    guest_vcpus=guest_vcpus,
    machine=architecture,
    qmp_sockets=qmp_sockets,
    channels=GuestChannels(cid=guest_cid, vsock_daemon=vhost_user_vsock, serial=serial_socket),
    mask_options=r"(?:cpu|node)-affinity=",  # since 7.2, for its memory's threads
)
