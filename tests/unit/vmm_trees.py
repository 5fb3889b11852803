"""/proc trees of VMMs, written here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from identified_threads import identified
from trees import make_tree, stat_line

from vmpin.domain.model import ThreadId, VcpuId
from vmpin.host.procfs import PF_USER_WORKER, Procfs, Stat
from vmpin.vmm import kvm, qemu
from vmpin.vmm.threads import Identified
from vmpin.vmm.virtual_machine import QmpAnswer
from vmpin.vmm.vmm_type import VmmType

PID = 100
RCU, IO, CPU0, CPU1 = 101, 102, 105, 106
QEMU = "qemu-system-x86_64"
UNNAMED = "qemu-system-x86"

FUTEX = "202 0x55 0x189 0x0 0x0 0x0 0x0 0x7f 0x7f"
PPOLL = "271 0x55 0x4 0x0 0x0 0x8 0x0 0x7f 0x7f"


def kvm_run(fd: int) -> str:
    return f"16 {fd:#x} 0xae80 0x0 0x0 0x0 0x0 0x7ffe 0x7f01"


@dataclass
class Fake:
    """A VMM process: its threads, and the files below /proc and debugfs that say more."""

    root: Path
    argv: list[str] = field(default_factory=lambda: [QEMU, "-smp", "2"])
    vmm: VmmType = qemu.QEMU
    stats: dict[int, Stat] = field(default_factory=dict)
    slept: list[float] = field(default_factory=list)
    #: What a thread's syscall file says from the first pause on.
    later: dict[int, str] = field(default_factory=dict)

    def thread(self, tid: int, comm: str = UNNAMED, call: str = FUTEX, flags: int = 0) -> None:
        self.stats[tid] = Stat(comm, "S", 1, flags, 7, 0)
        task = self.root / f"proc/{PID}/task/{tid}"
        task.mkdir(parents=True, exist_ok=True)
        (task / "syscall").write_text(call + "\n")

    def fd(self, number: int, target: str) -> None:
        fds = self.root / f"proc/{PID}/fd"
        fds.mkdir(parents=True, exist_ok=True)
        (fds / str(number)).symlink_to(target)

    def debugfs(self, vcpu: int, tid: int) -> None:
        where = self.root / f"debug/kvm/{PID}-11/vcpu{vcpu}"
        where.mkdir(parents=True)
        (where / "pid").write_text(f"{tid}\n")

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        for tid, call in self.later.items():
            (self.root / f"proc/{PID}/task/{tid}/syscall").write_text(call)

    def identify(self, learned: dict[ThreadId, VcpuId] | None = None, qmp: QmpAnswer | None = None,
                 iothreads: tuple[ThreadId, ...] = ()) -> Identified:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(kvm, "sleep", self.sleep)
            return identified(PID, self.vmm, self.argv, self.stats.items(), Procfs(self.root / "proc"),
                              learned=learned, qmp=qmp, iothreads=iothreads, debugfs=str(self.root / "debug"))


@pytest.fixture
def unnamed(tmp_path: Path) -> Fake:
    """A running QEMU without thread names: main, RCU, the monitors' thread, two vCPUs, KVM's worker."""
    fake = Fake(tmp_path, argv=[QEMU, "-smp", "2,maxcpus=8"])
    fake.thread(PID, call=PPOLL)
    fake.thread(RCU)
    fake.thread(IO, call=PPOLL)
    fake.thread(CPU0, call=kvm_run(12))
    fake.thread(CPU1, call=kvm_run(13))
    fake.thread(108, "kvm-nx-lpage-re", kvm_run(12), PF_USER_WORKER)
    fake.fd(3, "/dev/kvm")
    fake.fd(11, "anon_inode:kvm-vm")
    fake.fd(12, "anon_inode:kvm-vcpu:0")
    fake.fd(13, "anon_inode:kvm-vcpu:1")
    return fake


def process(root: Path, pid: int, argv: list[str], parent: int = 1, uid: int = 0, fds: tuple[str, ...] = (),
            cgroup: str = "", net: str = "", start: int = 100) -> None:
    """A process of a tree, named x."""
    stat = stat_line(pid, parent=parent, start=start)
    make_tree(root, f"{pid}/stat = {stat}\n{pid}/task/{pid}/stat = {stat}\n")
    (root / str(pid) / "cmdline").write_text("\0".join(argv) + "\0")
    (root / str(pid) / "status").write_text(
        f"Name:\tUid:\\n\nUmask:\t0022\nState:\tS\nTgid:\t{pid}\nPid:\t{pid}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
        f"Gid:\t0\t0\t0\t0\nGroups:\t0 \nNSpid:\t{pid}\n")
    (root / str(pid) / "cgroup").write_text(f"0::{cgroup or '/'}\n")
    for number, target in enumerate(fds):
        (root / str(pid) / "fd").mkdir(exist_ok=True)
        (root / str(pid) / "fd" / str(number)).symlink_to(target)
    if net:
        (root / str(pid) / "ns").mkdir(exist_ok=True)
        (root / str(pid) / "ns" / "net").symlink_to(net)
