"""The agent as the one file it is shipped as: what is in it, its sessions with a host, and an old Python."""

from __future__ import annotations

import ast
import contextlib
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
import tomllib
import tty
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from guest_tree import fill, worker, write
from lab import cache, rootfs
from lab.errors import LabError
from need import lacking, need_root, need_tool

import vmpin_agent
from vmpin.cli.main import main
from vmpin.install import agent_zipapp
from vmpin.protocol.frames import FrameDecoder, encode
from vmpin.protocol.messages import (
    AgentMessage,
    Applied,
    ContainerVcpus,
    Failure,
    HostMessage,
    Inventory,
    InventoryRequest,
    NeedMap,
    Ping,
    Pong,
    Subscribe,
    VcpuMap,
    as_json,
)
from vmpin.protocol.parsing import parse_answer
from vmpin_agent import server

ROOT = Path(__file__).parents[3]
PATIENCE = 120.0


class Host:
    """The host's end of a stream."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._decoder = FrameDecoder()
        self._said: list[AgentMessage] = []

    def send(self, raw: bytes | HostMessage) -> None:
        os.write(self.fd, raw if isinstance(raw, bytes) else encode(as_json(raw)))

    def hear(self, seconds: float = PATIENCE) -> AgentMessage | None:
        """The next message; None at the end of the stream. :raises TimeoutError:"""
        deadline = time.monotonic() + seconds
        while not self._said:
            if not select.select([self.fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError
            try:
                data = os.read(self.fd, 1 << 16)
            except (ConnectionResetError, OSError):
                return None
            if not data:
                return None
            self._said += [parse_answer(each) for each in self._decoder.feed(data)]
        return self._said.pop(0)

    def ask(self, request: HostMessage) -> AgentMessage | None:
        self.send(request)
        return self.hear()


class Running:
    """The agent in a process of its own."""

    def __init__(self, tmp: Path, command: list[str], *arguments: str) -> None:
        self.socket = str(tmp / "agent.sock")
        self._argv = [*command, "--vsock-port", "0", "--unix", self.socket, "--cgroup", str(tmp / "cgroup"),
                      "--run", str(tmp / "run"), *(arguments or ("--serial", ""))]
        self.start()

    def start(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket)
        self.process = subprocess.Popen(self._argv, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE
        while not os.path.exists(self.socket):
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)

    @contextlib.contextmanager
    def host(self) -> Iterator[Host]:
        with socket.socket(socket.AF_UNIX) as line:
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    line.connect(self.socket)
                    break
                except ConnectionRefusedError:  # bound, and about to listen
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            yield Host(line.fileno())

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def status(self, key: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{key}:")))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pyz") / "vmpin-agent.pyz"
    assert main(["guest", "build", "-o", str(path)]) == 0
    return path


Start = Callable[..., Running]


@pytest.fixture
def start(built: Path, tmp_path: Path) -> Iterator[Start]:
    made: list[Running] = []

    def run(*arguments: str) -> Running:
        write(tmp_path / "cgroup", {"cgroup.controllers": "memory"})
        made.append(Running(tmp_path, [sys.executable, "-IS", str(built)], *arguments))
        return made[-1]

    yield run
    for each in made:
        each.stop()


# The file


def test_the_file_holds_what_it_should_and_is_small(built: Path) -> None:
    with zipfile.ZipFile(built) as archive:
        assert tuple(archive.namelist()) == agent_zipapp.NAMES
        assert archive.read("vmpin/protocol/parsing.py") == (ROOT / "vmpin/protocol/parsing.py").read_bytes()
        assert archive.read("vmpin/__init__.py") == b""
    assert {f"{path.stem}" for path in (ROOT / "guest/vmpin_agent").glob("*.py")} == set(agent_zipapp.AGENT)
    assert built.stat().st_size < 100_000
    assert built.stat().st_mode & 0o777 == 0o755
    assert built.read_bytes().startswith(b"#!/usr/bin/python3 -IS\n")


def test_the_same_sources_give_the_same_bytes(built: Path) -> None:
    assert agent_zipapp.packed() == built.read_bytes()


@pytest.mark.parametrize("name", [name for name in agent_zipapp.NAMES if name != "__main__.py"])
def test_it_needs_the_standard_library_of_python_3_9_alone(name: str) -> None:
    source = ROOT / ("guest" if name.startswith("vmpin_agent") else "") / name
    tree = ast.parse(source.read_bytes(), feature_version=(3, 9))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    for node in (each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)):
        of = node.module or ""
        imported |= {f"{of}.{alias.name}" for alias in node.names} if of in ("vmpin", "vmpin.protocol") else {of}
    ours = {each for each in imported if each.partition(".")[0] in ("vmpin", "vmpin_agent")}
    assert {each.partition(".")[0] for each in imported - ours} <= sys.stdlib_module_names
    assert {f"{each.replace('.', '/')}.py" for each in ours if "." in each} <= set(agent_zipapp.NAMES)


def test_the_agent_is_of_this_version() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == vmpin_agent.VERSION


def test_it_says_what_it_finds_and_its_options(built: Path) -> None:
    for option, wanted in {"--help": "--serial", "--version": vmpin_agent.VERSION, "--once": '"inventory"'}.items():
        ran = subprocess.run([sys.executable, "-IS", built, option], capture_output=True, text=True, timeout=120)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert wanted in ran.stdout


# Sessions


def test_a_session(start: Start, tmp_path: Path) -> None:
    agent = start()
    with worker() as one, agent.host() as host:
        fill(tmp_path / "cgroup/a", one)
        assert host.hear() == NeedMap()
        assert isinstance(host.ask(Ping(1)), Pong)
        assert isinstance(host.ask(InventoryRequest(2)), Inventory)
        told = host.ask(VcpuMap(3, 1, "pod", {"a": ContainerVcpus((0,))}))
        assert isinstance(told, Applied)
        assert (told.id, told.containers["a"].state) == (3, "applied")
        assert one.masks() == {"0"}
        host.send(encode({"v": 1, "type": "dance", "id": 4}))
        assert host.hear() == Failure(4, "unknown message")
        host.send(encode({"v": 7, "type": "ping", "id": 5}))
        assert host.hear() == Failure(5, "the message is of version 7 of the protocol, this end speaks 1")
        with agent.host() as second:
            assert isinstance(second.ask(Ping(1)), Pong)  # it has a map, so it asks for none


def test_of_maps_that_come_together_the_newest_is_applied(start: Start, tmp_path: Path) -> None:
    agent = start()
    with worker() as one, agent.host() as host:
        fill(tmp_path / "cgroup/a", one)
        assert host.hear() == NeedMap()
        maps = [VcpuMap(number, number, "pod", {"a": ContainerVcpus((number % 2,))}) for number in range(1, 10)]
        host.send(b"".join(encode(as_json(each)) for each in maps))
        told = [host.hear() for _ in maps]
        assert {each.id for each in told if isinstance(each, Applied)} == set(range(1, 10))
        assert isinstance(told[-1], Applied)
        assert told[-1].generation == 9
        assert one.masks() == {"1"}


def test_an_agent_that_was_killed_asks_for_the_map(start: Start, tmp_path: Path) -> None:
    agent = start()
    with worker() as one:
        fill(tmp_path / "cgroup/a", one)
        with agent.host() as host:
            host.hear()
            host.ask(VcpuMap(1, 9, "pod", {"a": ContainerVcpus((1,))}))
        agent.stop()
        assert one.masks() == {"1"}
        agent.start()
        with agent.host() as host:
            assert host.hear() == NeedMap()
        agent.process.send_signal(signal.SIGTERM)
        assert agent.process.wait(PATIENCE) == 0
        assert one.masks() == {"1"}


@pytest.mark.parametrize("raw", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 8, b"\x00\x00\x00\x02[]"])
def test_garbage_ends_a_connection_and_no_other(start: Start, raw: bytes) -> None:
    agent = start()
    with agent.host() as good, agent.host() as bad:
        assert bad.hear() == good.hear() == NeedMap()
        bad.send(raw)
        assert bad.hear() is None
        assert isinstance(good.ask(Ping(1)), Pong)


def test_a_host_that_never_reads_is_dropped(start: Start) -> None:
    agent = start()
    many = {f"{number:064x}": ContainerVcpus((0,)) for number in range(1000)}  # whose answers are long
    with agent.host() as deaf, agent.host() as good:
        good.hear()
        raw = b"".join(encode(as_json(VcpuMap(number, number, "pod", many))) for number in range(1, 200))
        os.set_blocking(deaf.fd, False)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while raw:
                assert select.select([], [deaf.fd], [], PATIENCE)[1], "neither read nor dropped"
                raw = raw[os.write(deaf.fd, raw):]
        assert raw, "all was read"
        assert isinstance(good.ask(Ping(1)), Pong)
        assert agent.status("VmRSS") < 40_000


def test_a_subscriber_gets_the_event(start: Start, tmp_path: Path) -> None:
    agent = start()
    with worker() as one, agent.host() as host:
        host.hear()
        assert isinstance(host.ask(Subscribe(1)), Inventory)
        told = host.ask(VcpuMap(2, 1, "pod", {"a": ContainerVcpus((0,))}))
        assert isinstance(told, Applied)
        assert told.containers["a"].state == "unknown"
        fill(tmp_path / "cgroup/a", one)
        with worker():  # a process is born, and so it looks
            while not (isinstance(told := host.hear(), Applied) and told.containers["a"].state == "applied"):
                assert told is not None
        assert told.id is None


def test_two_agents_do_not_run_in_one_guest(start: Start, built: Path, tmp_path: Path) -> None:
    start()
    argv = [sys.executable, "-IS", str(built), "--run", str(tmp_path / "run"), "--vsock-port", "0", "--serial", ""]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (1, "vmpin-agent: another agent is running\n")
    assert subprocess.run([*argv, "--detach"], capture_output=True, timeout=120).returncode == 0


def test_detached_it_goes_on_without_its_parent(built: Path, tmp_path: Path) -> None:
    """And begins when the cgroups are mounted, which an init may do only then."""
    sock = tmp_path / "agent.sock"
    ran = subprocess.run([sys.executable, "-IS", built, "--run", tmp_path / "run", "--vsock-port", "0", "--serial", "",
                          "--cgroup", tmp_path / "cgroup", "--unix", sock, "--detach"], capture_output=True,
                         timeout=120)
    assert ran.returncode == 0  # and its output ended, or this would have waited
    time.sleep(1)
    assert [*tmp_path.iterdir()] == []
    write(tmp_path, {"cgroup/cgroup.controllers": ""})
    deadline = time.monotonic() + PATIENCE
    with socket.socket(socket.AF_UNIX) as line:
        while line.connect_ex(str(sock)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        pid = int.from_bytes(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
        try:
            assert isinstance(Host(line.fileno()).hear(), NeedMap)
        finally:
            os.kill(pid, signal.SIGTERM)
    while os.path.exists(sock):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.root
def test_the_guest_hook_starts_it_once_and_never_fails(built: Path, tmp_path: Path) -> None:
    """In a PID namespace with a /run of its own, which are gone after it."""
    need_root()
    script = """
        mount -t tmpfs none /run
        "$1/prestart/vmpin-agent" && "$1/prestart/vmpin-agent" || exit 1
        count() { cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -cx '[-]-detach'; }
        for at in $(seq 240); do
            sleep 0.5
            [ -e /run/vmpin/agent.lock ] && [ "$(count)" = 1 ] && break
        done
        sleep 0.5
        count
        rm "$1/vmpin-agent.pyz"
        "$1/prestart/vmpin-agent"
    """
    (tmp_path / "prestart").mkdir()
    for source, name in (built, "vmpin-agent.pyz"), (ROOT / "guest/prestart/vmpin-agent", "prestart/vmpin-agent"):
        (tmp_path / name).write_bytes(source.read_bytes())
        (tmp_path / name).chmod(0o755)
    ran = subprocess.run(["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child",
                          "--mount-proc", "sh", "-c", script, "sh", str(tmp_path)], capture_output=True, text=True,
                         timeout=300)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1\n", "")


@pytest.fixture
def port() -> Iterator[tuple[int, str]]:
    """A terminal is as a virtio-serial port: one stream, with hang-ups. The host's end, and the guest's path."""
    ours, theirs = pty.openpty()
    tty.setraw(ours)
    tty.setraw(theirs)
    path = os.ttyname(theirs)
    os.close(theirs)
    yield ours, path
    os.close(ours)


def test_over_serial_garbage_is_dropped_until_it_is_quiet(start: Start, port: tuple[int, str]) -> None:
    fd, path = port
    start("--serial", path)
    host = Host(fd)
    assert host.hear() == NeedMap()
    assert isinstance(host.ask(Ping(1)), Pong)
    host.send(b"\xff" * 100 + encode(as_json(Ping(2))))
    assert host.hear() == NeedMap()
    assert isinstance(host.ask(Ping(3)), Pong)
    host.send(encode(as_json(Ping(4)))[:-5])  # a host that is killed in the middle of a frame
    assert host.hear() == NeedMap()
    answer = host.ask(Ping(5))
    assert isinstance(answer, Pong)
    assert answer.id == 5


def test_over_vsock_the_host_alone_is_let_in() -> None:
    assert server.allowed(socket.AF_VSOCK, (2, 1023))
    for peer in (1, 2000), (3, 2000), (0, 1), (), "2", None:
        assert not server.allowed(socket.AF_VSOCK, peer)


def test_over_vsock_a_process_of_the_guest_is_hung_up_on(built: Path, tmp_path: Path) -> None:
    """VMADDR_CID_LOCAL, where the kernel has it."""
    number = (1 << 24) + os.getpid()
    with subprocess.Popen([sys.executable, "-IS", built, "--run", tmp_path, "--vsock-port", str(number), "--serial",
                           "", "--cgroup", tmp_path], stderr=subprocess.PIPE, text=True) as agent:
        try:
            assert agent.stderr is not None
            if f"listening on vsock port {number}" not in agent.stderr.readline():
                pytest.skip("the kernel has no AF_VSOCK")
            with socket.socket(socket.AF_VSOCK) as line:
                line.settimeout(3)  # without a loopback nobody ever answers
                try:
                    line.connect((1, number))
                except OSError as err:
                    pytest.skip(f"the kernel has no loopback of AF_VSOCK: {err}")
                line.settimeout(PATIENCE)
                assert line.recv(100) == b""
        finally:
            agent.kill()


def test_at_rest_it_wakes_once_a_second_and_is_small(start: Start, tmp_path: Path) -> None:
    agent = start()
    with worker() as one, agent.host() as host:
        fill(tmp_path / "cgroup/a", one)
        host.hear()
        host.ask(VcpuMap(1, 1, "pod", {"a": ContainerVcpus((0,))}))

        def once_a_second() -> bool:
            before, began = agent.status("voluntary_ctxt_switches"), time.monotonic()
            time.sleep(4)
            woken, seconds = agent.status("voluntary_ctxt_switches") - before, time.monotonic() - began
            return woken <= seconds + 1.5

        # On a busy machine it may not be done yet with what it was just told.
        assert any(once_a_second() for _ in range(10))
        assert agent.status("VmRSS") <= 20 << 10
        assert agent.status("Threads") == 1


# Python 3.9


def _bullseye(path: Path, log: Path) -> None:
    """Debian 11's smallest root with its Python: 3.9. (python3-minimal has no json.)"""
    cache.need("debootstrap", "unshare", "setpriv")
    mirror = rootfs.machine_mirror()
    cache.run(["debootstrap", "--variant=minbase", "--include=python3", "bullseye", str(path / "root"),
               *([mirror] if mirror else [])], log, rootfs.apt_environment())


@pytest.fixture(scope="module")
def python39() -> Iterator[Path]:
    """The root of a Debian 11, built at the first time (a minute)."""
    need_root()
    need_tool("debootstrap")
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(cache.entry("bullseye", {"version": 2}, _bullseye)) / "root"
        except LabError as err:
            lacking(f"needs Debian 11's packages: {err}")


@pytest.mark.root
def test_on_python_3_9_it_runs_and_serves(python39: Path, built: Path, tmp_path: Path) -> None:
    """In a chroot, which it sees as its own: with /dev/null, and neither the host's /proc nor /sys."""
    mounts: list[str] = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-ec",
                         'mount --bind "$1" "$2/mnt"; shift; exec chroot "$@"', "sh", str(tmp_path), str(python39)]
    (tmp_path / "agent.pyz").write_bytes(built.read_bytes())
    (tmp_path / "cgroup").mkdir()
    run = [*mounts, "/usr/bin/python3", "-IS", "/mnt/agent.pyz"]
    told = subprocess.run([*run, "--help"], capture_output=True, text=True, timeout=120)
    assert told.returncode == 0, told.stderr
    assert "--vsock-port" in told.stdout
    agent = subprocess.Popen([*run, "--vsock-port", "0", "--serial", "", "--unix", "/mnt/agent.sock", "--cgroup",
                              "/mnt/cgroup", "--run", "/mnt/run"], stderr=subprocess.PIPE, text=True)
    try:
        assert agent.stderr is not None
        assert agent.stderr.readline() == "vmpin-agent: listening on /mnt/agent.sock\n"
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(tmp_path / "agent.sock"))
            host = Host(line.fileno())
            assert host.hear() == NeedMap()
            inventory: Any = host.ask(InventoryRequest(1))
            assert inventory.python.startswith("3.9.")
            assert isinstance(host.ask(Ping(2)), Pong)
            applied: Any = host.ask(VcpuMap(3, 1, "pod", {"a": ContainerVcpus((0,))}))
            assert applied.containers["a"].state == "unknown"
            host.send(b"\xff" * 10)
            assert host.hear() is None
    finally:
        agent.kill()
        agent.communicate()
