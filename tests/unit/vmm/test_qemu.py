"""What QEMU's command line says of the ways into its guest."""

from __future__ import annotations

import pytest

from vmpin.vmm.qemu import guest_cid, serial_socket, vhost_user_vsock

X86 = ["/usr/bin/qemu-system-x86_64"]


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
