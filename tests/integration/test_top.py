"""`vmpin top` in a real terminal (tmux), beside a real VM with an exclusive CPU on which a process of the test burns.

No test looks at a time: each waits until the screen shows what it should.
"""

from __future__ import annotations

import contextlib
import difflib
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
GOLDEN = Path(__file__).parent / "golden"


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
    """A process of the test's own that runs on one CPU alone."""
    code = f"""\
import os
os.sched_setaffinity(0, {{{cpu}}})
open("/proc/self/comm", "w").write("burner")
print(flush=True)
while True: pass"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as made:
        try:
            assert made.stdout is not None
            made.stdout.readline()
            yield made.pid
        finally:
            made.kill()


def test_a_foreign_thread_is_named_on_each_page(lab: Lab) -> None:
    with burning(lab.second) as burner, terminal() as tmux:
        tmux.run(top(lab, "-d", "1"))
        lines = tmux.shows(r"^> tests/pod .* [0-9]+ ms ")
        assert len(lines) == 24
        assert max(map(len, lines)) <= 80
        assert lines[0].startswith("vmpin top  ")
        assert re.match(r"foreign ~?[0-9]+ ms a second on CPUs of 1 pod", lines[1])
        assert re.search(r"POD +CPUS +BUSY +FOREIGN/s +WAITED/s +DRIFT +GUEST", lines[3])
        assert f" {lab.second}+{lab.first} " in next(line for line in lines if line.startswith("> "))
        assert lines[-1].startswith("Enter threads")

        tmux.press("Enter")
        tmux.shows(rf"foreign [0-9]+ ms on CPU {lab.second} by .*process {burner} \(burner\)")
        tmux.shows(r"vcpu 1 +CPU 1/TCG")
        tmux.press("f")
        tmux.shows(rf"^[> ] +[0-9]+ ms +{lab.second} .* burner {burner}")  # without ~: it may run there alone
        tmux.press("q", "q")

        def foremost() -> bool:
            """Not so in an interval in which another program of a busy machine had more."""
            tmux.press("t")
            lines = tmux.shows("^What to do: ")
            tmux.press("q")
            tmux.shows("^> tests/pod")
            assert lines[0] == "the foreign program with the most time on CPUs of tests/pod"
            return lines[2].startswith(f"burner (process {burner}) of ") and bool(
                re.match(rf"had [0-9]+ ms in each second on CPU {lab.second} of tests/pod", lines[3]))

        wait(foremost, "another program had more time")
        tmux.press("e")
        tmux.shows(r"^Its verdict is pinned")
        tmux.press("q", "m")
        tmux.shows(r"^NUMA node 0")
        tmux.press("q", "/")
        tmux.type("no-such-pod")
        tmux.shows("no pod matches the filter")
        tmux.press("Escape")
        tmux.shows("^> tests/pod")
        tmux.press("q")
        tmux.shows("left=0$")


def masked(lines: list[str]) -> list[str]:
    """The whole screen but for what differs from run to run: the node's name, times, numbers, and with these the
    widths of columns. The foreign thread's names are cut off at the terminal's edge: they are masked as a whole."""
    found = []
    for line in lines:
        text = re.sub(r"^vmpin top  \S+", "vmpin top  NODE", line)
        text = re.sub(r"^(most: .* by ).*", r"\1THREAD", text)
        text = re.sub(r"[~<]?\d[\d.]* (ms|s)\b", "TIME", text)
        text = re.sub(r"<?\d+(?:[.:,+-]\d+)*", "N", text)
        found.append(re.sub(r"(?<=\S) {2,}", "  ", text).rstrip())
    return found


def becomes(tmux: Tmux, name: str) -> None:
    """Wait for the screen kept in a file, which GOLDEN=write writes anew."""
    file = GOLDEN / f"top-{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        file.write_text("\n".join(masked(tmux.screen())) + "\n", encoding="utf-8")
    wanted = file.read_text(encoding="utf-8").splitlines()
    assert len(wanted) == 24
    wait(lambda: masked(tmux.screen()) == wanted, lambda: "\n".join(
        ["not as it was:", *difflib.unified_diff(wanted, masked(tmux.screen()), lineterm="")]))


def test_the_whole_screen_of_80_columns_is_as_it_was(lab: Lab) -> None:
    with burning(lab.second), terminal() as tmux:
        tmux.run(top(lab, "-d", "1"))
        tmux.shows("^most: ")
        tmux.shows(r"^> tests/pod .* [0-9]+ ms ")
        becomes(tmux, "pods")
        tmux.press("?")
        wait(lambda: not any("tests/pod" in line for line in tmux.screen()), "no help")
        becomes(tmux, "help")


def test_a_reconcile_puts_a_moved_thread_back_after_y(lab: Lab) -> None:
    """The watcher is made to look only when asked."""
    lab.node.kill()
    lab.node.configure(watch={"resync_seconds": 600})
    lab.node.start()
    try:
        with terminal() as tmux:
            tmux.run(top(lab, "-d", "1"))
            tmux.shows("^> tests/pod")
            tmux.press("r")
            tmux.shows("^y or n: set the masks of tests/pod")
            os.sched_setaffinity(lab.vm.pid, {int(lab.second)})
            tmux.press("n")
            tmux.shows("nothing was done")
            assert os.sched_getaffinity(lab.vm.pid) == {int(lab.second)}
            tmux.press("r", "y")
            wait(lambda: os.sched_getaffinity(lab.vm.pid) == {int(lab.first)}, "it is not put back")
            tmux.shows("^repin tests/pod")
            tmux.press("q")
            tmux.shows("^> tests/pod")
    finally:
        lab.node.kill()
        lab.node.configure(watch={"resync_seconds": 0.2})
        lab.node.start()


def top_of(tmux: Tmux) -> int:
    """The pid of the running top: below the terminal's shells."""
    pid = tmux("display-message", "-p", "#{pane_pid}").strip()
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = children[0]
    assert b"vmpin.cli.main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return int(pid)


def modes(tmux: Tmux) -> str:
    tty = tmux("display-message", "-p", "#{pane_tty}").strip()
    return subprocess.run(["stty", "-g", "-F", tty], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_the_terminal_is_given_back(lab: Lab, number: int, code: int) -> None:
    with terminal() as tmux:
        tmux.type("clear")
        tmux.press("Enter")
        before = modes(tmux)
        tmux.run(top(lab))
        tmux.shows("^> tests/pod")
        assert tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}").split() == ["1", "0"]
        assert modes(tmux) != before
        os.kill(top_of(tmux), number)
        tmux.shows(f"left={code}$")
        assert tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}").split() == ["0", "1"]
        assert not any("POD" in line for line in tmux.screen())


def test_it_stops_and_goes_on_and_follows_the_size(lab: Lab) -> None:
    with terminal() as tmux:
        tmux.run(top(lab, "-d", "1"))
        tmux.shows("^> tests/pod")
        tmux.press("C-z")
        wait(lambda: tmux("display-message", "-p", "#{alternate_on}").strip() == "0", "it does not stop")
        tmux.type("echo here-is-the-shell")
        tmux.press("Enter")
        tmux.shows("^here-is-the-shell")
        tmux.type("fg")
        tmux.press("Enter")
        tmux.shows("^> tests/pod")
        assert not any("VERDICT" in line for line in tmux.screen())
        tmux("resize-window", "-x", "200", "-y", "50")
        lines = tmux.shows(r"POD .* GUEST +IN PLACE +VERDICT +KIND +ID")
        wait(lambda: len(tmux.screen()) == 50 and tmux.screen()[-1].startswith("Enter threads"), "not 50 lines")
        assert lab.vm.sandbox[:12] in next(line for line in tmux.shows("^> tests/pod") if line.startswith("> "))
        assert max(map(len, lines)) > 80
        tmux.press("C-c")
        wait(lambda: tmux("display-message", "-p", "#{alternate_on}").strip() == "0", "it does not end")


def test_a_watcher_that_is_stopped_is_named_and_holds_up_no_key(lab: Lab) -> None:
    assert lab.node.watcher is not None
    pid = lab.node.watcher.pid
    with terminal() as tmux:
        tmux.run(top(lab, "-d", "1"))
        tmux.shows("^> tests/pod")
        lab.node.watcher.send_signal(signal.SIGSTOP)
        try:
            tmux.shows(rf"^since .* the watcher \(pid {pid}\) is stopped; `kill -CONT {pid}`")
            done = lab.node.cli("status")
            assert (done.returncode, done.stdout) == (1, "")
            assert f"the watcher (pid {pid}) is stopped\n  `kill -CONT {pid}` continues it" in done.stderr
            tmux.press("?", "G")
            tmux.shows("^unseen")
            tmux.press("b")
            tmux.shows("^arrows, j, k")
            tmux.press("q", "e")
            tmux.shows("^Its verdict is ")
        finally:
            lab.node.watcher.send_signal(signal.SIGCONT)
        tmux.press("q")
        wait(lambda: not any("is stopped" in line for line in tmux.shows("^> tests/pod")), "it is not forgotten")
        tmux.press("q")
        tmux.shows("left=0$")


def test_batch_prints_blocks_and_lines_of_json(lab: Lab) -> None:
    printed = ""

    def both_name_the_burner() -> bool:
        """Not so where in an interval so many threads of a busy machine had more of the CPU that it is not listed."""
        nonlocal printed
        ran = subprocess.run(top(lab, "--batch", "-c", "2", "-d", "1"), env=lab.node.environment, timeout=PATIENCE,
                             capture_output=True, text=True)
        assert (ran.returncode, ran.stderr) == (0, "")
        printed = ran.stdout
        blocks = [block.splitlines() for block in printed.strip().split("\n\n")]
        assert len(blocks) == 2
        for lines in blocks:
            assert re.match(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ [0-9.]+ s, 1 pod, busy ", lines[0])
            assert lines[1].split()[:3] == ["POD", "CPUS", "BUSY"]
            assert lines[2].startswith("tests/pod ")
        return all(any(f"process {burner} (burner)" in line for line in lines[3:]) for lines in blocks)

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


def test_without_a_terminal_or_a_pod_it_says_what_to_do(lab: Lab) -> None:
    done = lab.node.cli("top")
    assert done.returncode == 2
    assert "--batch prints plain blocks" in done.stderr
    done = lab.node.cli("top", "--batch", "no-such-pod")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no-such-pod" in done.stderr
