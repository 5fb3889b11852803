"""A container of a real crun or runc, with vmpin's hook in its config.json, and its cgroups."""

from __future__ import annotations

import contextlib
import glob
import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from need import lacking, need_tool, need_unshare
from waiting import PATIENCE

from vmpin.features.installer import oci_hook

if TYPE_CHECKING:
    from real_node import Node


#: crun 1.8 refuses hybrid cgroups; in a mount namespace of its own it does not see the v2 part.
_WITHOUT_HYBRID = 'if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi; exec "$@"'


class Bundle:
    """One container of a real crun or runc."""

    def __init__(self, node: Node, runtime: str, sandbox: str, container: str, cpus: str | None,
                 annotations: Mapping[str, str], stages: tuple[str, ...]) -> None:
        self.node = node
        self.id = node.id(container)
        self.at = node.top / "real" / self.id
        self.cgroup = f"vmpin-test-{self.id}"
        self._runtime = [need_tool(runtime), "--root", str(node.top / runtime)]
        rootfs = self.at / "rootfs"
        for name in ("bin", "dev", "proc", "sys"):
            (rootfs / name).mkdir(parents=True)
        busybox = need_tool("busybox")
        shutil.copy(busybox, rootfs / "bin" / "busybox")
        if subprocess.run([need_tool("chroot"), rootfs, "/bin/busybox", "true"], capture_output=True).returncode:
            lacking("needs a static busybox (busybox-static)")
        spec = {
            "ociVersion": "1.0.2",
            "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["/bin/busybox", "sleep", "3600"],
                        "env": ["PATH=/bin"], "noNewPrivileges": True},
            "root": {"path": "rootfs", "readonly": False},
            "hostname": "test",
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc",
                        "options": ["nosuid", "noexec", "nodev", "ro"]}],
            "annotations": {**cri(sandbox, container), **annotations},
            "linux": {"cgroupsPath": f"/{self.cgroup}",
                      "resources": {} if cpus is None else {"cpu": {"cpus": cpus}},
                      "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")],
                      "maskedPaths": ["/proc/sysrq-trigger", "/proc/kcore"], "readonlyPaths": ["/proc/sys"]},
        }
        made = oci_hook.with_hook(spec, node.script, node.options(stages=stages))
        (self.at / "config.json").write_text(json.dumps(made))

    def run(self) -> None:
        """Create and start it; the hook runs on the way."""
        self._call("run", "--detach", "--bundle", str(self.at), self.id)

    def update(self, cpus: str) -> None:
        self._call("update", "--cpuset-cpus", cpus, self.id)

    def delete(self) -> None:
        self._call("delete", "--force", self.id)

    @property
    def pid(self) -> int:
        return int(json.loads(self._call("state", self.id))["pid"])

    def clean(self) -> None:
        with contextlib.suppress(AssertionError):
            self.delete()
        for cgroup in cgroups(self.cgroup):
            remove_cgroup(cgroup)

    def _call(self, *args: str) -> str:
        """In a mount namespace of its own. The output goes to a file: a container would keep a pipe open."""
        log = self.at / f"{args[0]}.log"
        wrap = [*need_unshare("-m", "--propagation", "private"), "sh", "-c", _WITHOUT_HYBRID, "sh"]
        with log.open("wb") as file:
            done = subprocess.run([*wrap, *self._runtime, *args], stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                  timeout=120)
        assert done.returncode == 0, f"{self._runtime[0]} {args[0]}: {log.read_text()}"
        return log.read_text()


def cri(sandbox: str, container: str, pod: str = "pod") -> dict[str, str]:
    """Annotations as containerd gives them."""
    found = {"container-type": "container", "container-name": container, "sandbox-id": sandbox,
             "sandbox-name": pod, "sandbox-namespace": "tests", "sandbox-uid": "11-22"}
    return {f"io.kubernetes.cri.{key}": value for key, value in found.items()}


def cgroups(name: str) -> list[Path]:
    """Those of a name, anywhere. Others come and go meanwhile, which Path.glob fails at in Python before 3.13."""
    return [Path(found) for found in glob.glob(f"/sys/fs/cgroup/**/{name}", recursive=True)]


def remove_cgroup(cgroup: Path) -> None:
    """With whatever is left in it moved to its parent."""
    deadline = time.monotonic() + PATIENCE
    while cgroup.exists() and time.monotonic() < deadline:
        for pid in stripped_text(cgroup / "cgroup.procs").split():
            with contextlib.suppress(OSError):
                (cgroup.parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            cgroup.rmdir()
            return
        time.sleep(0.02)


def stripped_text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
