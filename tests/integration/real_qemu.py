"""Real QEMUs for the tests::

    with Qemu(vcpus=2, maxcpus=8, iothreads=["io1"], qmp_sockets=1) as vm:
        vm.sandbox, vm.pid, vm.tids(), vm.argv
        vm.add_vcpu()                    # as Kata does: 7
        vm.qmp("query-status")

A QEMU without guest: 60 ms until it answers, 20 MB, idle. It is started like Kata starts one, with its own QMP
connection as a passed descriptor, which `qmp()` uses. On exit exactly this process is killed and reaped.

(Not called qemu.py: pytest puts this directory on the module path, and it would hide the qemu.qmp package.)
"""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from need import need_tool
from qemu.qmp import ConnectError, QMPClient, QMPError
from qemu.qmp.qmp_client import NegotiationError

from vmpin.host.procfs import Procfs, Stat

_START = 300.0  # seconds; about 0.1 are needed, in the lab's emulated node many more
_KVM_CREATE_VM = 0xAE01


class Qemu:
    """One QEMU, running between `with` and its end.

    :param sandbox: its sandbox id; a fresh one, as long as containerd's, if none is given.
    :param vcpus: vCPUs at the start; `maxcpus` more than that makes room for `add_vcpu()`.
    :param smp: the whole -smp value instead of those two.
    :param iothreads: ids of iothreads to declare.
    :param debug_threads: whether QEMU names its threads (Kata does so only when debugging).
    :param accel: "tcg", or "kvm" (see `need_kvm`).
    :param paused: never run the guest (-S): no CPU time. KVM learns a vCPU's thread only when it runs.
    :param memory: MB.
    :param qmp_sockets: further QMP sockets, with paths on the command line: `qmp_paths`.
    :param vhost: stand-ins for vhost worker threads inside QEMU (vhostshim.c).
    :param extra: further arguments.
    :param program: the beginning of the command line, instead of the machine's own QEMU.
    """

    def __init__(self, sandbox: str = "", *, vcpus: int = 1, maxcpus: int = 0, smp: str = "",
                 iothreads: Iterable[str] = (), debug_threads: bool = True, accel: str = "tcg", paused: bool = True,
                 memory: int = 64, qmp_sockets: int = 0, vhost: int = 0, extra: Iterable[str] = (),
                 program: Iterable[str] = ()) -> None:
        self.sandbox = sandbox or secrets.token_hex(32)
        # Short, whatever TMPDIR is: a socket's path may have 107 bytes.
        self.dir = Path(tempfile.mkdtemp(prefix="vmpin-qemu-", dir="/tmp"))
        self.qmp_paths = [str(self.dir / f"qmp{number}.sock") for number in range(qmp_sockets)]
        self._control = str(self.dir / "control.sock")
        self._vhost = vhost
        self._process: subprocess.Popen[bytes] | None = None
        most = maxcpus or vcpus
        self.argv = [
            *(program or [need_tool("qemu-system-x86_64")]),
            "-name", f"sandbox-{self.sandbox}" + (",debug-threads=on" if debug_threads else ""),
            "-machine", "q35", "-accel", "tcg,thread=multi" if accel == "tcg" else accel,
            "-cpu", "max" if accel == "tcg" else "qemu64", "-m", f"{memory}M",
            "-smp", smp or f"{vcpus},cores=1,threads=1,sockets={most},maxcpus={most}",
            "-nodefaults", "-no-user-config", "-display", "none"]
        for name in iothreads:
            self.argv += ["-object", f"iothread,id={name}"]
        for path in self.qmp_paths:
            self.argv += ["-qmp", f"unix:{path},server=on,wait=off"]
        self.argv += [*(["-S"] if paused else []), *extra]

    def __enter__(self) -> Qemu:
        try:
            self._start()
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.stop()

    def _start(self) -> None:
        environment = dict(os.environ)
        if self._vhost:
            environment |= {"LD_PRELOAD": str(vhostshim()), "VHOST_SHIM": str(self._vhost)}
        with socket.socket(socket.AF_UNIX) as listener, (self.dir / "log").open("wb") as log:
            Path(self._control).unlink(missing_ok=True)  # of a boot before
            listener.bind(self._control)
            listener.listen(1)
            self.argv += ["-qmp", f"unix:fd={listener.fileno()},server=on,wait=off"]
            self._process = subprocess.Popen(self.argv, cwd=self.dir, env=environment, stdin=subprocess.DEVNULL,
                                             stdout=log, stderr=log, pass_fds=[listener.fileno()])

    def _wait(self) -> None:
        """Until QMP answers: QEMU does so from its main loop, when every thread of its start is there."""
        deadline = time.monotonic() + _START
        while True:
            assert self._process is not None
            if self._process.poll() is not None:
                raise RuntimeError(f"QEMU has ended: {(self.dir / 'log').read_text()}")
            try:
                self.qmp("query-status")
                return
            except (QMPError, OSError, EOFError) as err:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"QEMU does not answer after {_START:.0f} s") from err
            time.sleep(0.01)

    def end(self) -> None:
        """End it now, and leave its files."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End it now, and remove its files; again is no harm."""
        self.end()
        shutil.rmtree(self.dir, ignore_errors=True)

    @property
    def pid(self) -> int:
        assert self._process is not None, "not running"
        return self._process.pid

    @property
    def qmp_path(self) -> str:
        """The first socket of `qmp_sockets`."""
        return self.qmp_paths[0]

    def tids(self) -> list[int]:
        """All its threads, in the order of their numbers."""
        return sorted(map(int, Procfs().tids(self.pid)))

    def threads(self) -> list[tuple[int, Stat]]:
        """All its threads with their stat."""
        found = ((tid, Procfs().thread_stat(self.pid, tid)) for tid in self.tids())
        return [(tid, stat) for tid, stat in found if stat is not None]

    def qmp(self, command: str, arguments: dict[str, Any] | None = None) -> Any:
        """Run one QMP command over Kata's connection, and hang up."""
        return asyncio.run(_execute(self._control, command, arguments))

    def vcpus(self) -> dict[int, int]:
        """cpu-index by thread id, by QEMU's own word."""
        return {each["thread-id"]: each["cpu-index"] for each in self.qmp("query-cpus-fast")}

    def iothreads(self) -> set[int]:
        """The thread ids of the declared iothreads, by QEMU's own word."""
        return {each["thread-id"] for each in self.qmp("query-iothreads")}

    def add_vcpu(self) -> int:
        """Plug in a vCPU as Kata does, into the slot QEMU lists first, the highest; its cpu-index."""
        before = set(self.vcpus().values())
        slot = next(each for each in self.qmp("query-hotpluggable-cpus") if "qom-path" not in each)
        self.qmp("device_add", {"driver": slot["type"], "id": f"cpu-{len(before)}", **slot["props"]})
        (added,) = set(self.vcpus().values()) - before
        return added


async def _execute(path: str, command: str, arguments: dict[str, Any] | None) -> object:
    client = QMPClient()
    client.logger.setLevel("CRITICAL")
    async with asyncio.timeout(_START):
        while True:
            try:
                await client.connect(path)
                break
            except ConnectError as err:
                # The library takes an event that comes just before the answer to qmp_capabilities for that answer.
                if not isinstance(err.__cause__, NegotiationError):
                    raise
        try:
            return await client.execute(command, arguments)
        finally:
            await client.disconnect()


@lru_cache
def vhostshim() -> Path:
    """The compiled vhostshim.c; once for all tests of a run."""
    where = tempfile.mkdtemp(prefix="vmpin-vhostshim-")
    atexit.register(shutil.rmtree, where)
    built = Path(where) / "vhostshim.so"
    subprocess.run([need_tool("gcc", "cc"), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o",
                    built, Path(__file__).with_name("vhostshim.c")], check=True)
    return built


def need_kvm() -> None:
    """Skip, in CI too, where KVM cannot make a VM: that is the machine's hardware, not its set-up."""
    try:
        fd = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
        try:
            os.close(fcntl.ioctl(fd, _KVM_CREATE_VM, 0))
        finally:
            os.close(fd)
    except OSError as err:
        pytest.skip(f"KVM cannot make a VM here: {err}")
