"""The mixed node's containers by real runtimes, and the masks of processes as the kernel has them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from real_node import cri

from lab.node_tests.mixed_model import NODE
from vmpin.cpuset import CpuSet
from vmpin.install import base_spec, hook_script, hooks_directory
from vmpin.install.hook_options import HookOptions

#: All of the story's containers live below it.
CGROUP = Path("/sys/fs/cgroup/mixed")
#: For the hook: 200 ms are little for a busy watcher of an emulated node. Where none listens it does not wait.
_DEADLINE_MS = 10_000


def allowed(task: Path) -> tuple[str, CpuSet] | None:
    """A thread's name and mask as /proc has them; None when it is gone."""
    try:
        lines = (task / "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return found["Name"], CpuSet.parse(found["Cpus_allowed_list"])


def masks_of(pids: list[int]) -> dict[int, dict[int, tuple[str, CpuSet]]]:
    """By process: name and mask of each of its threads and of the kernel threads that work for it."""
    tasks = {pid: list(Path(f"/proc/{pid}/task").iterdir()) for pid in pids}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                comm = Path(entry.path, "comm").read_text().strip()
                for pid in pids:
                    if int(entry.name) != pid and comm.endswith((f"-{pid}", f"/{pid}")):
                        tasks[pid].append(Path(entry.path))
    return {pid: {int(task.name): found for task in mine if (found := allowed(task)) is not None}
            for pid, mine in tasks.items()}


class Runtime:
    """runc or crun, with real containers of busybox that have vmpin's real hook in their config.json."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hooks = directory / "hooks.d"
        hooks_directory.install(self.hooks, HookOptions(deadline_ms=_DEADLINE_MS))
        self.rootfs = directory / "rootfs"
        for name in ("bin", "dev", "proc", "sys"):
            (self.rootfs / name).mkdir(parents=True)
        shutil.copy(shutil.which("busybox") or "/bin/busybox", self.rootfs / "bin/busybox")
        CGROUP.mkdir()
        #: What it has made and not removed, with its runtime.
        self.made: dict[str, str] = {}

    def close(self) -> None:
        for name in list(self.made):
            with contextlib.suppress(AssertionError):
                self.remove(name)
        CGROUP.rmdir()

    def run(self, runtime: str, name: str, sandbox: str, cpus: CpuSet, stages: tuple[str, ...]) -> None:
        bundle = self.directory / name
        bundle.mkdir()
        spec = {
            "ociVersion": "1.0.2",
            "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["/bin/busybox", "sleep", "1000000"],
                        "env": ["PATH=/bin"], "noNewPrivileges": True},
            "root": {"path": str(self.rootfs), "readonly": True},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "annotations": cri(sandbox, name),
            "linux": {"cgroupsPath": f"/{CGROUP.name}/{name}",
                      "resources": {"cpu": {"cpus": str(cpus)}} if cpus else {},
                      "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")]}}
        (bundle / "config.json").write_text(json.dumps(base_spec.with_hook(
            spec, hook_script.script_path(self.hooks), HookOptions(stages=stages, deadline_ms=_DEADLINE_MS))))
        self.made[name] = runtime
        self._call(name, "run", "--detach", "--bundle", str(bundle))

    def update(self, name: str, cpus: CpuSet) -> None:
        self._call(name, "update", "--cpuset-cpus", str(cpus))

    def remove(self, name: str) -> None:
        self._call(name, "delete", "--force")
        del self.made[name]
        shutil.rmtree(self.directory / name)

    def end(self, name: str) -> None:
        """Its process is killed behind the runtime's back."""
        for pid in self.pids(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @staticmethod
    def pids(name: str) -> list[int]:
        return [int(pid) for pid in (CGROUP / name / "cgroup.procs").read_text().split()]

    def touched(self, name: str, cpus: CpuSet) -> Iterator[str]:
        """What of a container is not just as the runtime set it."""
        configured = (CGROUP / name / "cpuset.cpus").read_text().strip()
        if configured != str(cpus):
            yield f"the cgroup of {name} has cpuset.cpus {configured!r}, not {str(cpus)!r}"
        pids = self.pids(name)
        if not pids:
            yield f"no process is left of {name}"
        for pid in pids:
            found = allowed(Path(f"/proc/{pid}"))
            if found is None or found[1] != (cpus or NODE):
                yield f"process {pid} of {name} may run on {found and found[1]}, not on {cpus or NODE}"

    def _call(self, name: str, verb: str, *arguments: str) -> None:
        """Its output goes to a file, as a pipe would stay open in the container."""
        runtime = self.made[name]
        log = self.directory / f"{name}.log"
        with log.open("wb") as file:
            done = subprocess.run([runtime, "--root", str(self.directory / runtime), verb, *arguments, name],
                                  stdin=subprocess.DEVNULL, stdout=file, stderr=file, timeout=120, check=False)
        assert done.returncode == 0, f"{runtime} {verb} {name}: {log.read_text()}"
