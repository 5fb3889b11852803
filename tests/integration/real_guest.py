"""Real guests for the tests: a VM that boots Linux, with containers in it as cgroups, and processes in those::

    with image() as built, RealGuest(built, vcpus=4) as guest:
        main = guest.container("c1", busy=2)            # a cgroup and two busy processes
        guest.add_vcpu()                                # cpu-index 8; in the guest another number, and offline
        guest.online(4)
        main.masks()                                    # {tid: CpuSet}, as the guest's kernel has them
        guest.load(1.0)                                 # who was busy: guest CPUs, and vCPU threads of the host

Four seconds until it answers (TCG, four vCPUs); an idle one takes a tenth of a core and 300 MB. What the tests want
of the guest they command its process 1, tests/lab/guest_control.py, over a virtio-serial port of its own.

vmpin's agent is not in the image: give its file as `agent`, start it with `start_agent()` and speak with it at
`agent_socket` (virtio-serial, whose guest end /dev/virtio-ports/org.vmpin.agent.0 may be open once) or at `vsock_cid`.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import secrets
import select
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lab import cpio, guest_image
from lab.errors import LabError
from lab.guest_image import GuestImage
from lab.node import emulated
from need import lacking, need_root
from real_qemu import Qemu

from vmpin.cpuset import CpuSet
from vmpin.protocol.parsing import PORT, SERIAL

_LAB = Path(guest_image.__file__).parent
#: An emulated guest ends by itself in one of thousands of boots, before its kernel has written a line. It is booted
#: again: nothing has been tested yet. One that ends for a reason of ours ends again.
_BOOTS = 3
#: Boots take 4 s with 4 vCPUs, 9 with 8; one that does not end is not one of a busy machine.
_BOOT = 300.0
_ANSWER = 300.0
#: So long without an answer, and with a kernel that complains of this, it has stalled. A busy machine alone may make
#: it complain, too.
_STALLED_AFTER, _STALLED = 90.0, "kthread timer wakeup didn't happen"
_AGENT = "/vmpin-agent.pyz"
#: A process of the guest calls it: CID 1 is the machine itself.
_CALL = f"""
import socket
s = socket.socket(socket.AF_VSOCK)
s.settimeout(300)
s.connect((1, {PORT}))
print("served" if s.recv(1) else "refused", flush=True)
"""
#: The command that runs it: Debian's Python of the guest, without site-packages it does not have.
_RUN_AGENT = ["/usr/bin/python3.11", "-S", "-E", _AGENT]


@contextlib.contextmanager
def image() -> Iterator[GuestImage]:
    """The image, built at the first time (half a minute); in the lab's node the one that came with it."""
    if os.environ.get("VMPIN_LAB_NODE"):
        yield guest_image.IN_NODE
        return
    if platform.machine() != "x86_64":
        pytest.skip("the guest is an x86_64 machine")
    need_root()
    with contextlib.ExitStack() as stack:
        try:
            built = stack.enter_context(guest_image.guest_image())
        except LabError as err:
            lacking(f"needs a guest's kernel and Python, and the lab's QEMU: {err}")
        yield built


def built_agent(directory: Path) -> Path:
    """vmpin's agent as one file, as an operator builds it."""
    made = directory / "vmpin-agent.pyz"
    subprocess.run([sys.executable, "-m", "vmpin.cli.main", "guest", "build", "-o", made], check=True,
                   stdout=subprocess.DEVNULL)
    return made


class GuestError(Exception):
    """What was asked of the guest failed there; its traceback."""


class GuestEnded(GuestError):
    """The guest has ended by itself."""


class GuestStalled(GuestEnded):
    """A CPU of the guest gets no timer interrupt any more: the emulator's fault, in one of hundreds of boots. It never
    goes on."""


@dataclass(frozen=True)
class Load:
    """How busy each was, as a part of the work there was; what comes to less than a twentieth is left out."""

    #: By the guest's number of a CPU, as its kernel lists it.
    guest: Mapping[int, float]
    #: By cpu-index, as the host's kernel accounts for the thread.
    host: Mapping[int, float]

    def busy(self) -> tuple[set[int], set[int]]:
        """The CPUs of the guest and the vCPUs of the host which had nearly all of the work there was."""
        return tuple({cpu for cpu, part in side.items() if part > 1 / 8}
                     for side in (self.guest, self.host))  # type: ignore[return-value]


class GuestContainer:
    """A cgroup of the guest, in every hierarchy it has, and the processes in it."""

    def __init__(self, guest: RealGuest, cgroup: str) -> None:
        self.guest = guest
        self.cgroup = cgroup
        #: In each hierarchy.
        self.directories = [Path(each) for each in guest.ask("make_cgroup", cgroup=cgroup)]

    @property
    def id(self) -> str:
        return Path(self.cgroup).name.removesuffix(".scope").rpartition("-")[2]

    def start(self, work: str = "idle", *, cpus: Collection[int] = ()) -> int:
        """Start a process ("busy", "idle", "forks", "threads N"), which has its threads then; its pid.

        :param cpus: a mask of its own.
        """
        pid = int(self.guest.ask("start", cgroup=self.cgroup, work=work, cpus=sorted(cpus)))
        threads = int(work.partition(" ")[2] or 0) + 1
        deadline = time.monotonic() + _ANSWER
        while len(self.guest.ask("process", pid=pid)) < threads:
            if time.monotonic() > deadline:
                raise GuestError(f"{work} does not start: {self.guest.console()[-2000:]}")
            time.sleep(0.05)
        return pid

    def below(self, name: str) -> GuestContainer:
        """A cgroup in it."""
        return GuestContainer(self.guest, f"{self.cgroup}/{name}")

    def threads(self) -> dict[int, dict[str, Any]]:
        """By tid: cpus, comm, pid, ran (seconds)."""
        return _by_number(self.guest.ask("threads", cgroup=self.cgroup))

    def masks(self) -> dict[int, CpuSet]:
        """By tid, of all threads in it and below it."""
        return {tid: CpuSet.parse(each["cpus"]) for tid, each in self.threads().items()}

    def mask(self) -> set[str]:
        """The masks that its threads have, as lists: one when they agree."""
        return {str(cpus) for cpus in self.masks().values()}

    def file(self, name: str) -> str:
        """A file of its cgroup, in the hierarchy that has it: cpuset.cpus, cpuset.cpus.effective, …"""
        for directory in self.directories:
            if self.guest.ask("exists", path=f"{directory}/{name}"):
                return str(self.guest.ask("read", path=f"{directory}/{name}"))
        raise GuestError(f"{self.cgroup} has no {name}")

    def write(self, name: str, text: str) -> None:
        for directory in self.directories:
            if self.guest.ask("exists", path=f"{directory}/{name}"):
                self.guest.ask("write", path=f"{directory}/{name}", text=text)

    def end(self) -> None:
        """Kill what is in it."""
        self.guest.ask("end_processes", cgroup=self.cgroup)

    def remove(self) -> None:
        """Kill what is in it, and remove it."""
        self.guest.ask("remove_cgroup", cgroup=self.cgroup)


class RealGuest(Qemu):
    """A VM with Linux in it, which answers when the `with` begins. Beside what `Qemu` takes:

    :param cgroup: "v2", "v1", "hybrid", or "none": nothing mounted.
    :param agent: vmpin's agent, a .pyz file; it is not started.
    :param vsock_cid: a vhost vsock device with this id.
    :param append: further arguments for the kernel, as cgroup_disable=cpuset.
    """

    def __init__(self, built: GuestImage, sandbox: str = "", *, cgroup: str = "v2", agent: Path | None = None,
                 vsock_cid: int = 0, append: str = "", vcpus: int = 4, maxcpus: int = 9, memory: int = 384,
                 **more: Any) -> None:
        extra = list(more.pop("extra", ()))
        super().__init__(sandbox, vcpus=vcpus, maxcpus=maxcpus, memory=memory, paused=False, program=built.emulator,
                         **more)
        self.vsock_cid = vsock_cid
        self.agent_socket = str(self.dir / "agent.sock")
        self._control_socket = str(self.dir / "test.sock")
        self._console = self.dir / "console"
        self._files = {"init": _LAB / "guest-init", "lab/guest_control.py": _LAB / "guest_control.py"}
        if agent is not None:
            self._files[_AGENT.removeprefix("/")] = agent
        self._base = built.initrd
        self._line: socket.socket | None = None
        self._rest = b""
        self.boot_seconds = 0.0
        line = [*emulated(), f"vmpin.cgroup={cgroup}", append]
        self.argv += [
            "-no-reboot", "-serial", f"file:{self._console}", "-kernel", str(built.kernel),
            "-initrd", str(self.dir / "initrd"), "-append", " ".join(line), "-device", "virtio-serial-pci"]
        for name, path in (("org.vmpin.test.0", self._control_socket), (SERIAL, self.agent_socket)):
            device = name.split(".")[2]
            self.argv += ["-chardev", f"socket,id={device},path={path},server=on,wait=off", "-device",
                          f"virtserialport,chardev={device},name={name}"]
        if vsock_cid:
            self.argv += ["-device", f"vhost-vsock-pci,guest-cid={vsock_cid}"]
        if more.get("accel") == "kvm":
            self.argv += ["-cpu", "host"]
        self.argv += extra

    def __enter__(self) -> RealGuest:
        started = time.monotonic()
        with (self.dir / "initrd").open("wb") as initrd:
            initrd.write(self._base.read_bytes())
            initrd.write(cpio.archive([("lab", cpio.DIRECTORY, b""), *(
                (name, cpio.PROGRAM, path.read_bytes()) for name, path in self._files.items())]))
        for left in reversed(range(_BOOTS)):
            super().__enter__()
            try:
                self._line = socket.socket(socket.AF_UNIX)
                self._line.connect(self._control_socket)
                said = self._receive(_BOOT)
                assert said == {"ok": "ready"}, said
                break
            except GuestEnded as err:
                if not left:
                    self.stop()
                    raise
                print(f"booted again: {err}")
                if self._line is not None:
                    self._line.close()
                self.end()
                del self.argv[-2:]  # what `_start` added
            except BaseException:
                self.stop()
                raise
        self.boot_seconds = time.monotonic() - started
        return self

    def stop(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        super().stop()

    def console(self) -> str:
        """What the guest's kernel and its processes have said."""
        with contextlib.suppress(FileNotFoundError):
            return self._console.read_text(errors="replace")
        return ""

    def ask(self, do: str, **arguments: Any) -> Any:
        """Have the guest's process 1 do something (guest_control.py). :raises GuestError: when it cannot."""
        assert self._line is not None, "not running"
        self._line.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
        answer = self._receive(_ANSWER)
        if "error" in answer:
            raise GuestError(answer["error"])
        return answer["ok"]

    def _receive(self, seconds: float) -> dict[str, Any]:
        """:raises GuestError: when nothing comes; with the end of the console."""
        assert self._line is not None
        began = time.monotonic()
        while b"\n" not in self._rest:
            if not select.select([self._line], [], [], 5.0)[0]:
                waited = time.monotonic() - began
                if waited > _STALLED_AFTER and _STALLED in self.console():
                    raise GuestStalled(f"the guest stands still; its console:\n{self.console()[-4000:]}")
                if waited > seconds:
                    raise GuestError(f"the guest does not answer; its console:\n{self.console()[-4000:]}")
                continue
            try:
                part = self._line.recv(1 << 16)
            except ConnectionResetError:
                part = b""
            if not part:
                assert self._process is not None
                raise GuestEnded(f"the guest has ended, its QEMU with {self._process.wait(_ANSWER)}; its console:\n"
                                 + self.console()[-4000:])
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def container(self, cid: str = "", *, parent: str = "", cgroup: str = "", busy: int = 0, idle: int = 0,
                  threads: int = 0) -> GuestContainer:
        """A container, and its processes.

        :param parent: a cgroup that it is to be in, as Kubernetes' slices.
        :param cgroup: the whole of its path instead, as `system.slice/cri-containerd-ID.scope`.
        :param threads: so many busy threads in one process more.
        """
        made = GuestContainer(self, cgroup or os.path.join(parent, cid or secrets.token_hex(32)))
        for work, count in (("busy", busy), ("idle", idle)):
            for _ in range(count):
                made.start(work)
        if threads:
            made.start(f"threads {threads}")
        return made

    def masks(self, cid: str) -> dict[int, CpuSet]:
        return GuestContainer(self, cid).masks()

    def cpus(self) -> tuple[CpuSet, dict[int, int]]:
        """The guest's online CPUs, and each one's APIC id."""
        kernel = self.ask("cpus")
        return CpuSet.parse(kernel["online"]), _by_number(kernel["apicid"])

    def online(self, cpu: int, on: bool = True) -> None:
        """Take a CPU of the guest's online, or offline. The guest does it for none by itself."""
        self.ask("online", cpu=cpu, on=on)

    def cpu_time(self) -> dict[int, float]:
        """The seconds that each online CPU of the guest was busy, as its kernel counts."""
        return _by_number(self.ask("load"))

    def vcpu_time(self) -> dict[int, float]:
        """The seconds that each vCPU's thread has run, by cpu-index, as the host's kernel counts."""
        return {index: int(Path(f"/proc/{self.pid}/task/{tid}/schedstat").read_text().split()[0]) / 1e9
                for tid, index in self.vcpus().items()}

    def load(self, seconds: float) -> Load:
        """Who is busy, within the guest and outside, while its vCPUs run for so many seconds together: how long that
        takes is the machine's. :raises GuestError: where they do not run, though a process is busy."""
        for tid in self.vcpus():  # on a busy machine little work would be done beside what the guest does every second
            os.setpriority(os.PRIO_PROCESS, tid, -10)
        guest, host, deadline = self.cpu_time(), self.vcpu_time(), time.monotonic() + _ANSWER
        while _work(host, host_then := self.vcpu_time()) < seconds:
            if time.monotonic() > deadline:
                raise GuestError(f"its vCPUs ran from {host} to {host_then}, its CPUs from {guest} to "
                                 f"{self.cpu_time()}; its console:\n{self.console()[-2000:]}")
            time.sleep(0.05)
        return Load(*({number: part for number in then
                       if (part := (then[number] - before.get(number, 0.0)) / _work(before, then)) > 0.05}
                      for before, then in ((guest, self.cpu_time()), (host, host_then))))

    def system(self) -> dict[int, CpuSet]:
        """The masks of what is in no container and is no kernel thread, by tid."""
        return {tid: CpuSet.parse(each["cpus"]) for tid, each in _by_number(self.ask("system")).items()}

    def start_agent(self, *arguments: str) -> int:
        """Start vmpin's agent; its pid. It writes to the console."""
        return int(self.ask("start", cgroup="", argv=[*_RUN_AGENT, *(arguments or ("--serial", "auto"))]))

    def call_agent_from_within(self) -> str:
        """What a process of the guest gets that calls the agent over AF_VSOCK: served, or refused."""
        log = f"/tmp/{secrets.token_hex(4)}"
        self.ask("start", cgroup="", argv=[*_RUN_AGENT[:-1], "-c", _CALL], log=log)
        deadline = time.monotonic() + _ANSWER
        while not (said := str(self.ask("read", path=log))):
            if time.monotonic() > deadline:
                raise GuestError("nothing is said")
            time.sleep(0.1)
        return said

    def kill_process(self, pid: int, number: int = 9) -> None:
        self.ask("kill", pid=pid, number=number)


def _work(before: Mapping[int, float], then: Mapping[int, float]) -> float:
    return sum(seconds - before.get(number, 0.0) for number, seconds in then.items()) or 1.0


def _by_number(kernel: Mapping[str, Any]) -> dict[int, Any]:
    """JSON's keys are strings."""
    return {int(key): value for key, value in kernel.items()}
