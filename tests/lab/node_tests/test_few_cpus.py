"""A node without SMT and with a CPU offline: 0, 2 and 4 are left of eight, and 6 can come back.

The other CPUs stay in what the kubelet and Kata say, as a node's description may be older than its CPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.node_tests.conftest import StartsVms
from lab.node_tests.guest import Guest
from lab.node_tests.machines import Kata, NestedVm, Vmpin, Watcher, mask, until

_SIX = Path("/sys/devices/system/cpu/cpu6/online")


@pytest.fixture
def vm(nested_vm: StartsVms, vmpin: Vmpin) -> NestedVm:
    vmpin.configure(node__shared_pool="0-1", watch__resync_seconds=1)
    made = nested_vm(vcpus=3, iothreads=["io1"], vhost_net=1, guest=Guest.IDLE)
    made.wait_idle()
    return made


@pytest.fixture
def six_offline_again() -> Iterator[None]:
    yield
    _SIX.write_text("0")


def vcpus(vm: NestedVm) -> list[str]:
    tids = vm.vcpu_tids()
    return [str(mask(tids[index])) for index in sorted(tids)]


def rest(vm: NestedVm) -> set[str]:
    own = set(vm.vcpus())
    return {str(each) for tid, each in vm.masks().items() if tid not in own}


@pytest.mark.parametrize(("containers", "places", "others", "verdict"), [
    ({"a": "2", "b": "4", "side": "0"}, ["0", "2", "4"], "0", "pinned"),
    ({"a": "2-3", "b": "4-5", "side": "0-1"}, ["0", "2", "4"], "0", "pinned"),
    ({"a": "2-3"}, ["2", "2", "2"], "2", "pinned"),
    ({"a": "6-7", "side": "0"}, ["0", "0", "0"], "0", "floating"),
    ({"side": "0-1"}, ["0", "0", "0"], "0", "floating"),
    ({"a": "5-7"}, ["0", "0", "0"], "0", "degraded"),
], ids=["one to one", "siblings that are off", "one CPU for all", "an owner whose CPUs are all off", "shared",
        "nothing left"])
def test_threads_are_on_what_is_left(containers: dict[str, str], places: list[str], others: str, verdict: str,
                                     vm: NestedVm, kata: Kata, vmpin: Vmpin) -> None:
    kata.write(vm, containers)
    vmpin.reconcile()
    assert vcpus(vm) == places
    assert rest(vm) == {others}
    assert vmpin.status(vm)["verdict"] == verdict
    assert vmpin.reconcile().resync(act=False).results == ()


@pytest.mark.usefixtures("six_offline_again")
def test_a_cpu_that_comes_online_is_used_at_once(vm: NestedVm, kata: Kata, watcher: Watcher) -> None:
    kata.write(vm, {"a": "4", "b": "6-7", "side": "0-1"})
    with watcher:
        until(lambda: (vcpus(vm), rest(vm)) == (["0", "0", "4"], {"0"}), lambda: f"places: {vm.masks()}")
        _SIX.write_text("1")
        until(lambda: (vcpus(vm), rest(vm)) == (["0", "6", "4"], {"0"}), lambda: f"6 in use: {vm.masks()}")
        _SIX.write_text("0")
        until(lambda: (vcpus(vm), rest(vm)) == (["0", "0", "4"], {"0"}), lambda: f"6 given up: {vm.masks()}")
