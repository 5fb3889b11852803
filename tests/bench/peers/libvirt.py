"""A libvirt daemon of a user's session, from unpacked Debian packages, with one paused VM.

It runs in an enclosure in which the packages' /usr lies over the machine's, as a user without rights, with directories
of its own: nothing of a libvirt at work on this machine is touched. virsh runs outside, by its socket."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from measure import CannotMeasure, environment, process_ms, progress

sys.path += [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "integration")]

from enclosure import Enclosure

_NOBODY = 65534
_PATIENCE = 120.0
_DOMAIN = """<domain type='qemu'><name>{name}</name><memory unit='MiB'>64</memory><vcpu>{vcpus}</vcpu>
<iothreads>{iothreads}</iothreads><os><type arch='x86_64' machine='q35'>hvm</type></os>
<devices><emulator>{qemu}</emulator><controller type='usb' model='none'/><memballoon model='none'/></devices></domain>
"""


class Libvirt:
    """:ivar pid: of the VM's QEMU."""

    def __init__(self, unpacked: Path, top: Path, enclosure: Enclosure, name: str, vcpus: int, iothreads: int) -> None:
        self._top, self._name, self._enclosure = top, name, enclosure
        self._vcpus, self._iothreads = vcpus, iothreads
        [libraries] = {str(path.parent) for path in unpacked.glob("usr/lib/*/libvirt.so.0")}
        self._environment = environment(LD_LIBRARY_PATH=libraries, HOME=top)
        self._virsh = [str(unpacked / "usr/bin/virsh"), "--quiet", "--connect",
                       f"qemu+unix:///session?socket={top}/libvirt/libvirt-sock"]

    def batch(self, cpus: str) -> list[list[str]]:
        """One virsh for all masks."""
        return [[*self._virsh, "; ".join(" ".join(words) for words in self._commands(cpus))]]

    def single(self, cpus: str) -> list[list[str]]:
        """A virsh for each mask."""
        return [[*self._virsh, *words] for words in self._commands(cpus)]

    def _commands(self, cpus: str) -> Iterator[list[str]]:
        for vcpu in range(self._vcpus):
            yield ["vcpupin", self._name, str(vcpu), cpus]
        for iothread in range(1, self._iothreads + 1):
            yield ["iothreadpin", self._name, str(iothread), cpus]
        yield ["emulatorpin", self._name, cpus]

    def run(self, commands: Sequence[Sequence[str]]) -> None:
        for argv in commands:
            process_ms(list(argv), self._environment)

    @property
    def pid(self) -> int:
        return self._enclosure.outer(int((self._top / f"libvirt/qemu/run/{self._name}.pid").read_text()))

    def tids(self) -> list[int]:
        """The threads that it pins: vCPUs, iothreads, the main one."""
        tids = [self.pid]
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            if (task / "comm").read_text().startswith(("CPU ", "IO iothread")):
                tids.append(int(task.name))
        return tids

    def start(self, qemu: str) -> None:
        """Until the VM is there, paused."""
        definition = self._top / "domain.xml"
        definition.write_text(_DOMAIN.format(name=self._name, vcpus=self._vcpus, iothreads=self._iothreads, qemu=qemu))
        deadline = time.monotonic() + _PATIENCE
        while not (self._top / "libvirt/libvirt-sock").exists():
            if time.monotonic() > deadline:
                raise CannotMeasure("libvirtd does not listen")
            time.sleep(0.05)
        self.run([[*self._virsh, "create", "--paused", str(definition)]])


@contextlib.contextmanager
def session(unpacked: Path, name: str, vcpus: int, iothreads: int) -> Iterator[Libvirt]:
    """:param unpacked: where the packages are. :raises CannotMeasure: with libvirtd's log."""
    qemu = shutil.which("qemu-system-x86_64")
    if qemu is None:
        raise CannotMeasure("needs qemu-system-x86_64")
    progress("starting a libvirt daemon and its VM")
    top = Path(tempfile.mkdtemp(prefix="vmpin-peers-", dir="/tmp"))
    try:
        shutil.chown(top, _NOBODY, _NOBODY)
        log = top / "log"
        with Enclosure() as enclosure, log.open("wb") as out:
            mounted = enclosure.popen(["mount", "-t", "overlay", "-o", f"lowerdir={unpacked}/usr:/usr", "overlay",
                                       "/usr"], stdout=out, stderr=out)
            if mounted.wait():
                raise CannotMeasure(f"the packages cannot be mounted over /usr: {log.read_text()[-300:]}")
            places = {name: top for name in ("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HOME")}
            enclosure.popen(["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "libvirtd",
                             "--timeout", "3600"], env=environment(**places), stdout=out, stderr=out)
            made = Libvirt(unpacked, top, enclosure, name, vcpus, iothreads)
            try:
                made.start(qemu)
            except CannotMeasure as err:
                raise CannotMeasure(f"{err}: {log.read_text('utf-8', 'replace')[-500:]}") from err
            yield made
    finally:
        shutil.rmtree(top, ignore_errors=True)
