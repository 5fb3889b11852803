"""What the node's tests are made of: VMs under KVM with vhost devices, Kata's files about them, vmpin's commands."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from kata_files import KataFiles, Sandboxed
from real_qemu import Qemu

from lab.node_tests.guest import Guest
from vmpin.cli.control_client import only, status_document
from vmpin.config import loading as configuration
from vmpin.config.settings import Config
from vmpin.cpuset import CpuSet
from vmpin.domain.model import ThreadRole
from vmpin.host.procfs import Procfs, Stat
from vmpin.reconcile import one_pass
from vmpin.reconcile.reconciler import Reconciler

#: Everything here is slow: each instruction is emulated, and the build machine is shared.
PATIENCE = 180.0
#: vmpin's defaults; nothing else uses the node, so they are used as they are.
RUN = Path("/run/vmpin")
KATA_GO = Path("/run/vc")
KATA_RS = Path("/run/kata")


def until(condition: Callable[[], object], what: str | Callable[[], object], seconds: float = PATIENCE, *,
          every: float = 0.05) -> None:
    """Wait for a condition, and fail with what was waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what() if callable(what) else what}")
        time.sleep(every)


def mask(tid: int) -> CpuSet:
    """The CPUs that the kernel lets a thread run on."""
    return CpuSet(os.sched_getaffinity(tid))


class NestedVm(Qemu):
    """A VM under KVM, on its firmware: its vCPUs run, have nothing to boot, and idle.

    Beside what `Qemu` takes (vcpus, maxcpus, smp, iothreads, debug_threads, qmp_sockets, memory, extra, …):

    :param guest: what runs in it in place of the firmware.
    :param vhost_net: network devices with a vhost worker each.
    :param vhost_vsock: a vsock device, whose worker has the same name.
    """

    number = 0

    def __init__(self, sandbox: str = "", *, vhost_net: int = 0, vhost_vsock: bool = False, guest: Guest | None = None,
                 **more: Any) -> None:
        extra = list(more.pop("extra", ()))
        self.taps = []
        for index in range(vhost_net):
            NestedVm.number += 1
            name = f"tap{NestedVm.number}"
            self.taps.append(name)
            extra += ["-netdev", f"tap,id=net{index},ifname={name},script=no,downscript=no,vhost=on",
                      "-device", f"virtio-net-pci,netdev=net{index},romfile="]
        if vhost_vsock:
            extra += ["-device", f"vhost-vsock-pci,guest-cid={3 + secrets.randbelow(1 << 30)}"]
        self.vhost_devices = vhost_net + vhost_vsock
        more.setdefault("accel", "kvm")
        more.setdefault("paused", False)
        super().__init__(sandbox, extra=extra, **more)
        if guest is not None:
            rom = self.dir / "rom"
            rom.write_bytes(guest.rom())
            self.argv += ["-bios", str(rom), "-cpu", "qemu64,+x2apic"]

    def __enter__(self) -> NestedVm:
        try:
            for tap in self.taps:
                subprocess.run(["ip", "tuntap", "add", "mode", "tap", "name", tap], check=True)
            super().__enter__()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        super().stop()
        while self.taps:
            subprocess.run(["ip", "link", "delete", self.taps.pop()], check=False)

    def kill(self) -> None:
        """kill -9, as an operator or the kernel's OOM killer would; `stop` reaps it."""
        os.kill(self.pid, signal.SIGKILL)

    def wait_idle(self) -> None:
        """Until every vCPU has run and waits inside KVM_RUN."""
        procfs = Procfs()

        def calls() -> list[str]:
            return [procfs.syscall(self.pid, tid) for tid in self.vcpus()]

        until(lambda: all(call.split()[2:3] == ["0xae80"] for call in calls()), lambda: f"idle vCPUs, have {calls()}")

    def vcpu_tids(self) -> dict[int, int]:
        """Thread id by cpu-index, by QEMU's own word."""
        return {index: tid for tid, index in self.vcpus().items()}

    def kernel_threads(self) -> dict[int, Stat]:
        """The kernel threads that work for it, as Linux had them before 6.4: vhost-PID, kvm-pit/PID, …"""
        procfs = Procfs()
        stats = ((int(pid), procfs.stat(pid)) for pid in procfs.pids())
        return {pid: stat for pid, stat in stats
                if stat is not None and stat.kernel_thread and stat.comm.endswith((f"-{self.pid}", f"/{self.pid}"))}

    def all_threads(self) -> dict[int, Stat]:
        """Its own threads and the kernel's for it."""
        return dict(self.threads()) | self.kernel_threads()

    def vhost_tids(self) -> list[int]:
        """The vhost workers, of either kind."""
        return [tid for tid, stat in self.all_threads().items() if stat.comm == f"vhost-{self.pid}"]

    def roles(self) -> dict[int, ThreadRole]:
        """What each thread is: vCPUs and iothreads by QEMU's own word, the kernel's by the names it gives them."""
        vcpus, iothreads = self.vcpus(), self.iothreads()
        found = {}
        for tid, stat in self.all_threads().items():
            if tid in vcpus:
                found[tid] = ThreadRole.VCPU
            elif tid in iothreads:
                found[tid] = ThreadRole.IOTHREAD
            elif stat.comm.startswith("vhost-"):
                found[tid] = ThreadRole.VHOST
            else:
                found[tid] = ThreadRole.KVM if stat.comm.startswith("kvm-") else ThreadRole.EMULATOR
        return found

    def masks(self) -> dict[int, CpuSet]:
        """The mask of every thread; one that ends meanwhile is left out."""
        found = {}
        for tid in self.all_threads():
            with contextlib.suppress(ProcessLookupError):
                found[tid] = mask(tid)
        return found


class Kata(KataFiles):
    """Those of the node."""

    def __init__(self) -> None:
        super().__init__(KATA_GO)


class Vmpin:
    """vmpin's command, and the configuration that it is run with."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._values: dict[str, object] = {}
        self.configure()

    def configure(self, **values: object) -> None:
        """Set keys, with two underscores for the dot: `node__shared_pool="0-1"`."""
        self._values |= {key.replace("__", "."): value for key, value in values.items()}
        sections: dict[str, dict[str, object]] = {}
        for key, value in self._values.items():
            section, _, name = key.partition(".")
            sections.setdefault(section, {})[name] = value
        self.file.write_text(json.dumps(sections))  # JSON is YAML

    def argv(self, verb: str, *arguments: str) -> list[str]:
        return ["vmpin", verb, "--config", str(self.file), *arguments]

    def __call__(self, verb: str, *arguments: str, code: int = 0) -> str:
        """Run a command; its output. It has to end with `code`."""
        done = subprocess.run(self.argv(verb, *arguments), capture_output=True, text=True, timeout=PATIENCE * 2,
                              check=False)
        assert done.returncode == code, f"vmpin {verb} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def json(self, verb: str, *arguments: str, code: int = 0) -> Any:
        """The same with `-o json`."""
        return json.loads(self(verb, *arguments, "-o", "json", code=code))

    def config(self) -> Config:
        return configuration.load(self.file, {}, {})

    def reconcile(self) -> Reconciler:
        """What `vmpin repin` does, without the seconds that starting a Python takes here. :returns: one made after
        it, that sees what it left."""
        one_pass.reconcile(self.config(), None)
        found = Reconciler(self.config(), acts=False)
        found.resync(act=False, full=True)
        return found

    def status(self, vm: Sandboxed) -> dict[str, Any]:
        """What `vmpin status` has of a VM, from the watcher if one runs; likewise in no time."""
        return only(status_document(self.config()), vm.sandbox, "")


class Watcher:
    """A real `vmpin watch`, ready when the `with` begins."""

    def __init__(self, vmpin: Vmpin, log: Path) -> None:
        self.vmpin = vmpin
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Watcher:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if self._process is not None:
            self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None, "not running"
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it says READY=1: all is placed by then."""
        assert self._process is None, "runs already"
        address = str(self.log.with_suffix(".notify"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified, self.log.open("ab") as out:
            notified.bind(address)
            notified.settimeout(PATIENCE)
            self._process = subprocess.Popen(
                self.vmpin.argv("watch", "--log-level", "debug"), env=os.environ | {"NOTIFY_SOCKET": address},
                stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            try:
                while b"READY=1" not in notified.recv(4096):
                    pass
            except TimeoutError:
                self.kill()
                raise AssertionError(f"the watcher does not get ready: {self.log.read_text()}") from None
            finally:
                os.unlink(address)

    def stop(self) -> None:
        """End it as systemd does; it has to obey."""
        assert self._process is not None
        self._process.terminate()
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the watcher does not end: {self.log.read_text()}") from None
        self._process = None
        assert code == 0, f"the watcher ended with {code}: {self.log.read_text()}"

    def kill(self) -> None:
        """kill -9"""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None


def kvm_version() -> int:
    """What KVM_GET_API_VERSION says."""
    fd = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    try:
        return fcntl.ioctl(fd, 0xAE00, 0)
    finally:
        os.close(fd)
