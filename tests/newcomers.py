"""Processes and threads that are real, and the kernel's events of them, made by hand."""

from __future__ import annotations

import os
import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from need import lacking, need_tool

from vmpin.config import loading as settings
from vmpin.cpuset import CpuSet
from vmpin.domain.counters import NewbornCounts
from vmpin.domain.events import ContainerSeen, SandboxSeen, Source
from vmpin.domain.model import Container, ContainerId, SandboxId
from vmpin.host import boottime
from vmpin.host.procfs import Procfs
from vmpin.procevents.newborn_placer import FollowUp, NewbornPlacer
from vmpin.reconcile.node_state import NodeState
from vmpin.reconcile.reconciler import Reconciler
from vmpin.wire.proc_events import Event, Exec

PREFIX = f"u{secrets.token_hex(5)}-"
SHIM = "containerd-shim-kata-v2"


def own(sandboxes: Iterable[SandboxId]) -> set[SandboxId]:
    """Those of this process: shims of other tests are seen, too."""
    return {each for each in sandboxes if each.startswith(PREFIX)}


def sandbox(name: str) -> SandboxId:
    return SandboxId(PREFIX + name)


def shared_dir(name: str) -> str:
    """The argument by which a virtiofsd names its sandbox."""
    return f"--shared-dir=/run/kata-containers/shared/sandboxes/{sandbox(name)}/shared"


class Machine:
    """Processes of the test's own, and a reconciler that looks at nothing else. Two CPUs: the pool's and another."""

    def __init__(self, path: Path) -> None:
        usable = sorted(os.sched_getaffinity(0))
        if len(usable) < 2:
            lacking("needs two CPUs")
        self.pool, self.other = CpuSet(usable[:1]), CpuSet(usable[1:2])
        self.both = self.pool | self.other
        self.path = path
        self.children: list[subprocess.Popen[bytes]] = []
        self.settings: dict[str, str] = {}
        self.reconciler = self.fresh()
        self.placer = NewbornPlacer(self.reconciler)

    @property
    def node_state(self) -> NodeState:
        return self.reconciler.node_state

    def fresh(self) -> Reconciler:
        (self.path / "run").mkdir(exist_ok=True)
        paths = {f"paths.{key}": str(self.path / key) for key in ("run", "kata_go", "kata_rs", "kubelet", "nri")}
        return Reconciler(settings.load(None, {}, {**paths, "watch.only": f"{PREFIX}*",
                                                 "node.shared_pool": str(self.pool), **self.settings}))

    def configure(self, **policy: str) -> None:
        self.settings |= {f"policy.{key}": value for key, value in policy.items()}
        self.reconciler = self.fresh()
        self.placer = NewbornPlacer(self.reconciler)

    def process(self, name: str, *args: str, script: str = "read line",
                user: int | None = None) -> subprocess.Popen[bytes]:
        """A shell under another program's name; ends with its standard input. :param user: whose it is; None: ours."""
        made = subprocess.Popen([name, "-c", script, *args], executable="/bin/sh", stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, preexec_fn=self.free, user=user, cwd="/")
        self.children.append(made)
        until(lambda: Procfs().cmdline(made.pid))  # exec(2) closes Popen's pipe first
        return made

    def vmm(self, name: str, **more: Any) -> subprocess.Popen[bytes]:
        return self.process("qemu-system-x86_64", "-name", f"sandbox-{sandbox(name)},debug-threads=on", **more)

    def shim(self, name: str, **more: Any) -> subprocess.Popen[bytes]:
        return self.process(SHIM, "-id", sandbox(name), **more)

    def virtiofsd(self, name: str, **more: Any) -> subprocess.Popen[bytes]:
        return self.process("virtiofsd", shared_dir(name), **more)

    def crowd(self, binary: Path, name: str, *args: str) -> subprocess.Popen[bytes]:
        """Of many threads, under any name; all are there."""
        made = subprocess.Popen([name, *args], executable=binary, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                preexec_fn=self.free)
        self.children.append(made)
        assert made.stdout is not None
        assert made.stdout.read(1) == b"."
        return made

    def running(self, binary: Path, vcpus: int = 2) -> subprocess.Popen[bytes]:
        """A VM that was there before, in its place."""
        vmm = self.crowd(binary, "qemu-system-x86_64", "-name", f"sandbox-{sandbox('a')},debug-threads=on", "-smp",
                         str(vcpus))
        self.reconciler.resync(full=True)
        self.reconciler.resync()
        self.placer = NewbornPlacer(self.reconciler)
        self.node_state.counters.pins.clear()
        return vmm

    def child(self, parent: subprocess.Popen[bytes]) -> int:
        """What a shell starts that waits for a line, and says the number of."""
        assert parent.stdin is not None
        assert parent.stdout is not None
        parent.stdin.write(b"go\n")
        parent.stdin.flush()
        pid = int(parent.stdout.readline())
        until(lambda: Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"qemu"))
        return pid

    def free(self) -> None:
        os.sched_setaffinity(0, self.both.frozen())

    def executed(self, *processes: subprocess.Popen[bytes] | int) -> FollowUp:
        return self.take(*(Exec(time.monotonic_ns(), each if isinstance(each, int) else each.pid)
                           for each in processes))

    def take(self, *events: Event) -> FollowUp:
        follow_up = self.placer.handle(events)
        if settle := follow_up.now | follow_up.soon:
            self.placer.after_pass(self.reconciler.reconcile(settle, scan=False))
        return follow_up

    def resync(self) -> None:
        self.placer.after_pass(self.reconciler.resync(full=True), everything=True)

    def account(self, name: str) -> NewbornCounts:
        return self.node_state.newborn_counts[sandbox(name)]

    def report(self, name: str, cpus: CpuSet) -> None:
        """A hook's word on a container, before there is a VM."""
        container = Container(ContainerId(f"{name}-c"), cpuset=cpus)
        self.node_state.apply_events([SandboxSeen(sandbox(name), "oci"),
                                ContainerSeen(sandbox(name), container, Source.BUNDLE, boottime.now(),
                                              bundle=str(self.path))])
        self.placer.after_pass(self.reconciler.reconcile([sandbox(name)]))


def mask(process: subprocess.Popen[bytes] | int) -> CpuSet:
    return CpuSet(os.sched_getaffinity(process if isinstance(process, int) else process.pid))


@contextmanager
def machines(path: Path) -> Iterator[Machine]:
    made = Machine(path)
    try:
        yield made
    finally:
        for child in made.children:
            child.kill()
            child.communicate()


def built_crowd(path: Path) -> Path:
    """A program of many threads: the benchmarks' stand-in for a QEMU."""
    made = path / "crowd"
    source = Path(__file__).parent / "bench" / "manythreads.c"
    subprocess.run([need_tool("gcc", "cc"), "-O1", "-pthread", "-o", made, source], check=True)
    return made


def start_time(pid: int) -> int:
    stat = Procfs().thread_stat(pid, pid)
    assert stat is not None
    return stat.starttime


def tids(process: subprocess.Popen[bytes]) -> list[int]:
    return [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]


def by_name(process: subprocess.Popen[bytes], name: str) -> int:
    stats = {tid: Procfs().thread_stat(process.pid, tid) for tid in tids(process)}
    (found,) = [tid for tid, stat in stats.items() if stat is not None and stat.comm == name]
    return found


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Thread:
    """A thread of this process, which stays until it is ended."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._there = threading.Event()
        self.tid = 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.tid = threading.get_native_id()
        self._there.set()
        self._end.wait(120)

    def __enter__(self) -> Thread:
        self._thread.start()
        self._there.wait(120)
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
