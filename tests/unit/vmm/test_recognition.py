"""Which process is a sandbox's VMM or helper, on trees of /proc: what a command line says is not enough."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from identified_threads import identified
from kata_processes import ODD, QEMU, SHIM, SID, USER, VIRTIOFSD, inventory
from need import need_root, need_tool
from vmm_trees import process

from vmpin.domain.events import VmmClaim
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole
from vmpin.host.procfs import Procfs, Stat
from vmpin.vmm import cloud_hypervisor, dragonball, firecracker, openvmm, qemu, stratovirt, vmms
from vmpin.vmm.inventory import VmInventory
from vmpin.vmm.process_table import ROUNDS
from vmpin.vmm.recognition import (
    HelperProcess,
    VmmProcess,
    classify,
    classify_by_arguments,
    kernel_thread_owner,
    recognize,
)
from vmpin.vmm.vmm_type import VmmType

UUID = "0a8b0c0e-1111-4222-8333-444455556666"
SERVER = ["/usr/local/bin/files", "--sock", f"/run/kata/{SID}/root/virtiofsd.sock"]


@pytest.mark.parametrize("program", [
    "/usr/libexec/qemu-kiwi", "/usr/bin/qemu-lite-system-x86_64", "/usr/bin/qemu-vanilla-system-x86_64",
    "/usr/bin/qemu-virtiofs-system-x86_64", "/opt/kata/bin/qemu-system-x86_64-snp-experimental", "qemu-kvm-9.1",
    "/usr/bin/qemu-system-s390x", "/usr/bin/qemu-system-ppc64", "/usr/libexec/qemu-kvm", "kvm", "/usr/bin/kvm-spice"])
def test_qemu_has_many_names(program: str) -> None:
    assert classify([program, "-name", f"sandbox-{SID}"]) == VmmProcess(qemu.QEMU, SandboxId(SID))


@pytest.mark.parametrize(("argv", "found"), [
    (ODD, VmmProcess(qemu.QEMU, SandboxId(SID))),
    (["vmm", "--api-socket", f"/run/kata/{SID}/ch-api.sock"],
     VmmProcess(cloud_hypervisor.CLOUD_HYPERVISOR, SandboxId(SID))),
    (["vmm", "--api-sock", f"/run/vc/vm/{SID}/root/fc.sock"], VmmProcess(firecracker.FIRECRACKER, SandboxId(SID))),
    (["vmm", "--ttrpc", f"/run/kata/{SID}/openvmm.sock"], VmmProcess(openvmm.OPENVMM, SandboxId(SID))),
    (SERVER, HelperProcess(ThreadRole.VIRTIOFSD, SandboxId(SID))),
    (VIRTIOFSD, HelperProcess(ThreadRole.VIRTIOFSD, SandboxId(SID))),
    (["vmm", "-name", "guest=web"], None), (["vmm", "--api-socket", "/run/other.sock"], None), (["vmm"], None),
    ([], None),
])
def test_kata_gives_its_programs_arguments_that_show_what_they_are(
        argv: list[str], found: VmmProcess | HelperProcess | None) -> None:
    assert classify_by_arguments(argv) == found


@pytest.mark.parametrize(("evidence", "counts"), [("none", False), ("claim", True), ("kvm", True), ("shim", True),
                                                  ("another shim", False), ("claim of another", False)])
def test_a_vmm_of_any_name_counts_where_something_shows_it(tmp_path: Path, evidence: str, counts: bool) -> None:
    """Kata's `path` may be any program; and any program may be given its arguments, an editor for one."""
    process(tmp_path, 50, SHIM if evidence == "shim" else [*SHIM[:-1], "other"])
    fds = ("/dev/null", "anon_inode:kvm-vm") if evidence == "kvm" else ("/dev/null",)
    process(tmp_path, 100, ODD, parent=50, fds=fds)
    claims = {SandboxId(SID if evidence == "claim" else "other"): VmmClaim(100)} if "claim" in evidence else {}
    vms = inventory(tmp_path, claims).vms
    assert set(vms) == ({SID} if counts else set())
    assert not counts or vms[SandboxId(SID)].type is qemu.QEMU


@pytest.mark.parametrize(("fds", "counts"), [(("anon_inode:kvm-vcpu:0",), True), (("/dev/null",), False)])
def test_a_claimed_vmm_that_names_nothing_counts_with_kvm(tmp_path: Path, fds: tuple[str, ...], counts: bool) -> None:
    """Its pid alone may be another process's by now."""
    process(tmp_path, 100, ["/usr/local/bin/vmm", "--config", "/x"], fds=fds)
    vms = inventory(tmp_path, {SandboxId(SID): VmmClaim(100, hypervisor="clh")}).vms
    assert {vm.sandbox: vm.type for vm in vms.values()} == ({SID: cloud_hypervisor.CLOUD_HYPERVISOR} if counts else {})


@pytest.mark.parametrize(("id_", "counts"), [(SID[:32], True), (SID, True), (SID[1:33], False)])
def test_a_claimed_firecracker_of_any_name_is_known_by_its_id(tmp_path: Path, id_: str, counts: bool) -> None:
    """Before it has opened KVM, too: Kata gives it the beginning of the sandbox's id."""
    process(tmp_path, 100, ["/usr/local/bin/vmm", "--id", id_, "--config-file", "/fcConfig.json"])
    vms = inventory(tmp_path, {SandboxId(SID): VmmClaim(100, hypervisor="firecracker")}).vms
    assert {vm.sandbox: vm.type for vm in vms.values()} == ({SID: firecracker.FIRECRACKER} if counts else {})


def test_a_vmm_of_any_name_from_katas_factory_has_the_claimed_uuid(tmp_path: Path) -> None:
    process(tmp_path, 100, ["/usr/local/bin/vmm", "-name", "sandbox-factory", "-uuid", UUID])
    assert set(inventory(tmp_path, {SandboxId(SID): VmmClaim(100, UUID)}).vms) == {SID}


def test_a_vmm_of_any_name_is_recognized_at_its_exec(tmp_path: Path) -> None:
    """KVM is not open yet; its shim is there."""
    process(tmp_path, 50, SHIM)
    process(tmp_path, 100, ODD, parent=50)
    found = VmInventory(Procfs(tmp_path))
    assert found.inspect(100) == (ThreadId(100, 100), VmmProcess(qemu.QEMU, SandboxId(SID)), ODD)
    assert found.assign({}) == {SID}


@pytest.mark.parametrize(("parent", "helpers"), [(50, {100}), (1, set())])
def test_a_file_server_of_any_name_is_its_shims_child(tmp_path: Path, parent: int, helpers: set[int]) -> None:
    process(tmp_path, 50, SHIM)
    process(tmp_path, 100, SERVER, parent=parent)
    process(tmp_path, 101, ["vi", f"/run/vc/vm/{SID}/qmp.sock"])
    found = inventory(tmp_path)
    assert {each.pid for each in found.helpers(SandboxId(SID)) if each.role is ThreadRole.VIRTIOFSD} == helpers


@pytest.mark.parametrize(("vmm", "shim", "helpers"), [(True, "contrast-cc", {50}), (False, "contrast-cc", set()),
                                                     (True, "runc", set())])
def test_a_shim_of_another_name_is_of_the_vm_with_its_id(
        tmp_path: Path, vmm: bool, shim: str, helpers: set[int]) -> None:
    """Contrast installs Kata's so (nodeinstaller: containerd-shim-contrast-cc-v2). Without a VM a pod is no VM's: spin
    and others are named alike."""
    process(tmp_path, 50, [f"/opt/edgeless/contrast-cc-0/bin/containerd-shim-{shim}-v2", *SHIM[1:]])
    process(tmp_path, 100, QEMU if vmm else ["/bin/sh"], parent=50)
    found = inventory(tmp_path)
    assert {helper.pid for vm in found.vms.values() for helper in vm.helpers} == helpers
    assert set(found.vms) == ({SID} if vmm else set())
    assert not found.process_table.sandboxes_with_helpers()


@pytest.mark.parametrize("evidence", ["claim", "shim", "cgroup", "netns", "fork"])
def test_of_two_vmms_the_one_with_evidence_is_the_sandboxs(
        tmp_path: Path, evidence: str, caplog: pytest.LogCaptureFixture) -> None:
    process(tmp_path, 1, ["init"], net="net:[1]")
    process(tmp_path, 50, SHIM)
    process(tmp_path, 100, QEMU, start=1, net="net:[1]", cgroup="/user.slice", parent=200 if evidence == "fork" else 1)
    process(tmp_path, 200, QEMU, start=2, parent=50 if evidence == "shim" else 1,
            cgroup=f"/kubepods/pod1/kata_{SID}" if evidence == "cgroup" else "/user.slice",
            net="net:[7]" if evidence == "netns" else "net:[1]")
    claims = {SandboxId(SID): VmmClaim(200)} if evidence == "claim" else {}
    found = inventory(tmp_path, claims, rounds=2)
    assert (found.vms[SandboxId(SID)].vmm.pid, found.contested) == (200, {})
    assert caplog.text.count("second VMM ignored") == 1


def test_two_vmms_with_equal_evidence_are_contested(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for pid in (100, 200):
        process(tmp_path, pid, QEMU, start=pid)
    found = inventory(tmp_path, rounds=3)
    assert (found.vms[SandboxId(SID)].vmm.pid, found.contested) == (100, {SandboxId(SID): (100, 200)})
    assert caplog.text.count("second VMM ignored") == 1
    (tmp_path / "100" / "stat").unlink()
    (tmp_path / "100" / "task" / "100" / "stat").unlink()
    (tmp_path / "100" / "cmdline").write_text("")
    found.scan({}, full=True)
    assert (found.vms[SandboxId(SID)].vmm.pid, found.contested) == (200, {})


@pytest.mark.parametrize("vmm", [QEMU, ODD])
def test_a_script_that_runs_the_vmm_is_not_the_vmm(tmp_path: Path, vmm: list[str]) -> None:
    """Kata's `path` may be a script that does not replace itself: its interpreter has the same arguments."""
    process(tmp_path, 50, SHIM)
    process(tmp_path, 100, ["/bin/bash", *vmm], parent=50, start=1)
    process(tmp_path, 101, vmm, parent=100, start=2, fds=("anon_inode:kvm-vm",))
    found = inventory(tmp_path)
    assert (found.vms[SandboxId(SID)].vmm.pid, found.contested) == (101, {})


def test_processes_without_katas_arguments_cost_their_beginning_alone(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node has thousands: neither their descriptors nor their whole command lines are read."""
    for pid in range(100, 150):
        process(tmp_path, pid, ["/usr/bin/python3", "-m", "server", "--name", "web"], uid=USER)
    touched: list[str] = []
    proc = Procfs(tmp_path)
    for name in ("cmdline", "fd_link", "uids", "stat", "thread_stat"):
        monkeypatch.setattr(Procfs, name, lambda self, *given, name=name: touched.append(name))
    found = VmInventory(proc)
    for _ in range(ROUNDS):
        found.scan({})
    assert touched == []


def test_of_a_real_process_the_users_are_read() -> None:
    need_root()
    with subprocess.Popen([need_tool("sleep"), "600"], user=USER) as child:
        assert (Procfs().uids(child.pid), Procfs().uids(os.getpid())) == ((USER,) * 4, (0,) * 4)
        child.kill()
    assert Procfs().uids(child.pid) is None


def test_no_process_is_recognized_by_a_directory_without_files(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    assert recognize(Procfs(tmp_path), 7, b"qemu-kvm\0-name\0sandbox-a\0") is None


CLH, FC = cloud_hypervisor.CLOUD_HYPERVISOR, firecracker.FIRECRACKER
STRATO = stratovirt.STRATOVIRT

VMMS = [
    (f"/opt/kata/bin/qemu-system-x86_64 -name sandbox-{SID} -m 2G", qemu.QEMU, SID),
    (f"/usr/bin/qemu-system-x86_64 -name sandbox-{SID},debug-threads=on", qemu.QEMU, SID),
    ("qemu-system-aarch64 -S -name guest=sandbox-a1,debug-threads=on -uuid x", qemu.QEMU, "a1"),
    ("qemu-kvm --name debug-threads=on,guest=sandbox-a1", qemu.QEMU, "a1"),
    ("/opt/kata/bin/qemu-system-x86_64-snp-experimental -name sandbox-a1", qemu.QEMU, "a1"),
    ("/usr/bin/kvm -name sandbox-a1 -name sandbox-b2", qemu.QEMU, "b2"),
    ("/usr/bin/kvm -name sandbox-a1 -name debug-threads=on", qemu.QEMU, "a1"),
    # another program's
    ("qemu-system-x86_64 -name guest=debian12,debug-threads=on -cdrom /run/kata/a1/x.iso", qemu.QEMU, None),
    ("qemu-system-x86_64 -m 64", qemu.QEMU, None),
    ("qemu-system-x86_64 -name", qemu.QEMU, None),
    # hostile ids
    ("qemu-system-x86_64 -name sandbox-../../etc", qemu.QEMU, None),
    ("qemu-system-x86_64 -name sandbox-", qemu.QEMU, None),
    ("qemu-system-x86_64 -name sandbox--x", qemu.QEMU, None),
    ("qemu-system-x86_64 -name sandbox-a,,b", qemu.QEMU, None),
    (f"qemu-system-x86_64 -name sandbox-{'a' * 300}", qemu.QEMU, None),
    (f"/opt/kata/bin/cloud-hypervisor --api-socket /run/vc/vm/{SID}/clh-api.sock", CLH, SID),
    ("cloud-hypervisor-static --api-socket path=/run/kata/a1/ch-api.sock", CLH, "a1"),
    ("cloud-hypervisor --serial tty --fs tag=x,socket=/run/vc/vm/a1/fs.sock,id=f", CLH, "a1"),
    ("cloud-hypervisor --api-socket=/run/user/1000/run/vc/sbs/a1/api.sock", CLH, "a1"),
    ("cloud-hypervisor --api-socket /run/vc/vm/../api.sock --log-file /run/kata/b2/log", CLH, "b2"),
    ("cloud-hypervisor --api-socket /run/vc/vm/api.sock", CLH, None),
    ("/firecracker --id 7f1d0c4be5a2f8c39b6d0e1a4c5f7788 --start-time-us 1", FC, "7f1d0c4be5a2f8c39b6d0e1a4c5f7788"),
    ("/usr/bin/firecracker-v1.7.0-x86_64 --api-sock /run/kata/a1/root/fc.sock", FC, "a1"),
    (f"/usr/bin/firecracker --api-sock /run/vc/firecracker/{SID[:32]}/root/run/firecracker.socket --config-file "
     f"/run/vc/firecracker/{SID[:32]}/fcConfig.json", FC, SID[:32]),
    (f"firecracker-v1.12 --api-sock /run/vc/firecracker-v1.12/{SID[:32]}/root/run/firecracker.socket", FC, SID[:32]),
    ("/usr/bin/firecracker --id ../x --config-file /run/vc/vm/a1/fcConfig.json", FC, "a1"),
    ("/usr/bin/stratovirt -name sandbox -qmp unix:/run/vc/vm/a1/qmp.socket,server,nowait", STRATO, "a1"),
    ("/usr/bin/stratovirt", STRATO, None),
    # Kuasar's
    (f"/usr/local/bin/cloud-hypervisor --api-socket /run/kuasar-vmm/{SID}/api.sock --cpus boot=1,affinity=,features= "
     f"--vsock cid=3,socket=/run/kuasar-vmm/{SID}/task.vsock,id=vsock", CLH, SID),
    (f"/usr/bin/stratovirt -name sandbox-{SID} -qmp unix:/run/{SID}-qmp.sock,server,nowait -smp cpus=1 "
     f"-pidfile /run/kuasar-vmm/{SID}/sandbox-{SID}.pid -daemonize", STRATO, SID),
    ("/usr/bin/stratovirt-2.4 -name sandbox -qmp unix:/run/vc/vm/a1/qmp.socket", STRATO, "a1"),
    ("/firecracker --id=5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a --start-time-us=1", FC, "5a" * 16),
    (f"/opt/kata/bin/openvmm --ttrpc /run/kata/{SID}/openvmm.sock", openvmm.OPENVMM, SID),
    ("openvmm-debug --ttrpc=/srv/x.sock", openvmm.OPENVMM, None),
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
    assert set(identified(1, vmm, [], stats.items(), Procfs("/nowhere")).roles) == {1, 2}


HELPERS = [
    (f"/usr/libexec/virtiofsd --fd=3 --shared-dir=/run/kata-containers/shared/sandboxes/{SID}/shared -o x",
     ThreadRole.VIRTIOFSD, SID),
    ("/opt/kata/libexec/virtiofsd --fd=3 --shared-dir /run/kata-containers/shared/sandboxes/a1/rw",
     ThreadRole.VIRTIOFSD, "a1"),
    ("virtiofsd --socket-path=/run/vc/vm/a1/vhost-fs.sock -o source=/srv", ThreadRole.VIRTIOFSD, "a1"),
    ("virtiofsd --socket-path /run/kata/a1/vfs.sock", ThreadRole.VIRTIOFSD, "a1"),
    (f"/usr/local/bin/virtiofsd --cache never --socket-path /run/kuasar-vmm/{SID}/virtiofs.sock "
     f"--shared-dir /run/kuasar-vmm/{SID}/shared --syslog", ThreadRole.VIRTIOFSD, SID),
    (f"/usr/bin/vhost_user_fs -D /run/kuasar-vmm/{SID}/virtiofs.log -socket-path /run/kuasar-vmm/{SID}/virtiofs.sock "
     f"-source /run/kuasar-vmm/{SID}/shared", ThreadRole.VIRTIOFSD, SID),
    ("virtiofsd -o source=/run/kata-containers/shared/sandboxes/a1,cache=auto", ThreadRole.VIRTIOFSD, "a1"),
    ("/x/ld-linux-x86-64.so.2 --library-path /x/lib /x/virtiofsd --socket-path=/run/kata/a1/vfs.sock",
     ThreadRole.VIRTIOFSD, "a1"),
    ("/x/ld-linux-aarch64.so.1 /x/virtiofsd --socket-path=/srv/vfs.sock", ThreadRole.VIRTIOFSD, None),
    ("/lib/ld-musl-x86_64.so.1 /x/virtiofsd --socket-path=/srv/vfs.sock", ThreadRole.VIRTIOFSD, None),
    ("/usr/bin/virtiofsd --socket-path=/run/kata/../vfs.sock", ThreadRole.VIRTIOFSD, None),
    (f"nydusd --log-level info --apisock /run/vc/vm/{SID}/nydusd-api.sock --sock /run/vc/vm/{SID}/vhost-fs.sock",
     ThreadRole.VIRTIOFSD, SID),
    (f"/opt/kata/libexec/nydusd virtiofs --apisock /run/kata/{SID}/root/nydusd-api.sock --sock /run/kata/x.sock",
     ThreadRole.VIRTIOFSD, SID),
    (f"/usr/local/bin/containerd-shim-kata-v2 -namespace k8s.io -address /run/c.sock -id {SID}",
     ThreadRole.SHIM, SID),
    ("/opt/kata/bin/containerd-shim-kata-qemu-v2 -id a1 -debug", ThreadRole.SHIM, "a1"),
    ("/usr/bin/containerd-shim-my-kata-clh-v2 -namespace k8s.io -id=a1", ThreadRole.SHIM, "a1"),
    ("containerd-shim-kata+nvidia-v2 --id=a1", ThreadRole.SHIM, "a1"),
    ("/usr/local/bin/containerd-shim-kata2-v2 -id a1", ThreadRole.SHIM, "a1"),
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
    "", " ", "/usr/bin/containerd-shim-runc-v2 -id a1", "vi /run/vc/vm/a1/qmp.sock", "qemu-img create x",
    "/usr/bin/containerd-shim-runsc-v1 -id a1", "containerd-shim-katalog-v1 -id a1",
    "firecracker-containerd --config x", "firecracker-ctr", "grep qemu-system-x86_64", "sh -c qemu-system-x86_64",
    "/lib64/ld-linux-x86-64.so.2 --library-path", "/lib64/ld-linux-x86-64.so.2 /bin/true", "virtiofsdump",
    "/lib64/ld-linux-x86-64.so.2 /bin/containerd-shim-runc-v2 -id 5f2c",
    f"/bin/containerd-shim-kata-v2 -namespace k8s.io -address /run/c.sock -publish-binary /bin/c -id {SID} start",
    f"containerd-shim-kata-v2 --namespace=k8s.io --id={SID} -debug -bundle /run/b delete",
    "containerd-shim-kata-v2 -debug=true -id a1 -- start",
    *(f"{name} -name sandbox-{SID}" for name in (
        "qemu-img", "qemu-nbd", "qemu-ga", "qemu-storage-daemon", "qemu-x86_64", "qemu-pr-helper", "kvmtool",
        "qemu-kiwis")),
])
def test_other_processes_are_nothing(line: str) -> None:
    assert classify(line.split(" ") if line else []) is None


@pytest.mark.parametrize("name", ["qemu-" + "-system-" * 16_000 + "x", "containerd-shim-" + "kata-v2" * 18_000,
                                  "/lib64/ld-linux.so.2 qemu-system-" + "x" * 250])
def test_a_name_that_no_file_can_have_is_no_programs(name: str) -> None:
    """Any user can write one of 128 KiB, and its patterns would take seconds."""
    assert classify(name.split(" ")) is None


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
