"""Two busy sandboxes with CPUs of their own: where their threads really ran, by the scheduler's own account."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest

from lab.node_tests.conftest import StartsVms
from lab.node_tests.guest import Guest
from lab.node_tests.machines import Kata, NestedVm, Vmpin, Watcher, mask, until
from lab.node_tests.runs import Runs, run_time
from vmpin.cpuset import CpuSet

#: How long it is measured, in seconds.
_SPELL = 2.0


def measured(*vms: NestedVm) -> Runs:
    """Some seconds of it, with QEMU's own threads busy as well; longer where a vCPU has not run yet: eight emulated
    CPUs share the build machine's few, and one of them may stand still for seconds."""
    vcpus = [tid for vm in vms for tid in vm.vcpu_tids().values()]
    with Runs(*vms) as runs:
        deadline = time.monotonic() + _SPELL

        def spell_is_over() -> bool:
            for vm in vms:
                vm.qmp("query-cpus-fast")
            runs.sample()
            return time.monotonic() >= deadline and all(runs.used.get(tid) for tid in vcpus)

        until(spell_is_over, lambda: f"that vCPUs {vcpus} all run; used: {runs.used}")
    return runs


def wait_for(vm: NestedVm, vcpus: list[str], others: str) -> None:
    own = vm.vcpu_tids()

    def there() -> bool:
        return [str(mask(own[index])) for index in sorted(own)] == vcpus and {
            str(each) for tid, each in vm.masks().items() if tid not in own.values()} == {others}

    until(there, lambda: f"vCPUs on {vcpus}, the rest on {others}; have {vm.masks()}")


def misplace(vm: NestedVm, cpus: str) -> None:
    for tid in vm.all_threads():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(tid, CpuSet.parse(cpus).frozen())


@pytest.mark.release  # its busy guests take the build machine's CPUs for minutes
def test_no_thread_of_a_busy_sandbox_runs_on_anothers_cpus(nested_vm: StartsVms, kata: Kata, vmpin: Vmpin,
                                                          watcher: Watcher) -> None:
    # The watcher is there from the beginning, and has nothing to do yet: to start one beside busy VMs takes long here.
    vmpin.configure(node__shared_pool="0-1", watch__resync_seconds=1, watch__only="none")
    with watcher:
        one = nested_vm(vcpus=2, vhost_net=1, vhost_vsock=True, iothreads=["io1"], guest=Guest.BUSY)
        two = nested_vm(vcpus=2, vhost_net=1, vhost_vsock=True, iothreads=["io1"], guest=Guest.BUSY)
        kata.write(one, {"mine": "2", "side": "0-1"})
        kata.write(two, {"theirs": "4-5"})
        vcpus = [*one.vcpus(), *two.vcpus()]
        until(lambda: all(run_time(tid) > 10**8 for tid in vcpus), "busy guests")
        # Each where the other will be, to begin with: that shows what the measuring is worth.
        misplace(one, "4-5")
        misplace(two, "2")
        with Runs(one, two) as runs:
            def ran_there() -> bool:
                """On both CPUs of the two, which one emulated CPU that stands still may keep from them for a while."""
                runs.sample()
                return runs.of(one) >= CpuSet.parse("4-5") and all(
                    run_time(tid) - runs.before[tid] > 10**8 for tid in vcpus)

            until(ran_there, lambda: f"that they run there: {runs.cpus}")
        assert runs.of(one) == CpuSet.parse("4-5")
        assert runs.of(two) == CpuSet.parse("2")

        vmpin.configure(watch__only="*")
        os.kill(watcher.pid, signal.SIGHUP)
        wait_for(one, ["0-1", "2"], "0-1")
        wait_for(two, ["4", "5"], "4-5")
        runs = measured(one, two)
        check(runs, one, {1: 2}, "0-2")
        check(runs, two, {0: 4, 1: 5}, "4-5")

        # The same after a container got another CPU.
        kata.write(one, {"mine": "7", "side": "0-1"})
        wait_for(one, ["0-1", "7"], "0-1")
        runs = measured(one, two)
        check(runs, one, {1: 7}, "0-1,7")
        check(runs, two, {0: 4, 1: 5}, "4-5")


def check(runs: Runs, vm: NestedVm, pinned: dict[int, int], sandbox: str) -> None:
    """All that a VM did, it did on its sandbox's CPUs, and what its pinned vCPUs did, each on its own."""
    assert runs.switches
    assert runs.of(vm) <= CpuSet.parse(sandbox)
    tids = vm.vcpu_tids()
    for vcpu, cpu in pinned.items():
        assert runs.cpus[tids[vcpu]] == CpuSet([cpu])
        assert runs.used[tids[vcpu]] > 0
    assert runs.used[vm.pid] > 0, "QEMU's main thread has answered, so it ran"
