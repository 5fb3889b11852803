"""Finds the channels into a VM's guest, from its VMM's command line and Kata's files about it."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vmpin.bounded import parse_whole
from vmpin.domain.model import SandboxId, VmmType
from vmpin.guests.transport.channel import Channel, socket_id
from vmpin.guests.transport.hybrid_vsock import HybridVsock
from vmpin.guests.transport.virtio_serial import VirtioSerial
from vmpin.guests.transport.vsock import Vsock
from vmpin.host.procfs import Procfs
from vmpin.protocol.parsing import SERIAL
from vmpin.vmm.guest_ports import api_socket, daemon_uds, guest_cid, serial_socket, vhost_user_vsock

_AGENT_URL = re.compile(r"(hvsock|vsock)://(.{1,4096}):([0-9]{1,10})", re.ASCII)
_CID = re.compile(r"[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True)
class GuestAddress:
    """The facts of a VM that its channels follow from. `agent_url` is the agent's address by Kata's files, or ""."""

    sandbox: SandboxId
    type: VmmType
    pid: int
    argv: Sequence[str]
    agent_url: str = ""


def find_channels(vm: GuestAddress, proc: Procfs, kata_go: Path, kata_rs: Path) -> list[Channel]:
    """The channels into a VM's guest, those with ports first: Kata's agent can be reached over them as well.
    :param kata_go, kata_rs: the state directories of Kata's two runtimes."""
    found: list[Channel] = []
    if vm.type in (VmmType.QEMU, VmmType.STRATOVIRT):
        # The command line first: for a restored or renumbered VM it has the CID that the kernel was given.
        cid = guest_cid(vm.argv)
        if cid is not None:
            found.append(Vsock(cid))
        elif (device := vhost_user_vsock(vm.argv)) is not None:
            found += _of_daemon(device, proc)
        found = found or [*_of_url(vm)]
        if (path := serial_socket(vm.argv, SERIAL)) is not None:
            found.append(VirtioSerial(path, vm.pid))
    else:
        sockets = set()
        for way in (*_of_url(vm), *_hybrid(vm, kata_go, kata_rs)):
            which = socket_id(way.path, way.pid) if isinstance(way, HybridVsock) else (0, 0)
            if which is not None and which not in sockets:
                sockets.add(which)
                found.append(way)
    return found


def _of_url(vm: GuestAddress) -> Iterable[HybridVsock | Vsock]:
    match = _AGENT_URL.fullmatch(vm.agent_url)
    if match is None:
        return
    if match[1] == "hvsock" and match[2].startswith("/") and "\0" not in match[2]:
        yield HybridVsock(match[2], os.getpid(), vm.pid)
    elif match[1] == "vsock" and (cid := parse_whole(match[2], 0xFFFFFFFE, 3)) is not None:
        yield Vsock(cid)


def _hybrid(vm: GuestAddress, kata_go: Path, kata_rs: Path) -> Iterable[HybridVsock]:
    """The sockets on which Kata's runtimes let their VMMs listen, as paths of this process or of a jailed VMM: named
    in virtcontainers/clh.go and fc.go, and in runtime-rs's hypervisor/src/ch, firecracker and utils.rs."""
    me = os.getpid()
    if vm.type is VmmType.DRAGONBALL:
        yield HybridVsock(str(kata_rs / vm.sandbox / "root" / "kata.hvsock"), me, vm.pid)
        return
    api = api_socket(vm.argv)
    if vm.type is VmmType.CLOUD_HYPERVISOR:
        # Beside its API's socket: the directory has the name of the sandbox or of a VM from Kata's factory.
        beside = [Path(api).parent] if api else []
        for place in (*beside, kata_go / "vm" / vm.sandbox, kata_rs / vm.sandbox):
            for name in ("clh.sock", "ch-vm.sock"):
                yield HybridVsock(str(place / name), me, vm.pid)
    elif vm.type is VmmType.FIRECRACKER:
        # Its API's socket is in `run` of the same directory, which is the root in a jail.
        yield HybridVsock(str(Path(api or "/run/firecracker.socket").parent.parent / "kata.hvsock"), vm.pid, vm.pid)
        for place in (kata_go / "firecracker" / vm.sandbox[:32] / "root", kata_go / "vm" / vm.sandbox,
                      kata_rs / vm.sandbox, kata_rs / vm.sandbox / "root",
                      kata_rs / "firecracker" / vm.sandbox / "root"):
            yield HybridVsock(str(place / "kata.hvsock"), me, vm.pid)


def _of_daemon(device: str, proc: Procfs) -> Iterable[Channel]:
    """The channel of the vhost-device-vsock that serves this device. Reads every process's command line."""
    for pid in proc.pids():
        uds = daemon_uds(proc.cmdline(pid), device)
        # A process in a pid namespace of its own is a program in a container, whatever its command line is.
        if uds is not None and not proc.nested(pid):
            yield HybridVsock(uds, int(pid), int(pid))
