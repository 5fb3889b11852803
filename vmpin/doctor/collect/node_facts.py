"""All facts about a node that the doctor checks, collected from the adapters.

Reads only."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vmpin.config.settings import Config
from vmpin.cpuset import CpuSet, CpuSetError
from vmpin.doctor.collect.hooks_found import hooks
from vmpin.doctor.collect.kernel import available, kernel, rights, status_fields
from vmpin.doctor.collect.own_facts import run_directory
from vmpin.domain.facts import (
    Checkpoint,
    ConnectorFacts,
    CpuFacts,
    KataSandboxFacts,
    KubeletConfig,
    NodeFacts,
    Rights,
    WatcherFacts,
)
from vmpin.domain.terminal import as_written
from vmpin.errors import SourceError
from vmpin.host import daemons
from vmpin.host.cgroup import Cgroups
from vmpin.host.files import Files
from vmpin.host.procfs import Procfs, age
from vmpin.host.sysfs import Sysfs
from vmpin.runtime.engines import engines
from vmpin.runtime.kata import KataState
from vmpin.runtime.kata_config import configurations
from vmpin.runtime.kubelet import parse_checkpoint
from vmpin.sources import cri
from vmpin.sources.kubelet_config import kubelet_config

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
    found = tuple(replace(engine, cpus=_mask(proc, engine.pid), age=_age(proc, engine.pid),
                          begun=_begun(proc, programs) if engine.name == "crio" else ())
                  for engine in engines(files, programs))
    own = rights(proc, None, "this command")
    running = watcher.state == "running" and watcher.pid is not None
    return NodeFacts(
        rights=rights(proc, watcher.pid, "the watcher") if running else own, sees=_sees(proc, own),
        kernel=kernel(proc, str(config.paths.sys)), cpus=_cpus(Sysfs(config.paths.sys)),
        cgroups=str(Cgroups(config.paths.cgroup, proc).layout),
        kubelet=_kubelet(files, programs, config.paths.kubelet), checkpoint=_checkpoint(config.paths.kubelet),
        engines=found, nri_socket=_socket(config.paths.nri),
        cri_sockets=tuple(map(str, cri.sockets(config.paths.cri))), hooks=hooks(files, found),
        kata=configurations(files, found), kata_sandboxes=_sandboxes(config), daemons=daemons.daemons(programs),
        tuned=daemons.tuned(files), irqbalance=daemons.irqbalance(files), connector=_connector(watcher, own),
        watcher=watcher, run=run_directory(config, proc), status=status, status_trouble=status_trouble,
        settings={key: as_written(entry["value"]) for key, entry in config.data().items()})


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
    return tuple(each for each in ages if each is not None)


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
        found = sysfs.topology()
    except SourceError as err:
        return CpuFacts(trouble=str(err))
    return CpuFacts(found.online, found.present, found.isolated, found.nohz_full, found.cores)


def _kubelet(files: Files, programs: Sequence[daemons.Program], configured: Path) -> KubeletConfig:
    """The kubelet's configuration, and whether paths.kubelet leads to its directory, by any link or mount."""
    found = kubelet_config(files, programs)
    try:
        same = not found.directory or os.path.samefile(files.host(found.directory), configured)
    except OSError:
        same = False
    return replace(found, reached=same)


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
    sizes = [len(cpus) for cpus in (*state.entries.values(), *state.pods.values(), *state.by_id.values())]
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
