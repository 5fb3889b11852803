"""The network devices and disks that a VMM has open, by its descriptors and QEMU's command line.

A tap's descriptor names its interface (/proc/PID/fdinfo, `iff`), a macvtap's device node its ifindex; each open file,
however many descriptors it has, is a queue. A vhost-user device stands on QEMU's command line alone.
"""

from __future__ import annotations

import os
import platform
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence

from vmpin.bounded import MAX_FD, load_json, parse_whole
from vmpin.features.network.vm_network import VmNetDevice
from vmpin.host.procfs import Procfs, read_file
from vmpin.named_tuple import NamedTuple
from vmpin.vmm.arguments import ON, chardev_sockets, keyvals, option_values, options_of

#: Descriptors read of one process.
_MOST_FDS = 65536
#: A device node may be removed once it is open.
_MACVTAP = re.compile(r"/dev/tap([1-9][0-9]{0,8})(?: \(deleted\))?")
_VHOST = re.compile(r"/dev/vhost-([a-z]+)(?: \(deleted\))?")
_VSOCK_DRIVER = re.compile(r"vhost-vsock-.+")
#: Queues of a device (drivers/net/tun.c: MAX_TAP_QUEUES), and an interface's number (a positive int).
_MOST_QUEUES, _MAX_INDEX = 256, (1 << 31) - 1
#: The number of kcmp(2) (asm/unistd.h), for which glibc has no wrapper; linux/kcmp.h: KCMP_FILE.
_KCMP = {"x86_64": 312, "aarch64": 272, "riscv64": 272, "ppc64le": 354, "s390x": 343}
_FILE = 0
#: Descriptors compared, each with each distinct one: a process chooses how many it has. A tap has 256 queues at most.
MAX_FDS = 1024


class OpenDevices(NamedTuple):
    """A VMM's network devices. `other_vhost`: its vhost devices of other kinds, which stand on its command line; None
    where descriptors and command line do not agree, so that the order of the vhost workers is unknown."""

    devices: tuple[VmNetDevice, ...]
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
    vhost = Counter[str]()
    for fd, target in sorted(proc.descriptors(pid, _MOST_FDS)):
        if target == "/dev/net/tun" and (name := _interface(proc, pid, fd)):
            taps.setdefault(VmNetDevice("tap", name, 0), []).append(fd)
        elif (match := _MACVTAP.fullmatch(target)) and (index := parse_whole(match[1], _MAX_INDEX)) is not None:
            taps.setdefault(VmNetDevice("macvtap", "", 0, ifindex=index), []).append(fd)
        elif match := _VHOST.fullmatch(target):
            vhost[match[1]] += 1
    netdevs = list(_netdevs(argv))
    cold: list[tuple[int, VmNetDevice]] = []
    plugged: list[VmNetDevice] = []
    for device, descriptors in taps.items():
        # Cloud Hypervisor has a queue's descriptor several times: one for the device and one for each thread of it.
        fds = distinct_files(proc, pid, descriptors)
        at = next((at for at, netdev in enumerate(netdevs) if netdev.name == device.name != ""
                   or not netdev.fds.isdisjoint(fds)), None)
        if at is None:
            plugged.append(device._replace(queues=len(fds), plugged=True))
        else:
            cold.append((at, device._replace(queues=len(fds), vhost=len(fds) if netdevs[at].vhost else 0)))
    plugged_vhost = vhost["net"] - sum(device.vhost for _, device in cold)
    fits = plugged_vhost == sum(device.queues for device in plugged)
    if fits:
        plugged = [device._replace(vhost=device.queues) for device in plugged]
    vsock_devices = sum(_VSOCK_DRIVER.fullmatch(options_of(value, "driver").get("driver", "")) is not None
                        for value in option_values(argv, "device"))
    certain = (fits or not plugged_vhost) and vhost.keys() <= {"net", "vsock"} and vhost["vsock"] == vsock_devices
    return OpenDevices((*(device for _, device in sorted(cold, key=lambda entry: entry[0])), *plugged,
                        *_vhost_user(argv)), vhost["vsock"] if certain else None)


def disk_devices(proc: Procfs, pid: int, argv: Sequence[str]) -> frozenset[tuple[int, int]]:
    """The block devices (major, minor) that a VMM has open as disks; of image files, those they lie on, if its command
    line names the file (-drive, -blockdev)."""
    files = {name for text in option_values(argv, "drive", "blockdev") for name in _file_names(text)}
    found = set()
    for fd, target in sorted(proc.descriptors(pid, _MOST_FDS)):
        if not target.startswith("/dev/") and target not in files:
            continue  # any other file may be on a file system that does not answer
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
        values = [load_json(text)] if text.startswith("{") else [dict(keyvals(text, "file"))]
    except (ValueError, RecursionError):
        return
    for value in values:  # grows
        if isinstance(value, dict):
            values.extend(value.values())
            yield from (name for key, name in value.items() if isinstance(name, str)
                        and key.rpartition(".")[2] in ("file", "filename"))


def _interface(proc: Procfs, pid: int, fd: int) -> str:
    """The interface of a tap's descriptor, "" for one without (drivers/net/tun.c, tun_chr_show_fdinfo)."""
    for line in (read_file(f"{proc.root}/{pid}/fdinfo/{fd}", 4096) or b"").split(b"\n"):
        if line.startswith(b"iff:"):
            return line.removeprefix(b"iff:").strip().decode("utf-8", "backslashreplace")
    return ""


def _netdevs(argv: Sequence[str]) -> Iterator[_Netdev]:
    for value in option_values(argv, "netdev"):
        options = options_of(value, "type")
        if options.get("type") == "tap":
            fds = [*options.get("fds", "").split(":"), options.get("fd", "")]
            vhost = options.get("vhost") in ON or "vhostfds" in options or "vhostfd" in options
            numbers = frozenset(fd for text in fds if (fd := parse_whole(text, MAX_FD)) is not None)
            yield _Netdev(numbers, options.get("ifname", ""), vhost)


def _vhost_user(argv: Sequence[str]) -> Iterator[VmNetDevice]:
    sockets = chardev_sockets(argv)
    for value in option_values(argv, "netdev"):
        options = options_of(value, "type")
        if options.get("type") == "vhost-user":
            yield VmNetDevice("vhost-user", sockets.get(options.get("chardev", ""), {}).get("path", ""),
                              parse_whole(options.get("queues", "1"), _MOST_QUEUES, 1) or 1)


def distinct_files(proc: Procfs, pid: int, fds: Sequence[int]) -> list[int]:
    """The first MAX_FDS descriptors without duplicates (dup, fork, SCM_RIGHTS) of earlier ones, in their order.

    /proc shows duplicates and a file that was opened twice alike; only kcmp(2) distinguishes them (kernel/kcmp.c,
    KCMP_FILE). The duplicates stay where the kernel compares none: without CONFIG_KCMP, without the right to trace the
    process, or with a /proc of another pid namespace, whose numbers mean other processes here."""
    fds = fds[:MAX_FDS]
    number = _KCMP.get(platform.machine())
    if len(fds) < 2 or number is None or not _own(proc):
        return list(fds)
    import ctypes  # which a hardened service may be refused the memory for

    call = ctypes.CDLL(None, use_errno=True).syscall
    distinct: list[int] = []
    for fd in fds:
        if not any(call(number, pid, pid, _FILE, ctypes.c_ulong(fd), ctypes.c_ulong(other)) == 0
                   for other in distinct):
            distinct.append(fd)
    return distinct


def _own(proc: Procfs) -> bool:
    """True where this /proc has this process by the pid that the process has for itself."""
    try:
        return os.readlink(f"{proc.root}/self") == str(os.getpid())
    except OSError:
        return False
