"""For each managed VM: its processes, every thread as /proc shows it, and their cgroups up to the topmost.

Reads only. psutil does not serve: it has neither a thread's name, state and mask nor the raw fields (schedstat, wchan,
syscall, status) that a bug report needs.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vmpin.domain.terminal import number_of
from vmpin.host.cgroup import Cgroups
from vmpin.host.procfs import Procfs, read_file
from vmpin.reports.bundle.pieces import Pieces
from vmpin.reports.redact import command_line
from vmpin.vmm.recognition import classify, classify_by_arguments

#: Of /proc/PID/status.
_STATUS = frozenset((b"Name", b"State", b"Tgid", b"Ngid", b"PPid", b"Uid", b"NSpid", b"Threads", b"Kthread", b"CapEff",
                     b"NoNewPrivs", b"Seccomp", b"Cpus_allowed_list", b"Mems_allowed_list",
                     b"voluntary_ctxt_switches", b"nonvoluntary_ctxt_switches"))
_CGROUP = ("cgroup.type", "cgroup.controllers", "cgroup.subtree_control", "cpuset.cpus", "cpuset.cpus.effective",
           "cpuset.cpus.exclusive", "cpuset.cpus.partition", "cpuset.effective_cpus", "cpuset.cpu_exclusive",
           "cpuset.sched_load_balance", "cpuset.mems", "cpuset.mems.effective", "cpu.max", "cpu.weight",
           "cpus", "effective_cpus", "mems")  # the last of v1's noprefix
_MAX_THREADS = 2000


def add(pieces: Pieces, status: Mapping[str, Any], proc: Procfs, cgroups: Cgroups) -> None:
    """A piece for each sandbox of the status document."""
    for sandbox in status.get("sandboxes", ()):
        tids = [thread["tid"] for thread in sandbox["threads"]]
        found = dict.fromkeys(pid for tid in tids if (pid := proc.tgid(tid)) is not None)
        pieces.add(f"vms/{sandbox['id']}/processes.txt",
                   "\n".join(line for pid in found for line in _process(proc, pid)) + "\n")
        groups = dict.fromkeys(path for pid in found if (path := cgroups.cpuset_path(pid)) is not None)
        pieces.add(f"vms/{sandbox['id']}/cgroups.txt",
                   "\n".join(line for path in groups for line in _cgroup(cgroups, path)) + "\n")


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
              if name in _STATUS]
    yield "    " + " ".join(listed).replace("\t", ",")
    yield (f"    schedstat {_read(f'{at}/schedstat')}; wchan {_read(f'{at}/wchan')}; syscall "
           f"{' '.join(proc.syscall(pid, tid).split()[:3])}; cgroup {_read(f'{at}/cgroup')}")


def _cgroup(cgroups: Cgroups, path: Path) -> Iterator[str]:
    """A cgroup and its ancestors, up to the topmost."""
    for at in (path, *path.parents):
        yield str(at)
        for name in _CGROUP:
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


def files(paths: Iterable[str]) -> str:
    """Small files of the kernel, one line each."""
    return "".join(f"{path}: {_read(path)}\n" for path in paths if os.path.exists(path))
