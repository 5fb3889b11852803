"""The guests that other tests count on are what they say: booted Linux, containers as cgroups, CPUs as in the VM."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from identified_threads import identified, vcpus_of
from real_guest import GuestError, RealGuest
from shared_guest import SharedGuest
from waiting import wait

from vmpin.cpuset import CpuSet
from vmpin.host.procfs import Procfs
from vmpin.vmm import qemu
from vmpin.vmm.recognition import VmmProcess, classify

#: Tests of the tests.
pytestmark = [pytest.mark.guest, pytest.mark.root, pytest.mark.release]


@pytest.fixture(scope="module")
def shared() -> Iterator[SharedGuest]:
    with SharedGuest(lambda built: RealGuest(built, vcpus=4)) as made:
        yield made


@pytest.fixture
def guest(shared: SharedGuest, request: pytest.FixtureRequest) -> Iterator[RealGuest]:
    yield from shared.lent(request)


def test_it_has_booted(guest: RealGuest) -> None:
    print(f"booted in {guest.boot_seconds:.1f} s")  # four alone on a machine with two cores
    assert guest.cpus() == (CpuSet.parse("0-3"), {0: 0, 1: 1, 2: 2, 3: 3})
    assert "cannot be loaded" not in guest.console()
    assert "is not mounted" not in guest.console()


def test_vmpin_takes_it_for_a_vmm_of_katas(guest: RealGuest) -> None:
    """Though it is the dynamic loader that was started."""
    argv = Procfs().cmdline(guest.pid)
    found = classify(argv)
    assert isinstance(found, VmmProcess)
    assert (found.type, found.sandbox) == (qemu.QEMU, guest.sandbox)
    threads = identified(guest.pid, found.type, argv, guest.threads(), Procfs())
    assert (threads.found_by, threads.complete, vcpus_of(threads)) == ("names", True, guest.vcpus())


def test_what_runs_in_a_container_is_seen_in_the_guest_and_outside(guest: RealGuest) -> None:
    """The measure for everything else: a guest CPU is a vCPU is a thread of the host."""
    made = guest.container("c1", idle=1, threads=2)
    pid = made.start("busy", cpus=[1])
    try:
        assert len(made.threads()) == 5
        masks = made.masks()
        assert masks.pop(pid) == CpuSet.parse("1")
        assert all(cpus >= CpuSet.parse("0-3") for cpus in masks.values())
        for tid in masks:
            guest.ask("affinity", tid=tid, cpus=[3])
        wait_for_busy(guest, {1, 3})
        for tid in made.masks():
            guest.ask("affinity", tid=tid, cpus=[2])
        wait_for_busy(guest, {2})
    finally:
        made.remove()
    assert made.masks() == {}


def test_a_container_has_a_cpuset_of_cgroup_v2(guest: RealGuest) -> None:
    made = guest.container(cgroup="kubepods.slice/pod1.slice/cri-containerd-c2.scope", busy=1)
    try:
        assert made.id == "c2"
        for level in ("", "/kubepods.slice", "/kubepods.slice/pod1.slice"):
            guest.ask("write", path=f"/sys/fs/cgroup{level}/cgroup.subtree_control", text="+cpuset")
        made.write("cpuset.cpus", "1-2")
        assert made.mask() == {"1-2"}
        made.below("inner").start("idle")
        assert len(made.masks()) == 2
    finally:
        made.remove()


def test_a_hotplugged_vcpu_has_another_number_and_is_offline_at_first(guest: RealGuest) -> None:
    """The slot that QEMU lists first is the last, and the guest's next number is what it gets there."""
    assert guest.add_vcpu() == 8
    wait(lambda: guest.ask("cpus")["present"] == "0-4", "the guest sees no new CPU")
    assert guest.cpus()[0] == CpuSet.parse("0-3")
    guest.online(4)
    assert guest.cpus() == (CpuSet.parse("0-4"), {0: 0, 1: 1, 2: 2, 3: 3, 4: 8})
    made = guest.container()
    made.start("busy", cpus=[4])
    try:
        wait(lambda: guest.load(0.5).busy() == ({4}, {8}), lambda: f"busy: {guest.load(0.5)}")
        guest.online(4, False)
        assert guest.cpus()[0] == CpuSet.parse("0-3")
    finally:
        made.remove()


def test_what_the_guest_cannot_do_is_an_error(guest: RealGuest) -> None:
    with pytest.raises(GuestError, match="No such file"):
        guest.ask("read", path="/nowhere")
    with pytest.raises(GuestError, match="No such file"):
        guest.ask("start", cgroup="", argv=["/nowhere"])
    assert guest.ask("exists", path="/proc/1")


def wait_for_busy(guest: RealGuest, cpus: set[int]) -> None:
    """Until those are busy and no others are, in the guest and outside, where vCPUs have the same numbers."""
    deadline = time.monotonic() + 120
    while (load := guest.load(0.5)).busy() != (cpus, cpus):
        assert time.monotonic() < deadline, f"{cpus} should be busy, and are: {load}"
