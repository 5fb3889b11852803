"""Which vCPU is which of the guest's CPUs, where it can be shown; and what a Kata agent's metrics show."""

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

from vmpin.domain.model import VcpuId
from vmpin.guests.cpu_numbers import GuestVcpus, guest_cpu_numbers
from vmpin.guests.kata_metrics import Reading, reading, shows
from vmpin.host.procfs import Procfs
from vmpin.vmm.guest_kernel import kernel_version, version_in

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
def test_numbers_are_shown_by_what_is_known_of_the_guests_linux(
        boot: int, arrived: list[int], alike: list[int], old: list[int], new: list[int]) -> None:
    """Where the kernel is not known, only what an old and a new one do alike."""
    vcpus = GuestVcpus({VcpuId(number): number for number in arrived}, boot, 8)
    order = [*range(boot), *(number for number in arrived if number >= boot)]
    for kernel, found in (None, alike), (OLD, old), (NEW, new):
        assert guest_cpu_numbers(vcpus, kernel) == dict(zip(order, found, strict=False)), kernel


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


def test_spoilt_images_are_no_kernels() -> None:
    chance = random.Random(3)
    for right in (bzimage("6.1.0"), VMLINUX[:80_000]):
        for _ in range(200):
            raw = bytearray(right[:chance.randrange(1, len(right))])
            for _ in range(20):
                raw[chance.randrange(len(raw))] = chance.randrange(256)
            found = version_in(io.BytesIO(bytes(raw)))
            assert found is None or len(found) == 2


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


def test_the_kernel_is_that_which_the_vmm_was_given(tmp_path: Path) -> None:
    image = tmp_path / "vmlinux"
    image.write_bytes(VMLINUX)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "empty").touch()
    time.sleep(0.05)
    with process(tmp_path) as (pid, began):
        for path in str(image), "vmlinux":
            assert kernel_version(["qemu", "-kernel", path, "-append", "quiet"], pid, began) == (6, 12)
        for path in "", "none", str(tmp_path), str(fifo), "empty", "a\0b":
            assert kernel_version(["qemu", "-kernel", path], pid, began) is None
        assert kernel_version(["qemu"], pid, began) is None
        assert kernel_version(["qemu", "-kernel", str(image), "-kernel", "other"], pid, began) is None
        # Another one, put there since: what the VM has is not known.
        time.sleep(0.05)
        image.write_bytes(VMLINUX)
        assert kernel_version(["qemu", "-kernel", str(image)], pid, began) is None
    assert kernel_version(["qemu", "-kernel", str(image)], pid, began) is None


# The metrics

def test_the_times_of_each_cpu_are_read_and_nothing_else() -> None:
    text = """\
# HELP kata_guest_cpu_time Guest CPU statistics.
# TYPE kata_guest_cpu_time gauge
kata_guest_cpu_time{cpu="0",item="user"} 1200
kata_guest_cpu_time{cpu="0",item="system"} 3.5e2
kata_guest_cpu_time{cpu="0",item="guest"} 1
kata_guest_cpu_time{cpu="1",item="user"} 7
kata_guest_cpu_time{cpu="total",item="user"} 1207
kata_guest_load{item="load1"} 0.5
kata_guest_load{item="load5"} 9
kata_guest_tasks{item="cur"} 3
kata_guest_tasks{item="max"} 90
kata_guest_cpu_time{cpu="99999",item="user"} 7
kata_guest_cpu_time{cpu="2",item="user"} NaN
kata_guest_cpu_time{cpu="2",item="user"} inf
kata_guest_cpu_time{cpu="2",item="user"} x
kata_guest_cpu_time{cpu="2",item="user"} -1
kata_guest_cpu_time{cpu="2
"""
    assert reading(text, 7.0) == Reading(7.0, {0: {"user": 1200.0, "system": 350.0}, 1: {"user": 7.0}}, 0.5, 3.0)


def after(*busy: float, seconds: float = 10.0, load: float = 3.0, running: float = 4.0, **other: float) -> Reading:
    """Each CPU was busy for this part of the time since START."""
    return Reading(100.0 + seconds, {
        cpu: {"user": 500 + 1000 * seconds * part, "idle": 500 + 1000 * seconds * (1 - part),
              **{item: 1000 * seconds * value for item, value in other.items()}}
        for cpu, part in enumerate(busy)}, load, running)


START = after(0, 0, 0, 0, seconds=0)


@pytest.mark.parametrize(("what", "verdict"), [
    # Three threads want to run on CPUs 2 and 3; 0 and 1 stand idle.
    (after(0.01, 0.02, 1, 0.99), True),
    # Two threads: they may be there by chance.
    (after(0.01, 0.02, 1, 0.99, load=2.0, running=3), None),
    (after(0.01, 0.02, 1, 0.99, load=2.0), None),
    (after(0.01, 0.02, 1, 0.99, running=3), None),
    # One: so much the more.
    (after(0, 0, 1, 0, load=1.0, running=2), None),
    # They are not full, as when a quota holds them back; or the others are not idle.
    (after(0.01, 0.02, 0.8, 0.8), None),
    (after(0.15, 0.02, 1, 1), None),
    # Work elsewhere, more than the guest's own.
    (after(0.9, 0, 1, 1), False),
    (after(0, 0.3, 0.3, 0), False),
    (after(0.1, 0, 0.1, 0), None),
    # Too soon; a CPU more; one less; one that stood still; counters that were set back.
    (after(0, 0, 1, 1, seconds=2), None),
    (after(0, 0, 1, 1, 0), None),
    (after(0, 0, 1), None),
    (Reading(110.0, {**after(0, 0, 1, 1).cpus, 0: START.cpus[0]}, 3, 4), None),
    (Reading(110.0, {**after(0, 0, 1, 1).cpus, 0: {"user": 0, "idle": 9000}}, 3, 4), None),
    (START, None),
    (Reading(110.0), None),
])
def test_more_threads_than_cpus_and_the_others_idle_is_a_proof(what: Reading, verdict: bool | None) -> None:
    assert shows(START, what, {2, 3}) is verdict


def test_steal_is_no_idleness_and_all_cpus_prove_nothing() -> None:
    assert shows(START, after(0, 0, 0.7, 0.7, steal=0.3), {2, 3}) is None
    assert shows(START, after(1, 1, 1, 1, load=9, running=9), {0, 1, 2, 3}) is None
    assert shows(START, after(0, 0, 1, 1), {2, 9}) is None
    assert shows(Reading(100.0), Reading(110.0), set()) is None
