"""A VM under real KVM with vhost devices and an iothread: what its threads are, and that vmpin places each."""

from __future__ import annotations

from lab.node_tests.conftest import StartsVms
from lab.node_tests.machines import Kata, NestedVm, Vmpin, Watcher, mask, until
from lab.variant import Kernel, Variant
from vmpin.cpuset import CpuSet
from vmpin.host.procfs import PF_USER_WORKER


def test_threads_are_those_of_this_kernel(nested_vm: StartsVms, variant: Variant) -> None:
    vm = nested_vm(vcpus=2, iothreads=["io1"], vhost_net=1, vhost_vsock=True)
    vm.wait_idle()
    own, kernels = dict(vm.threads()), vm.kernel_threads()
    names = sorted(stat.comm for stat in own.values())
    assert {"CPU 0/KVM", "CPU 1/KVM", "IO io1", "IO mon_iothread"} <= set(names)
    assert len(vm.vhost_tids()) == 2
    if variant.kernel is Kernel.V6_1:
        assert sorted(stat.comm.removesuffix(str(vm.pid)) for stat in kernels.values()) == [
            "kvm-nx-lpage-recovery-", "kvm-pit/", "vhost-", "vhost-"]
        assert all(stat.ppid == 2 for stat in kernels.values())
    else:
        workers = [stat for stat in own.values() if stat.flags & PF_USER_WORKER]
        assert sorted(stat.comm for stat in workers) == ["kvm-nx-lpage-re", f"vhost-{vm.pid}", f"vhost-{vm.pid}"]


def test_reconcile_puts_every_thread_in_its_place(nested_vm: StartsVms, kata: Kata, vmpin: Vmpin,
                                                  online: list[int]) -> None:
    vm = nested_vm(vcpus=3, iothreads=["io1"], vhost_net=1, vhost_vsock=True)
    vm.wait_idle()
    pool, first, second = online[:3]
    vmpin.configure(node__shared_pool=str(pool))
    kata.write(vm, {"pinned": f"{first},{second}", "beside": str(pool)})
    vmpin("repin")
    vcpus = vm.vcpu_tids()
    assert [mask(vcpus[index]) for index in range(3)] == [CpuSet([pool]), CpuSet([first]), CpuSet([second])]
    rest = {tid: found for tid, found in vm.masks().items() if tid not in vcpus.values()}
    assert set(vm.vhost_tids()) <= rest.keys()
    assert set(rest.values()) == {CpuSet([pool])}
    shown = {thread["tid"]: thread for thread in vmpin.status(vm)["threads"]}
    assert shown.keys() == vm.all_threads().keys()
    assert sorted(tid for tid, thread in shown.items() if thread["role"] == "vhost") == sorted(vm.vhost_tids())
    assert vmpin.reconcile().resync(act=False).results == ()


def test_watcher_follows_an_update_of_a_container(nested_vm: StartsVms, kata: Kata, vmpin: Vmpin, watcher: Watcher,
                                                  online: list[int]) -> None:
    vm = nested_vm(vcpus=2, vhost_net=1)
    vm.wait_idle()
    pool, first, second = online[:3]
    vmpin.configure(node__shared_pool=str(pool), watch__resync_seconds=0.5)
    kata.write(vm, {"pinned": str(first)})
    with watcher:
        assert pinned(vm) == str(first)
        kata.write(vm, {"pinned": str(second)})
        until(lambda: pinned(vm) == str(second), lambda: f"pinned to {second}: {vm.masks()}")


def pinned(vm: NestedVm) -> str:
    """The CPUs of the last vCPU."""
    vcpus = vm.vcpu_tids()
    return str(mask(vcpus[max(vcpus)]))
