"""A VM that begins while a watcher runs that resyncs every ten minutes only: the kernel's events are enough,
for vhost workers and KVM's helpers too, on a kernel that makes threads of the VMM of them and on one that does not.
"""

from __future__ import annotations

import socket
import struct
import subprocess
from pathlib import Path

from lab.node_tests.conftest import StartsVms
from lab.node_tests.machines import Vmpin, Watcher, mask, until
from lab.variant import Kernel, Variant
from vmpin.cpuset import CpuSet


def source_state(vmpin: Vmpin, watcher: Watcher) -> str:
    """What the watcher says of births, once it knows."""
    until(lambda: "proc connector " in watcher.log.read_text(), lambda: watcher.log.read_text())
    return str(vmpin.json("status")["sources"]["new_threads"]["state"])


def events_of_a_bare_listener() -> int:
    """What a member of the connector's group receives that did not ask for anything: whether one is still counted as a
    listener."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 11) as group:
        group.bind((0, 1))
        group.setblocking(False)
        for _ in range(5):
            subprocess.run(["true"], check=True)
        found = 0
        while True:
            try:
                raw = group.recv(512)
            except BlockingIOError:
                return found
            assert struct.unpack_from("=I", raw, 36)[0]
            found += 1


def test_every_thread_of_a_vm_gets_its_place_without_a_clock(nested_vm: StartsVms, vmpin: Vmpin, watcher: Watcher,
                                                             variant: Variant, online: list[int]) -> None:
    pool = CpuSet(online[:1])
    vmpin.configure(node__shared_pool=str(pool), watch__resync_seconds=600)
    with watcher:
        assert source_state(vmpin,
                            watcher) == ("reported by the kernel, of all kinds" if variant.kernel is Kernel.V6_1 else
                                        "reported by the kernel")
        vm = nested_vm(vcpus=2, iothreads=["io1"], vhost_net=1, vhost_vsock=True)
        until(lambda: len(vm.vhost_tids()) == 2, "two vhost workers")
        until(lambda: set(vm.masks().values()) == {pool}, lambda: f"all on {pool}: {vm.masks()} {vm.all_threads()}")
        # Born in their place, threads have their masks before the watcher has read of them.
        until(lambda: vmpin.status(vm)["new_threads"]["reported"] >= len(vm.tids()),
              lambda: f"all births reported: {vmpin.status(vm)['new_threads']} {vm.all_threads()}")
        born = vmpin.status(vm)["new_threads"]
        assert born["inside"] + born["outside"] + born["ended"] >= born["reported"]
    assert events_of_a_bare_listener() == 0


def test_a_vcpu_without_a_name_is_identified_by_kvm_soon_after_its_creation(nested_vm: StartsVms, vmpin: Vmpin,
                                                                   watcher: Watcher, online: list[int],
                                                                   tmp_path: Path) -> None:
    """As Kata starts QEMU: no thread has a name of its own."""
    pool, first = online[:2]
    vmpin.configure(node__shared_pool=str(pool), watch__resync_seconds=600,
                    policy__emulator=str(CpuSet(online[:2])))
    with watcher:
        source_state(vmpin, watcher)
        vm = nested_vm(vcpus=1, maxcpus=4, debug_threads=False)
        until(lambda: [mask(tid) for tid in vm.vcpus()] == [CpuSet([pool])], lambda: vm.masks())
        until(lambda: mask(vm.pid) == CpuSet([pool, first]), lambda: f"identified: {vm.masks()}")
        added = vm.add_vcpu()
        tid = vm.vcpu_tids()[added]
        until(lambda: mask(tid) == CpuSet([pool]), lambda: f"vCPU {added} on {pool}: {vm.masks()}")


def test_a_missing_right_is_reported_and_the_resync_does_it(nested_vm: StartsVms, vmpin: Vmpin,
                                                                 watcher: Watcher, variant: Variant,
                                                                 online: list[int]) -> None:
    """Before Linux 6.6 the kernel reports nothing to a program without CAP_NET_ADMIN."""
    if variant.kernel is not Kernel.V6_1:
        return
    pool = CpuSet(online[:1])
    vmpin.configure(node__shared_pool=str(pool), watch__resync_seconds=1)
    argv = vmpin.argv
    vmpin.argv = lambda verb, *more: (  # type: ignore[method-assign]
        ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"] if verb == "watch" else []) + argv(verb,
                                                                                                             *more)
    with watcher:
        assert source_state(vmpin, watcher) == "not reported: CAP_NET_ADMIN is missing"
        vm = nested_vm(vcpus=1)
        until(lambda: set(vm.masks().values()) == {pool}, lambda: vm.masks())
        assert vmpin.status(vm)["new_threads"]["reported"] == 0
