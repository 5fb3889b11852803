"""vCPUs that are plugged in and out while pinned, with the ids that QEMU gives them: 0, 1, 7, 6."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from qemu.qmp import QMPError

from lab.node_tests.conftest import StartsVms
from lab.node_tests.guest import Guest
from lab.node_tests.machines import Kata, NestedVm, Vmpin, Watcher, mask, until
from vmpin.cpuset import CpuSet, union


@pytest.fixture
def pool(vmpin: Vmpin) -> None:
    vmpin.configure(node__shared_pool="0-1", watch__resync_seconds=1)


def places(vm: NestedVm) -> dict[int, str]:
    return {index: str(mask(tid)) for index, tid in sorted(vm.vcpu_tids().items())}


def wait_for(vm: NestedVm, vcpus: dict[int, str], rest: str) -> None:
    """Until the vCPUs, by id, and all other threads are where they should be."""
    def there() -> bool:
        own = set(vm.vcpus())
        return places(vm) == vcpus and {str(each) for tid, each in vm.masks().items() if tid not in own} == {rest}

    until(there, lambda: f"vCPUs {vcpus} and the rest on {rest}, have {places(vm)} and {vm.masks()}")


def plug(vm: NestedVm) -> int:
    """Plug a vCPU in. From its first moment on it is within the sandbox's CPUs, as its creator is."""
    sandbox = union(vm.masks().values())
    slot = next(each for each in vm.qmp("query-hotpluggable-cpus") if "qom-path" not in each)
    index: int = slot["props"]["socket-id"]
    vm.qmp("device_add", {"driver": slot["type"], "id": f"cpu-{index}", **slot["props"]})
    assert mask(vm.vcpu_tids()[index]) <= sandbox
    return index


def unplug(vm: NestedVm, index: int) -> None:
    """Have the guest eject a vCPU. QEMU refuses until the guest has set up its side."""
    refused: Any = None

    def asked() -> bool:
        nonlocal refused
        try:
            vm.qmp("device_del", {"id": f"cpu-{index}"})
        except QMPError as err:
            refused = err
            return False
        return True

    until(asked, lambda: f"QEMU to take the vCPU out: {refused}")
    until(lambda: index not in vm.vcpu_tids(), f"vCPU {index} to be gone")


@pytest.mark.usefixtures("pool")
def test_plugged_vcpus_are_placed_and_unplugged_ones_leave_their_cpu(nested_vm: StartsVms, kata: Kata, vmpin: Vmpin,
                                                                    watcher: Watcher) -> None:
    """With unnamed threads, and a vCPU 0 that never waits: KVM alone knows who is who."""
    vm = nested_vm(vcpus=2, maxcpus=8, vhost_net=1, iothreads=["io1"], debug_threads=False,
                   guest=Guest.SERVES)
    kata.write(vm, {"pinned": "2-3", "side": "0-1"})
    with watcher:
        wait_for(vm, {0: "2", 1: "3"}, "0-1")

        assert plug(vm) == 7
        wait_for(vm, {0: "2", 1: "3", 7: "0-1"}, "0-1")
        assert plug(vm) == 6
        wait_for(vm, {0: "2", 1: "3", 6: "0-1", 7: "0-1"}, "0-1")

        # One CPU more: who has one keeps it, and of the floating the highest id is pinned.
        kata.write(vm, {"pinned": "2-4", "side": "0-1"})
        wait_for(vm, {0: "2", 1: "3", 6: "0-1", 7: "4"}, "0-1")

        # Its CPU goes to the one that is left.
        unplug(vm, 7)
        wait_for(vm, {0: "2", 1: "3", 6: "4"}, "0-1")

        # QEMU gives the number, and KVM's vCPU, to a new thread.
        assert plug(vm) == 7
        wait_for(vm, {0: "2", 1: "3", 6: "4", 7: "0-1"}, "0-1")
        threads = vmpin.status(vm)["threads"]
        assert {thread["vcpu"]: thread["tid"] for thread in threads if thread["role"] == "vcpu"} == vm.vcpu_tids()
        assert all(thread["ok"] for thread in threads)


@pytest.mark.release
@pytest.mark.usefixtures("pool")
def test_a_vcpu_that_is_not_identified_yet_moves_no_other(nested_vm: StartsVms, kata: Kata, vmpin: Vmpin,
                                                        watcher: Watcher) -> None:
    """A vCPU plugged into a paused VM has never been in KVM_RUN, as any has not in its first moments."""
    vm = nested_vm(vcpus=2, maxcpus=8, debug_threads=False, guest=Guest.SERVES)
    kata.write(vm, {"pinned": "2-3", "side": "0-1"})
    with watcher:
        wait_for(vm, {0: "2", 1: "3"}, "0-1")
        assert plug(vm) == 7
        wait_for(vm, {0: "2", 1: "3", 7: "0-1"}, "0-1")
        vm.qmp("stop")
        assert plug(vm) == 6
        until(lambda: vmpin.status(vm)["verdict"] == "waiting", "the watcher to miss a vCPU")
        wait_for(vm, {0: "2", 1: "3", 6: "0-3", 7: "0-1"}, "0-3")
        vm.qmp("cont")
        until(lambda: vmpin.status(vm)["verdict"] == "pinned", "every vCPU to be identified")
        wait_for(vm, {0: "2", 1: "3", 6: "0-1", 7: "0-1"}, "0-1")


@pytest.mark.release
@pytest.mark.usefixtures("pool")
def test_a_busy_vcpu_stays_on_its_cpu_when_the_watcher_begins_anew(nested_vm: StartsVms, kata: Kata, vmpin: Vmpin,
                                                                   watcher: Watcher, tmp_path: Path) -> None:
    """vCPU 0 never waits, and nothing shows the second watcher which thread it is: KVM's debugfs is out of its sight,
    as on a node without it."""
    vm = nested_vm(vcpus=2, debug_threads=False, guest=Guest.SERVES)
    kata.write(vm, {"pinned": "2-3"})
    with watcher:
        wait_for(vm, {0: "2", 1: "3"}, "2-3")
    (tmp_path / "sys/kernel").mkdir(parents=True)
    for path in [*Path("/sys").iterdir(), *Path("/sys/kernel").iterdir()]:
        if path.name not in ("kernel", "debug"):
            (tmp_path / str(path)[1:]).symlink_to(path)
    vmpin.configure(paths__sys=str(tmp_path / "sys"))
    with watcher:
        vmpin("repin")
        assert places(vm) == {0: "2", 1: "3"}
        assert vmpin.status(vm)["verdict"] == "pinned"
    (vmpin.config().paths.state_file).unlink()
    with watcher:  # so there is nothing that shows it, indeed
        until(lambda: vmpin.status(vm)["verdict"] in ("waiting", "degraded"), "a vCPU to be missed")


@pytest.mark.release
@pytest.mark.usefixtures("pool")
def test_unplugged_vcpus_leave_too_few_and_those_left_share(nested_vm: StartsVms, kata: Kata,
                                                           watcher: Watcher) -> None:
    vm = nested_vm(vcpus=1, maxcpus=8, guest=Guest.SERVES)
    kata.write(vm, {"pinned": "2-3"})
    with watcher:
        wait_for(vm, {0: "2-3"}, "2-3")
        assert plug(vm) == 7
        until(lambda: sorted(places(vm).values()) == ["2", "3"], lambda: f"one to one: {places(vm)}")
        unplug(vm, 7)
        wait_for(vm, {0: "2-3"}, "2-3")
        assert mask(vm.vcpu_tids()[0]) == CpuSet.parse("2-3")
