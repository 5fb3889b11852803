"""Finds the channels into a VM's guest, from its VMM's command line and Kata's files about it."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vmpin.domain.model import SandboxId
from vmpin.guests.transport.channel import Channel, socket_id
from vmpin.guests.transport.hybrid_vsock import HybridVsock
from vmpin.guests.transport.virtio_serial import VirtioSerial
from vmpin.guests.transport.vsock import Vsock
from vmpin.host.procfs import Procfs
from vmpin.protocol.parsing import SERIAL
from vmpin.vmm.arguments import keyvals, long_options, vsock_cid
from vmpin.vmm.vmm_type import VmmType

_AGENT_URL = re.compile(r"(hvsock|vsock)://(.{1,4096}):([0-9]{1,10})", re.ASCII)


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
    offered = vm.type.channels
    channels: list[Channel] = []
    # The command line first: for a restored or renumbered VM it has the CID that the kernel was given.
    cid = offered.cid(vm.argv)
    if cid is not None:
        channels.append(Vsock(cid))
    elif (device := offered.vsock_daemon(vm.argv)) is not None:
        channels += _of_daemon(device, proc)
    channels = channels or [*_recorded_or_hybrid(vm, kata_go, kata_rs)]
    if (path := offered.serial(vm.argv, SERIAL)) is not None:
        channels.append(VirtioSerial(path, vm.pid))
    return channels


def _recorded_or_hybrid(vm: GuestAddress, kata_go: Path, kata_rs: Path) -> Iterator[HybridVsock | Vsock]:
    """The channel that Kata's files name, and the hybrid sockets that exist, each once."""
    in_jail = vm.type.channels.hybrid_in_jail(vm.argv)
    hybrid = [] if in_jail is None else [HybridVsock(str(in_jail), vm.pid, vm.pid)]
    hybrid += [HybridVsock(str(path), os.getpid(), vm.pid)
               for path in vm.type.channels.hybrid(vm.sandbox, vm.argv, kata_go, kata_rs)]
    sockets = set()
    for channel in (*_of_url(vm), *hybrid):
        identity = socket_id(channel.path, channel.pid) if isinstance(channel, HybridVsock) else (0, 0)
        if identity is not None and identity not in sockets:
            sockets.add(identity)
            yield channel


def _of_url(vm: GuestAddress) -> Iterable[HybridVsock | Vsock]:
    match = _AGENT_URL.fullmatch(vm.agent_url)
    if match is None:
        return
    if match[1] == "hvsock" and match[2].startswith("/") and "\0" not in match[2]:
        yield HybridVsock(match[2], os.getpid(), vm.pid)
    elif match[1] == "vsock" and (cid := vsock_cid(match[2])) is not None:
        yield Vsock(cid)


def _of_daemon(device: str, proc: Procfs) -> Iterable[Channel]:
    """The channel of the vhost-device-vsock that serves this device. Reads every process's command line."""
    for pid in proc.pids():
        uds = daemon_uds(proc.cmdline(pid), device)
        # A process in a pid namespace of its own is a program in a container, whatever its command line is.
        if uds is not None and not proc.nested(pid):
            yield HybridVsock(uds, int(pid), int(pid))


def daemon_uds(argv: Sequence[str], socket: str) -> str | None:
    """Where vhost-device-vsock takes connections for the guest that it serves over `socket`; None when this is not the
    command line of such a daemon."""
    if not argv or not argv[0].rpartition("/")[2].startswith("vhost-device-vsock"):
        return None
    for _, value in long_options(argv, "--vm"):  # several guests in one daemon: guest-cid=3,socket=…,uds-path=…
        pairs = dict(keyvals(value, "guest-cid"))
        if pairs.get("socket") == socket and pairs.get("uds-path"):
            return pairs["uds-path"]
    options = dict(long_options(argv, "--socket", "--uds-path"))
    return options.get("--uds-path") or None if options.get("--socket") == socket else None
