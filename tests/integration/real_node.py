"""A node of one test's own: the real watcher with its own run directory, the command line, containers, hooks.

Discovery is node-wide, so every watcher here looks only at sandboxes whose ids begin with the test's own prefix::

    with Node() as node, Qemu(node.id("a"), vcpus=3) as vm:
        node.configure(node={"shared_pool": "0"})
        node.start()
        node.container(vm.sandbox, "web", "1")       # as a hook reports it
        node.wait_for_vcpus(vm.pid, {0: "0", 1: "0", 2: "1"})

What the kernel has is read from /proc here, not with vmpin's own eyes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from documents import checked_output
from named_lines import nameless
from need import lacking, need_root
from process_masks import seen
from runtime_bundle import Bundle, cri, remove_cgroup, stripped_text
from waiting import PATIENCE, wait

from vmpin.features.installer import file_operations, oci_hook
from vmpin.features.installer.oci_hook import DEFAULT_STAGES, HookOptions
from vmpin.host import boottime

#: Of its hooks, for the watcher to answer: after the default of 200 ms a busy machine may leave a hook no time for the
#: spool, and its message is lost. A watcher that is not there refuses, or resets, and they spool at once.
_DEADLINE_MS, _TIMEOUT_S = 60_000, 120
COMMAND = [sys.executable, "-m", "vmpin.cli.main"]


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
        lines = [line for path in self.top.glob("log*") for line in nameless(path.read_text("utf-8", "replace"))]
        shutil.rmtree(self.top, ignore_errors=True)
        assert kind is not None or lines == [], "\n".join(("these lines name no pod:", *lines))

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

    def cli(self, *args: str, wrap: Sequence[str] = (), **more: Any) -> subprocess.CompletedProcess[str]:
        """:param wrap: put before the command line."""
        done = subprocess.run([*wrap, *COMMAND, "--config", str(self.config), *args], env=self.environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, **more)
        checked_output(args, done.stdout)
        return done

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

    def lines(self, count: int, *args: str) -> list[str]:
        """The first lines of a command that prints until it is ended."""
        with subprocess.Popen([*COMMAND, "--config", str(self.config), *args], env=self.environment, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as printing:
            assert printing.stdout is not None
            found = [printing.stdout.readline() for _ in range(count)]
            printing.terminate()
        return found

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
        script = oci_hook.script_path(self.top / "hooks.d")
        if not script.exists():
            file_operations.execute(oci_hook.plan_install(self.top / "hooks.d", self.options()))
        return script

    def message(self, stage: str, state: object) -> bytes:
        raw = state if isinstance(state, bytes) else json.dumps(state).encode()
        return b"vmpin-hook/1 stage=%s boot=%d\n" % (stage.encode(), boottime.now()) + raw

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
        """A container in the VM, as the hook reports it: no process of it is on the host."""
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
        elif "cpuset" in stripped_text(root / "cgroup.subtree_control").split():
            made = root / name
        else:
            lacking("needs a cpuset cgroup hierarchy to write to")
        made.mkdir()
        self.cgroups.append(made)
        (made / "cpuset.cpus").write_text(cpus)
        (made / "cpuset.mems").write_text(stripped_text(made.parent / "cpuset.mems") or "0")
        return made


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
