"""Which ways there are into a VM, from its VMM's command line and what Kata keeps about it.

What stays out: whether somebody answers there (the session tries them in turn).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vmpin.channel import Channel
from vmpin.channel.hybrid_vsock import HybridVsock
from vmpin.channel.virtio_serial import VirtioSerial
from vmpin.channel.vsock import Vsock
from vmpin.guestproto import SERIAL
from vmpin.host.procfs import Procfs
from vmpin.model import SandboxId, VmmType
from vmpin.vmm.guest_ports import daemon_uds, guest_cid, serial_socket, vhost_user_vsock

_AGENT_URL = re.compile(r"(hvsock|vsock)://(.{1,4096}):([0-9]{1,10})", re.ASCII)
_CID = re.compile(r"[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True)
class VmFacts:
    """What is known of a VM. `agent_url` is Kata's own word on how its agent is reached, "" where it keeps none."""

    sandbox: SandboxId
    type: VmmType
    pid: int
    argv: Sequence[str]
    agent_url: str = ""


def find(vm: VmFacts, proc: Procfs, kata_go: Path, kata_rs: Path) -> list[Channel]:
    """The ways in, those with ports first: over them Kata's agent can be reached, too."""
    found: list[Channel] = []
    if vm.type is VmmType.QEMU:
        # The command line first: a VM restored or renumbered has there what the kernel was told.
        cid = guest_cid(vm.argv)
        if cid is not None:
            found.append(Vsock(cid))
        elif (device := vhost_user_vsock(vm.argv)) is not None:
            found += _of_daemon(device, proc)
    if not found:
        found += _of_url(vm)
    if vm.type is not VmmType.QEMU:
        # As this process sees them: Firecracker may be in a jail.
        found += [HybridVsock(path, os.getpid(), vm.pid) for path in _known_paths(vm, kata_go, kata_rs)]
    elif (path := serial_socket(vm.argv, SERIAL)) is not None:
        found.append(VirtioSerial(path, vm.pid))
    return list(dict.fromkeys(found))


def has_ports(channel: Channel) -> bool:
    """Whether another port than that of our agent can be asked for."""
    return not isinstance(channel, VirtioSerial)


def _of_url(vm: VmFacts) -> Iterable[Channel]:
    match = _AGENT_URL.fullmatch(vm.agent_url)
    if match is None:
        return
    if match[1] == "hvsock" and match[2].startswith("/") and "\0" not in match[2]:
        yield HybridVsock(match[2], os.getpid(), vm.pid)
    elif match[1] == "vsock" and _CID.fullmatch(match[2]) and 2 < int(match[2]) < 0xFFFFFFFF:
        yield Vsock(int(match[2]))


def _known_paths(vm: VmFacts, kata_go: Path, kata_rs: Path) -> Iterable[str]:
    """Where Kata's two runtimes let its VMMs listen; the sockets that are there."""
    go, rs = kata_go / "vm" / vm.sandbox, kata_rs / vm.sandbox
    paths = {VmmType.CLOUD_HYPERVISOR: (go / "clh.sock", rs / "ch-vm.sock", rs / "root" / "ch-vm.sock"),
             VmmType.FIRECRACKER: (go / "kata.hvsock", rs / "root" / "kata.hvsock", rs / "kata.hvsock"),
             VmmType.DRAGONBALL: (rs / "root" / "kata.hvsock", rs / "kata.hvsock")}
    for path in paths.get(vm.type, ()):
        if path.is_socket():
            yield str(path)


def _of_daemon(device: str, proc: Procfs) -> Iterable[Channel]:
    """The vhost-device-vsock that serves this device; asked for once a VM, as every process is looked at."""
    for pid in proc.pids():
        uds = daemon_uds(proc.cmdline(pid), device)
        if uds is not None:
            yield HybridVsock(uds, int(pid), int(pid))
