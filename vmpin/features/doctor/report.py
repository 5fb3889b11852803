"""Puts the pieces of a bug report together: facts, findings, status, configuration, vmpin's own files, the node, and
for each managed VM its processes, threads and cgroups, and the lines that features add. Reads only.

psutil does not serve: it has neither a thread's name, state and mask nor the raw fields (schedstat, wchan, syscall,
status) that a bug report needs.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from glob import glob
from pathlib import Path
from typing import Any

from vmpin.config.settings import Config
from vmpin.domain.facts import NodeFacts
from vmpin.domain.terminal import number_of
from vmpin.errors import SourceError
from vmpin.feature import features, present
from vmpin.features.doctor.pieces import MAX_ALL, Pieces
from vmpin.features.doctor.redact import cleaned, command_line
from vmpin.host.cgroup import Cgroups
from vmpin.host.files import Files
from vmpin.host.procfs import Procfs, read_file
from vmpin.host.sysfs import Sysfs
from vmpin.reconcile.state_file import MAX_BYTES
from vmpin.status.explain import sentences
from vmpin.vmm.recognition import classify, classify_by_arguments

README = """\
This is the output of `vmpin gather` on a node, for a bug report. Inspect it before you send it.

Contents: vmpin/ (the watcher's description of itself, configuration, status, explain, doctor, state file, log), node/
(kernel, CPUs, cgroup mounts), kubelet/ (the CPU manager's checkpoint), vms/ (for each VM: processes, threads,
cgroups, what features add). manifest.json lists the pieces, those that were cut for their size, and those that are
missing, with reasons.

It names pods, namespaces, containers and runtime handlers, which a report needs.

Left out: environments; command lines of processes other than the VMs'; annotations; messages of hooks; keys of other
programs' configurations that do not concern CPUs (vmpin/facts.json). Removed from the VMs' command lines: values of
kernel parameters that do not concern CPUs, and values whose name is like that of a secret. Removed from the log and
from errors of other programs: what is named or formatted like a secret, as far as it can be recognised. Please check.
"""
_SYS = ("online", "present", "possible", "offline", "isolated", "nohz_full", "kernel_max", "smt/active", "smt/control")
#: Of /proc/PID/status.
_STATUS_FIELDS = frozenset((
    b"Name", b"State", b"Tgid", b"Ngid", b"PPid", b"Uid", b"NSpid", b"Threads", b"Kthread", b"CapEff", b"NoNewPrivs",
    b"Seccomp", b"Cpus_allowed_list", b"Mems_allowed_list", b"voluntary_ctxt_switches", b"nonvoluntary_ctxt_switches"))
_CGROUP_FILES = (
    "cgroup.type", "cgroup.controllers", "cgroup.subtree_control", "cpuset.cpus", "cpuset.cpus.effective",
    "cpuset.cpus.exclusive", "cpuset.cpus.partition", "cpuset.effective_cpus", "cpuset.cpu_exclusive",
    "cpuset.sched_load_balance", "cpuset.mems", "cpuset.mems.effective", "cpu.max", "cpu.weight",
    "cpus", "effective_cpus", "mems")  # the last three: v1 mounted with noprefix
#: Of a process.
_MAX_THREADS = 2000


def collect(config: Config, facts: NodeFacts, doctor: Mapping[str, Any], text: str, most: int = MAX_ALL) -> Pieces:
    """All pieces except those that need a request: the log and the watcher's plan.

    :param doctor: the findings as JSON; `text` the same for people.
    :param most: bytes of all pieces together.
    """
    pieces = Pieces(most)
    proc = Procfs(config.paths.proc)
    pieces.add("README.txt", README)
    pieces.add_json("vmpin/doctor.json", doctor)
    pieces.add("vmpin/doctor.txt", cleaned(text))
    pieces.add_json("vmpin/facts.json", {key: value for key, value in vars(facts).items()
                                         if key not in ("status", "settings", "watcher")})
    pieces.add_json("vmpin/config.json", config.data())
    pieces.add_json("vmpin/watcher.json", facts.watcher)
    if facts.status:
        pieces.add_json("vmpin/status.json", facts.status)
        try:
            pieces.add("vmpin/explain.txt", cleaned("\n".join(
                line for sandbox in facts.status["sandboxes"] for line in (*sentences(facts.status, sandbox), ""))))
        except (LookupError, TypeError, ValueError) as err:  # of a watcher of another version
            pieces.missing["vmpin/explain.txt"] = repr(err)
    else:
        pieces.missing["vmpin/status.json"] = facts.status_trouble
    _own_files(pieces, config)
    _node(pieces, config, facts, proc)
    _file(pieces, "kubelet/cpu_manager_state", config.paths.kubelet / "cpu_manager_state")
    try:
        _vms(pieces, facts.status, proc, Cgroups(config.paths.cgroup, proc))
    except (LookupError, TypeError) as err:
        pieces.missing["vms"] = repr(err)
    return pieces


def _own_files(pieces: Pieces, config: Config) -> None:
    """The unmodified state file, the files beside it, one that was set aside, and the names in the run directory."""
    _file(pieces, f"vmpin/{config.paths.state_file.name}", config.paths.state_file)
    for name in Files("/").names(config.paths.run):
        if name.endswith((".json", ".json.bad")) and name != config.paths.state_file.name:
            _file(pieces, f"vmpin/run/{name}", config.paths.run / name)
    listed = (*_listed(config.paths.run), *_listed(config.paths.spool))
    pieces.add("vmpin/run.txt", "".join(f"{line}\n" for line in listed))


def _listed(directory: Path) -> Iterable[str]:
    """Lines as of ls -l: modes, owner, bytes, time, name."""
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as err:
        yield f"{directory}: {err.strerror}"
        return
    yield f"{directory}:"
    for entry in entries:
        try:
            info = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(info.st_mtime))
        yield f"  {stat.filemode(info.st_mode)} {info.st_uid}:{info.st_gid} {info.st_size:>9} {when} {entry.name}"


def _node(pieces: Pieces, config: Config, facts: NodeFacts, proc: Procfs) -> None:
    release = os.uname()
    pieces.add("node/kernel.txt", f"{facts.kernel.release or release.release} {release.machine}\n"
               + "".join(f"{parameter}\n" for parameter in facts.kernel.parameters))
    system = config.paths.sys / "devices/system"
    pieces.add("node/cpus.txt", _files(
        [*(f"{system}/cpu/{name}" for name in _SYS), *sorted(glob(f"{system}/node/node*/cpulist"))]))
    try:
        pieces.add_json("node/topology.json", Sysfs(config.paths.sys).topology()._asdict())
    except SourceError as err:
        pieces.missing["node/topology.json"] = str(err)
    try:
        table = Path(f"{proc.root}/self/mountinfo").read_text("utf-8", "replace").splitlines()
        pieces.add("node/cgroup-mounts.txt", "".join(
            f"{line}\n" for line in table if " - cgroup " in line or " - cgroup2 " in line))
    except OSError as err:
        pieces.missing["node/cgroup-mounts.txt"] = str(err)


def _file(pieces: Pieces, name: str, path: Path) -> None:
    try:
        raw = Files("/").read(path, MAX_BYTES)
        if raw is None:
            pieces.missing[name] = f"{path} does not exist"
        else:
            pieces.add(name, raw)
    except SourceError as err:
        pieces.missing[name] = str(err)


def _vms(pieces: Pieces, status: Mapping[str, Any], proc: Procfs, cgroups: Cgroups) -> None:
    """A piece for each sandbox of the status document."""
    for sandbox in status.get("sandboxes", ()):
        tids = [thread["tid"] for thread in sandbox["threads"]]
        pids = dict.fromkeys(pid for tid in tids if (pid := proc.tgid(tid)) is not None)
        pieces.add(f"vms/{sandbox['id']}/processes.txt",
                   "\n".join(line for pid in pids for line in _process(proc, pid)) + "\n")
        groups = dict.fromkeys(path for pid in pids if (path := cgroups.cpuset_path(pid)) is not None)
        pieces.add(f"vms/{sandbox['id']}/cgroups.txt",
                   "\n".join(line for path in groups for line in _cgroup(cgroups, path)) + "\n")
        added = [line for lines in present(feature.lines for feature in features()) for line in lines(sandbox)]
        pieces.add(f"vms/{sandbox['id']}/features.txt", cleaned("\n".join(added)) + "\n")


def _process(proc: Procfs, pid: int) -> Iterator[str]:
    stat = proc.stat(pid)
    if stat is None:
        return
    argv = proc.cmdline(pid)
    yield f"process {pid} ({stat.comm})"
    if argv and (classify(argv) or classify_by_arguments(argv)):  # else the pid belongs to another process by now
        yield "command line: " + " ".join(repr(arg) if not arg or any(char.isspace() for char in arg) else arg
                                          for arg in command_line(argv))
    yield f"cgroup: {_read(f'{proc.root}/{pid}/cgroup')}"
    tids = sorted(proc.tids(pid), key=int)
    for tid in tids[:_MAX_THREADS]:
        yield from _thread(proc, pid, tid)
    if len(tids) > _MAX_THREADS:
        yield f"and {number_of(len(tids) - _MAX_THREADS, 'thread')} more"
    yield ""


def _thread(proc: Procfs, pid: int, tid: str) -> Iterator[str]:
    at = f"{proc.root}/{pid}/task/{tid}"
    stat = proc.thread_stat(pid, tid)
    if stat is None:
        return
    try:
        mask = ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(int(tid))))
    except OSError as err:
        mask = f"unknown ({err.strerror})"
    yield (f"  thread {tid} ({stat.comm}) state {stat.state} start {stat.starttime} last CPU {stat.processor} "
           f"mask {mask}")
    fields = (line.partition(b":") for line in _raw(f"{at}/status").split(b"\n"))
    listed = [f"{name.decode()}={value.strip().decode('ascii', 'replace')}" for name, _, value in fields
              if name in _STATUS_FIELDS]
    yield "    " + " ".join(listed).replace("\t", ",")
    yield (f"    schedstat {_read(f'{at}/schedstat')}; wchan {_read(f'{at}/wchan')}; syscall "
           f"{' '.join(proc.syscall(pid, tid).split()[:3])}; cgroup {_read(f'{at}/cgroup')}")


def _cgroup(cgroups: Cgroups, path: Path) -> Iterator[str]:
    """A cgroup and its ancestors, up to the topmost."""
    for at in (path, *path.parents):
        yield str(at)
        for name in _CGROUP_FILES:
            if raw := _raw(str(at / name)):  # an empty one is a line: it inherits
                yield f"  {name} = {_line(raw)}"
        if cgroups.is_top(at) or at == at.parent:
            return


def _raw(path: str) -> bytes:
    try:
        return read_file(path) or b""
    except OSError:
        return b""


def _line(raw: bytes) -> str:
    return " ".join(raw.decode("utf-8", "replace").split())


def _read(path: str) -> str:
    return _line(_raw(path))


def _files(paths: Iterable[str]) -> str:
    """Small files of the kernel, one line each."""
    return "".join(f"{path}: {_read(path)}\n" for path in paths if os.path.exists(path))
