"""The processes of a sandbox: a stand-in for a VMM that does as it is told (vmm.c), with virtiofsd and shim, or a real
QEMU. What they have is read from /proc here, not with vmpin's own eyes.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from need import need_tool
from real_qemu import Qemu

_VCPU = re.compile(r"(?:CPU ([0-9]+)/[A-Z]+|fc_vcpu ([0-9]+))\n?")
_RUN = "/run/vc/vm"


@dataclass(frozen=True)
class Threads:
    """Masks as the kernel has them: of the vCPUs by number, of all others by thread id."""

    vcpus: dict[int, frozenset[int]] = field(default_factory=dict)
    others: dict[int, frozenset[int]] = field(default_factory=dict)


class Machine(Protocol):
    """A sandbox's VM."""

    vcpus: int
    most: int

    @property
    def pids(self) -> list[int]:
        """All its processes, the VMM first."""
        ...

    def add_vcpu(self) -> None: ...

    def tell(self, command: str) -> None:
        """What only a stand-in does; others ignore it."""
        ...

    def end(self) -> None: ...


def build(into: Path) -> Path:
    made = into / "vmm"
    subprocess.run([need_tool("gcc", "cc"), "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", made,
                    Path(__file__).with_name("vmm.c")], check=True)
    return made


class _Process:
    def __init__(self, binary: Path, argv: list[str], listener: socket.socket | None = None) -> None:
        environment = {} if listener is None else {"VMM_LISTEN": str(listener.fileno())}
        self.process = subprocess.Popen(argv, executable=binary, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        env=environment, pass_fds=[] if listener is None else [listener.fileno()])
        self._answer()

    def tell(self, command: str) -> None:
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
        argv = ["/opt/kata/bin/firecracker", "--id", sandbox, "-smp", str(vcpus)] if listener is not None else [
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
                    self._processes[-1].tell("w")
            self._vmm = _Process(binary, argv, listener)
            self._processes.append(self._vmm)
        except BaseException:
            self.end()
            raise

    @property
    def pids(self) -> list[int]:
        return [process.process.pid for process in reversed(self._processes)]

    def add_vcpu(self) -> None:
        self._vmm.tell("v")
        self.vcpus += 1

    def tell(self, command: str) -> None:
        self._vmm.tell(command)

    def end(self) -> None:
        for process in reversed(self._processes):
            process.end()


class RealQemu:
    """Its guest never runs."""

    most = 4

    def __init__(self, sandbox: str, vcpus: int) -> None:
        self.vcpus = vcpus
        self._qemu = Qemu(sandbox, vcpus=vcpus, maxcpus=self.most, iothreads=["io1"])
        self._qemu.__enter__()

    @property
    def pids(self) -> list[int]:
        return [self._qemu.pid]

    def add_vcpu(self) -> None:
        self._qemu.add_vcpu()
        self.vcpus += 1

    def tell(self, command: str) -> None:
        pass

    def end(self) -> None:
        self._qemu.stop()


def threads(machine: Machine) -> Threads:
    """All threads of all its processes, now."""
    found = Threads()
    for pid in machine.pids:
        for name in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                comm = Path(f"/proc/{pid}/task/{name}/comm").read_text()
                mask = frozenset(os.sched_getaffinity(int(name)))
                vcpu = _VCPU.fullmatch(comm) if pid == machine.pids[0] else None
                if vcpu is not None:
                    found.vcpus[int(vcpu[1] or vcpu[2])] = mask
                else:
                    found.others[int(name)] = mask
    return found


def tids(machine: Machine) -> list[int]:
    found = []
    for pid in machine.pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return found
