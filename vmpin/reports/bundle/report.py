"""Puts the pieces of a report together."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Mapping
from glob import glob
from pathlib import Path
from typing import Any

from vmpin.config.settings import Config
from vmpin.domain.facts import NodeFacts
from vmpin.errors import SourceError
from vmpin.host.cgroup import Cgroups
from vmpin.host.files import Files
from vmpin.host.procfs import Procfs
from vmpin.host.sysfs import Sysfs
from vmpin.reconcile.state_file import MAX_BYTES
from vmpin.reports.bundle import vms
from vmpin.reports.bundle.pieces import Pieces
from vmpin.reports.redact import words
from vmpin.status.explain import sentences

README = """\
What `vmpin gather` packed on a node, for a bug report. Look through it before it leaves your hands.

In it: vmpin/ (the watcher's word on itself, configuration, status, explain, doctor, state file, log), node/ (kernel,
CPUs, cgroup mounts), kubelet/ (the CPU manager's checkpoint), vms/ (of each VM: processes, threads, cgroups).
manifest.json lists the pieces, what was cut for its size, and what is missing and why.

It names pods, namespaces, containers and runtime handlers: they are what a report is about.

Not in it: environments; command lines of other processes than the VMs' (in those, kernel parameters that are not about
CPUs, and whatever is named like a secret, have lost their values); annotations; messages of hooks; configurations of
other programs, but for the keys that concern CPUs (vmpin/facts.json). The log and what other programs said in errors
have lost what is named or looks like a secret, as far as that can be told: look.
"""
_SYS = ("online", "present", "possible", "offline", "isolated", "nohz_full", "kernel_max", "smt/active", "smt/control")
_MOUNTS = (" cgroup ", " cgroup2 ")


def collect(config: Config, facts: NodeFacts, doctor: Mapping[str, Any], text: str, most: int | None = None) -> Pieces:
    """Everything but what has to be asked for: the log and the watcher's plan.

    :param doctor: the findings as JSON; `text` the same for people.
    :param most: bytes of all pieces together.
    """
    pieces = Pieces() if most is None else Pieces(most)
    proc = Procfs(config.paths.proc)
    pieces.add("README.txt", README)
    pieces.add_json("vmpin/doctor.json", doctor)
    pieces.add("vmpin/doctor.txt", words(text))
    pieces.add_json("vmpin/facts.json", {key: value for key, value in vars(facts).items()
                                         if key not in ("status", "settings", "watcher")})
    pieces.add_json("vmpin/config.json", config.data())
    pieces.add_json("vmpin/watcher.json", facts.watcher)
    if facts.status:
        pieces.add_json("vmpin/status.json", facts.status)
        try:
            pieces.add("vmpin/explain.txt", words(_explained(facts.status)))
        except (LookupError, TypeError, ValueError) as err:  # of a watcher of another version
            pieces.lack("vmpin/explain.txt", repr(err))
    else:
        pieces.lack("vmpin/status.json", facts.status_trouble)
    _own_files(pieces, config)
    _node(pieces, config, facts, proc)
    _file(pieces, "kubelet/cpu_manager_state", config.paths.kubelet / "cpu_manager_state")
    try:
        vms.add(pieces, facts.status, proc, Cgroups(config.paths.cgroup, proc))
    except (LookupError, TypeError) as err:
        pieces.lack("vms", repr(err))
    return pieces


def _explained(status: Mapping[str, Any]) -> str:
    return "\n".join(line for sandbox in status["sandboxes"] for line in (*sentences(status, sandbox), ""))


def _own_files(pieces: Pieces, config: Config) -> None:
    """The state file as it is and what else is kept beside it, what was set aside, and all names that lie there."""
    _file(pieces, f"vmpin/{config.paths.state_file.name}", config.paths.state_file)
    for name in Files("/").names(config.paths.run):
        if name.endswith((".json", ".json.bad")) and name != config.paths.state_file.name:
            _file(pieces, f"vmpin/run/{name}", config.paths.run / name)
    pieces.add("vmpin/run.txt", "".join(f"{line}\n"
                                        for line in (*_listed(config.paths.run), *_listed(config.paths.spool))))


def _listed(directory: Path) -> Iterable[str]:
    """As ls -l: modes, owner, bytes, time, name."""
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
    pieces.add("node/cpus.txt", vms.files(
        [*(f"{system}/cpu/{name}" for name in _SYS), *sorted(glob(f"{system}/node/node*/cpulist"))]))
    try:
        pieces.add_json("node/topology.json", Sysfs(config.paths.sys).topology()._asdict())
    except SourceError as err:
        pieces.lack("node/topology.json", str(err))
    try:
        table = Path(f"{proc.root}/self/mountinfo").read_text("utf-8", "replace")
    except OSError as err:
        pieces.lack("node/cgroup-mounts.txt", str(err))
    else:
        pieces.add("node/cgroup-mounts.txt", "".join(
            f"{line}\n" for line in table.splitlines() if any(f" -{kind}" in line for kind in _MOUNTS)))


def _file(pieces: Pieces, name: str, path: Path) -> None:
    try:
        raw = Files("/").read(path, MAX_BYTES)
    except SourceError as err:
        pieces.lack(name, str(err))
        return
    if raw is None:
        pieces.lack(name, f"{path} is not there")
    else:
        pieces.add(name, raw)
