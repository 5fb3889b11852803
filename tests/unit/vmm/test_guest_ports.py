"""The ways into a guest, and its vCPUs' numbers, from command lines."""

from __future__ import annotations

import pytest

from vmpin.domain.model import VcpuId, VmmType
from vmpin.vmm.guest_ports import daemon_uds, guest_cid, hardware_ids, serial_socket, vhost_user_vsock

X86 = ["/usr/bin/qemu-system-x86_64"]


def ids(*numbers: int) -> list[VcpuId]:
    return [VcpuId(number) for number in numbers]


@pytest.mark.parametrize(("argv", "numbers", "found"), [
    ([*X86, "-smp", "1,cores=1,threads=1,sockets=8,maxcpus=8"], (0, 7), {0: 0, 7: 7}),
    ([*X86, "-smp", "6,sockets=2,cores=3,threads=1"], (0, 2, 3), {0: 0, 2: 2, 3: 4}),
    ([*X86, "-smp", "12,sockets=2,cores=3,threads=2"], (5, 6), {5: 5, 6: 8}),
    (["qemu-system-aarch64", "-smp", "20"], (0, 15, 16, 17), {0: 0, 15: 15, 16: 256, 17: 257}),
    (["qemu-system-s390x", "-smp", "20"], (17,), {17: 17}),
])
def test_vcpus_are_known_in_the_guest_by_what_the_hardware_calls_them(
        argv: list[str], numbers: tuple[int, ...], found: dict[int, int]) -> None:
    assert hardware_ids(VmmType.QEMU, argv, ids(*numbers)) == found


def test_other_vmms_count_apic_ids_from_nought(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert hardware_ids(VmmType.FIRECRACKER, ["firecracker"], ids(0, 17)) == {0: 0, 17: 17}
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert hardware_ids(VmmType.CLOUD_HYPERVISOR, ["cloud-hypervisor"], ids(0, 17)) == {0: 0, 17: 257}


@pytest.mark.parametrize(("device", "cid"), [
    ("vhost-vsock-pci,disable-modern=false,vhostfd=3,id=vsock-77,guest-cid=77,romfile=", 77),
    ("vhost-vsock-pci-non-transitional,guest-cid=3", 3),
    ('{"driver":"vhost-vsock-pci","id":"v","guest-cid":1234}', 1234),
    ("vhost-vsock-pci,guest-cid=2", None),
    ("vhost-vsock-pci,guest-cid=4294967295", None),
    ("vhost-vsock-pci,guest-cid=٣", None),
    ("vhost-vsock-pci", None),
    ("virtio-net-pci,guest-cid=7", None),
    ('{"driver":["vhost-vsock-pci"],"guest-cid":{}}', None),
    ('{"driver":', None),
    ("", None),
])
def test_the_guests_cid(device: str, cid: int | None) -> None:
    assert guest_cid([*X86, "-device", device]) == cid


def test_a_virtio_serial_port_leads_to_its_socket() -> None:
    argv = [*X86, "-chardev", "socket,id=c0,path=/run/a,,b.sock,server=on,wait=off", "-chardev",
            "socket,id=c1,path=/run/other.sock,server=on", "-device", "virtio-serial-pci", "-device",
            "virtserialport,chardev=c1,name=org.qemu.guest_agent.0", "-device",
            "virtserialport,chardev=c0,name=org.vmpin.agent.0"]
    assert serial_socket(argv, "org.vmpin.agent.0") == "/run/a,b.sock"
    assert serial_socket(argv, "org.other") is None


@pytest.mark.parametrize("chardev", [
    "socket,id=c0,path=/run/x", "socket,id=c0,fd=3,server=on", "socket,id=c0,path=/run/x,server=on,abstract=on",
    "pipe,id=c0,path=/run/x,server=on", "socket,id=c1,path=/run/x,server=on",
])
def test_no_socket_is_guessed(chardev: str) -> None:
    assert serial_socket([*X86, "-chardev", chardev, "-device", "virtserialport,chardev=c0,name=p"], "p") is None


def test_a_vhost_user_vsock_leads_to_its_daemon() -> None:
    argv = [*X86, "-chardev", "socket,id=vv,path=vd.sock", "-device", "vhost-user-vsock-pci,chardev=vv"]
    assert vhost_user_vsock(argv) == "vd.sock"
    daemon = ["/usr/bin/vhost-device-vsock", "--guest-cid", "4", "--socket", "vd.sock", "--uds-path=vm4.vsock"]
    assert daemon_uds(daemon, "vd.sock") == "vm4.vsock"
    assert daemon_uds(daemon, "other.sock") is None
    assert daemon_uds(["/bin/sh", *daemon[1:]], "vd.sock") is None
    assert daemon_uds(["vhost-device-vsock", "--socket", "vd.sock", "--uds-path"], "vd.sock") is None
    many = ["vhost-device-vsock", "--vm", "guest-cid=3,socket=a,uds-path=ua",
            "--vm", "guest-cid=4,socket=b,uds-path=ub"]
    assert daemon_uds(many, "b") == "ub"
