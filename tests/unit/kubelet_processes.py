"""A /proc with a few processes for the search for a kubelet."""

from __future__ import annotations

import json
import os
from pathlib import Path

from newcomers import Machine

from vmpin.host.procfs import Procfs
from vmpin.sources.kubelet_process import KubeletProcess


def proc_tree(path: Path) -> Procfs:
    """A node with an init of its own, below `path`; what is there already stays."""
    if not (path / "1").exists():
        process(path, 1, "/sbin/init")
        (path / "self").symlink_to("1")
    return Procfs(path)


def process(path: Path, pid: int, command: str, starttime: int = 100, namespace: str = "pid:[1]",
            state: str = "S") -> None:
    """A process with this command line; of a number that is there already, another one."""
    directory = path / str(pid)
    (directory / "ns").mkdir(parents=True, exist_ok=True)
    (directory / "cmdline").write_bytes(b"\0".join(word.encode() for word in command.split("|")) + b"\0")
    fields = [state, "1", *["0"] * 17, str(starttime), *["0"] * 20]
    program = command.partition("|")[0].rpartition("/")[2]
    (directory / "stat").write_text(f"{pid} ({program[:15]}) {' '.join(fields)}\n")
    link = directory / "ns/pid"
    link.unlink(missing_ok=True)
    link.symlink_to(namespace)


def doubted_checkpoint(machine: Machine, uid: str) -> Path:
    """Have a VM run on a CPU that the checkpoint gives to a pod of which nothing else is known, on a node where no
    kubelet runs. :returns: the directory of its processes, as /proc."""
    directory, proc = machine.path / "kubelet", machine.path / "proc"
    directory.mkdir()
    checkpoint = directory / "cpu_manager_state"
    checkpoint.write_text(json.dumps({
        "policyName": "static", "defaultCpuSet": str(machine.pool), "entries": {uid: {"app": str(machine.other)}},
        "checksum": 0}))
    os.utime(checkpoint, (1795669200, 1795669200))
    machine.configure()
    machine.vmm("a")  # on both CPUs; nothing is set
    machine.reconciler.resync(act=False)
    machine.node_state.owner_search.__dict__["_kubelet_process"] = KubeletProcess(proc_tree(proc))
    return proc
