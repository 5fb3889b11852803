"""The node around the machines: a run directory, Kata's files, container bundles, hook messages and a real watcher.

Everything lies below one new directory, so that nothing of a vmpin at work on this machine is touched, and it is
removed at the end. The machine's CPUs are the lowest (the shared pool) and the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from measure import CannotMeasure, environment
from vms import PREFIX, Machine

from vmpin.config import loading as config
from vmpin.config.settings import Config

_UID = "6f4c1b7a-9f0e-4a7c-9d7c-3a7f7d1e2b10"


def cpus() -> tuple[int, int]:
    """The CPU that is the shared pool, and one more."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise CannotMeasure("needs two CPUs: with one no mask ever changes")
    return usable[0], usable[1]


@dataclass(frozen=True)
class Node:
    """`path` is the directory everything lies in, `command` the vmpin command that is measured."""

    path: Path
    command: Path

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def file(self) -> Path:
        return self.path / "vmpin.yaml"

    def command_line(self, verb: str, *more: str) -> list[str]:
        return [str(self.command), verb, "--config", str(self.file), *more]

    def config(self) -> Config:
        """For a reconciler in this process."""
        self.run.mkdir(exist_ok=True)
        return config.load(self.file, {}, {})

    def write_config(self) -> None:
        """The rest is the default: /proc, /sys and the cgroups are the machine's."""
        self.file.write_text(f"paths:\n  run: {self.run}\n  kata_go: {self.path}/vc\n  kata_rs: {self.path}/kata\n"
                             f"  nri: {self.path}/nri.sock\n  kubelet: {self.path}/kubelet\n"
                             f"node:\n  shared_pool: {cpus()[0]}\nwatch:\n  only: {PREFIX}*\n")

    def forget(self) -> None:
        """A run directory as after a boot."""
        shutil.rmtree(self.run, ignore_errors=True)

    def forget_kata(self) -> None:
        """What `write_kata` made."""
        shutil.rmtree(self.path / "vc", ignore_errors=True)


@contextlib.contextmanager
def node(command: Path) -> Iterator[Node]:
    # As /run on a node: memory. A disk's fsync would be measured with every state file.
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix=f"vmpin-bench-{PREFIX}-", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        made = Node(path, command)
        made.write_config()
        yield made
    finally:
        shutil.rmtree(path)


def write_kata(made: Node, machines: Sequence[Machine], uids: Mapping[str, str] | None = None) -> None:
    """What Kata's Go runtime has on disk: per sandbox the pause container, and one that shares its CPUs.
    :param uids: the pods' by sandbox; without it all have the same."""
    for machine in machines:
        sandbox = machine.sandbox
        directory = made.path / "vc" / "sbs" / sandbox
        container = container_of(sandbox)
        uid = (uids or {}).get(sandbox, _UID)
        configs = [{"ID": name, "Annotations": _annotations(sandbox, kind, uid), "Resources": {"cpu": {"cpus": text}}}
                   for name, kind, text in ((sandbox, "sandbox", ""), (container, "container", str(cpus()[0])))]
        for name in (sandbox, container):
            (directory / name).mkdir(parents=True)
            (directory / name / "persist.json").write_text(json.dumps({"State": "running"}))
        (directory / "persist.json").write_text(json.dumps({
            "SandboxContainer": sandbox, "State": "running", "Config": {"ContainerConfigs": configs},
            "HypervisorState": {"Pid": machine.pid, "Type": "qemu", "VirtiofsDaemonPid": 0}}))


def container_of(sandbox: str) -> str:
    return sandbox[::-1]


def _annotations(sandbox: str, kind: str, uid: str) -> dict[str, str]:
    return {"io.kubernetes.cri.container-name": "server", "io.kubernetes.cri.container-type": kind,
            "io.kubernetes.cri.image-name": "registry.example.org/shop/server:1.18.2",
            "io.kubernetes.cri.sandbox-id": sandbox, "io.kubernetes.cri.sandbox-name": f"server-{sandbox[:5]}",
            "io.kubernetes.cri.sandbox-namespace": "shop",
            "io.kubernetes.cri.sandbox-uid": uid,
            "io.kubernetes.cri.sandbox-cpu-period": "100000", "io.kubernetes.cri.sandbox-cpu-quota": "400000",
            "io.kubernetes.cri.sandbox-cpu-shares": "4096", "io.kubernetes.cri.sandbox-memory": "8589934592",
            "io.kubernetes.cri.sandbox-log-directory":
                f"/var/log/pods/shop_server-{sandbox[:5]}_{uid}",
            "io.katacontainers.pkg.oci.bundle_path": f"/run/containerd/io.containerd.runtime.v2.task/k8s.io/{sandbox}"}


class Bundle:
    """A container's OCI bundle of one sandbox, and what a runtime says of it to the hook."""

    def __init__(self, made: Node, machine: Machine, uid: str = "") -> None:
        self.machine, self._uid = machine, uid or _UID
        self.container = container_of(machine.sandbox)
        self.path = made.path / "k8s.io" / self.container
        self.path.mkdir(parents=True, exist_ok=True)

    def write(self, cpu_list: str) -> None:
        """config.json, as long as containerd's: some 12 kB."""
        annotations = _annotations(self.machine.sandbox, "container", self._uid)
        mounts = [{"destination": f"/var/run/volume-{number}", "type": "bind", "options": ["rbind", "rprivate", "rw"],
                   "source": f"/var/lib/kubelet/pods/6f4c1b7a/volumes/kubernetes.io~projected/volume-{number}"}
                  for number in range(24)]
        seccomp = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [
            {"names": [f"syscall_{number}" for number in range(360)], "action": "SCMP_ACT_ALLOW"}]}
        devices = [{"allow": True, "type": "c", "major": 1, "minor": minor, "access": "rwm"} for minor in range(16)]
        (self.path / "config.json").write_text(json.dumps({
            "ociVersion": "1.1.0", "process": {"args": ["/server"], "env": ["PATH=/bin"] * 8, "cwd": "/"},
            "root": {"path": "rootfs"}, "mounts": mounts, "annotations": annotations, "linux": {
                "resources": {"devices": devices, "cpu": {"shares": 4096, "cpus": cpu_list}}, "seccomp": seccomp}}))

    def state(self) -> bytes:
        return json.dumps({"ociVersion": "1.1.0", "id": self.container, "status": "creating", "pid": self.machine.pid,
                           "bundle": str(self.path),
                           "annotations": _annotations(self.machine.sandbox, "container", self._uid)}).encode()

    def message(self) -> bytes:
        """What the hook sends to the watcher."""
        times = time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return b"vmpin-hook/1 stage=createRuntime time=%d boot=%d\n" % times + self.state()


class Watcher:
    """A real `vmpin watch`. `placed_ms` is the time from its spawn (at `began`, by time.perf_counter) until it says
    that all is placed, which it says before it loads what it needs to serve; `ready_ms` the time until then (READY=1).
    `wrap` is put before its command line."""

    def __init__(self, made: Node, *flags: str, wrap: Sequence[str] = ()) -> None:
        if not made.command.exists():
            raise CannotMeasure(f"needs the vmpin command (no {made.command})")
        self.node = made
        self.began = self.placed_ms = self.ready_ms = 0.0
        self._argv = [*wrap, *made.command_line("watch", *flags)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Watcher:
        log = self.node.path / "watch.log"
        address = str(self.node.path / "notify")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified, log.open("wb") as out:
            notified.bind(address)
            notified.settimeout(600)
            env = environment(NOTIFY_SOCKET=address)
            self.began = time.perf_counter()
            self._process = subprocess.Popen(self._argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            try:
                while b"READY=1" not in (said := notified.recv(4096)):
                    if b"STATUS=placed" in said:
                        self.placed_ms = (time.perf_counter() - self.began) * 1000
                self.ready_ms = (time.perf_counter() - self.began) * 1000
            except OSError:
                self.__exit__()
                raise CannotMeasure(f"the watcher was not ready in time: {log.read_text()[-500:]}") from None
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(120)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)


def cpu_seconds(pid: int) -> float:
    """What a process has used of CPUs, by its own clock: exact, where stat counts in steps of 10 ms.

    The number is MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of the kernel, what clock_getcpuclockid(3) gives.
    """
    return time.clock_gettime(~pid << 3 | 2)


def resident_mib(pid: int, key: str = "VmRSS") -> float:
    """:param key: VmHWM for the most that it ever was."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / 1024
    raise CannotMeasure(f"process {pid} has ended")
