"""The hook under real runtimes: runc and crun by their bundle, podman by its hooks directory.

A second hook (tee) beside ours writes down what the runtime said, so "verbatim" is compared and not assumed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from machine_wide import alone_with
from need import lacking, need_root, need_tool, need_unshare

from vmpin.features.installer import file_operations, oci_hook
from vmpin.features.installer.oci_hook import HookOptions

pytestmark = pytest.mark.root

#: startContainer runs inside the container's root file system, where the hook is not.
HOST_STAGES = ("prestart", "createRuntime", "createContainer", "poststart", "poststop")
#: crun 1.8 refuses hybrid cgroups; runc and podman do not mind that the v2 part is out of sight.
WITHOUT_HYBRID = 'if mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi; exec "$@"'
#: For a watcher that answers, however busy the machine is, and for one that never will.
DEADLINE_MS = 60_000
MUTE_MS = 300


@dataclass
class Collector:
    """A watcher that records what it receives, and answers `answer`, or nothing at all."""

    listener: socket.socket
    answer: bytes | None
    messages: list[bytes] = field(default_factory=list)
    held: list[socket.socket] = field(default_factory=list)

    def serve(self) -> None:
        with contextlib.suppress(OSError):  # the listener was shut down
            while True:
                connection, _ = self.listener.accept()
                self.held.append(connection)
                parts = []
                while part := connection.recv(65536):
                    parts.append(part)
                if self.answer is not None:
                    connection.sendall(self.answer)
                    connection.shutdown(socket.SHUT_RDWR)
                self.messages.append(b"".join(parts))


@contextlib.contextmanager
def listening(path: Path, answer: bytes | None = b"ok\n") -> Iterator[Collector]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        collector = Collector(listener, answer)
        thread = threading.Thread(target=collector.serve)
        thread.start()
        try:
            yield collector
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for each in collector.held:
                each.close()


def by_stage(messages: list[bytes]) -> dict[str, bytes]:
    """The state by stage, each of which came once."""
    found: dict[str, bytes] = {}
    for message in messages:
        header, _, state = message.partition(b"\n")
        version, stage, *_ = header.decode().split()
        assert version == "vmpin-hook/1"
        assert found.setdefault(stage.removeprefix("stage="), state) is state
    return found


@dataclass(frozen=True)
class Machine:
    """Where one test has its container, its hook and its socket; `name` is used by no other test."""

    top: Path
    name: str

    @property
    def socket(self) -> Path:
        return self.top / "s"

    @property
    def spool(self) -> Path:
        return self.top / "spool"

    @property
    def hooks_dir(self) -> Path:
        return self.top / "hooks.d"

    @property
    def rootfs(self) -> Path:
        return self.top / "bundle" / "rootfs"

    def options(self, deadline_ms: int = DEADLINE_MS, **changes: Any) -> HookOptions:
        return HookOptions(socket=self.socket, spool=self.spool, deadline_ms=deadline_ms, timeout_s=120, **changes)

    def spooled(self) -> list[bytes]:
        return [each.read_bytes() for each in sorted(self.spool.iterdir())] if self.spool.exists() else []

    def run(self, *argv: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """In a mount namespace of its own. The output goes to a file: a container left behind keeps no pipe open."""
        wrap = [*need_unshare("-m", "--propagation", "private"), "sh", "-c", WITHOUT_HYBRID, "sh"]
        log = self.top / f"{uuid.uuid4().hex}.log"
        with log.open("wb") as file:
            done = subprocess.run([*wrap, *argv], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                  timeout=timeout)
        return subprocess.CompletedProcess(argv, done.returncode, log.read_text())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    need_root()
    need_tool("/usr/bin/python3")
    made = Machine(tmp_path, f"vmpin-test-{uuid.uuid4().hex[:12]}")
    (made.rootfs / "bin").mkdir(parents=True)
    shutil.copy(need_tool("busybox"), made.rootfs / "bin" / "busybox")
    if subprocess.run([need_tool("chroot"), made.rootfs, "/bin/busybox", "true"], capture_output=True).returncode:
        lacking("needs a static busybox (busybox-static)")
    return made


class Runtime:
    """runc or crun, with one container that says so and ends."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine = machine
        self.argv = [need_tool(name), "--root", str(machine.top / "state")]
        self.witness = machine.top / "witness"
        self.witness.mkdir()

    def spec(self, options: HookOptions) -> None:
        """A bundle whose hooks are ours, each after a tee that keeps the state the runtime gave."""
        bundle = self.machine.rootfs.parent
        config = bundle / "config.json"
        config.unlink(missing_ok=True)
        subprocess.run([self.argv[0], "spec"], cwd=bundle, check=True, capture_output=True, timeout=120)
        spec = json.loads(config.read_text())
        spec["process"]["terminal"] = False
        spec["process"]["args"] = ["/bin/busybox", "echo", "alive"]
        spec["process"].pop("rlimits", None)  # raising one needs CAP_SYS_RESOURCE
        spec["linux"]["cgroupsPath"] = f"/{self.machine.name}"
        spec["annotations"] = {"org.example.note": "ü \U0001f600"}
        spec["hooks"] = {stage: [{"path": need_tool("tee"), "args": ["tee", str(self.witness / stage)]}]
                         for stage in options.stages}
        script = oci_hook.script_path(self.machine.hooks_dir)
        config.write_text(json.dumps(oci_hook.with_hook(spec, script, options)))

    def run(self) -> subprocess.CompletedProcess[str]:
        return self.machine.run(*self.argv, "run", "--bundle", str(self.machine.rootfs.parent), self.machine.name)

    def delete(self) -> None:
        self.machine.run(*self.argv, "delete", "--force", self.machine.name)
        for cgroup in Path("/sys/fs/cgroup").glob(f"*/{self.machine.name}"):
            with contextlib.suppress(OSError):
                cgroup.rmdir()


@pytest.fixture(params=["runc", "crun"])
def runtime(request: pytest.FixtureRequest, machine: Machine) -> Iterator[Runtime]:
    made = Runtime(machine, request.param)
    options = machine.options(stages=HOST_STAGES)
    file_operations.execute(oci_hook.plan_install(machine.hooks_dir, options))
    made.spec(options)
    yield made
    made.delete()


def assert_ran(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, "alive" in done.stdout) == (0, True), done.stdout


def test_every_stage_arrives_with_the_state_as_the_runtime_gave_it(runtime: Runtime) -> None:
    with listening(runtime.machine.socket) as watcher:
        assert_ran(runtime.run())
    states = by_stage(watcher.messages)
    assert list(states) == list(HOST_STAGES)
    for stage, state in states.items():
        assert state == (runtime.witness / stage).read_bytes()
        given = json.loads(state)
        assert (given["id"], given["bundle"]) == (runtime.machine.name, str(runtime.machine.rootfs.parent))
    assert json.loads(states["createRuntime"])["pid"] > 0
    assert json.loads(states["poststop"])["status"] == "stopped"
    assert runtime.machine.spooled() == []


def test_a_container_starts_and_the_spool_fills_while_the_watcher_is_away(runtime: Runtime) -> None:
    assert_ran(runtime.run())
    states = by_stage(runtime.machine.spooled())
    assert list(states) == list(HOST_STAGES)
    assert all(state == (runtime.witness / stage).read_bytes() for stage, state in states.items())


def test_a_container_starts_while_the_watcher_is_mute(runtime: Runtime) -> None:
    runtime.spec(runtime.machine.options(MUTE_MS, stages=HOST_STAGES))

    def all_kept() -> bool:
        """After its deadline a hook has 20 ms for the spool, which a busy machine may take from it."""
        shutil.rmtree(runtime.machine.spool, ignore_errors=True)
        start = time.monotonic()
        assert_ran(runtime.run())
        assert time.monotonic() - start >= len(HOST_STAGES) * MUTE_MS / 1000
        return list(by_stage(runtime.machine.spooled())) == list(HOST_STAGES)

    with listening(runtime.machine.socket, answer=None):
        assert any(all_kept() for _ in range(30)), runtime.machine.spooled()


def test_a_container_starts_when_the_hook_goes_wrong(runtime: Runtime) -> None:
    script = oci_hook.script_path(runtime.machine.hooks_dir)
    sound = script.read_text()
    broken = sound.replace("    body = read_state()\n", "    raise RuntimeError('broken')\n")
    assert broken != sound
    script.write_text(broken)
    with listening(runtime.machine.socket) as watcher:
        assert_ran(runtime.run())
    assert (watcher.messages, runtime.machine.spooled()) == ([], [])


def test_a_container_the_watcher_refuses_starts_all_the_same(runtime: Runtime) -> None:
    with listening(runtime.machine.socket, b"refused: no\n"):
        assert_ran(runtime.run())
    assert runtime.machine.spooled() == []


def test_fail_closed_keeps_a_container_from_starting_while_the_watcher_is_away(runtime: Runtime) -> None:
    runtime.spec(runtime.machine.options(stages=("createRuntime",), fail_closed=True))
    done = runtime.run()
    assert done.returncode != 0
    assert "alive" not in done.stdout
    with listening(runtime.machine.socket):
        assert_ran(runtime.run())


class Podman:
    """podman with every directory its own, and no network, image or rlimit to need more than a test has."""

    def __init__(self, machine: Machine, top: str) -> None:
        self.machine = machine
        # The default lock is one shared memory object for the whole machine, and stays.
        config = Path(top, "containers.conf")
        config.write_text('[engine]\nlock_type = "file"\n')
        self.argv = ["env", f"CONTAINERS_CONF={config}", need_tool("podman"),
                     *(f"--{name}={top}/{name}" for name in ("root", "runroot", "tmpdir")),
                     "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none",
                     f"--runtime={need_tool('crun', 'runc')}", f"--hooks-dir={machine.hooks_dir}"]
        need_tool("conmon")

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.machine.run(*self.argv, *args)

    def container(self) -> None:
        """Run one to its end and remove it: then every stage is over."""
        started = self.run("run", "-d", "--name", self.machine.name, "--network=none", "--cgroups=disabled",
                           "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096", "--rootfs",
                           str(self.machine.rootfs), "/bin/busybox", "echo", "alive")
        assert started.returncode == 0, started.stdout
        assert self.run("wait", self.machine.name).stdout == "0\n"
        assert "alive" in self.run("logs", self.machine.name).stdout
        assert self.run("rm", self.machine.name).returncode == 0


@pytest.fixture
def podman(machine: Machine) -> Iterator[Podman]:
    file_operations.execute(oci_hook.plan_install(machine.hooks_dir, machine.options()))
    # tmp_path is too long: podman takes a runroot of 50 characters at most.
    # Its crun keeps a container's state in /run/crun, where another test may look for what is left.
    with alone_with("crun"), tempfile.TemporaryDirectory(prefix="vmpin-") as top:
        made = Podman(machine, top)
        yield made
        made.run("rm", "--force", "--ignore", "--time=0", machine.name)


def test_podman_runs_what_is_in_the_hooks_directory(podman: Podman) -> None:
    with listening(podman.machine.socket) as watcher:
        podman.container()
    states = by_stage(watcher.messages)
    assert sorted(states) == sorted(oci_hook.DEFAULT_STAGES)
    assert len({json.loads(state)["id"] for state in states.values()}) == 1
    assert podman.machine.spooled() == []


def test_podman_starts_containers_while_the_watcher_is_away(podman: Podman) -> None:
    podman.container()
    assert sorted(by_stage(podman.machine.spooled())) == sorted(oci_hook.DEFAULT_STAGES)


def test_podman_starts_containers_while_the_watcher_is_mute(podman: Podman) -> None:
    file_operations.execute(oci_hook.plan_install(podman.machine.hooks_dir, podman.machine.options(MUTE_MS)))

    def all_kept() -> bool:
        """As above."""
        shutil.rmtree(podman.machine.spool, ignore_errors=True)
        podman.container()
        return sorted(by_stage(podman.machine.spooled())) == sorted(oci_hook.DEFAULT_STAGES)

    with listening(podman.machine.socket, answer=None):
        assert any(all_kept() for _ in range(30)), podman.machine.spooled()


def test_podman_no_longer_knows_of_a_hook_that_was_removed(podman: Podman) -> None:
    file_operations.execute(oci_hook.plan_remove(podman.machine.hooks_dir))
    assert os.listdir(podman.machine.hooks_dir) == []
    with listening(podman.machine.socket) as watcher:
        podman.container()
    assert (watcher.messages, podman.machine.spooled()) == ([], [])
