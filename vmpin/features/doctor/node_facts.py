"""All facts about a node that the doctor checks, collected from the adapters.

Reads only. The proc connector is tested without subscribing: the kernel counts its subscribers, and one that comes and
goes may cost another its events. psutil has no capabilities or namespaces."""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import stat
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from vmpin.config.settings import Config
from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.domain.facts import (
    Checkpoint,
    ConnectorFacts,
    CpuFacts,
    KataSandboxFacts,
    Kernel,
    KubeletConfig,
    NodeFacts,
    Rights,
    RunDirectoryFacts,
    Tuned,
    VmProcess,
    WatcherFacts,
)
from vmpin.domain.terminal import as_written
from vmpin.errors import SourceError
from vmpin.feature import features
from vmpin.features.common import cri
from vmpin.features.common.kubelet_config import nodes_kubelet
from vmpin.features.common.other_allocators import OtherAllocatorSearch
from vmpin.features.common.registered_hooks import hooks
from vmpin.features.doctor.redact import kernel_parameters
from vmpin.host import daemons
from vmpin.host.cgroup import Cgroups, CpusetCgroup
from vmpin.host.files import Files
from vmpin.host.mounts import own_files
from vmpin.host.procfs import Procfs, age, linux
from vmpin.host.sysfs import Sysfs, text_of
from vmpin.host.tuned_profile import tuned_profile
from vmpin.reconcile import state_file
from vmpin.runtime.engines import engines
from vmpin.runtime.kata import KataState
from vmpin.runtime.kata_config import configurations
from vmpin.runtime.kubelet import parse_checkpoint

#: include/uapi/linux/capability.h; those that matter here.
CAPABILITIES = {0: "CAP_CHOWN", 1: "CAP_DAC_OVERRIDE", 2: "CAP_DAC_READ_SEARCH", 12: "CAP_NET_ADMIN",
                19: "CAP_SYS_PTRACE", 23: "CAP_SYS_NICE"}
#: include/linux/proc_ns.h: PROC_PID_INIT_INO and PROC_USER_INIT_INO, the same on every machine.
_INITIAL = {"pid": 0xEFFFFFFC, "user": 0xEFFFFFFD}
_INODE = re.compile(r"[a-z]+:\[([0-9]+)\]")
_NETLINK_CONNECTOR, _CN_IDX_PROC, _NLMSG_DONE = 11, 1, 3  #: linux/netlink.h, linux/connector.h
#: An id that the kernel does not use: it discards the message, but a namespace without a connector refuses it.
_UNUSED_ID = 0x7FFFFFFF


def kernel(proc: Procfs, sys_root: str) -> Kernel:
    """The running kernel's facts; what cannot be read is left empty."""
    release = text_of(f"{proc.root}/sys/kernel/osrelease")
    return Kernel(release, linux(release), tuple(kernel_parameters(text_of(f"{proc.root}/cmdline"))),
                  schedstat=os.path.exists(f"{proc.root}/self/schedstat"),
                  kvm_debugfs=os.path.isdir(f"{sys_root}/kernel/debug/kvm"),
                  mshv=os.path.isdir(f"{sys_root}/class/misc/mshv"))


def status_fields(proc: Procfs, process: str) -> dict[str, str]:
    """The fields of a process's status file, {} where it cannot be read. The kernel escapes a newline in the name."""
    lines = text_of(f"{proc.root}/{process}/status").split("\n")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def rights(proc: Procfs, pid: int | None, who: str) -> Rights:
    """The rights of a process; for None those of this process, with its pid in that /proc."""
    at = "self" if pid is None else str(pid)
    fields = status_fields(proc, at)
    uid, effective = fields.get("Uid", "").split(), fields.get("CapEff", "")
    bits = int(effective, 16) if effective else None
    return Rights(who, pid if pid is not None else int(fields.get("Pid") or 0), int(uid[1]) if len(uid) > 1 else -1,
                  None if bits is None else frozenset(name for bit, name in CAPABILITIES.items() if bits >> bit & 1),
                  user_ns=_initial(proc, at, "user"), pid_ns=_initial(proc, at, "pid"))


def _initial(proc: Procfs, process: str, kind: str) -> bool | None:
    """True for the machine's own namespace of this kind, None if it cannot be read."""
    try:
        match = _INODE.fullmatch(os.readlink(f"{proc.root}/{process}/ns/{kind}"))
    except OSError:
        return None
    return None if match is None else int(match[1]) == _INITIAL[kind]


def available(rights: Rights) -> ConnectorFacts:
    """The proc connector's availability for this process, which has these rights."""
    lacks = [f"it needs the machine's own {name} namespace" for name, own in
             (("pid", rights.pid_ns), ("user", rights.user_ns)) if own is False]
    if rights.capabilities is not None and "CAP_NET_ADMIN" not in rights.capabilities:
        lacks.append("CAP_NET_ADMIN is missing")
    if lacks:
        return ConnectorFacts(False, ", ".join(lacks))
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
                           _NETLINK_CONNECTOR) as made:
            made.bind((0, _CN_IDX_PROC))
            header = struct.pack("=IHHII", 36, _NLMSG_DONE, 0, 0, os.getpid())
            made.send(header + struct.pack("=IIIIHH", _UNUSED_ID, _UNUSED_ID, 0, 0, 0, 0))
    except ConnectionRefusedError:
        return ConnectorFacts(None, "this is another network namespace; a watcher tries that of process 1")
    except OSError as err:
        if err.errno in (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT):
            return ConnectorFacts(False, "the kernel has none (CONFIG_PROC_EVENTS), or its sockets are forbidden here")
        return ConnectorFacts(False, err.strerror or str(err))
    return ConnectorFacts(True)


def run_directory(config: Config, proc: Procfs) -> RunDirectoryFacts:
    """The run directory now. Write access is tested without writing."""
    path = config.paths.run
    try:
        info = path.lstat()
        space = os.statvfs(path)
    except OSError:
        return RunDirectoryFacts(str(path))
    spooled, oldest = _spool(config.paths.spool)
    readable = os.access(config.paths.state_file, os.R_OK)
    try:
        size = config.paths.state_file.lstat().st_size
    except OSError:
        size = None
    trouble = ("" if size is None or not readable else
               state_file.load(config.paths.state_file, proc.boot_id(), set_aside=False)[1])
    return RunDirectoryFacts(
        str(path), exists=True, uid=info.st_uid, mode=stat.S_IMODE(info.st_mode), file_system=_file_system(path),
        read_only=bool(space.f_flag & os.ST_RDONLY), writable=os.access(path, os.W_OK | os.X_OK),
        free=space.f_bavail * space.f_frsize, inodes=space.f_favail, spooled=spooled, oldest=oldest,
        set_aside=os.path.exists(path / f"{config.paths.state_file.name}.bad"), state_size=size,
        state_read=readable, state_trouble=trouble)


def _spool(path: Path) -> tuple[int, float]:
    """The number of waiting messages, and the age of the oldest (seconds)."""
    times = []
    with suppress(OSError):
        for entry in os.scandir(path):
            if entry.name.endswith(".hook") and not entry.name.startswith("."):
                with suppress(FileNotFoundError):  # the watcher has taken it meanwhile
                    times.append(entry.stat(follow_symlinks=False).st_mtime)
    return len(times), max(0.0, time.time() - min(times)) if times else 0.0


def _file_system(path: Path) -> str:
    """The type of the file system at a path, for example `tmpfs`."""
    import psutil

    try:
        mounts = [mount for mount in psutil.disk_partitions(all=True)
                  if f"{os.path.realpath(path)}/".startswith(f"{mount.mountpoint.rstrip('/')}/")]
    except OSError:
        mounts = []
    kind: str = max(reversed(mounts), key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""
    return kind or "unknown file system"


logger = logging.getLogger(__name__)

_MONITOR = "conmon"
PROC_EVENTS = "new_threads"  #: Name of the watcher's source of process events.


def collect_facts(config: Config, root: Path, watcher: WatcherFacts, status: Mapping[str, Any],
                  status_trouble: str = "") -> NodeFacts:
    """Read everything that the checks need.
    :param root: the mount of the node's file system: `/`, or another directory in a pod. The paths of the
        configuration (/proc, /sys, the run directory, the kubelet's) are used unchanged, not below it."""
    files, proc = Files(root), Procfs(config.paths.proc)
    programs = daemons.programs(proc, (*daemons.DAEMONS, *daemons.CONFIGURED, _MONITOR))
    runtimes = tuple(replace(engine, cpus=_mask(proc, engine.pid), age=_age(proc, engine.pid),
                          begun=_begun(proc, programs) if engine.name == "crio" else ())
                  for engine in engines(files, programs))
    own = rights(proc, None, "this command")
    cgroups = Cgroups(config.paths.cgroup, proc)
    running = watcher.state == "running" and watcher.pid is not None
    return NodeFacts(
        rights=rights(proc, watcher.pid, "the watcher") if running else own, sees=_sees(proc, own),
        kernel=kernel(proc, str(config.paths.sys)), cpus=_cpus(Sysfs(config.paths.sys)),
        cgroups=str(cgroups.layout), narrow_cgroups=dict(_narrow_cgroups(cgroups, status)),
        kubelet=_kubelet(proc, files, programs, config.paths.kubelet), checkpoint=_checkpoint(config.paths.kubelet),
        engines=runtimes, nri_socket=_socket(config.paths.nri),
        cri_sockets=tuple(map(str, cri.sockets(config.paths.cri))), hooks=hooks(files, runtimes),
        kata=configurations(files, runtimes), kata_sandboxes=_sandboxes(config), daemons=daemons.daemons(programs),
        allocators=OtherAllocatorSearch(proc, files, (config.paths.nri, *cri.sockets(config.paths.cri)),
                                        config.paths.kubelet).find(),
        tuned=_tuned(proc, files, programs), vm_processes=_vm_processes(proc, programs, status),
        connector=_connector(watcher, own), watcher=watcher, run=run_directory(config, proc), status=status,
        status_trouble=status_trouble,
        settings={key: as_written(entry["value"]) for key, entry in config.data().items()},
        of_features={feature.name: feature.facts(config, root) for feature in features() if feature.facts is not None})


def _narrow_cgroups(cgroups: Cgroups, status: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, CpuSet]]]:
    """See NodeFacts: a slice above the pods may have fewer CPUs than the shared pool (AllowedCPUs= of its unit)."""
    for sandbox in status.get("sandboxes", ()):
        group, mask = sandbox.get("cgroup"), CpuSet.parse(sandbox.get("mask") or "")
        if group is None or mask <= (has := CpuSet.parse(group["cpus"])):
            continue
        path = narrowest = Path(group["path"])
        while not cgroups.is_top(path := path.parent) and path != path.parent:
            above = cgroups.reread(CpusetCgroup(path, None, has))
            if above is None or mask <= above.effective:
                break
            narrowest, has = path, above.effective
        yield group["path"], (str(narrowest), has)


def _mask(proc: Procfs, pid: int | None) -> CpuSet | None:
    """The mask of a process's main thread, by its status file; None where that cannot be read."""
    listed = None if pid is None else status_fields(proc, str(pid)).get("Cpus_allowed_list")
    try:
        return None if listed is None else CpuSet.parse(listed)
    except CpuSetError:
        return None


def _age(proc: Procfs, pid: int | None) -> float | None:
    """Seconds since a process was started."""
    stat = None if pid is None else proc.stat(pid)
    return None if stat is None else age(stat.starttime)


def _begun(proc: Procfs, programs: Iterable[daemons.Program]) -> tuple[float, ...]:
    """Seconds since CRI-O started each container's monitor: conmon has CRI-O's directories on its command line
    (podman's has podman's), and the name of a pause container begins so (internal/oci/runtime_oci.go)."""
    ages = (_age(proc, program.pid) for program in programs
            if program.name == _MONITOR and any("/crio" in arg for arg in program.argv)
            and not any(arg.startswith("k8s_POD_") for arg in program.argv))
    return tuple(seconds for seconds in ages if seconds is not None)


def _sees(proc: Procfs, own: Rights) -> bool:
    """True if the node's processes are visible: not in another pid namespace, nor with hidepid=."""
    try:
        return own.pid_ns is not False and bool(proc.cmdline(1))
    except OSError:
        return False


def _socket(path: Path) -> bool | None:
    """True for a socket; None if the path cannot be accessed."""
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except PermissionError:
        return None
    except OSError:
        return False


def _cpus(sysfs: Sysfs) -> CpuFacts:
    try:
        topology = sysfs.topology()
    except SourceError as err:
        return CpuFacts(trouble=str(err))
    return CpuFacts(topology.online, topology.present, topology.isolated, topology.nohz_full, topology.cores,
                    smt_off=sysfs.smt_off())


def _kubelet(proc: Procfs, files: Files, programs: Sequence[daemons.Program], configured: Path) -> KubeletConfig:
    """The kubelet's configuration, and whether paths.kubelet leads to its directory, by any link or mount."""
    kubelet = nodes_kubelet(proc, files, programs)
    place = files.host(kubelet.directory)
    try:
        same = not kubelet.directory or os.path.samefile(place, configured)
    except OSError:
        same = kubelet.directory == str(configured) and not os.path.exists(place)
    return replace(kubelet, reached=same)


def _tuned(proc: Procfs, files: Files, programs: Iterable[daemons.Program]) -> Tuned:
    """tuned's profile, in the files that tuned sees: it may run in a container (OpenShift's Node Tuning Operator)."""
    running = next((program for program in programs if program.name == "tuned"), None)
    if running is None:
        return tuned_profile(files)
    return tuned_profile(own_files(proc, running.pid, files), daemons.flag(running.argv, "profile", "p"))


def _vm_processes(proc: Procfs, programs: Iterable[daemons.Program], status: Mapping[str, Any]) -> tuple[
        VmProcess, ...]:
    """The processes of the VMs in the status, if tuned runs: their main threads, and kernel threads."""
    processes = []
    for sandbox in status.get("sandboxes", ()) if any(program.name == "tuned" for program in programs) else ():
        vmm = (sandbox.get("vmm") or {}).get("pid")
        for thread in sandbox["threads"]:
            if (tid := thread["tid"]) == vmm or (thread["wanted"] and proc.tgid(tid) == tid):
                processes.append(VmProcess(thread["name"], text_of(f"{proc.root}/{tid}/cgroup").replace("\n", ","),
                                           tid == vmm))
    return tuple(processes)


def _checkpoint(directory: Path) -> Checkpoint | None:
    """The kubelet's current checkpoint, in paths.kubelet (not below the root); None if there is none."""
    files = Files("/")
    path = str(directory / "cpu_manager_state")
    try:
        raw = files.read(path)
        if raw is None:
            return None
        state = parse_checkpoint(raw, path)
    except SourceError as err:
        return Checkpoint(path, trouble=err.why)
    sizes = [len(cpus) for cpus in (*state.entries.values(), *state.pods.values())]
    return Checkpoint(path, state.policy, state.default, state.exclusive, max(sizes, default=0), state.version,
                      state.checksum_ok, state.trouble)


def _sandboxes(config: Config) -> tuple[KataSandboxFacts, ...]:
    state = KataState(config.paths.kata_go, config.paths.kata_rs, logger.debug)
    return tuple(KataSandboxFacts(sandbox.id, sandbox.runtime, sandbox.pins_vcpus)
                 for _, sandbox in sorted(state.sandboxes().items()))


def _connector(watcher: WatcherFacts, own: Rights) -> ConnectorFacts:
    """Take the facts from the running watcher, which has tried; else from the privileges of this process."""
    for source in watcher.about.get("sources", ()):
        if source["name"] == PROC_EVENTS:
            return ConnectorFacts(bool(source["up"]), str(source["why"]))
    return available(own)
