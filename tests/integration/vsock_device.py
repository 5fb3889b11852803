"""A vsock device in a process of its own, as Cloud Hypervisor, Firecracker and Dragonball have it in theirs: the host
connects to a unix socket and names the port (hybrid vsock)::

    with vsock_device(cid=4) as device, RealGuest(built, extra=device.arguments(384)) as guest:
        AgentClient.hybrid(device.path)

It is rust-vmm's vhost-device-vsock, of Debian's sid, which is fetched once and only unpacked.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from lab import cache
from lab.errors import LabError
from lab.packages import Packages, unpack
from lab.rootfs import machine_mirror
from need import lacking, need_root

_PACKAGE = "vhost-device-vsock"


@dataclass(frozen=True)
class VsockDevice:
    #: For the VMM.
    socket: str
    #: For the host's programs.
    path: str

    def arguments(self, memory: int) -> list[str]:
        """QEMU's, beside its own. :param memory: MB, as the VM has it: the device reads and writes in it."""
        return ["-object", f"memory-backend-memfd,id=shared,size={memory}M,share=on", "-machine",
                "memory-backend=shared", "-chardev", f"socket,id=vsock,path={self.socket}", "-device",
                "vhost-user-vsock-pci,chardev=vsock"]


@contextlib.contextmanager
def _binary() -> Iterator[Path]:
    """sid moves: where it cannot be had the test is skipped, in CI too."""
    need_root()
    mirror = machine_mirror()
    if not mirror:
        lacking("needs a Debian mirror in the machine's apt configuration")

    def make(path: Path, log: Path) -> None:
        unpack(Packages(path / "apt", "sid", mirror, log).download(_PACKAGE), path, log, ["./usr/share/*"])
        shutil.rmtree(path / "apt")

    with contextlib.ExitStack() as stack:
        try:
            path = stack.enter_context(cache.entry("vsock-device", {"version": 1}, make)) / f"usr/bin/{_PACKAGE}"
            subprocess.run([path, "--version"], check=True, capture_output=True)
        except (LabError, OSError, subprocess.CalledProcessError) as err:
            pytest.skip(f"sid's {_PACKAGE} is not to be had, or does not run here: {err}")
        yield path


@contextlib.contextmanager
def vsock_device(cid: int) -> Iterator[VsockDevice]:
    # Short, whatever TMPDIR is: a socket's path may have 107 bytes.
    where = Path(tempfile.mkdtemp(prefix="vmpin-vsock-", dir="/tmp"))
    device = VsockDevice(f"{where}/vmm.sock", f"{where}/host.sock")
    try:
        with _binary() as binary, (where / "log").open("wb") as log, subprocess.Popen(
                [binary, "--guest-cid", str(cid), "--socket", device.socket, "--uds-path", device.path],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log) as process:
            try:
                deadline = time.monotonic() + 120
                while not os.path.exists(device.socket):
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"{_PACKAGE} does not serve: {(where / 'log').read_text()}")
                    time.sleep(0.02)
                yield device
            finally:
                process.kill()
    finally:
        shutil.rmtree(where)
