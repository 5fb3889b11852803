"""Virtual machines to watch: hundreds of processes with a VMM's command line and threads, or real, paused QEMUs.

All are children of this process, killed by their Popen (which knows whether the pid is still theirs) and, should this
process be killed itself, by the kernel (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from measure import CannotMeasure, environment, progress

VCPUS = 8
#: Of a stand-in: the vCPUs, the main thread and seven others.
THREADS = 16
#: Machines that start at the same time: more only wait for each other.
_BATCH = 4


@dataclass(frozen=True)
class Machine:
    sandbox: str
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def tids(self) -> list[int]:
        return [int(name) for name in os.listdir(f"/proc/{self.pid}/task")]

    def masks(self) -> set[frozenset[int]]:
        return {frozenset(os.sched_getaffinity(tid)) for tid in self.tids()}

    def set_mask(self, cpus: frozenset[int]) -> None:
        for tid in self.tids():
            os.sched_setaffinity(tid, cpus)


#: What the ids of this process's sandboxes begin with: the VMs of others on this machine are left alone.
PREFIX = f"b{os.getpid():07}"


def sandbox_id(number: int) -> str:
    """As long as containerd's."""
    return PREFIX + hashlib.sha256(b"vmpin benchmark %d" % number).hexdigest()[len(PREFIX):]


@contextlib.contextmanager
def stand_ins(count: int, build: Path) -> Iterator[list[Machine]]:
    """`count` processes that look like QEMU under Kata, of 16 threads each."""
    binary = compiled("manythreads", build, "-pthread")
    progress(f"starting {count} stand-ins of {THREADS} threads")
    with _ending([]) as machines:
        reader, writer = os.pipe()
        try:
            for number in range(count):
                sandbox = sandbox_id(number)
                machines.append(Machine(sandbox, subprocess.Popen(
                    kata_argv(sandbox), executable=binary, env=environment(), stdin=subprocess.DEVNULL,
                    stdout=writer)))
            os.close(writer)
            writer = -1
            ready = 0
            while part := os.read(reader, 4096) if ready < count else b"":
                ready += len(part)
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)
        if ready < count or any(len(machine.tids()) != THREADS for machine in machines):
            raise CannotMeasure(f"only {ready} of {count} stand-ins started with {THREADS} threads")
        yield machines


@contextlib.contextmanager
def qemus(count: int, vcpus: int = VCPUS, iothreads: int = 1) -> Iterator[list[Machine]]:
    """`count` real QEMUs that were never let run."""
    qemu = shutil.which("qemu-system-x86_64")
    if qemu is None:
        raise CannotMeasure("needs qemu-system-x86_64")
    progress(f"starting {count} paused QEMUs of {vcpus} vCPUs")
    with _ending([]) as machines:
        for first in range(0, count, _BATCH):
            batch = [_qemu(qemu, sandbox_id(number), vcpus, iothreads)
                     for number in range(first, min(count, first + _BATCH))]
            machines += batch
            for machine in batch:
                _until_up(machine, vcpus)
        yield machines


@contextlib.contextmanager
def idle_processes(count: int) -> Iterator[list[int]]:
    """Processes that do nothing; they end with this process, however it ends."""
    reader, writer = os.pipe()
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            started.append(subprocess.Popen(["/bin/cat"], env=environment(), stdin=reader, stdout=subprocess.DEVNULL))
        yield [process.pid for process in started]
    finally:
        os.close(reader)
        os.close(writer)
        for process in started:
            process.kill()
        for process in started:
            process.wait()


@contextlib.contextmanager
def _ending(machines: list[Machine]) -> Iterator[list[Machine]]:
    try:
        yield machines
    finally:
        for machine in machines:
            machine.process.kill()
        for machine in machines:
            machine.process.wait()


def compiled(name: str, build: Path, *flags: str) -> Path:
    """The program of one of the sources here."""
    gcc = shutil.which("gcc") or shutil.which("cc")
    if gcc is None:
        raise CannotMeasure("needs gcc")
    build.mkdir(parents=True, exist_ok=True)
    binary = build / name
    made = build / f".{name}.{os.getpid()}"
    subprocess.run([gcc, "-O2", "-Wall", *flags, "-o", made, Path(__file__).with_name(f"{name}.c")], check=True)
    made.rename(binary)
    return binary


def kata_argv(sandbox: str) -> list[str]:
    """What Kata's Go runtime starts, shortened."""
    run = f"/run/vc/vm/{sandbox}"
    return ["/opt/kata/bin/qemu-system-x86_64", "-name", f"sandbox-{sandbox},debug-threads=on",
            "-uuid", _uuid(sandbox), "-machine", "q35,accel=kvm,nvdimm=on", "-cpu", "host,pmu=off",
            "-qmp", "unix:fd=3,server=on,wait=off", "-m", "2048M,slots=10,maxmem=32138M",
            "-device", "pcie-root-port,id=rp0,slot=2,addr=0x3,bus=pcie.0",
            "-device", "virtio-serial-pci,disable-modern=false,id=serial0",
            "-device", "virtconsole,chardev=charconsole0,id=console0",
            "-chardev", f"socket,id=charconsole0,path={run}/console.sock,server=on,wait=off",
            "-object", "rng-random,id=rng0,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng0",
            "-device", "vhost-vsock-pci,disable-modern=false,vhostfd=4,id=vsock-1,guest-cid=3",
            "-chardev", f"socket,id=char-1,path={run}/vhost-fs.sock",
            "-device", "vhost-user-fs-pci,chardev=char-1,tag=kataShared,queue-size=1024",
            "-netdev", "tap,id=network-0,vhost=on,vhostfds=5:6:7,fds=8:9:10",
            "-device", "driver=virtio-net-pci,netdev=network-0,mac=6a:19:5f:a5:2b:01,mq=on,vectors=8",
            "-object", "iothread,id=iothread0", "-rtc", "base=utc,driftfix=slew,clock=host",
            "-global", "kvm-pit.lost_tick_policy=discard", "-vga", "none", "-no-user-config", "-nodefaults",
            "-nographic", "--no-reboot",
            "-object", "memory-backend-file,id=dimm1,size=2048M,mem-path=/dev/shm,share=on",
            "-numa", "node,memdev=dimm1", "-kernel", "/opt/kata/share/kata-containers/vmlinux.container",
            "-append", "tsc=reliable no_timer_check rcupdate.rcu_expedited=1 reboot=k panic=1 quiet "
                       "systemd.unit=kata-containers.target systemd.mask=systemd-networkd.service",
            "-pidfile", f"{run}/pid", "-smp", str(VCPUS)]


def _uuid(sandbox: str) -> str:
    return f"{sandbox[:8]}-{sandbox[8:12]}-{sandbox[12:16]}-{sandbox[16:20]}-{sandbox[20:32]}"


def _qemu(program: str, sandbox: str, vcpus: int, iothreads: int) -> Machine:
    objects = [word for number in range(iothreads) for word in ("-object", f"iothread,id=iothread{number}")]
    argv = ["setpriv", "--pdeathsig", "KILL", program, "-name", f"sandbox-{sandbox},debug-threads=on", "-uuid",
            _uuid(sandbox), "-machine", "q35", "-accel", "tcg,thread=multi", "-m", "64", "-smp", str(vcpus), *objects,
            "-nodefaults", "-no-user-config", "-display", "none", "-S"]
    return Machine(sandbox, subprocess.Popen(argv, env=environment(), stdin=subprocess.DEVNULL,
                                             stdout=subprocess.DEVNULL))


def _until_up(machine: Machine, vcpus: int) -> None:
    deadline = time.monotonic() + 600
    last = f"CPU {vcpus - 1}/TCG\n"
    while time.monotonic() < deadline:
        if machine.process.poll() is not None:
            raise CannotMeasure(f"QEMU ended with status {machine.process.returncode}")
        for tid in machine.tids():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{machine.pid}/task/{tid}/comm").read_text() == last:
                    return
        time.sleep(0.01)
    raise CannotMeasure("QEMU did not make its vCPUs within 60 s")
