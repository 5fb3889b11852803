"""The demo's VM: a real QEMU with three vCPUs, an iothread and a disk, whose guest is the firmware, idle.

It also reads the masks of the VM's threads from /proc, by thread names and without vmpin's code.
"""

import os
import platform
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vmpin.cpuset import CpuSet
from vmpin.domain.terminal import number_of
from vmpin.errors import VmpinError
from vmpin.features.demo.children import ended

VCPUS = 3
#: Seconds until the firmware's first output; it takes a tenth, and more on a busy machine. A KVM that does not work
#: mostly ends QEMU at once; after TCG there is no other way.
_BOOT = {"kvm": 30.0, "tcg": 60.0}
_VCPU = re.compile(r"CPU ([0-9]+)/[A-Z]+")


@dataclass(frozen=True)
class DemoMasks:
    """The masks of the VM's threads: vCPUs by number, the others by thread id."""

    vcpus: dict[int, CpuSet]
    others: dict[int, CpuSet]

    def __str__(self) -> str:
        alike: dict[str, list[int]] = {}
        for number, cpus in sorted(self.vcpus.items()):
            alike.setdefault(str(cpus), []).append(number)
        parts = [f"vCPU{'s' if len(numbers) > 1 else ''} {CpuSet(numbers)} on CPU {cpus}"
                 for cpus, numbers in alike.items()]
        counts = Counter(map(str, self.others.values()))
        return ", ".join([*parts, *(f"{number_of(count, 'thread', 'other')} on CPU {cpus}"
                                    for cpus, count in counts.items())])


def _no_kvm() -> str:
    """Why KVM cannot be tried; empty if it can."""
    if platform.machine() != "x86_64":
        return f"this is {platform.machine()}"
    try:
        os.close(os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return "there is no /dev/kvm here"
    except OSError as err:
        return f"/dev/kvm: {err.strerror}"
    return ""


class DemoVm:
    """One QEMU, named as Kata names it. `stop` ends exactly this process."""

    def __init__(self, qemu: str, sandbox: str, directory: Path) -> None:
        self.sandbox = sandbox
        self.directory = directory
        self.kvm = False
        #: Why KVM is not used; empty if it is.
        self.why = ""
        self._qemu = qemu
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start with KVM if it runs a guest, else with TCG. :raises VmpinError: if neither works."""
        disk = self.directory / "disk"
        with disk.open("wb") as file:
            file.truncate(1 << 20)
        self.why = _no_kvm() or self._fault("kvm", "qemu64")
        self.kvm = not self.why
        if not self.kvm and (fault := self._fault("tcg,thread=multi", "max")):
            raise VmpinError(f"{self._qemu}: {fault}")

    def _fault(self, accelerator: str, cpu: str) -> str:
        """Start it, and wait until its guest runs: /dev/kvm may exist and not work. :returns: why it does not run;
        empty if it does."""
        argv = [self._qemu, "-name", f"sandbox-{self.sandbox},debug-threads=on", "-accel", accelerator, "-cpu", cpu,
                "-smp", f"{VCPUS},cores=1,threads=1,sockets={VCPUS},maxcpus={VCPUS}",
                "-nodefaults", "-no-user-config", "-display", "none", "-object", "iothread,id=io1",
                "-blockdev", f"driver=file,node-name=disk,filename={self.directory}/disk",
                "-device", "virtio-blk-pci,drive=disk,iothread=io1", *self._guest()]
        with (self.directory / "qemu.log").open("wb") as log:
            # A group of its own: a Ctrl-C at the terminal is the demo's to handle.
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0,
                                       cwd=self.directory)
        self._process = process
        kind = accelerator.partition(",")[0]
        deadline = time.monotonic() + _BOOT[kind]
        while not ended(process):
            if len(self.masks().vcpus) == VCPUS and self._runs():
                return ""
            if time.monotonic() > deadline:
                self.stop()
                return (f"with {kind.upper()} the guest did not run within {_BOOT[kind]:.0f} s (load average "
                        f"{os.getloadavg()[0]:.1f})")
            time.sleep(0.02)
        self.stop()
        output = (self.directory / "qemu.log").read_text("utf-8", "replace").splitlines() or ["without output"]
        return f"{kind.upper()} runs no guest here: QEMU ended: {output[-1]}"

    def _guest(self) -> list[str]:
        """QEMU's arguments for the machine and what runs in it."""
        output = self.directory / "firmware.log"
        output.unlink(missing_ok=True)
        return ["-machine", "q35", "-m", "64M", "-chardev", f"file,id=firmware,path={output}",
                "-device", "isa-debugcon,iobase=0x402,chardev=firmware"]

    def _runs(self) -> bool:
        """Whether the guest has started."""
        output = self.directory / "firmware.log"
        return output.exists() and b"SeaBIOS" in output.read_bytes()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        if self._process is not None:
            if not ended(self._process):
                os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def masks(self) -> DemoMasks:
        """The current mask of each thread."""
        masks = DemoMasks({}, {})
        for tid, vcpu, cpus in self._threads():
            if vcpu is None:
                masks.others[tid] = cpus
            else:
                masks.vcpus[vcpu] = cpus
        return masks

    def tids(self) -> dict[int, int | None]:
        """The current threads: by thread id the vCPU, None for the others."""
        return {tid: vcpu for tid, vcpu, _ in self._threads()}

    def _threads(self) -> Iterator[tuple[int, int | None, CpuSet]]:
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            try:
                fields = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines() if ":" in line)
            except (FileNotFoundError, ProcessLookupError):
                continue  # a worker that ended
            vcpu = _VCPU.fullmatch(fields["Name"].strip())
            yield (int(task.name), None if vcpu is None else int(vcpu[1]),
                   CpuSet.parse(fields["Cpus_allowed_list"].strip()))
