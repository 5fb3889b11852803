"""Puts the pieces of a bug report together: facts, findings, status, configuration, vmpin's own files, the node.

Reads only.
"""

import os
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
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
from vmpin.reports.bundle.pieces import MAX_ALL, Pieces
from vmpin.reports.redact import cleaned
from vmpin.status.explain import sentences

README = """\
This is the output of `vmpin gather` on a node, for a bug report. Inspect it before you send it.

Contents: vmpin/ (the watcher's description of itself, configuration, status, explain, doctor, state file, log), node/
(kernel, CPUs, cgroup mounts), kubelet/ (the CPU manager's checkpoint), vms/ (for each VM: processes, threads,
cgroups). manifest.json lists the pieces, those that were cut for their size, and those that are missing, with reasons.

It names pods, namespaces, containers and runtime handlers, which a report needs.

Left out: environments; command lines of processes other than the VMs' (in those, values of kernel parameters that do
not concern CPUs and of names like that of a secret); annotations; messages of hooks; keys of other programs'
configurations that do not concern CPUs (vmpin/facts.json). In the log and in errors of other programs, values that are
named or formatted like a secret are removed, as far as they can be recognised: please check.
"""
_SYS = ("online", "present", "possible", "offline", "isolated", "nohz_full", "kernel_max", "smt/active", "smt/control")


def collect(config: Config, facts: NodeFacts, doctor: Mapping[str, Any], text: str, most: int = MAX_ALL) -> Pieces:
    """All pieces except those that need a request: the log and the watcher's plan.

    :param doctor: the findings as JSON; `text` the same for people.
    :param most: bytes of all pieces together.
    """
    facts = without_untrusted(facts)
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
        vms.add(pieces, facts.status, proc, Cgroups(config.paths.cgroup, proc))
    except (LookupError, TypeError) as err:
        pieces.missing["vms"] = repr(err)
    return pieces


def without_untrusted(facts: NodeFacts) -> NodeFacts:
    """The facts without what the API server has of pods: annotations may hold secrets."""
    sandboxes = facts.status.get("sandboxes") or ()
    return replace(facts, status={**facts.status, "sandboxes": [{**each, "untrusted": None} for each in sandboxes]}
                   if sandboxes else facts.status)


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
    pieces.add("node/cpus.txt", vms.files(
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
