"""Descriptors of this process, which has real taps and macvtaps open in a namespace of its own, and made-up command
lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from need import need_root

from vmpin.features.network.network_devices import MAX_FDS, OpenDevices, disk_devices, distinct_files, open_devices
from vmpin.features.network.vm_network import VmNetDevice
from vmpin.host.procfs import Procfs

PID = 42


class Descriptors:
    """A process's descriptors as a tree of /proc: links to what they name, and fdinfo of taps."""

    def __init__(self, root: Path) -> None:
        self.proc, self.at = Procfs(root), root / str(PID)
        for name in ("fd", "fdinfo"):
            (self.at / name).mkdir(parents=True)

    def open(self, fd: int, target: str, interface: str = "") -> None:
        (self.at / "fd" / str(fd)).symlink_to(target)
        (self.at / "fdinfo" / str(fd)).write_text(f"pos:\t0\nflags:\t02\niff:\t{interface}\n")

    def found(self, *argv: str) -> OpenDevices:
        return open_devices(self.proc, PID, ["qemu-system-x86_64", *argv])


@pytest.fixture
def opened(tmp_path: Path) -> Descriptors:
    return Descriptors(tmp_path)


def test_katas_descriptors_are_queues_of_its_tap(opened: Descriptors) -> None:
    for fd in (3, 4):
        opened.open(fd, "/dev/net/tun", "tap0_kata")
    for fd in (5, 6):
        opened.open(fd, "/dev/vhost-net")
    opened.open(7, "/dev/vhost-vsock")
    opened.open(8, "socket:[1]")
    found = opened.found("-netdev", "tap,id=network-0,vhost=on,vhostfds=5:6,fds=3:4",
                         "-device", "vhost-vsock-pci,disable-modern=false,vhostfd=7,id=vsock-1,guest-cid=99")
    assert found == OpenDevices((VmNetDevice("tap", "tap0_kata", 2, 2),), 1)


def test_devices_are_in_the_order_of_the_command_line_and_then_those_plugged_in(opened: Descriptors) -> None:
    for fd, name in ((3, "tap_hot"), (4, "tap_b"), (5, "tap_a")):
        opened.open(fd, "/dev/net/tun", name)
    for fd in (6, 7, 8):
        opened.open(fd, "/dev/vhost-net")
    found = opened.found("-netdev", "tap,id=a,ifname=tap_a,vhost=on", "-netdev", '{"type":"tap","id":"b","fd":"4"}')
    # b has no vhost device, so two are left for one plugged queue: which is not known.
    assert [device.name for device in found.devices] == ["tap_a", "tap_b", "tap_hot"]
    assert found.other_vhost is None
    (opened.at / "fd/8").unlink()
    assert opened.found("-netdev", "tap,id=a,ifname=tap_a,vhost=on",
                        "-netdev", '{"type":"tap","id":"b","fd":"4"}') == OpenDevices(
        (VmNetDevice("tap", "tap_a", 1, 1), VmNetDevice("tap", "tap_b", 1, 0),
         VmNetDevice("tap", "tap_hot", 1, 1, plugged=True)), 0)


def test_a_macvtap_is_its_number_also_when_its_device_node_is_gone(opened: Descriptors) -> None:
    opened.open(3, "/dev/tap7")
    opened.open(4, "/dev/tap7 (deleted)")
    opened.open(5, "/tmp/dev/tap8")
    assert opened.found().devices == (VmNetDevice("macvtap", "", 2, 0, 7, plugged=True),)


def test_vhost_user_is_on_the_command_line_alone(opened: Descriptors) -> None:
    found = opened.found("-chardev", "socket,id=c1,path=/run/vhost.sock",
                         "-netdev", "vhost-user,id=n,chardev=c1,queues=4", "-netdev", "user,id=u")
    assert found == OpenDevices((VmNetDevice("vhost-user", "/run/vhost.sock", 4),), 0)


def test_other_vhost_devices_make_the_order_unknown(opened: Descriptors) -> None:
    opened.open(3, "/dev/net/tun", "tap0")
    opened.open(4, "/dev/vhost-net")
    opened.open(5, "/dev/vhost-scsi")
    found = opened.found()
    assert (found.devices, found.other_vhost) == ((VmNetDevice("tap", "tap0", 1, 1, plugged=True),), None)


def test_a_tap_without_an_interface_and_hostile_texts_are_left_out(opened: Descriptors) -> None:
    opened.open(3, "/dev/net/tun")
    opened.open(4, "/dev/tap99999999999")
    assert opened.found("-netdev", "tap,fds=x:99999999999999999999:", "-netdev", "{", "-netdev").devices == ()


def test_a_process_that_has_ended_has_none(tmp_path: Path) -> None:
    assert open_devices(Procfs(tmp_path), PID, []) == OpenDevices((), 0)


def test_image_files_of_the_command_line_and_block_devices_are_disks(tmp_path: Path) -> None:
    image, other = tmp_path / "disk.img", tmp_path / "log"
    with image.open("w"), other.open("w"):
        where = os.stat(image).st_dev
        argv = ["qemu", "-drive", f"file={image},id=d,if=none"]
        assert disk_devices(Procfs(), os.getpid(), argv) == {(os.major(where), os.minor(where))}
        assert disk_devices(Procfs(), os.getpid(), ["qemu"]) == frozenset()
        given = ["qemu", "-blockdev", f'{{"driver":"raw","file":{{"driver":"file","filename":"{image}"}}}}']
        assert disk_devices(Procfs(), os.getpid(), given) == {(os.major(where), os.minor(where))}


@pytest.mark.root
def test_a_queue_counts_once_however_many_descriptors_it_has() -> None:
    """As Cloud Hypervisor has them: five for one queue pair. In a network namespace of the child's own."""
    need_root()
    code = """
import ctypes, fcntl, os, struct, sys
assert ctypes.CDLL(None).unshare(0x40000000) == 0  # CLONE_NEWNET
def queue():
    fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(fd, 0x400454ca, struct.pack("16sH22x", b"tap0_kata", 0x0002 | 0x1000 | 0x0100))
    return fd
for _ in range(int(sys.argv[1])):
    fd = queue()
    for _ in range(4):
        os.dup(fd)
print(flush=True)
sys.stdin.read()
"""
    for queues in (1, 2):
        with subprocess.Popen([sys.executable, "-c", code, str(queues)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            if child.stdout.readline() != b"\n":
                pytest.skip("no tap can be made here (/dev/net/tun)")
            found = open_devices(Procfs(), child.pid, ["cloud-hypervisor"])
            child.communicate(b"")
        assert [(device.name, device.queues) for device in found.devices] == [("tap0_kata", queues)]


@pytest.fixture
def fds(tmp_path: Path) -> list[int]:
    """A file, a duplicate, the file opened again, and a duplicate of that."""
    (tmp_path / "file").write_text("")
    first, again = (os.open(tmp_path / "file", os.O_RDONLY) for _ in range(2))
    return [first, os.dup(first), again, os.dup(again)]


def test_duplicates_of_a_descriptor_are_one_file_and_a_file_opened_again_is_another(fds: list[int]) -> None:
    found = distinct_files(Procfs(), os.getpid(), fds)
    if found == fds:
        pytest.skip("the kernel has no kcmp (CONFIG_KCMP)")
    assert found == [fds[0], fds[2]]


def test_descriptors_of_another_process_are_compared_there(fds: list[int]) -> None:
    if distinct_files(Procfs(), os.getpid(), fds) == fds:
        pytest.skip("the kernel has no kcmp (CONFIG_KCMP)")
    code = "import os,sys; os.dup2(0, 50); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert distinct_files(Procfs(), child.pid, [0, 50, 1]) == [0, 1]
        child.communicate(b"")


def test_another_pid_namespaces_numbers_are_not_asked_for(fds: list[int], tmp_path: Path) -> None:
    assert distinct_files(Procfs(tmp_path), os.getpid(), fds) == fds
    assert distinct_files(Procfs(), 2**22 - 1, fds) == fds, "and what has ended has all of them"


def test_no_more_descriptors_are_compared_than_a_device_has_queues(fds: list[int]) -> None:
    assert len(distinct_files(Procfs(), os.getpid(), [*fds, *range(1 << 30, (1 << 30) + 2 * MAX_FDS)])) <= MAX_FDS
