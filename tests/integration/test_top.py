"""`vmpin top` in a real terminal (tmux), beside a real VM with an exclusive CPU on which a process of the test burns.

No test looks at a time: each waits until the screen shows what it should.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documents import checked
from lab_node import Lab
from need import need_tool
from real_node import COMMAND
from waiting import PATIENCE, wait

pytest_plugins = ["given_lab"]
pytestmark = pytest.mark.root


def top(lab: Lab, *args: str) -> list[str]:
    return [*COMMAND, "--config", str(lab.node.config), "top", *args]


class Tmux:
    """A terminal with one shell, in a server of its own."""

    def __init__(self, columns: int, lines: int) -> None:
        self.socket = f"vmpin-{secrets.token_hex(6)}"
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("VMPIN_", "TMUX"))}
        self._env = {**clean, "PS1": "$ ", "LC_ALL": "C.UTF-8", "SHELL": "/bin/sh", "TERM": "xterm-256color"}
        self("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", str(lines), "/bin/sh")
        self("set-option", "-g", "default-terminal", "screen-256color")

    def __call__(self, *args: str) -> str:
        return subprocess.run(["tmux", "-L", self.socket, *args], env=self._env, check=True, capture_output=True,
                              text=True, timeout=PATIENCE).stdout

    def type(self, text: str) -> None:
        self("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        self("send-keys", *keys)

    def screen(self) -> list[str]:
        return self("capture-pane", "-p").rstrip("\n").split("\n")

    def shows(self, pattern: str) -> list[str]:
        """The screen, once a line of it matches."""
        def found() -> list[str]:
            lines = self.screen()
            return lines if any(re.search(pattern, line) for line in lines) else []
        lines: list[str] = wait(found, lambda: f"no {pattern!r} in\n" + "\n".join(self.screen()))
        return lines

    def run(self, argv: list[str]) -> None:
        self.type(f"{shlex.join(argv)}; echo left=$?")
        self.press("Enter")


@contextlib.contextmanager
def terminal(columns: int = 80, lines: int = 24) -> Iterator[Tmux]:
    need_tool("tmux")
    made = Tmux(columns, lines)
    socket = Path(made("display-message", "-p", "#{socket_path}").strip())
    try:
        yield made
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):  # its shell may have ended, and it with that
            made("kill-server")
        socket.unlink(missing_ok=True)


@contextlib.contextmanager
def burning(cpu: str) -> Iterator[int]:
    """A process of the test's own that runs on one CPU alone, a third of the time: others need it, too."""
    code = f"""\
import os, time
os.sched_setaffinity(0, {{{cpu}}})
open("/proc/self/comm", "w").write("burner")
print(flush=True)
while True:
    end = time.thread_time() + 0.01
    while time.thread_time() < end: pass
    time.sleep(0.02)"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as made:
        try:
            assert made.stdout is not None
            made.stdout.readline()
            yield made.pid
        finally:
            made.kill()


def test_a_foreign_thread_is_named_in_a_terminal(lab: Lab) -> None:
    with burning(lab.second) as burner, terminal() as tmux:
        tmux.run(top(lab, "-d", "1", "pod"))
        lines = tmux.shows(rf"^FOREIGN [0-9]+ ms on CPU {lab.second} of tests/pod by .*: process {burner}|"
                           rf"^ +process {burner} ")  # without ~: it may run there alone
        assert max(map(len, lines)) <= 80
        assert lines[0].startswith("every 1 s: ")
        assert re.match(r"[0-9.]+ s; 1 pod; busy <?[0-9]+%; foreign ~?[0-9]+ ms a second on CPUs of 1 pod", lines[2])
        assert f" {lab.second}+{lab.first} " in next(line for line in lines if line.startswith("tests/pod "))
        tmux.press("C-c")
        tmux.shows("left=130$")


def test_a_watcher_that_is_stopped_is_named(lab: Lab) -> None:
    assert lab.node.watcher is not None
    pid = lab.node.watcher.pid
    with terminal() as tmux:
        tmux.run(top(lab, "-d", "1"))
        tmux.shows("^tests/pod ")
        lab.node.watcher.send_signal(signal.SIGSTOP)
        try:
            tmux.shows(rf"^WATCHER: since .* the watcher \(pid {pid}\) is stopped; ")
            done = lab.node.cli("status")
            assert (done.returncode, done.stdout) == (1, "")
            assert f"the watcher (pid {pid}) is stopped\n  `kill -CONT {pid}` continues it" in done.stderr
        finally:
            lab.node.watcher.send_signal(signal.SIGCONT)
        wait(lambda: not any("is stopped" in line for line in tmux.shows("^tests/pod ")), "it is not forgotten")


def test_batch_prints_blocks_and_lines_of_json(lab: Lab) -> None:
    printed = ""

    def both_name_the_burner() -> bool:
        """Not so where in an interval so many threads of a busy machine had more of the CPU that it is not listed."""
        nonlocal printed
        ran = subprocess.run(top(lab, "-c", "2", "-d", "1"), env=lab.node.environment, timeout=PATIENCE,
                             capture_output=True, text=True)
        assert (ran.returncode, ran.stderr) == (0, "")
        printed = ran.stdout
        blocks = re.split(r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$", printed, flags=re.MULTILINE)[1:]
        assert len(blocks) == 2
        for block in blocks:
            assert re.match(r"\n[0-9.]+ s; 1 pod; busy ", block)
            assert re.search(r"^POD +CPUS +BUSY .*\ntests/pod ", block, re.MULTILINE)
        return all(f"process {burner} (burner)" in block for block in blocks)

    def its_time() -> tuple[dict[str, Any], dict[str, Any]] | None:
        found = lab.node.data("top", "-o", "json", "-c", "1", "-d", "1", "pod")
        checked("top", found)
        return next(((found, thread) for thread in found["foreign_threads"] if thread["tid"] == burner), None)

    with burning(lab.second) as burner:
        wait(both_name_the_burner, lambda: printed)
        began = time.monotonic()
        found, taken = wait(its_time, "the burner is not listed")
        took = time.monotonic() - began
    assert (taken["cpu"], taken["exact"], taken["process"]) == (int(lab.second), True, "burner")
    # Both readings of it lie in the run of the command, up to the tick by which the kernel's figures may be late.
    assert 0 < taken["seconds"] <= took + 0.1
    assert found["pods"][0]["foreign"] >= taken["seconds"]


@pytest.mark.parametrize(("namespace", "pods"), [("tests", ["tests/pod"]), ("others", [])])
def test_a_namespace_alone_chooses_its_pods(lab: Lab, namespace: str, pods: list[str]) -> None:
    found = lab.node.data("top", "-n", namespace, "-c", "1")
    assert [f"{pod['namespace']}/{pod['pod']}" for pod in found["pods"]] == pods
    assert {thread["sandbox"] for thread in found["foreign_threads"]} <= {pod["sandbox"] for pod in found["pods"]}
    empty = f"no VM sandbox of namespace {namespace!r} runs on this node"
    assert (empty in lab.node.cli("top", "-n", namespace, "-c", "1").stdout) is not bool(pods)


def test_a_pod_that_is_not_there_is_named(lab: Lab) -> None:
    done = lab.node.cli("top", "no-such-pod")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no-such-pod" in done.stderr
