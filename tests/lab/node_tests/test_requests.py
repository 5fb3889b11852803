"""A container's creation, update and end are no drift: Kata plugs in vCPUs and rewrites the sandbox's cgroup before
the runtime reports that anything has been done."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from nri_peer import PATIENCE, NriRuntime

from lab.node_tests.kata_runtime import KataRuntime, Vmm
from lab.node_tests.machines import Kata, Vmpin, Watcher, mask, until
from lab.node_tests.test_changes import CpusetCgroup, cgroup
from vmpin.cpuset import CpuSet

__all__ = ["cgroup"]

#: Each is the same story; more of them meet rare races (before a release: lab/boots.py).
ROUNDS = int(os.environ.get("VMPIN_LAB_ROUNDS", "3"))


@pytest.fixture
def runtime(vmpin: Vmpin, watcher: Watcher, cgroup: CpusetCgroup, kata: Kata, tmp_path: Path) -> Iterator[KataRuntime]:
    vmpin.configure(node__shared_pool="0-1", watch__resync_seconds=1, watch__nri="on",
                    paths__nri=str(tmp_path / "nri.sock"))
    with socket.socket(socket.AF_UNIX) as listener, Vmm() as vm:
        listener.bind(str(tmp_path / "nri.sock"))
        listener.listen(1)
        listener.settimeout(PATIENCE)
        (cgroup.path / "cgroup.procs").write_text(str(vm.pid))
        kata.write(vm, {})
        with watcher:
            nri = NriRuntime(listener.accept()[0])
            nri.begin()
            yield KataRuntime(nri, vm, cgroup, kata)
        nri.close()


def wait_for(runtime: KataRuntime, own: str, rest: str) -> None:
    """Until as many vCPUs as there are CPUs in `own` have one each, and all other threads have `rest`."""
    def masks() -> list[str]:
        found = []
        for tid in runtime.vm.tids():
            with contextlib.suppress(ProcessLookupError):  # a vCPU that was unplugged is just ending
                found.append(str(mask(tid)))
        return sorted(found)

    def there() -> bool:
        singles, found = [str(CpuSet([cpu])) for cpu in CpuSet.parse(own)], masks()
        return found == sorted([*singles, *[rest] * (len(found) - len(singles))])

    until(there, lambda: f"one vCPU on each of {own}, the rest on {rest}; have {masks()}", every=0.01)


def wait_for_containers(runtime: KataRuntime, vmpin: Vmpin) -> None:
    """Until the watcher has taken in that one has ended: its cgroup alone may keep the threads where they belong."""
    def names() -> set[str]:
        return {each["name"] for each in vmpin.status(runtime.vm)["containers"] if not each["pause"]}

    until(lambda: names() == set(runtime.cpus), lambda: f"only {set(runtime.cpus)}, have {names()}")


def test_creations_updates_and_removals_with_hotplug_are_no_drift(runtime: KataRuntime, vmpin: Vmpin,
                                                                 watcher: Watcher) -> None:
    runtime.create("side", "0-1")
    wait_for(runtime, "", "0-1")
    for number in range(ROUNDS):
        runtime.create("a", "2-3", vcpus=(7, 6))
        wait_for(runtime, "2-3", "0-1")
        runtime.create("b", "4-5", vcpus=(5, 4))
        wait_for(runtime, "2-5", "0-1")
        assert mask(runtime.vm.vcpus[0]) == CpuSet((0, 1)), "the boot vCPU is spare"
        runtime.update("side", "0")
        wait_for(runtime, "2-5", "0")
        runtime.fail("c", "6-7")
        runtime.end("a")
        wait_for(runtime, "4-5", "0")
        runtime.unplug((6, 7))
        runtime.update("side", "0-1")
        runtime.end("b")
        wait_for_containers(runtime, vmpin)
        runtime.unplug((4, 5))
        wait_for(runtime, "", "0-1")
        log = watcher.log.read_text()
        assert [line for line in log.splitlines() if " ERROR " in line or " repaired " in line] == [], number
    status = vmpin.status(runtime.vm)
    assert (status["drift"], status["verdict"]) == (None, "floating")
    assert vmpin("verify", runtime.vm.sandbox)


def test_of_a_vm_with_exclusive_containers_alone_every_vcpu_gets_there(runtime: KataRuntime, vmpin: Vmpin,
                                                                      watcher: Watcher) -> None:
    """Its first container takes it off the pool altogether: the mask from before is none of the new cgroup's."""
    runtime.create("a", "2-3", vcpus=(7, 6))
    wait_for(runtime, "2-3", "2-3")
    for _ in range(min(ROUNDS, 5)):
        runtime.create("b", "4-5", vcpus=(5, 4))
        wait_for(runtime, "2-5", "2-5")
        runtime.end("b")
        wait_for_containers(runtime, vmpin)
        runtime.unplug((4, 5))
        wait_for(runtime, "2-3", "2-3")
    assert vmpin.status(runtime.vm)["drift"] is None
    log = watcher.log.read_text()
    assert [line for line in log.splitlines() if " ERROR " in line or " repaired " in line] == []
