"""What a guest is sent, from a placement."""

from __future__ import annotations

import gzip
import io
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ruled import claims

from vmpin.cpuset import CpuSet
from vmpin.domain.model import Container, ContainerId, SandboxId, Vcpu, VcpuId
from vmpin.domain.policy import Policy, VcpuRule
from vmpin.domain.sandbox_placement import Placement
from vmpin.domain.topology import Topology
from vmpin.guests.kata_agent import online_cpus
from vmpin.guests.vcpu_map import GuestVcpus, cpu_view, guest_cpu_numbers, guest_map
from vmpin.host.procfs import Procfs
from vmpin.placement.ownership import Node, ownership
from vmpin.placement.rules import PlacementRequest, place
from vmpin.protocol.frames import FrameDecoder, encode, format_ids
from vmpin.protocol.messages import VcpuMap, as_json
from vmpin.protocol.parsing import parse_request
from vmpin.vmm.guest_machine import kernel_version, version_in
from vmpin.vmm.qemu import QEMU

NODE = Node(Topology.build(CpuSet.parse("0-7")), CpuSet.parse("0-1"))
POD = SandboxId("pod-a")
IDS = {VcpuId(number): number for number in range(8)}


def box(name: str, cpus: str = "", pause: bool = False) -> Container:
    return Container(ContainerId(name), name, CpuSet.parse(cpus) or None, pause=pause)


def decide(vcpus: int, *containers: Container, ids: list[int] | None = None) -> Placement:
    cpus = tuple(Vcpu(VcpuId(number)) for number in ids or range(vcpus))
    return place(PlacementRequest(POD, cpus, containers), NODE, ownership({POD: claims(containers, NODE)}, NODE),
                 Policy())


def sent_vcpus(placement: Placement, system: str = "spare") -> dict[str, str]:
    vcpu_map = guest_map(placement, IDS, system=system)
    assert vcpu_map is not None
    return {cid: format_ids(share.hw) + ("!" if share.exclusive else "")
            for cid, share in vcpu_map.containers.items()} | {
                "system": "-" if vcpu_map.system is None else format_ids(vcpu_map.system)}


def test_an_exclusive_container_has_the_vcpus_that_back_it_and_the_others_the_floating_ones() -> None:
    placement = decide(4, box("own", "2-3"), box("shared", "0-1"), box("pause", pause=True))
    assert sent_vcpus(placement) == {"own": "2-3!", "shared": "0-1", "pause": "0-1", "system": "0-1"}


def test_without_exclusive_cpus_each_container_has_every_vcpu() -> None:
    assert sent_vcpus(decide(2, box("a", "0"), box("b"))) == {"a": "0-1", "b": "0-1", "system": "0-1"}


def test_where_no_vcpu_floats_a_shared_container_has_all_and_is_not_exclusive() -> None:
    assert sent_vcpus(decide(2, box("own", "2-3"), box("shared", "0-1"))) == {
        "own": "0-1!", "shared": "0-1", "system": "0-1"}


def test_fewer_vcpus_than_cpus_are_shared_out() -> None:
    assert sent_vcpus(decide(3, box("a", "2-4"), box("b", "5-7"), box("c"))) == {
        "a": "1!", "b": "2!", "c": "0", "system": "0"}


def test_the_guests_own_processes_are_left_alone_by_policy() -> None:
    assert sent_vcpus(decide(3, box("own", "2-3")), system="off")["system"] == "-"


def test_a_map_has_hardware_ids() -> None:
    placement = decide(0, box("own", "2-3"), box("shared", "0-1"), ids=[0, 1, 7])
    vcpu_map = guest_map(placement, {VcpuId(0): 0, VcpuId(1): 4, VcpuId(7): 0x10000}, export=True)
    assert vcpu_map is not None
    assert vcpu_map.containers["own"].hw == (4, 0x10000)
    assert (vcpu_map.system, vcpu_map.generation, vcpu_map.export, vcpu_map.sandbox) == ((0,), 0, True, "pod-a")


def test_nothing_is_sent_where_a_vcpus_number_is_not_known() -> None:
    assert guest_map(decide(2, box("own", "2")), {VcpuId(0): 0}) is None
    assert guest_map(decide(0, box("own", "2")), IDS) is None


def test_an_id_that_the_protocol_refuses_is_left_out() -> None:
    assert sent_vcpus(decide(2, box("../x", "2"), box("b"))) == {"b": "0", "system": "0"}


def test_a_map_can_be_sent_and_holds_no_cpu_of_the_hosts() -> None:
    vcpu_map = guest_map(decide(4, box("own", "6-7"), box("shared", "0-1")), IDS)
    assert vcpu_map is not None
    (message,) = FrameDecoder().feed(encode(as_json(vcpu_map)))
    read = parse_request(message)
    assert isinstance(read, VcpuMap)
    assert read == vcpu_map
    assert "6" not in str(message["containers"])


def test_the_hosts_cpus_are_sent_where_asked_for() -> None:
    placement = decide(4, box("own", "6-7"), box("shared", "0-1"))
    vcpu_map = guest_map(placement, IDS, host_cpus=True)
    assert vcpu_map is not None
    assert {cid: str(share.host) for cid, share in vcpu_map.containers.items()} == {"own": "6-7", "shared": "0-1"}
    alone = place(PlacementRequest(POD, (Vcpu(VcpuId(0)),), (box("own", "6"),)), NODE,
                  ownership({POD: claims([box("own", "6")], NODE)}, NODE), Policy(vcpus=VcpuRule.OFF))
    left_alone = guest_map(alone, IDS, host_cpus=True)
    assert left_alone is not None
    assert str(left_alone.containers["own"].host) == ""


OLD, NEW = (6, 8), (6, 9)


@pytest.mark.parametrize(("boot", "arrived", "alike", "old", "new"), [
    (4, [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]),
    (4, [2, 0, 3, 1], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]),
    # Kata's hotplug, from the last slot of eight downwards: CPU 1 before Linux 6.9, CPU 7 since.
    (1, [0, 7], [0], [0, 1], [0, 7]),
    (1, [0, 7, 6], [0], [0, 1, 2], [0, 7, 6]),
    # Upwards both are the same.
    (1, [0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 2]),
    # In no order of slots: an old Linux numbered them as they came for the first time, whenever that was.
    (1, [0, 6, 7], [0], [0], [0, 6, 7]),
    (1, [0, 6], [0], [0], [0, 6]),
    (1, [0, 1, 3], [0], [0], [0, 1, 3]),
    # One of those it was started with is missing.
    (2, [0, 2], [], [], []),
    (2, [], [], [], []),
])
def test_cpu_numbers_follow_from_the_guests_kernel_version(
        boot: int, arrived: list[int], alike: list[int], old: list[int], new: list[int]) -> None:
    """Where the kernel is not known, only what an old and a new one do alike."""
    vcpus = GuestVcpus({VcpuId(number): number for number in arrived}, boot, 8)
    order = [*range(boot), *(number for number in arrived if number >= boot)]
    for kernel, numbers in (None, alike), (OLD, old), (NEW, new):
        assert guest_cpu_numbers(vcpus, kernel) == dict(zip(order, numbers, strict=False)), kernel


# The kernel

def bzimage(release: str) -> bytes:
    """The beginning of one, as Documentation/arch/x86/boot.rst has it."""
    raw = bytearray(0x4000)
    raw[0x202:0x206] = b"HdrS"
    struct.pack_into("<H", raw, 0x20E, 0x3000 - 0x200)
    raw[0x3000:0x3000 + len(release) + 1] = release.encode() + b"\0"
    # What is packed behind it may say something else.
    return bytes(raw) + b"Linux version 9.9.9"


VMLINUX = (b"\x7fELF" + b"\0" * 70_000 + b"%s version %s (build@host)\0Linux version 6.12.22 (root@kata) #1 SMP\0"
           + b"Linux version 9.9.9\0")


@pytest.mark.parametrize(("image", "version"), [
    (bzimage("6.1.0-37-cloud-amd64 (debian-kernel@lists.debian.org) #1 SMP"), (6, 1)), (VMLINUX, (6, 12)),
    *((b"\x7fELF" + b"\0" * ((1 << 20) - 4 - left) + b"Linux version 5.15.0", (5, 15)) for left in (3, 16, 17, 18)),
    (bzimage("no release"), None), (b"\x7fELF" + b"\0" * 100, None), (gzip.compress(VMLINUX), None), (b"", None),
    (b"\0" * 0x202 + b"HdrS", None), (b"\0" * 0x202 + b"HdrS" + b"\0" * 8 + b"\xff\xff", None),
])
def test_a_kernels_version_is_in_its_image(image: bytes, version: tuple[int, int] | None) -> None:
    assert version_in(io.BytesIO(image)) == version


def test_damaged_images_have_no_version() -> None:
    chance = random.Random(3)
    for right in (bzimage("6.1.0"), VMLINUX[:80_000]):
        for _ in range(200):
            raw = bytearray(right[:chance.randrange(1, len(right))])
            for _ in range(20):
                raw[chance.randrange(len(raw))] = chance.randrange(256)
            version = version_in(io.BytesIO(bytes(raw)))
            assert version is None or len(version) == 2


@contextmanager
def process(place: Path) -> Iterator[tuple[int, int]]:
    """One whose directory this is; its pid and start."""
    with subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], cwd=place, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as made:
        assert made.stdout is not None
        made.stdout.readline()
        stat = Procfs().stat(str(made.pid))
        assert stat is not None
        try:
            yield made.pid, stat.starttime
        finally:
            made.communicate(b"\n")


def test_the_version_is_of_the_image_on_the_vmms_command_line(tmp_path: Path) -> None:
    image = tmp_path / "vmlinux"
    image.write_bytes(VMLINUX)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "empty").touch()
    time.sleep(0.05)
    with process(tmp_path) as (pid, began):
        for path in str(image), "vmlinux":
            assert kernel_version(QEMU.kernels(["qemu", "-kernel", path, "-append", "quiet"]), pid, began) == (6, 12)
        for path in "", "none", str(tmp_path), str(fifo), "empty", "a\0b":
            assert kernel_version(QEMU.kernels(["qemu", "-kernel", path]), pid, began) is None
        assert kernel_version(QEMU.kernels(["qemu"]), pid, began) is None
        assert kernel_version(QEMU.kernels(["qemu", "-kernel", str(image), "-kernel", "other"]), pid, began) is None
        # Another one, put there since: what the VM has is not known.
        time.sleep(0.05)
        image.write_bytes(VMLINUX)
        assert kernel_version(QEMU.kernels(["qemu", "-kernel", str(image)]), pid, began) is None
    assert kernel_version(QEMU.kernels(["qemu", "-kernel", str(image)]), pid, began) is None


# The metrics

def test_only_lines_of_online_cpus_are_counted() -> None:
    text = """\
# HELP kata_guest_cpu_time Guest CPU statistics.
# TYPE kata_guest_cpu_time gauge
kata_guest_cpu_time{cpu="0",item="user"} 1200
kata_guest_cpu_time{cpu="0",item="system"} 3.5e2
kata_guest_cpu_time{cpu="1",item="user"} 7
kata_guest_cpu_time{cpu="total",item="user"} 1207
kata_guest_load{item="load1"} 0.5
kata_guest_cpu_time{cpu="99999",item="user"} 7
kata_guest_cpu_time{cpu="2000",item="user"} 7
kata_guest_cpu_time{cpu="2",item="user"} NaN
kata_guest_cpu_time{cpu="2",item="user"} inf
kata_guest_cpu_time{cpu="2",item="user"} x
kata_guest_cpu_time{cpu="2",item="user"} -1
kata_guest_cpu_time{cpu="2
"""
    assert online_cpus(text) == 2
    assert online_cpus("") == 0


def test_plugged_vcpus_may_be_offline_while_fewer_cpus_are_online() -> None:
    vcpus = GuestVcpus({VcpuId(number): number for number in (0, 1, 7, 6)}, 2, 8)
    view = cpu_view(vcpus, OLD, 3)
    assert (dict(view.numbers), view.unnumbered, set(view.offline)) == ({0: 0, 1: 1, 7: 2, 6: 3}, (), {6, 7})
    assert (view.all_cpus, view.online, view.total) == (CpuSet((0, 1)), 3, 4)
    assert cpu_view(vcpus, OLD, 4).all_cpus == CpuSet(range(4))
    assert cpu_view(vcpus, None, 4).unnumbered == (6, 7)
