from __future__ import annotations

import pytest

from vmpin.domain.model import ThreadRole
from vmpin.host.procfs import Stat
from vmpin.vmm import cloud_hypervisor, dragonball, firecracker, qemu, stratovirt, vmms
from vmpin.vmm.recognition import HelperProcess, VmmProcess, classify, kernel_thread_owner
from vmpin.vmm.threads import read_names
from vmpin.vmm.vmm_type import VmmType

SID = "7f1d0c4be5a2f8c39b6d0e1a4c5f7788990011223344556677889900aabbccdd"

QEMU, CLH = qemu.QEMU, cloud_hypervisor.CLOUD_HYPERVISOR
FC, STRATO = firecracker.FIRECRACKER, stratovirt.STRATOVIRT

VMMS = [
    (f"/opt/kata/bin/qemu-system-x86_64 -name sandbox-{SID} -m 2G", QEMU, SID),
    (f"/usr/bin/qemu-system-x86_64 -name sandbox-{SID},debug-threads=on", QEMU, SID),
    ("qemu-system-aarch64 -S -name guest=sandbox-a1,debug-threads=on -uuid x", QEMU, "a1"),
    ("qemu-kvm --name debug-threads=on,guest=sandbox-a1", QEMU, "a1"),
    ("/opt/kata/bin/qemu-system-x86_64-snp-experimental -name sandbox-a1", QEMU, "a1"),
    ("/usr/bin/kvm -name sandbox-a1 -name sandbox-b2", QEMU, "b2"),
    ("/usr/bin/kvm -name sandbox-a1 -name debug-threads=on", QEMU, "a1"),
    # another program's
    ("qemu-system-x86_64 -name guest=debian12,debug-threads=on -cdrom /run/kata/a1/x.iso", QEMU, None),
    ("qemu-system-x86_64 -m 64", QEMU, None),
    ("qemu-system-x86_64 -name", QEMU, None),
    # hostile ids
    ("qemu-system-x86_64 -name sandbox-../../etc", QEMU, None),
    ("qemu-system-x86_64 -name sandbox-", QEMU, None),
    ("qemu-system-x86_64 -name sandbox--x", QEMU, None),
    ("qemu-system-x86_64 -name sandbox-a,,b", QEMU, None),
    (f"qemu-system-x86_64 -name sandbox-{'a' * 300}", QEMU, None),
    (f"/opt/kata/bin/cloud-hypervisor --api-socket /run/vc/vm/{SID}/clh-api.sock", CLH, SID),
    ("cloud-hypervisor-static --api-socket path=/run/kata/a1/ch-api.sock", CLH, "a1"),
    ("cloud-hypervisor --serial tty --fs tag=x,socket=/run/vc/vm/a1/fs.sock,id=f", CLH, "a1"),
    ("cloud-hypervisor --api-socket=/run/user/1000/run/vc/sbs/a1/api.sock", CLH, "a1"),
    ("cloud-hypervisor --api-socket /run/vc/vm/../api.sock --log-file /run/kata/b2/log", CLH, "b2"),
    ("cloud-hypervisor --api-socket /run/vc/vm/api.sock", CLH, None),
    ("/firecracker --id 7f1d0c4be5a2f8c39b6d0e1a4c5f7788 --start-time-us 1", FC, "7f1d0c4be5a2f8c39b6d0e1a4c5f7788"),
    ("/usr/bin/firecracker-v1.7.0-x86_64 --api-sock /run/kata/a1/root/fc.sock", FC, "a1"),
    ("/usr/bin/firecracker --id ../x --config-file /run/vc/vm/a1/fcConfig.json", FC, "a1"),
    ("/usr/bin/stratovirt -name sandbox -qmp unix:/run/vc/vm/a1/qmp.socket,server,nowait", STRATO, "a1"),
    ("/usr/bin/stratovirt", STRATO, None),
]


@pytest.mark.parametrize(("line", "vmm", "sandbox"), VMMS)
def test_vmm_and_its_sandbox_are_read_from_the_command_line(line: str, vmm: VmmType, sandbox: str | None) -> None:
    argv = line.split()
    assert classify(argv) == VmmProcess(vmm, sandbox)  # type: ignore[arg-type]


@pytest.mark.parametrize("vmm", vmms.VMMS)
def test_every_vmm_has_a_command_line_above_and_names_of_threads(vmm: VmmType) -> None:
    """Dragonball runs inside the shim and has no command line."""
    assert vmm is dragonball.DRAGONBALL or any(each is vmm and sandbox for _, each, sandbox in VMMS)
    stats = {1: Stat("vmm", "S", 1, 0, 7, 0), 2: Stat("other", "S", 1, 0, 7, 0)}
    assert set(read_names(vmm, 1, stats).roles) == {1, 2}


HELPERS = [
    (f"/usr/libexec/virtiofsd --fd=3 --shared-dir=/run/kata-containers/shared/sandboxes/{SID}/shared -o x",
     ThreadRole.VIRTIOFSD, SID),
    ("/opt/kata/libexec/virtiofsd --fd=3 --shared-dir /run/kata-containers/shared/sandboxes/a1/rw",
     ThreadRole.VIRTIOFSD, "a1"),
    ("virtiofsd --socket-path=/run/vc/vm/a1/vhost-fs.sock -o source=/srv", ThreadRole.VIRTIOFSD, "a1"),
    ("virtiofsd --socket-path /run/kata/a1/vfs.sock", ThreadRole.VIRTIOFSD, "a1"),
    ("virtiofsd -o source=/run/kata-containers/shared/sandboxes/a1,cache=auto", ThreadRole.VIRTIOFSD, "a1"),
    ("/x/ld-linux-x86-64.so.2 --library-path /x/lib /x/virtiofsd --socket-path=/run/kata/a1/vfs.sock",
     ThreadRole.VIRTIOFSD, "a1"),
    ("/x/ld-linux-aarch64.so.1 /x/virtiofsd --socket-path=/srv/vfs.sock", ThreadRole.VIRTIOFSD, None),
    ("/usr/bin/virtiofsd --socket-path=/run/kata/../vfs.sock", ThreadRole.VIRTIOFSD, None),
    (f"/usr/local/bin/containerd-shim-kata-v2 -namespace k8s.io -address /run/c.sock -id {SID}",
     ThreadRole.SHIM, SID),
    ("/opt/kata/bin/containerd-shim-kata-qemu-v2 -id a1 -debug", ThreadRole.SHIM, "a1"),
    ("containerd-shim-kata-v2 -namespace k8s.io -id ../a1", ThreadRole.SHIM, None),
    ("containerd-shim-kata-v2 --version", ThreadRole.SHIM, None),
    ("containerd-shim-kata-v2 -debug -id start", ThreadRole.SHIM, "start"),
    ("containerd-shim-kata-v2 -id a1 other start", ThreadRole.SHIM, "a1"),
    ("containerd-shim-kata-v2 -id", ThreadRole.SHIM, None),
]


@pytest.mark.parametrize(("line", "role", "sandbox"), HELPERS)
def test_helper_and_its_sandbox_are_read_from_the_command_line(
        line: str, role: ThreadRole, sandbox: str | None) -> None:
    assert classify(line.split()) == HelperProcess(role, sandbox)  # type: ignore[arg-type]


@pytest.mark.parametrize("line", [
    "", "/usr/bin/containerd-shim-runc-v2 -id a1", "vi /run/vc/vm/a1/qmp.sock", "qemu-img create x",
    "firecracker-containerd --config x", "firecracker-ctr", "grep qemu-system-x86_64", "sh -c qemu-system-x86_64",
    "/lib64/ld-linux-x86-64.so.2 --library-path", "/lib64/ld-linux-x86-64.so.2 /bin/true", "virtiofsdump",
    f"/bin/containerd-shim-kata-v2 -namespace k8s.io -address /run/c.sock -publish-binary /bin/c -id {SID} start",
    f"containerd-shim-kata-v2 --namespace=k8s.io --id={SID} -debug -bundle /run/b delete",
    "containerd-shim-kata-v2 -debug=true -id a1 -- start",
])
def test_other_processes_are_nothing(line: str) -> None:
    assert classify(line.split()) is None


def test_an_empty_argv_zero_is_nothing() -> None:
    assert classify([""]) is None


@pytest.mark.parametrize(("comm", "owner"), [
    ("vhost-1234", (ThreadRole.VHOST, 1234)),
    ("kvm-pit/1234", (ThreadRole.KVM, 1234)),
    ("kvm-nx-lpage-recovery-1234", (ThreadRole.KVM, 1234)),
    ("vhost-", None),
    ("vhost-0", None),
    ("vhost-12a", None),
    ("vhost-99999999999999", None),
    ("vhost_vsock", None),
    ("kvm-nx-lpage-re", None),
    ("kworker/1:0-kvm-pit/3", None),
])
def test_kernel_thread_names_its_owner(comm: str, owner: tuple[ThreadRole, int] | None) -> None:
    assert kernel_thread_owner(comm) == owner
