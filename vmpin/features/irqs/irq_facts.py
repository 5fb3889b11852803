"""Facts for the doctor's checks of interrupts: the interrupts of devices with their masks, irqbalance's own lists, and
the mask of the kernel's workqueues."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vmpin.config.settings import Config
from vmpin.cpuset import EMPTY, CpuSet, CpuSetError, union
from vmpin.errors import SourceError
from vmpin.features.irqs.irq_files import DEFAULT, IrqFiles, parse_mask
from vmpin.features.irqs.irq_mover import read_irqs
from vmpin.features.irqs.irq_plan import Irq
from vmpin.features.irqs.irqbalance import banned_cpus, irqbalance_sockets
from vmpin.host.daemons import programs
from vmpin.host.files import Files
from vmpin.host.procfs import Procfs, read_file
from vmpin.host.sysfs import cpu_list, text_of

_MOST = 1 << 20  #: Bytes of a process's environment.
_CONFIGURATIONS = ("/etc/default/irqbalance", "/etc/sysconfig/irqbalance")
_BANNED = re.compile(r"^\s*(?:export\s+)?(IRQBALANCE_BANNED_CPU(?:LIST|S))=[\"']?([^\"'#\n]*)", re.MULTILINE)


def irq_facts(config: Config, root: Path) -> dict[str, Any]:
    """Read the node. `interrupts`: of each device's the number, the name, the mask, the CPUs that the controller
    chose, and whether the mask is fixed. `banned`: by process, file or socket, the CPUs that irqbalance leaves alone;
    `alone`: those that it leaves alone as long as nothing else is set over its socket. `workqueues`: the CPUs of
    unbound workqueues."""
    files = IrqFiles(Procfs(config.paths.proc), config.paths.sys)
    settings = _settings(Files(root), files.proc)
    facts: dict[str, Any] = {"interrupts": [], "trouble": "", "banned": settings, "workqueues": "",
                             "alone": str(_left_alone(settings, files.sys))}
    for path in irqbalance_sockets():
        if (cpus := banned_cpus(path)) is not None:
            facts["banned"][path] = str(cpus)
    workqueues = parse_mask(text_of(f"{config.paths.sys}/devices/virtual/workqueue/cpumask"))
    facts["workqueues"] = "" if workqueues is None else str(workqueues)
    try:
        irqs = read_irqs(files, files.interrupts().rows())
    except OSError as err:
        return facts | {"trouble": f"{err.filename or files.irq}: {err.strerror}"}
    facts["interrupts"] = [
        [irq.number, irq.name, str(irq.mask), str(_chosen(files, irq)), files.fixed(irq.number)]
        for irq in irqs if irq.name and irq.number != DEFAULT]
    return facts


def _chosen(files: IrqFiles, irq: Irq) -> CpuSet:
    """The CPUs that an interrupt's controller chose. On x86 without interrupt remapping it chooses anew when the
    interrupt comes the next time (kernel/irq/migration.c); until then its mask counts."""
    chosen = files.effective(irq.number)
    return chosen if chosen is not None and chosen <= irq.mask else irq.mask


def _settings(files: Files, proc: Procfs) -> dict[str, str]:
    """Read the CPUs that irqbalance's configuration bans, by process and key: a unit or a file of any name may set
    them, and irqbalance reads them once. By file where the process may not be read, and without one."""
    for program in programs(proc, ["irqbalance"]):
        with contextlib.suppress(OSError):
            environment = read_file(f"{proc.root}/{program.pid}/environ", _MOST)
            if environment is not None:  # it has not ended
                text = environment.decode("utf-8", "replace").replace("\0", "\n")
                return {f"irqbalance pid {program.pid}: {key}": value for key, value in _BANNED.findall(text)}
    settings: dict[str, str] = {}
    for path in _CONFIGURATIONS:
        try:
            text = files.text(path) or ""
        except SourceError:
            continue
        settings |= {f"{path}: {key}": value.strip() for key, value in _BANNED.findall(text)}
    return settings


def _left_alone(settings: Mapping[str, str], sys_root: str) -> CpuSet:
    """The CPUs that irqbalance leaves alone by its configuration: a mask, which it calls discarded, else a list;
    only without both those that two files of the kernel list (cputree.c: setup_banned_cpus). An empty value counts
    as none."""
    mask, listed = (next((value for name, value in settings.items() if name.endswith(key) and value), "")
                    for key in ("CPUS", "CPULIST"))
    if mask:
        return parse_mask(mask) or EMPTY
    if listed:
        with contextlib.suppress(CpuSetError):
            return CpuSet.parse(listed)
        return EMPTY
    return union(cpu_list(f"{sys_root}/devices/system/cpu/{name}") or EMPTY for name in ("isolated", "nohz_full"))
