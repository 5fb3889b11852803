"""Facts for the doctor's check of vCPUs' scheduling classes: the limit of real-time threads, the kernel's cgroups for
them, the watcher's unit, and the kernel's own real-time threads."""

from __future__ import annotations

import gzip
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from vmpin.bounded import MAX_PID, parse_whole
from vmpin.config.settings import Config
from vmpin.errors import SourceError
from vmpin.features.common.service_units import unit_files
from vmpin.features.scheduling.sched_class import FIFO, RR, SchedClass
from vmpin.features.scheduling.thread_class import class_of, kernel_release, why_unlimited
from vmpin.host.files import Files
from vmpin.host.procfs import Procfs, read_file

_GROUPS = b"\nCONFIG_RT_GROUP_SCHED=y\n"


def scheduling_facts(config: Config, root: Path) -> dict[str, Any]:
    """Read the node. `unlimited`: why nothing limits real-time threads. `groups`: v1 or v2, where the kernel has
    real-time shares of cgroups and these are of that version, else "". `restricted`: whether the unit of the watcher
    forbids real-time classes, None without a unit. `kernel`: the real-time threads of the kernel, without those for
    interrupts, by name (without its CPU), with their class."""
    proc, files = Procfs(config.paths.proc), Files(root)
    return {"unlimited": why_unlimited(proc, config.paths.sys, kernel_release(proc)),
            "groups": _groups(config, proc, files), "restricted": restricted(files),
            "kernel": _kernel_threads(proc)}


def _groups(config: Config, proc: Procfs, files: Files) -> str:
    if any(os.path.exists(f"{config.paths.cgroup}/{name}/cpu.rt_runtime_us") for name in ("cpu", "cpu,cpuacct")):
        return "v1"
    built = b""
    with suppress(OSError, EOFError, SourceError):
        packed = read_file(f"{proc.root}/config.gz", 1 << 20)
        built = gzip.decompress(packed) if packed else files.read(f"/boot/config-{kernel_release(proc)}") or b""
    return "v2" if _GROUPS in built else ""


def restricted(files: Files) -> bool | None:
    """Whether the watcher's unit, with its drop-ins, has RestrictRealtime on. The last assignment counts."""
    paths = next(unit_files(files, "vmpin.service"), None)
    if paths is None:
        return None
    value = "no"
    for path in paths:
        with suppress(SourceError):
            for line in (files.text(path) or "").splitlines():
                key, equals, text = line.partition("=")
                if equals and key.strip() == "RestrictRealtime":
                    value = text.strip().lower()
    return value in ("yes", "y", "true", "t", "on", "1")  # systemd: parse_boolean


def _kernel_threads(proc: Procfs) -> dict[str, str]:
    """The highest class of the kernel's real-time threads, by their names."""
    classes: dict[str, SchedClass] = {}
    for pid in proc.pids():
        stat, number = proc.stat(pid), parse_whole(pid, MAX_PID)
        if stat is not None and number and stat.kernel_thread and not stat.comm.startswith("irq/"):
            with suppress(OSError):
                its = class_of(number)
                if its is not None and its.policy in (FIFO, RR):
                    name = stat.comm.partition("/")[0]
                    classes[name] = max(classes.get(name, its), its, key=lambda its: its.priority)
    return {name: str(its) for name, its in classes.items()}
