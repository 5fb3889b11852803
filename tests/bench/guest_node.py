"""A guest for the benchmarks of the agent: a PID namespace of this machine (guest_inside), its containers in cpuset
cgroups of the machine's, and the agent, as the file that is shipped, under the system's Python.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench_node import Node, cpus
from measure import CannotMeasure, environment, progress
from processes import SYSTEM_PYTHON
from vms import PREFIX, compiled

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId
from vmpin.features.installer import agent_zipapp
from vmpin.guests.channels import Stream, open_unix

#: A container's: 50 have 1,000.
THREADS = 20
#: Seconds after which whatever is waited for counts as not coming.
PATIENCE = 300.0
#: Where cpusets are: version 1's, or all of version 2.
_V1, _V2 = Path("/sys/fs/cgroup/cpuset"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Guest:
    """As a channel into it, for a session. `cgroups` are the containers'."""

    socket: Path
    cgroups: Mapping[ContainerId, Path]

    async def open(self, port: int) -> Stream:
        return await open_unix(str(self.socket), os.getpid(), None)

    def masks(self, container: ContainerId) -> list[frozenset[int]]:
        """Of its threads."""
        cgroup = self.cgroups[container]
        listed = cgroup / "tasks" if (cgroup / "tasks").exists() else cgroup / "cgroup.threads"
        return [frozenset(os.sched_getaffinity(int(tid))) for tid in listed.read_text().split()]


@contextlib.contextmanager
def guest_of(made: Node, count: int, build: Path) -> Iterator[Guest]:
    """With `count` containers of THREADS threads, and an agent that listens."""
    unshare = ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    place = made.path / "guest"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    address = place / "agent.sock"
    agent = place / "vmpin-agent.pyz"
    agent_zipapp.build(agent)
    binary = compiled("manythreads", build, "-pthread")
    log = place / "agent.log"
    with _cgroups(count) as cgroups, log.open("wb") as err:
        progress(f"starting {count} containers of {THREADS} threads, and the agent")
        started = subprocess.Popen(
            [*unshare, sys.executable, str(Path(__file__).with_name("guest_inside.py")), str(binary), str(THREADS),
             *map(str, cgroups.values()), "--", SYSTEM_PYTHON, "-IS", str(agent), "--vsock-port", "0", "--serial", "",
             "--unix", str(address), "--run", str(place / "run")], env=environment(), stdin=subprocess.DEVNULL,
            stderr=err)
        try:
            deadline = time.monotonic() + PATIENCE
            while not address.exists():
                if started.poll() is not None or time.monotonic() > deadline:
                    raise CannotMeasure(f"the agent did not start: {log.read_text()[-500:]}")
                time.sleep(0.01)
            found = Guest(address, cgroups)
            threads = sum(len(found.masks(container)) for container in cgroups)
            if threads != THREADS * count:
                raise CannotMeasure(f"{threads} threads in {count} containers, instead of {THREADS} each")
            yield found
        finally:
            started.kill()
            started.wait()


@contextlib.contextmanager
def _cgroups(count: int) -> Iterator[dict[ContainerId, Path]]:
    """Cpuset cgroups of containers, below one of this benchmark's own."""
    v1 = (_V1 / "cpuset.cpus").exists()
    if not v1 and "cpuset" not in (_V2 / "cgroup.subtree_control").read_text().split():
        raise CannotMeasure("needs cpuset cgroups")
    top = (_V1 if v1 else _V2) / f"vmpin-bench-{PREFIX}"
    names = [f"{PREFIX}{number:056}" for number in range(count)]
    made: list[Path] = []
    try:
        for path in (top, *(top / name for name in names)):
            path.mkdir()
            made.append(path)
            if v1:
                (path / "cpuset.mems").write_text((path.parent / "cpuset.mems").read_text())
                (path / "cpuset.cpus").write_text(str(CpuSet(cpus())))
            elif path == top:
                (path / "cgroup.subtree_control").write_text("+cpuset")
        yield {ContainerId(path.name): path for path in made[1:]}
    finally:
        deadline = time.monotonic() + PATIENCE
        while made:  # who was killed is in it for a moment more
            try:
                made[-1].rmdir()
                made.pop()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
