"""The demo's containers: crun creates them, each with its own namespaces and cgroup and the hook in its config.json.

Their process sleeps; only their cpuset matters.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from glob import glob
from pathlib import Path
from typing import Any

from vmpin.cpuset import CpuSet
from vmpin.errors import VmpinError
from vmpin.features.demo import children

# crun up to 1.8 refuses a machine whose controllers are split between cgroup v1 and v2. In a mount namespace of its
# own it does not see the v2 part; the machine's own mounts stay as they are.
_WITHOUT_HYBRID = """\
if grep -q ' /sys/fs/cgroup/unified cgroup2 ' /proc/self/mounts; then umount /sys/fs/cgroup/unified; fi
exec "$@"
"""


class Containers:
    """The containers of one sandbox. `close` removes everything of them. :param hooks: registrations of the hook."""

    def __init__(self, crun: str, busybox: str, sandbox: str, directory: Path, hooks: Path, pod: str) -> None:
        self.sandbox = sandbox
        self.directory = directory
        self._crun = crun
        self._pod = pod
        self._registrations = [json.loads(file.read_bytes()) for file in sorted(hooks.glob("*.json"))]
        self._running: list[str] = []
        rootfs = directory / "rootfs"
        for name in ("bin", "dev", "proc", "sys"):
            (rootfs / name).mkdir(parents=True)
        shutil.copy(busybox, rootfs / "bin" / "busybox")

    def id(self, name: str) -> str:
        return f"{self.sandbox}-{name}"

    def run(self, name: str, cpus: CpuSet, command: Sequence[str] = ("sleep", "600")) -> None:
        """Create and start a container that runs a command of busybox; crun calls the hook.
        :raises VmpinError: with what crun printed."""
        bundle = self.directory / self.id(name)
        bundle.mkdir()
        spec = self._spec(name, cpus, command)
        for registration in self._registrations:
            for stage in registration["stages"]:
                spec["hooks"].setdefault(stage, []).append(registration["hook"])
        (bundle / "config.json").write_text(json.dumps(spec, indent=1))
        self._running.append(name)
        self._call("run", "--detach", "--bundle", str(bundle), self.id(name))

    def update(self, name: str, cpus: CpuSet) -> None:
        """Change the cpuset, as the kubelet does through the CRI. No hook is called for this."""
        self._call("update", "--cpuset-cpus", str(cpus), self.id(name))

    def stop(self, name: str) -> None:
        self._call("delete", "--force", self.id(name))
        self._running.remove(name)

    def close(self) -> None:
        for name in list(self._running):
            with contextlib.suppress(VmpinError, OSError):
                self.stop(name)
        self.remove_cgroups()

    def remove_cgroups(self) -> None:
        """Remove the containers' cgroups, with what still runs in them: that of an interrupted crun may have a
        process."""
        # Not Path.glob: it raises FileNotFoundError for a directory that goes meanwhile, as other cgroups do.
        for cgroup in map(Path, glob(f"/sys/fs/cgroup/**/{self.sandbox}-*", recursive=True)):
            for _ in range(100):
                try:
                    for pid in (cgroup / "cgroup.procs").read_text().split():
                        os.kill(int(pid), signal.SIGKILL)
                    cgroup.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.02)

    def _call(self, *args: str) -> None:
        """Run crun. Its output goes to a file, as a pipe would stay open in the container."""
        log = self.directory / "crun.log"
        with log.open("wb") as file:
            try:
                code = children.run(
                    ["unshare", "--mount", "--propagation", "private", "sh", "-c", _WITHOUT_HYBRID, "sh",
                     self._crun, "--root", str(self.directory / "crun"), "--cgroup-manager=cgroupfs", *args],
                    120, stdin=subprocess.DEVNULL, stdout=file, stderr=file, process_group=0)
            except subprocess.TimeoutExpired:
                raise VmpinError(f"crun {args[0]} did not end within 120 s") from None
        if code:
            output = log.read_text("utf-8", "replace").split()
            raise VmpinError(f"crun {args[0]} failed: {' '.join(output)[-400:] or f'exit code {code}'}")

    def _spec(self, name: str, cpus: CpuSet, command: Sequence[str]) -> dict[str, Any]:
        cri = "io.kubernetes.cri."  # the annotations that containerd sets
        # No /proc: neither a sleeping nor a busy process needs it.
        return {
            "ociVersion": "1.0.2", "hooks": {}, "hostname": name, "mounts": [],
            "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["/bin/busybox", *command],
                        "env": ["PATH=/bin"], "noNewPrivileges": True},
            "root": {"path": str(self.directory / "rootfs"), "readonly": True},
            "annotations": {f"{cri}container-type": "container", f"{cri}container-name": name,
                            f"{cri}sandbox-id": self.sandbox, f"{cri}sandbox-name": self._pod,
                            f"{cri}sandbox-namespace": "demo", f"{cri}sandbox-uid": "0000-demo"},
            "linux": {"cgroupsPath": f"/{self.id(name)}", "resources": {"cpu": {"cpus": str(cpus)}},
                      "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")]}}
