"""The network devices that a VMM has open, by its descriptors and QEMU's command line; and the disks.

A tap's descriptor names its interface (/proc/PID/fdinfo, `iff`), a macvtap's device node its ifindex; each open file,
whatever its descriptors, is a queue. A vhost-user device is found on QEMU's command line alone.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from vmpin.bounded import MAX_FD, load_json, parse_whole, parse_wholes
from vmpin.features.network.open_files import distinct_files
from vmpin.features.network.vhost_order import VhostQueues
from vmpin.features.network.vm_network import VmNetDevice
from vmpin.host.procfs import Procfs, read_file
from vmpin.vmm.arguments import ON, chardev_sockets, keyvals, option_values, options_of

#: Descriptors read of one process.
_MOST_FDS = 65536
#: A device node may be removed once it is open.
_MACVTAP = re.compile(r"/dev/tap([1-9][0-9]{0,8})(?: \(deleted\))?")
_VHOST = re.compile(r"/dev/vhost-([a-z]+)(?: \(deleted\))?")
_VSOCK_DRIVER = re.compile(r"vhost-vsock-.+")
#: Queues of a device (drivers/net/tun.c: MAX_TAP_QUEUES), and an interface's number (a positive int).
_MOST_QUEUES, _MAX_INDEX = 256, (1 << 31) - 1


class OpenDevices(NamedTuple):
    """`queues` has the vhost queues of each device, `other_vhost` the number of vhost devices of other kinds that are
    on the command line: with them the order of workers is inferred. None for a number that cannot be had."""

    devices: tuple[VmNetDevice, ...]
    queues: tuple[VhostQueues, ...]
    other_vhost: int | None


class _Netdev(NamedTuple):
    """A `-netdev tap` of QEMU's command line."""

    fds: frozenset[int]
    name: str
    vhost: bool


def open_devices(proc: Procfs, pid: int, argv: Sequence[str]) -> OpenDevices:
    """A VMM's network devices, those of its command line first, in its order. :raises PermissionError: where its
    descriptors may not be read."""
    taps: dict[VmNetDevice, list[int]] = {}
    vhost: dict[str, int] = {}
    for fd, target in _descriptors(proc, pid):
        if target == "/dev/net/tun" and (name := _interface(proc, pid, fd)):
            taps.setdefault(VmNetDevice("tap", name, 0), []).append(fd)
        elif (found := _MACVTAP.fullmatch(target)) and (index := parse_whole(found[1], _MAX_INDEX)) is not None:
            taps.setdefault(VmNetDevice("macvtap", "", 0, ifindex=index), []).append(fd)
        elif found := _VHOST.fullmatch(target):
            vhost[found[1]] = vhost.get(found[1], 0) + 1
    # Cloud Hypervisor has a queue's descriptor several times: one for the device and one for each thread of it.
    taps = {device: distinct_files(proc, pid, fds) for device, fds in taps.items()}
    given = list(_netdevs(argv))
    order = {device: next((at for at, netdev in enumerate(given) if netdev.name == device.name != ""
                           or not netdev.fds.isdisjoint(fds)), None) for device, fds in taps.items()}
    cold = sorted((device for device, at in order.items() if at is not None), key=lambda device: order[device] or 0)
    plugged = [device for device, at in order.items() if at is None]
    queues = {device: len(taps[device]) if given[order[device] or 0].vhost else 0 for device in cold}
    left = vhost.get("net", 0) - sum(queues.values())
    fits = left == sum(len(taps[device]) for device in plugged)
    queues |= {device: len(taps[device]) if fits else 0 for device in plugged}
    certain = left in (0, sum(queues[device] for device in plugged)) and vhost.keys() <= {"net", "vsock"}
    others = vhost.get("vsock", 0) if certain and vhost.get("vsock", 0) == _vsock_devices(argv) else None
    devices = [device._replace(queues=len(taps[device]), vhost=queues[device]) for device in (*cold, *plugged)]
    users = _vhost_user(argv)
    return OpenDevices((*devices, *users), (*(VhostQueues(queues[device], device in plugged)
                                              for device in (*cold, *plugged)), *(VhostQueues(0) for _ in users)),
                       others)


def disk_devices(proc: Procfs, pid: int, argv: Sequence[str]) -> frozenset[tuple[int, int]]:
    """The block devices (major, minor) that a VMM has open as disks; of image files, those they lie on, if its command
    line names the file (-drive, -blockdev)."""
    files = {name for text in option_values(argv, "drive", "blockdev") for name in _file_names(text)}
    found = set()
    for fd, target in _descriptors(proc, pid):
        if not target.startswith("/dev/") and target not in files:
            continue  # a file of another's may be on a file system that does not answer
        try:
            info = os.stat(f"{proc.root}/{pid}/fd/{fd}")
        except OSError:
            continue
        if stat.S_ISBLK(info.st_mode) or (stat.S_ISREG(info.st_mode) and target in files):
            device = info.st_rdev if stat.S_ISBLK(info.st_mode) else info.st_dev
            found.add((os.major(device), os.minor(device)))
    return frozenset(found)


def _file_names(text: str) -> Iterator[str]:
    """The image files in a -drive or -blockdev, which as JSON has them at any depth."""
    try:
        given = [load_json(text)] if text.startswith("{") else [dict(keyvals(text, "file"))]
    except (ValueError, RecursionError):
        return
    for each in given:  # grows
        if isinstance(each, dict):
            given.extend(each.values())
            yield from (value for key, value in each.items() if isinstance(value, str)
                        and key.rpartition(".")[2] in ("file", "filename"))


def _descriptors(proc: Procfs, pid: int) -> Iterator[tuple[int, str]]:
    """Every descriptor with what it points to, ascending. :raises PermissionError: they may not be read."""
    try:
        names = os.listdir(f"{proc.root}/{pid}/fd")
    except (FileNotFoundError, ProcessLookupError):
        return
    for fd in sorted(parse_wholes(names[:_MOST_FDS], MAX_FD, _MOST_FDS) or ()):
        yield fd, proc.fd_link(pid, fd)


def _interface(proc: Procfs, pid: int, fd: int) -> str:
    """The interface of a tap's descriptor, "" for one without (drivers/net/tun.c, tun_chr_show_fdinfo)."""
    for line in (read_file(f"{proc.root}/{pid}/fdinfo/{fd}", 4096) or b"").split(b"\n"):
        if line.startswith(b"iff:"):
            return line.removeprefix(b"iff:").strip().decode("utf-8", "backslashreplace")
    return ""


def _netdevs(argv: Sequence[str]) -> Iterator[_Netdev]:
    for value in option_values(argv, "netdev"):
        given = options_of(value, "type")
        if given.get("type") == "tap":
            fds = [*given.get("fds", "").split(":"), given.get("fd", "")]
            vhost = given.get("vhost") in ON or "vhostfds" in given or "vhostfd" in given
            numbers = frozenset(fd for text in fds if (fd := parse_whole(text, MAX_FD)) is not None)
            yield _Netdev(numbers, given.get("ifname", ""), vhost)


def _vhost_user(argv: Sequence[str]) -> list[VmNetDevice]:
    chardevs: Mapping[str, Mapping[str, str]] = chardev_sockets(argv)
    found = []
    for value in option_values(argv, "netdev"):
        given = options_of(value, "type")
        if given.get("type") == "vhost-user":
            found.append(VmNetDevice("vhost-user", chardevs.get(given.get("chardev", ""), {}).get("path", ""),
                                     parse_whole(given.get("queues", "1"), _MOST_QUEUES, 1) or 1))
    return found


def _vsock_devices(argv: Sequence[str]) -> int:
    return sum(_VSOCK_DRIVER.fullmatch(options_of(value, "driver").get("driver", "")) is not None
               for value in option_values(argv, "device"))
