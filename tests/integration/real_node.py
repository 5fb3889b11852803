"""A node of one test's own: the real watcher with its own run directory, the command line, containers, hooks.

Discovery is node-wide, so every watcher here looks only at sandboxes whose ids begin with the test's own prefix::

    with Node() as node, Qemu(node.id("a"), vcpus=3) as vm:
        node.configure(node={"shared_pool": "0"})
        node.start()
        node.container(vm.sandbox, "web", "1")       # as a hook would tell of it
        node.wait_for_vcpus(vm.pid, {0: "0", 1: "0", 2: "1"})

What the kernel has is read from /proc here, not with vmpin's own eyes.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from need import lacking, need_root, need_tool

from vmpin.cpuset import CpuSet
from vmpin.host.sysfs import Sysfs
from vmpin.install import base_spec, hook_script, hooks_directory
from vmpin.install.hook_options import DEFAULT_STAGES, HookOptions

#: Seconds for anything to come true. It is there after milliseconds, or a resync; a loaded machine takes longer, and
#: the lab's emulated node much longer.
PATIENCE = 120.0
#: Of its hooks, for the watcher to answer: after the default of 200 ms a busy machine may leave a hook no time for the
#: spool, and its message is lost. A watcher that is not there refuses, or resets, and they spool at once.
_DEADLINE_MS, _TIMEOUT_S = 60_000, 120
COMMAND = [sys.executable, "-m", "vmpin.cli.main"]
#: crun 1.8 refuses hybrid cgroups; in a mount namespace of its own it does not see the v2 part.
_WITHOUT_HYBRID = 'if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi; exec "$@"'
_VCPU = re.compile(r"(?:CPU|fc_vcpu) ([0-9]+)(?:/[A-Z]+)?")


def two_cpus() -> tuple[str, str]:
    """The first two online CPUs, as words."""
    cpus = list(Sysfs().online())
    if len(cpus) < 2:
        lacking("needs two CPUs")
    return str(cpus[0]), str(cpus[1])


@dataclass(frozen=True)
class Seen:
    """A process's threads as /proc has them: masks by vCPU, and those of the others by thread id; names by id."""

    vcpus: dict[int, str]
    others: dict[int, str]
    names: dict[int, str]

    @property
    def other(self) -> set[str]:
        return set(self.others.values())

    def all(self) -> set[str]:
        return {*self.vcpus.values(), *self.others.values()}


def seen(pid: int) -> Seen:
    found = Seen({}, {}, {})
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        tid, name, cpus = int(task.name), fields["Name"].strip(), fields["Cpus_allowed_list"].strip()
        cpus = str(CpuSet.parse(cpus) & Sysfs().online())
        vcpu = _VCPU.fullmatch(name)
        found.names[tid] = name
        if vcpu is not None:
            found.vcpus[int(vcpu[1])] = cpus
        else:
            found.others[tid] = cpus
    return found


def by_tid(pid: int) -> dict[int, frozenset[int]]:
    """The very masks, by thread."""
    found = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            found[int(task)] = frozenset(os.sched_getaffinity(int(task)))
    return found


def kept(pid: int, before: Mapping[int, frozenset[int]]) -> bool:
    """Whether every thread of a process has its mask of then; one that was born since has one of those."""
    now = by_tid(pid)
    return (all(now[tid] == mask for tid, mask in before.items() if tid in now)
            and set(now.values()) <= set(before.values()))


def wait(true: Callable[[], Any], what: Callable[[], object] | str, seconds: float = PATIENCE) -> Any:
    """Until `true()` is, and that; fails with `what`."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.02)
    return found


class Node:
    """See the module. Ends with no process, container, cgroup or file of it left."""

    def __init__(self) -> None:
        need_root()
        self.prefix = f"t{secrets.token_hex(5)}-"
        # Short, whatever TMPDIR is: a socket's path may have 107 bytes.
        self.top = Path(tempfile.mkdtemp(prefix="vmpin-node-", dir="/tmp"))
        self.top.chmod(0o755)
        self.run = self.top / "run"
        self.config = self.top / "vmpin.yaml"
        self.settings: dict[str, dict[str, object]] = {}
        self.watcher: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self.bundles: list[Bundle] = []
        self.cgroups: list[Path] = []
        self.command = COMMAND
        #: Put before the watcher's command line.
        self.wrap: list[str] = []
        self.configure()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if kind is not None:
            print(self.log(), file=sys.stderr)
        self.kill()
        for bundle in self.bundles:
            bundle.clean()
        for cgroup in self.cgroups:
            remove_cgroup(cgroup)
        shutil.rmtree(self.top, ignore_errors=True)

    def id(self, name: str) -> str:
        return self.prefix + name

    def configure(self, **settings: Mapping[str, object]) -> None:
        """Change keys of the configuration file, by section."""
        base: dict[str, dict[str, object]] = {
            "paths": {"run": str(self.run), "kata_go": str(self.top / "vc"), "kata_rs": str(self.top / "kata"),
                      "kubelet": str(self.top / "kubelet"), "nri": str(self.top / "nri.sock")},
            "watch": {"only": f"{self.prefix}*", "resync_seconds": 0.2}, "log": {"level": "info"}}
        for section, keys in [*base.items(), *self.settings.items()]:
            self.settings[section] = {**base.get(section, {}), **keys}
        for section, given in settings.items():
            self.settings[section] = {**self.settings.get(section, {}), **given}
        self.config.write_text(yaml.safe_dump(self.settings))

    @property
    def environment(self) -> dict[str, str]:
        return {key: value for key, value in os.environ.items() if not key.startswith("VMPIN_")}

    # The watcher

    def start(self, wait_until_ready: bool = True, *args: str) -> None:
        assert self.watcher is None
        self._starts += 1
        with (self.top / f"log{self._starts:03}").open("wb") as log:
            self.watcher = subprocess.Popen([*self.wrap, *self.command, "--config", str(self.config), "watch", *args],
                                            env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if wait_until_ready:
            wait(lambda: "watching vms=" in self.last_log() or self.ended(), "the watcher does not start")
            assert self.watcher is not None
            assert self.watcher.poll() is None, self.last_log()

    def ended(self) -> bool:
        return self.watcher is None or self.watcher.poll() is not None

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it; its exit code."""
        assert self.watcher is not None
        self.watcher.send_signal(number)
        code = self.watcher.wait(PATIENCE)
        self.watcher = None
        return code

    def kill(self) -> None:
        if self.watcher is not None:
            self.watcher.kill()
            self.watcher.wait()
            self.watcher = None

    def last_log(self) -> str:
        return (self.top / f"log{self._starts:03}").read_text("utf-8", "replace")

    def log(self) -> str:
        """Of all its starts."""
        return "".join(path.read_text("utf-8", "replace") for path in sorted(self.top.glob("log*")))

    def wait_for_log(self, text: str) -> None:
        wait(lambda: text in self.log(), lambda: f"no {text!r} in\n{self.log()}")

    def _request(self, op: str) -> Any:
        """The running watcher's answer, which it gives between two passes."""
        assert self.watcher is not None
        assert not self.ended(), self.last_log()
        path = self.run / "vmpin.sock"
        if not path.exists():  # the watcher has mounts of its own
            path = Path(f"/proc/{self.watcher.pid}/root{path}")
        return json.loads(talk(path, json.dumps({"op": op}).encode() + b"\n"))

    def resyncs(self, count: int = 3) -> None:
        """Wait until so many resyncs have begun and ended from now on."""
        def made() -> int:
            return int(self._request("about")["passes"].get("resync", 0))

        before = made()
        wait(lambda: made() >= before + count, lambda: f"fewer than {count} resyncs\n{self.log()}")

    # The command line

    def cli(self, *args: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*COMMAND, "--config", str(self.config), *args], env=self.environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, **more)

    def data(self, *args: str, code: int = 0) -> Any:
        """A command's JSON."""
        done = self.cli(*args, "-o", "json")
        assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
        return json.loads(done.stdout)

    def status(self) -> Any:
        """As the running watcher answers it, without the command's own start; else as the command finds it."""
        if not self.ended():
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError, json.JSONDecodeError):
                return self._request("status")
        return self.data("status")

    def sandbox(self, sandbox: str) -> Any:
        """One sandbox's status, None when it is not there."""
        return next((entry for entry in self.status()["sandboxes"] if entry["id"] == sandbox), None)

    # What the kernel has

    def wait_for_vcpus(self, pid: int, vcpus: Mapping[int, str], others: str | None = None) -> None:
        def true() -> bool:
            now = seen(pid)
            return now.vcpus == vcpus and (others is None or now.other == {others})

        wait(true, lambda: f"wanted vCPUs {dict(vcpus)}, others {others}; have {seen(pid)}")

    def wait_for_all(self, pid: int, cpus: str) -> None:
        wait(lambda: seen(pid).all() == {cpus}, lambda: f"wanted every thread on {cpus}; have {seen(pid)}")

    # Hooks

    def options(self, **changes: Any) -> HookOptions:
        return HookOptions(socket=self.run / "hook.sock", spool=self.run / "spool",
                           **{"deadline_ms": _DEADLINE_MS, "timeout_s": _TIMEOUT_S, **changes})

    @property
    def script(self) -> Path:
        script = hook_script.script_path(self.top / "hooks.d")
        if not script.exists():
            hooks_directory.install(self.top / "hooks.d", self.options())
        return script

    def message(self, stage: str, state: object, when: int | None = None) -> bytes:
        raw = state if isinstance(state, bytes) else json.dumps(state).encode()
        return b"vmpin-hook/1 stage=%s time=%d\n" % (stage.encode(), when or time.time_ns()) + raw

    def send(self, raw: bytes) -> bytes:
        return talk(self.run / "hook.sock", raw)

    def hook(self, stage: str, state: object) -> bytes:
        """What the hook sends, by hand; the watcher's answer."""
        return self.send(self.message(stage, state))

    def call_hook(self, stage: str, state: object) -> subprocess.Popen[bytes]:
        """The real hook, as a runtime calls it."""
        argv = self.options().args(stage)
        with tempfile.TemporaryFile() as file:
            file.write(json.dumps(state).encode())
            file.seek(0)
            return subprocess.Popen([self.script, *argv[1:]], stdin=file, env={})

    def bundle(self, container: str, cpus: str | None, annotations: Mapping[str, str] | None = None) -> Path:
        """A bundle that holds nothing but what is read of it."""
        at = self.top / "bundles" / self.id(container)
        at.mkdir(parents=True, exist_ok=True)
        resources = {} if cpus is None else {"cpu": {"cpus": cpus}}
        (at / "config.json").write_text(json.dumps({
            "ociVersion": "1.0.2", "annotations": dict(annotations or {}), "linux": {"resources": resources}}))
        return at

    def state(self, sandbox: str, container: str, bundle: Path, pid: int = 0, **more: object) -> dict[str, object]:
        return {"ociVersion": "1.0.2", "id": self.id(container), "status": "created", "pid": pid,
                "bundle": str(bundle), "annotations": cri(sandbox, container), **more}

    def container(self, sandbox: str, container: str, cpus: str | None, pid: int = 0,
                  exclusive: bool | None = None) -> None:
        """A container in the VM, as the hook tells of it: no process of it is on the host."""
        more = {} if exclusive is None else {"vmpin/exclusive": str(exclusive).lower()}
        state = self.state(sandbox, container, self.bundle(container, cpus), pid)
        state["annotations"] = {**cri(sandbox, container), **more}
        assert self.hook("createRuntime", state) == b"ok\n"

    def gone(self, sandbox: str, container: str) -> None:
        state = self.state(sandbox, container, self.bundle(container, None))
        assert self.hook("poststop", state) == b"ok\n"
        shutil.rmtree(self.top / "bundles" / self.id(container))

    # Real containers

    def real(self, runtime: str, sandbox: str, container: str, cpus: str | None,
             annotations: Mapping[str, str] | None = None, stages: tuple[str, ...] = DEFAULT_STAGES) -> Bundle:
        """A container of a real runtime, whose config.json has the hook in these stages; not yet run."""
        made = Bundle(self, runtime, sandbox, container, cpus, annotations or {}, stages)
        self.bundles.append(made)
        return made

    # Cgroups

    def cpuset_cgroup(self, cpus: str) -> Path:
        """A new cpuset cgroup with these CPUs."""
        name = f"vmpin-test-{self.prefix}{len(self.cgroups)}"
        root = Path("/sys/fs/cgroup")
        if (root / "cpuset" / "cpuset.cpus").exists():
            made = root / "cpuset" / name
        elif "cpuset" in _text(root / "cgroup.subtree_control").split():
            made = root / name
        else:
            lacking("needs a cpuset cgroup hierarchy to write to")
        made.mkdir()
        self.cgroups.append(made)
        (made / "cpuset.cpus").write_text(cpus)
        (made / "cpuset.mems").write_text(_text(made.parent / "cpuset.mems") or "0")
        return made


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
        made = base_spec.with_hook(spec, node.script, node.options(stages=stages))
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
        wrap = [need_tool("unshare"), "-m", "--propagation", "private", "sh", "-c", _WITHOUT_HYBRID, "sh"]
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


def talk(path: Path, raw: bytes, finish: bool = True) -> bytes:
    """Send bytes to a socket of the watcher, and read until it hangs up; b"" if it does so without an answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(path))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(raw)
            if finish:
                connection.shutdown(socket.SHUT_WR)
        parts = []
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(65536):
                parts.append(part)
    return b"".join(parts)


def cgroups(name: str) -> list[Path]:
    """Those of a name, anywhere. Others come and go meanwhile, which Path.glob fails at in Python before 3.13."""
    return [Path(found) for found in glob.glob(f"/sys/fs/cgroup/**/{name}", recursive=True)]


def remove_cgroup(cgroup: Path) -> None:
    """With whatever is left in it moved to its parent."""
    deadline = time.monotonic() + PATIENCE
    while cgroup.exists() and time.monotonic() < deadline:
        for pid in _text(cgroup / "cgroup.procs").split():
            with contextlib.suppress(OSError):
                (cgroup.parent / "cgroup.procs").write_text(pid)
        with contextlib.suppress(OSError):
            cgroup.rmdir()
            return
        time.sleep(0.02)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def union(cpus: Iterable[str]) -> str:
    found = CpuSet()
    for each in cpus:
        found |= CpuSet.parse(each)
    return str(found)
