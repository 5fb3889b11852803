"""A VM under KVM with real vhost-net workers, in a namespace as Kata's, in a bridge with a NIC of NUMA node 1."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from network_node import NetworkSpace

from lab.node_tests.conftest import StartsVms
from lab.node_tests.machines import Kata, NestedVm, Vmpin, mask
from lab.variant import Topology, Variant
from vmpin.cpuset import CpuSet

_TRACE = Path("/sys/kernel/tracing")
_SET_OWNER = 0xAF01  #: include/uapi/linux/vhost.h: VHOST_SET_OWNER


class WorkersMade:
    """The kernel's own record of which vhost device each worker was made for: ioctls and new tasks, in order."""

    def __enter__(self) -> WorkersMade:
        if not (_TRACE / "trace").exists():
            subprocess.run(["mount", "-t", "tracefs", "tracefs", _TRACE], check=True)
        (_TRACE / "trace").write_text("")
        (_TRACE / "events/syscalls/sys_enter_ioctl/filter").write_text(f"cmd == {_SET_OWNER:#x}")
        self._record(True)
        return self

    def __exit__(self, *_: object) -> None:
        self._record(False)

    @staticmethod
    def _record(on: bool) -> None:
        for event in ("syscalls/sys_enter_ioctl", "task/task_newtask"):
            (_TRACE / "events" / event / "enable").write_text(str(int(on)))

    def by_fd(self, workers: list[int]) -> dict[int, int]:
        """The worker made after each VHOST_SET_OWNER, by the descriptor of that."""
        found: dict[int, int] = {}
        fd = None
        for line in (_TRACE / "trace").read_text().splitlines():
            if owner := re.search(r"sys_ioctl\(fd: (?:0x)?([0-9a-f]+), cmd: (?:0x)?af01", line):
                fd = int(owner[1], 16)
            elif (made := re.search(r"task_newtask: pid=(\d+)", line)) and fd is not None and int(made[1]) in workers:
                found[fd], fd = int(made[1]), None
        return found


def nic_of_node_1() -> str:
    return next(name for name in ("eth0", "eth1")
                if Path(f"/sys/class/net/{name}/device/../numa_node").read_text() == "1\n")


@pytest.fixture
def pod() -> Iterator[NetworkSpace]:
    made = NetworkSpace()
    try:
        made.as_kata("vethpod", 1)
        for command in ("add cni0 type bridge", "set vethpod master cni0", f"set {nic_of_node_1()} master cni0"):
            subprocess.run(["ip", "link", *command.split()], check=True)
        yield made
    finally:
        made.end()
        subprocess.run(["ip", "link", "delete", "cni0"], check=False)


@pytest.mark.release
def test_workers_queues_and_the_nics_node_of_a_real_vm(nested_vm: StartsVms, pod: NetworkSpace, kata: Kata,
                                                       vmpin: Vmpin, variant: Variant) -> None:
    with WorkersMade() as made:
        vm = nested_vm(vcpus=2, vhost_vsock=True, program=pod.argv("qemu-system-x86_64"), extra=[
            "-netdev", "tap,id=n0,ifname=tap0_kata,script=no,downscript=no,queues=2,vhost=on",
            "-device", "virtio-net-pci,netdev=n0,mq=on,romfile="])
    vm.wait_idle()
    workers = made.by_fd(vm.vhost_tids())
    assert len(workers) == len(vm.vhost_tids()) == 3
    served = {fd: os.readlink(f"/proc/{vm.pid}/fd/{fd}") for fd in workers}
    net = [tid for fd, tid in sorted(workers.items()) if served[fd] == "/dev/vhost-net"]

    device = only_device(vmpin, vm)
    assert (device["name"], device["kind"], device["queues"], device["vhost"]) == ("tap0_kata", "tap", 2, 2)
    assert device["workers"] == net
    assert [hop["name"] for hop in device["path"]] == ["tap0_kata", "eth0", "vethpod", "cni0", nic_of_node_1()]
    assert (device["numa_node"], device["nics"][0]["device"].partition("/")[0]) == (1, "virtio")

    if variant.topology is not Topology.FULL:
        return
    near_is_the_nics_node(vm, kata, vmpin)


def near_is_the_nics_node(vm: NestedVm, kata: Kata, vmpin: Vmpin) -> None:
    def workers() -> set[CpuSet]:
        return {mask(tid) for tid in vm.vhost_tids()}

    vmpin.configure(node__shared_pool="0-1", policy__vhost="near")
    kata.write(vm, {"pinned": "2-3", "beside": "0-1"})
    vmpin("repin")
    assert workers() == {CpuSet([0, 1])}  # none of apart's CPUs is on node 1
    assert "placed as by apart, not near: none of their CPUs is on NUMA node 1" in vmpin("status", "-o", "wide")
    assert f"none of them on NUMA node 1 of {nic_of_node_1()}" in vmpin("doctor", "network")
    vmpin.configure(node__shared_pool="0-1,4")
    kata.write(vm, {"pinned": "2-3", "beside": "0-1,4"})
    vmpin("repin")
    assert workers() == {CpuSet([4])}
    assert {mask(tid) for tid in set(vm.all_threads()) - set(vm.vhost_tids()) - set(vm.vcpu_tids().values())} == {
        CpuSet([0, 1, 4])}
    assert "vhost workers are near: on NUMA node 1" in vmpin("status", "-o", "wide")
    assert f"on NUMA node 1, that of its NIC (vethpod leads to {nic_of_node_1()})" in vmpin(
        "status", "--explain", vm.sandbox)
    assert vmpin.json("repin")["operations"] == []
    assert vmpin("doctor", "network").startswith("ok ")


def only_device(vmpin: Vmpin, vm: NestedVm) -> dict[str, Any]:
    (sandbox,) = vmpin.json("status", vm.sandbox, "--inspect")["sandboxes"]
    (device,) = sandbox["network"]["devices"]
    return dict(device)
