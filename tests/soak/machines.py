"""The processes of a sandbox: a stand-in for a VMM that obeys commands (vmm.c), with virtiofsd and shim, or a real
QEMU; in the lab's node a VM under KVM. Their masks are read from the kernel here, not with vmpin's code.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from need import need_tool
from real_qemu import Qemu

_VCPU = re.compile(r"(?:CPU ([0-9]+)/[A-Z]+|fc_vcpu ([0-9]+))\n?")
_RUN = "/run/vc/vm"
#: The stand-in, compiled by who starts the node, where there is no compiler.
_BUILT = Path("/lab/soak-vmm")
_IN_NODE = "VMPIN_LAB_NODE" in os.environ


@dataclass(frozen=True)
class Threads:
    """Masks as the kernel has them: of the vCPUs by number, of all others by thread id."""

    vcpus: dict[int, frozenset[int]] = field(default_factory=dict)
    others: dict[int, frozenset[int]] = field(default_factory=dict)
    #: The vCPUs' thread ids, by number.
    tids: dict[int, int] = field(default_factory=dict)


class Machine(Protocol):
    """A sandbox's VM."""

    vcpus: int
    most: int

    @property
    def pids(self) -> list[int]:
        """All its processes, the VMM first."""
        ...

    def threads(self) -> Threads:
        """All threads of all its processes, now."""
        ...

    def add_vcpu(self) -> None: ...

    def command(self, command: str) -> None:
        """What only a stand-in does; others ignore it."""
        ...

    def end(self) -> None: ...


def build(into: Path) -> Path:
    """The stand-in's program, in a directory of the story's own."""
    made = into / "vmm"
    if _BUILT.exists():
        return Path(shutil.copy(_BUILT, made))
    subprocess.run([need_tool("gcc", "cc"), "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", made,
                    Path(__file__).with_name("vmm.c")], check=True)
    return made


class _Process:
    def __init__(self, binary: Path, argv: list[str], listener: socket.socket | None = None) -> None:
        environment = {} if listener is None else {"VMM_LISTEN": str(listener.fileno())}
        self.process = subprocess.Popen(argv, executable=binary, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        env=environment, pass_fds=[] if listener is None else [listener.fileno()])
        self._answer()

    def command(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command.encode())
        self.process.stdin.flush()
        self._answer()

    def _answer(self) -> None:
        assert self.process.stdout is not None
        if self.process.stdout.read(1) != b".":
            raise RuntimeError(f"the stand-in {self.process.args!r} has ended")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class StandIn:
    """As many vCPUs as asked for, up to eight; `helpers` of virtiofsd and shim. With a `listener`, that of its hybrid
    vsock, it is a Firecracker, else a QEMU."""

    most = 8

    def __init__(self, binary: Path, sandbox: str, vcpus: int, helpers: list[str],
                 listener: socket.socket | None = None) -> None:
        self.vcpus = vcpus
        argv = ["/opt/kata/bin/firecracker", "--config-file", f"{_RUN}/{sandbox}/fc.json",
                "-smp", str(vcpus)] if listener is not None else [
                "/opt/kata/bin/qemu-system-x86_64", "-name", f"sandbox-{sandbox},debug-threads=on", "-machine", "q35",
                "-qmp", "unix:fd=3,server=on,wait=off", "-smp", str(vcpus), "-pidfile", f"{_RUN}/{sandbox}/pid"]
        lines = {"virtiofsd": ["/usr/libexec/virtiofsd", "--syslog", "--fd=3", "-o",
                               f"source=/run/kata-containers/shared/sandboxes/{sandbox}/shared"],
                 "shim": ["/opt/kata/bin/containerd-shim-kata-v2", "-namespace", "k8s.io", "-id", sandbox]}
        self._processes: list[_Process] = []
        try:
            # The shim is there first, and virtiofsd before the VMM, as Kata starts them.
            for name in ("shim", "virtiofsd"):
                if name in helpers:
                    self._processes.append(_Process(binary, lines[name]))
                    self._processes[-1].command("w")
            self._vmm = _Process(binary, argv, listener)
            self._processes.append(self._vmm)
        except BaseException:
            self.end()
            raise

    @property
    def pids(self) -> list[int]:
        return [process.process.pid for process in reversed(self._processes)]

    def threads(self) -> Threads:
        return _sorted([tid for pid in self.pids for tid in _tasks(pid)], _named_vcpus(self._vmm.process.pid))

    def add_vcpu(self) -> None:
        self._vmm.command("v")
        self.vcpus += 1

    def command(self, command: str) -> None:
        self._vmm.command(command)

    def end(self) -> None:
        for process in reversed(self._processes):
            process.end()


class RealQemu:
    """On the build machine its guest never runs. In the node it is a VM under KVM, which runs its firmware or nothing,
    with or without names of its threads, an iothread, and a network device with a vhost worker."""

    most = 4

    def __init__(self, sandbox: str, vcpus: int, rng: random.Random) -> None:
        self.vcpus = vcpus
        self._qemu = _under_kvm(sandbox, vcpus, self.most, rng) if _IN_NODE else Qemu(
            sandbox, vcpus=vcpus, maxcpus=self.most, iothreads=["io1"])
        self._qemu.__enter__()
        self._vcpus = self._qemu.vcpus()

    @property
    def pids(self) -> list[int]:
        return [self._qemu.pid]

    def threads(self) -> Threads:
        tids = [*_tasks(self._qemu.pid), *(_kernel_workers(self._qemu.pid) if _IN_NODE else ())]
        return _sorted(tids, self._vcpus)

    def add_vcpu(self) -> None:
        self._qemu.add_vcpu()
        self._vcpus = self._qemu.vcpus()
        self.vcpus += 1

    def command(self, command: str) -> None:
        pass

    def end(self) -> None:
        self._qemu.stop()


def _under_kvm(sandbox: str, vcpus: int, most: int, rng: random.Random) -> Qemu:
    from lab.node_tests.machines import NestedVm  # elsewhere it cannot be imported

    # vCPUs without names are identified by what they do, and those of a paused VM do nothing.
    paused = rng.random() < 0.25
    return NestedVm(sandbox, vcpus=vcpus, maxcpus=most, paused=paused, debug_threads=paused or rng.random() < 0.7,
                    iothreads=["io1"] if rng.random() < 0.3 else [], vhost_net=int(rng.random() < 0.4))


def _tasks(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _kernel_workers(pid: int) -> Iterable[int]:
    """The kernel threads that work for a VMM: vhost-PID, kvm-pit/PID, …"""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            comm = Path(f"/proc/{name}/comm").read_text().strip()
            if int(name) != pid and comm.endswith((f"-{pid}", f"/{pid}")):
                yield int(name)


def _sorted(tids: Iterable[int], vcpus: Mapping[int, int]) -> Threads:
    """:param vcpus: their numbers, by thread id."""
    found = Threads()
    for tid in tids:
        with contextlib.suppress(ProcessLookupError):
            mask = frozenset(os.sched_getaffinity(tid))
            if tid in vcpus:
                found.vcpus[vcpus[tid]] = mask
                found.tids[vcpus[tid]] = tid
            else:
                found.others[tid] = mask
    return found


def _named_vcpus(pid: int) -> dict[int, int]:
    found = {}
    for tid in _tasks(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            named = _VCPU.fullmatch(Path(f"/proc/{pid}/task/{tid}/comm").read_text())
            if named is not None:
                found[tid] = int(named[1] or named[2])
    return found


def tids(machine: Machine) -> list[int]:
    return [tid for pid in machine.pids for tid in _tasks(pid)]
