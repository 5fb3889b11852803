"""The agent as the one file it is shipped as: what is in it, how it starts, and an old Python."""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_host import PATIENCE, Host
from guest_tree import write
from lab import cache, rootfs
from lab.errors import LabError
from need import lacking, need_root, need_tool, need_unshare

import vmpin_agent
from vmpin.cli.main import main
from vmpin.features.installer import agent_zipapp
from vmpin.protocol.messages import ContainerVcpus, NeedMap, Ping, Pong, VcpuMap

pytest_plugins = ["given_agent"]

ROOT = Path(__file__).parents[3]


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
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)):
        of = node.module or ""
        imported |= {f"{of}.{alias.name}" for alias in node.names} if of in ("vmpin", "vmpin.protocol") else {of}
    ours = {name for name in imported if name.partition(".")[0] in ("vmpin", "vmpin_agent")}
    assert {name.partition(".")[0] for name in imported - ours} <= sys.stdlib_module_names
    assert {f"{name.replace('.', '/')}.py" for name in ours if "." in name} <= set(agent_zipapp.NAMES)


def test_an_agent_that_cannot_be_written_is_a_command_that_cannot_be_carried_out(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert main(["guest", "build", "-o", f"{tmp_path}/file/agent"]) == 2
    assert capsys.readouterr().err.startswith(f"vmpin: cannot write {tmp_path}/file/agent: ")
    for name in f"{tmp_path}/", "-":
        assert main(["guest", "build", "-o", name]) == 2
        assert "names no file to write" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_agent_is_of_this_version() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["version"]["raw-options"]
    assert options["fallback_version"] == f"{vmpin_agent.VERSION}.dev0"


def test_it_shows_its_options_and_version(built: Path) -> None:
    for option, wanted in {"--help": "--serial", "--version": vmpin_agent.VERSION}.items():
        ran = subprocess.run([sys.executable, "-IS", built, option], capture_output=True, text=True, timeout=120)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert wanted in ran.stdout


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
            assert isinstance(Host(line.fileno()).receive(), NeedMap)
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
    apart = need_unshare("--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc")
    ran = subprocess.run([*apart, "sh", "-c", script, "sh", str(tmp_path)], capture_output=True, text=True,
                         timeout=300)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1\n", "")


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
    mounts: list[str] = [*need_unshare("--mount", "--propagation", "private"), "--", "sh", "-ec",
                         'mount --bind "$1" "$2/mnt"; shift; exec chroot "$@"', "sh", str(tmp_path), str(python39)]
    (tmp_path / "agent.pyz").write_bytes(built.read_bytes())
    (tmp_path / "cgroup").mkdir()
    run = [*mounts, "/usr/bin/python3", "-IS", "/mnt/agent.pyz"]
    ran = subprocess.run([*run, "--help"], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "--vsock-port" in ran.stdout
    agent = subprocess.Popen([*run, "--vsock-port", "0", "--serial", "", "--unix", "/mnt/agent.sock", "--cgroup",
                              "/mnt/cgroup", "--run", "/mnt/run"], stderr=subprocess.PIPE, text=True)
    try:
        assert agent.stderr is not None
        assert agent.stderr.readline() == "vmpin-agent: listening on /mnt/agent.sock\n"
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(tmp_path / "agent.sock"))
            host = Host(line.fileno())
            assert host.receive() == NeedMap()
            assert isinstance(host.ask(Ping(2)), Pong)
            applied: Any = host.ask(VcpuMap(3, 1, "pod", {"a": ContainerVcpus((0,))}))
            assert applied.containers["a"].state == "unknown"
            host.send(b"\xff" * 10)
            assert host.receive() is None
    finally:
        agent.kill()
        agent.communicate()
