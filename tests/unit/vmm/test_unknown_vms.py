"""Which processes run a VM that vmpin does not know."""

from __future__ import annotations

import os
from pathlib import Path

from vmm_trees import process

from vmpin.host.procfs import Procfs
from vmpin.vmm.unknown_vms import MOST, unknown_vms

VM = ("/dev/null", "/dev/kvm", "anon_inode:kvm-vm", "anon_inode:kvm-vcpu:0")


def test_a_vm_in_a_process_without_a_vmms_name_is_one(tmp_path: Path) -> None:
    process(tmp_path, 100, ["/opt/my/vmm", "--cpus", "2"], fds=VM)
    process(tmp_path, 101, ["/usr/bin/qemu-system-x86_64", "-smp", "2"], fds=VM)  # libvirt's
    process(tmp_path, 102, ["/opt/my/vmm", "--version"], fds=("/dev/kvm",))  # has none yet
    process(tmp_path, 103, ["/opt/kata/bin/containerd-shim-kata-v2", "-id", "s1"], fds=VM)  # Dragonball is within it
    process(tmp_path, 104, ["/opt/my/vmm"], fds=VM)
    process(tmp_path, 105, ["/opt/my/vmm"])
    process(tmp_path, 106, ["/usr/bin/runsc-sandbox"], fds=VM)
    status = tmp_path / "106/status"
    status.write_text(status.read_text().replace("NSpid:\t106", "NSpid:\t106\t1"))  # in a container
    process(tmp_path, 107, ["/opt/my/vmm"], fds=VM)
    (tmp_path / "107/stat").unlink()  # has just ended
    (tmp_path / "108").mkdir()
    assert [vm.pid for vm in unknown_vms(Procfs(tmp_path), {104}, tmp_path)] == [100]


def test_another_users_descriptors_are_not_looked_at_and_kvms_debugfs_shows_its_vm(tmp_path: Path) -> None:
    for pid in 100, 101:
        process(tmp_path, pid, ["/opt/my/vmm"], fds=VM)
        if os.geteuid() == 0:
            os.chown(tmp_path / str(pid), 65534, 65534)
    status = tmp_path / "101/status"
    status.write_text(status.read_text().replace("NSpid:\t101", "NSpid:\t101\t1"))  # in a container
    if os.geteuid() == 0:
        assert unknown_vms(Procfs(tmp_path), (), tmp_path) == []
    # Cloud Hypervisor's VM is made by a thread of its own.
    (tmp_path / "102").mkdir()
    (tmp_path / "102/status").write_text("Name:\tvmm\nTgid:\t100\n")
    process(tmp_path, 103, ["/opt/other"])  # has the tid of a thread that made a VM and ended
    for name in "102-11", "101-7", "103-9", "999-4", "vcpus":
        (tmp_path / "kvm" / name).mkdir(parents=True)
    assert [vm.pid for vm in unknown_vms(Procfs(tmp_path), (), tmp_path)] == [100]


def test_no_more_than_so_many_are_named(tmp_path: Path) -> None:
    for pid in range(100, 102 + MOST):
        process(tmp_path, pid, ["/opt/my/vmm"], fds=VM)
    assert len(unknown_vms(Procfs(tmp_path), (), tmp_path)) == MOST
