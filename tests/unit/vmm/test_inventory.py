"""What runs, on trees of /proc."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from need import need_root, need_tool
from trees import make_tree, stat_line

from vmpin.domain.events import VmmClaim
from vmpin.domain.model import SandboxId, ThreadId, ThreadRole
from vmpin.host.procfs import PF_KTHREAD, Procfs
from vmpin.sources.pids import PidOwner, owner_of
from vmpin.vmm.inventory import VmInventory
from vmpin.vmm.process_table import ROUNDS, YOUNG_PASSES
from vmpin.vmm.virtual_machine import Process, Refresh


def process(root: Path, pid: int, name: str, *argv: str, start: int = 100, parent: int = 1) -> None:
    stat = stat_line(pid, name, parent, start)
    make_tree(root, f"{pid}/stat = {stat}\n{pid}/task/{pid}/stat = {stat}\n")
    (root / str(pid) / "cmdline").write_text("\0".join(argv) + "\0")


@pytest.mark.parametrize("pid", range(4000, 4000 + ROUNDS))
def test_a_vmm_that_a_hook_names_is_seen_at_once_however_old_its_process(tmp_path: Path, pid: int) -> None:
    """A process may execute a VMM long after it came, when it is only looked at in its turn."""
    sandbox = SandboxId("a")
    process(tmp_path, pid, "sh", "sh", "-c", "sleep 60; exec qemu-system-x86_64")
    inventory = VmInventory(Procfs(tmp_path))
    for _ in range(YOUNG_PASSES + 1):
        inventory.scan({})
    process(tmp_path, pid, "qemu-system-x86", "qemu-system-x86_64", "-smp", "1")
    assert inventory.scan({sandbox: VmmClaim(pid, identity=ThreadId(pid, 100))}) == {sandbox}
    assert inventory.vms[sandbox].vmm.pid == pid


@pytest.mark.parametrize(("spaces", "vms"), [("4000", {"a"}), ("4000\t1", set())])
def test_a_qemu_in_a_container_is_no_sandboxs_vmm(tmp_path: Path, spaces: str, vms: set[str]) -> None:
    process(tmp_path, 4000, "qemu-system-x86", "qemu-system-x86_64", "-name", "sandbox-a", "-smp", "1")
    (tmp_path / "4000" / "status").write_text(f"Name:\tqemu-system-x86\nNSpid:\t{spaces}\n")
    inventory = VmInventory(Procfs(tmp_path))
    inventory.scan({})
    assert set(inventory.vms) == vms


class Denying(Procfs):
    """A security module lets nothing read these processes."""

    denied: tuple[int, ...] = ()

    def beginning(self, pid: int | str) -> bytes:
        if int(pid) in self.denied:
            raise PermissionError
        return super().beginning(pid)


def test_a_process_that_may_not_be_read_hides_no_other(tmp_path: Path) -> None:
    """As SELinux's rules for one program. Where no process may be read (hidepid=), that is an error."""
    process(tmp_path, 1, "init", "/sbin/init")
    process(tmp_path, 77, "odd", "odd")
    process(tmp_path, 4000, "qemu-system-x86", "qemu-system-x86_64", "-name", "sandbox-a", "-smp", "1")
    proc = Denying(tmp_path)
    inventory, proc.denied = VmInventory(proc), (77,)
    assert inventory.scan({}) == {SandboxId("a")}
    assert inventory.inspect(77) is None
    proc.denied = (77, 4000)
    assert inventory.scan({}, full=True) == set()
    assert set(inventory.vms) == {"a"}
    proc.denied = (1, 77)
    with pytest.raises(PermissionError):
        inventory.scan({}, full=True)


FULL, UUID = "5a" * 32, "0a8b0c0e-1111-4222-8333-444455556666"


@pytest.mark.parametrize(("argv", "uuid", "counts"), [
    (["qemu-system-x86_64", "-name", f"sandbox-{FULL}"], "", True),
    (["qemu-system-x86_64", "-uuid", UUID], UUID, True),
    (["qemu-system-x86_64", "-name", "sandbox-factory", "-uuid", UUID.upper()], UUID, True),  # from Kata's factory
    (["firecracker", "--id", FULL[:32]], "", True),
    (["cloud-hypervisor", "--api-socket", f"/run/vc/vm/{FULL}/clh-api.sock"], "", True),
    # Parts of it, and words in other places: a pod's author may write the kernel's command line.
    (["qemu-system-x86_64", "-append", f"agent.log=debug {FULL}"], "", False),
    (["qemu-system-x86_64", "-append", f"x={UUID}"], UUID, False),
    (["qemu-system-x86_64", "-uuid", f"{UUID}0"], UUID, False),
    (["qemu-system-x86_64", "-uuid", UUID, "-uuid", "other"], UUID, False),
    (["qemu-system-x86_64", "-name", f"sandbox-{FULL[:32]}"], "", False),
    (["qemu-system-x86_64", "-name", "sandbox-other", "-append", "a"], "a", False),
    (["qemu-system-x86_64", "-uuid", "a"], "a", False),
    (["qemu-system-x86_64"], "", False),
    (["firecracker", "--id", FULL[:31]], "", False),
    (["firecracker", "--id", "other", "-uuid", UUID], UUID, False)])
def test_katas_file_claims_a_vmm_by_its_whole_id_or_uuid(tmp_path: Path, argv: list[str], uuid: str,
                                                        counts: bool) -> None:
    """By its pid alone it may be another's that has the number now."""
    process(tmp_path, 4000, "vmm", *argv)
    inventory = VmInventory(Procfs(tmp_path))
    inventory.scan({SandboxId(FULL): VmmClaim(4000, uuid)}, full=True)
    assert (SandboxId(FULL) in inventory.vms) is counts


def nested(root: Path, pid: int, inside: str = "\t7") -> None:
    (root / str(pid) / "status").write_text(f"Name:\tx\nTgid:\t{pid}\nGroups:\t0 \nNSpid:\t{pid}{inside}\n")


@pytest.mark.parametrize("ended", [True, False])
def test_a_vmm_that_follows_one_that_has_just_ended_is_no_double(tmp_path: Path, caplog: pytest.LogCaptureFixture,
                                                                 ended: bool) -> None:
    """Its exec is reported before the process table was scanned for the other one again."""
    for pid in (4000, 4001):
        process(tmp_path, pid, "qemu-system-x86", "qemu-system-x86_64", "-name", "sandbox-a", "-smp", "1", start=pid)
        if pid == 4000:
            inventory = VmInventory(Procfs(tmp_path))
            inventory.scan({})
    if ended:
        shutil.rmtree(tmp_path / "4000")
    inventory.inspect(4001)
    assert inventory.assign({}) == ({SandboxId("a")} if ended else set())
    assert inventory.vms[SandboxId("a")].vmm.pid == (4001 if ended else 4000)
    assert ("second VMM ignored" in caplog.text) is not ended


SHIM = ("containerd-shim-kata-v2", "-id", "a")
VIRTIOFSD = ("virtiofsd", "--shared-dir=/run/kata-containers/shared/sandboxes/a/shared")


@pytest.mark.parametrize("argv", [SHIM, VIRTIOFSD])
@pytest.mark.parametrize("inside", ["", "\t1"])
def test_a_helper_in_a_container_belongs_to_no_sandbox(tmp_path: Path, argv: tuple[str, ...], inside: str) -> None:
    process(tmp_path, 3999, "containerd-shim", "containerd-shim-runc-v2", "-id", "b")
    process(tmp_path, 4000, "x", *argv, parent=3999)
    nested(tmp_path, 4000, inside)
    inventory = VmInventory(Procfs(tmp_path))
    inventory.scan({})
    assert inventory.process_table.sandboxes_with_helpers() == ({"a"} if not inside else set())
    assert (inventory.inspect(4000) is None) is bool(inside)


def test_a_containers_command_line_that_may_never_be_read_is_left_alone(tmp_path: Path) -> None:
    """A thread that maps a file of a dead NFS server keeps a read of it waiting; a directory raises here."""
    process(tmp_path, 4000, "qemu-system-x86", "qemu-system-x86_64", "-name", "sandbox-a", "-smp", "1")
    for pid, parent in (4001, 4000), (4002, 4001):
        process(tmp_path, pid, "server", "server", parent=parent)
        nested(tmp_path, pid)
        (tmp_path / f"{pid}/cmdline").unlink()
        (tmp_path / f"{pid}/cmdline").mkdir()
    inventory = VmInventory(Procfs(tmp_path))
    assert inventory.scan({SandboxId("b"): VmmClaim(4001)}, full=True) == {SandboxId("a")}
    assert inventory.inspect(4002) is None
    assert owner_of(4001, inventory.proc, SandboxId("b")) == PidOwner(init=ThreadId(4001, 100))


def test_a_container_cannot_pose_as_a_shim_with_a_vm_in_it(tmp_path: Path) -> None:
    """Dragonball runs in its shim's process, and shows by its threads' names alone."""
    process(tmp_path, 4000, "shim", *SHIM)
    stat = stat_line(4001, "db_vcpu0")
    make_tree(tmp_path, f"4000/task/4001/stat = {stat}\n")
    nested(tmp_path, 4000)
    inventory = VmInventory(Procfs(tmp_path))
    inventory.scan({})
    assert inventory.vms == {}
    nested(tmp_path, 4000, "")
    inventory.scan({}, full=True)
    assert set(inventory.vms) == {"a"}


def test_virtiofsd_serves_from_a_pid_namespace_of_its_own(tmp_path: Path) -> None:
    """--sandbox=namespace: the one that was started waits for its child."""
    process(tmp_path, 4000, "virtiofsd", *VIRTIOFSD)
    process(tmp_path, 4001, "virtiofsd", *VIRTIOFSD, parent=4000)
    process(tmp_path, 4002, "virtiofsd", *VIRTIOFSD, parent=4001)
    for pid in (4001, 4002):
        nested(tmp_path, pid)
    inventory = VmInventory(Procfs(tmp_path))
    inventory.scan({})
    assert {process.pid for process in inventory.helpers(SandboxId("a"))} == {4000, 4001}


def test_a_process_with_very_many_groups_is_in_a_container_all_the_same(tmp_path: Path) -> None:
    """They stand before the namespaces in /proc/PID/status, and every container's root may give itself some."""
    need_root()
    unshare = need_tool("unshare")
    argv = [unshare, "--pid", "--fork", "sleep", "600"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL,
                          preexec_fn=lambda: os.setgroups(range(100_000, 103_000))) as outer:
        try:
            deadline = time.monotonic() + 120
            while not (children := Procfs().children(outer.pid)):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert [Procfs().nested(pid) for pid in (outer.pid, int(children[0]))] == [False, True]
        finally:
            for pid in (*map(int, Procfs().children(outer.pid)), outer.pid):
                os.kill(pid, signal.SIGKILL)


def kernel_thread(root: Path, pid: int, name: str, start: int = 100) -> None:
    stat = stat_line(pid, name, 2, start, PF_KTHREAD)
    make_tree(root, f"{pid}/stat = {stat}\n{pid}/task/{pid}/stat = {stat}\n")
    (root / str(pid) / "cmdline").write_bytes(b"")


class AskedForProcesses(Procfs):
    """Keeps the threads whose processes were read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.threads: list[int] = []

    def tgid(self, pid: int) -> int | None:
        self.threads.append(pid)
        return super().tgid(pid)


def test_kernel_threads_are_named_after_the_thread_that_created_them(tmp_path: Path) -> None:
    """Dragonball starts vhost on a vCPU thread, Cloud Hypervisor KVM on its thread `vmm`."""
    process(tmp_path, 4000, "shim", *SHIM)
    process(tmp_path, 4100, "cloud-hyperviso", "cloud-hypervisor", "--api-socket", "/run/vc/vm/b/clh-api.sock")
    for pid, tid, name in ((4000, 4001, "db_vcpu0"), (4100, 4101, "vmm")):
        # /proc has threads' directories, but does not list them.
        line = stat_line(tid, name)
        make_tree(tmp_path, f"{pid}/task/{tid}/stat = {line}\n{tid}/stat = {line}\n{tid}/status = Tgid:\t{pid}\n")
    kernel_thread(tmp_path, 5000, "vhost-4001")
    kernel_thread(tmp_path, 5001, "kvm-nx-lpage-recovery-4101")
    kernel_thread(tmp_path, 5002, "vhost-4001", start=99)  # its creator has ended, and another thread has the number
    proc = AskedForProcesses(tmp_path)
    inventory = VmInventory(proc)
    inventory.scan({})

    def workers(sandbox: str) -> list[int]:
        return [thread.id.tid for thread in inventory.vms[SandboxId(sandbox)].kernel_threads]

    assert (workers("a"), workers("b")) == ([5000], [5001])
    shutil.rmtree(tmp_path / "4001")  # its creator ends, as a vCPU that is unplugged
    inventory.scan({})
    assert (workers("a"), workers("b")) == ([5000], [5001])
    assert sorted(proc.threads) == [4001, 4101], "each is read once: a node has hundreds, also of others' VMs"


@pytest.mark.parametrize("argv", [("nginx",), ("qemu-system-x86_64", "-name", "sandbox-b"), VIRTIOFSD])
def test_a_kernel_thread_whose_number_is_a_process_by_now_is_no_vms(tmp_path: Path, argv: tuple[str, ...]) -> None:
    """It ended and the number was given away between two looks, so that it was never seen to be free."""
    process(tmp_path, 4000, "qemu-system-x86", "qemu-system-x86_64", "-name", "sandbox-a", "-smp", "1")
    kernel_thread(tmp_path, 5000, "vhost-4000")
    inventory = VmInventory(Procfs(tmp_path))
    inventory.scan({})
    vm = inventory.vms[SandboxId("a")]
    assert [thread.id.tid for thread in vm.kernel_threads] == [5000]
    process(tmp_path, 5000, argv[0], *argv, start=200)
    for _ in range(ROUNDS):  # it comes to its turn
        inventory.scan({})
    assert vm.kernel_threads == []


@pytest.mark.parametrize("argv", [("qemu-system-x86_64", "-name", "sandbox-b"), VIRTIOFSD])
def test_a_process_whose_number_is_a_kernel_threads_by_now_is_nothing(tmp_path: Path, argv: tuple[str, ...]) -> None:
    process(tmp_path, 4000, "qemu-system-x86", "qemu-system-x86_64", "-name", "sandbox-a", "-smp", "1")
    process(tmp_path, 5000, argv[0], *argv)
    inventory = VmInventory(Procfs(tmp_path))
    inventory.scan({})
    kernel_thread(tmp_path, 5000, "vhost-4000", start=200)
    for _ in range(ROUNDS):
        inventory.scan({})
    vm = inventory.vms[SandboxId("a")]
    assert (set(inventory.vms), vm.helpers, [thread.id.tid for thread in vm.kernel_threads]) == ({"a"}, [], [5000])


def test_a_shims_child_that_executes_a_virtiofsd_is_no_shim_any_more(tmp_path: Path) -> None:
    """Until then it has its parent's command line, and afterwards its start time still."""
    process(tmp_path, 4000, "qemu-system-x86", "qemu-system-x86_64", "-name", "sandbox-a", "-smp", "1")
    process(tmp_path, 5000, "shim", *SHIM)
    inventory = VmInventory(Procfs(tmp_path))
    inventory.scan({})
    vm = inventory.vms[SandboxId("a")]
    inventory.refresh(vm)
    assert [thread.role for thread in vm.threads() if thread.pid == 5000] == [ThreadRole.SHIM]
    process(tmp_path, 5000, "virtiofsd", *VIRTIOFSD)
    inventory.scan({})
    inventory.refresh(vm)
    assert [thread.role for thread in vm.threads() if thread.pid == 5000] == [ThreadRole.VIRTIOFSD]


@pytest.mark.parametrize(("name", "vms"), [
    ("5a" * 16, {"5a" * 16}), ("5a" * 32, {"5a" * 32}), ("web-1", set()), ("5a" * 15, set()),
    ("550e8400-e29b-41d4-a716-446655440000", set()), ("5A" * 16, set())])
def test_a_firecracker_that_is_not_katas_is_left_alone(tmp_path: Path, name: str, vms: set[str]) -> None:
    """It has an id, too: of people, or another program's."""
    process(tmp_path, 4001, "firecracker", "firecracker", "--id", name, "--api-sock", "/run/vm.sock")
    inventory = VmInventory(Procfs(tmp_path))
    inventory.scan({})
    assert set(inventory.vms) == vms


def test_firecrackers_sandbox_is_the_one_of_the_shim_whose_id_was_cut(tmp_path: Path) -> None:
    whole = "7f1d0c4be5a2f8c39b6d0e1a4c5f7788" + "0123456789abcdef" * 2
    process(tmp_path, 4001, "firecracker", "/firecracker", "--id", whole[:32], "--start-time-us", "1")
    inventory = VmInventory(Procfs(tmp_path))
    found = inventory.inspect(4001)
    assert found is not None
    assert found[1].sandbox == whole[:32]
    process(tmp_path, 4000, "shim", "containerd-shim-kata-v2", "-id", whole)
    inventory.inspect(4000)
    found = inventory.inspect(4001)
    assert found is not None
    assert found[1].sandbox == whole
    inventory.assign({})
    assert set(inventory.vms) == {whole}
    shutil.rmtree(tmp_path / "4000")
    inventory.scan({}, full=True)
    assert (set(inventory.vms), inventory.process_table.sandboxes_with_helpers()) == ({whole}, set())


def test_a_helper_that_was_killed_and_not_reaped_has_no_threads() -> None:
    with subprocess.Popen(["sleep", "600"]) as shim:
        stat = Procfs().stat(shim.pid)
        assert stat is not None
        helper = Process(shim.pid, ThreadId(shim.pid, stat.starttime), ThreadRole.SHIM, [])
        assert helper.read_threads(Procfs(), reread=True) is Refresh.CHANGED
        assert [*helper.threads] == [shim.pid]
        shim.kill()
        os.waitid(os.P_PID, shim.pid, os.WEXITED | os.WNOWAIT)
        assert helper.read_threads(Procfs(), reread=True) is Refresh.ENDED
        assert not helper.threads
