"""What an event costs a real watcher, in system calls as the kernel sees them: a count is the same on a busy machine.
The runtime is the test's own."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from need import need_tool
from nri_peer import NriRuntime, container, pod
from real_node import Node
from waiting import PATIENCE, wait

from vmpin.wire.nri_enums import CREATED, RUNNING
from vmpin.wire.nri_messages import MESSAGES

pytestmark = pytest.mark.root

#: After an event (s): the pass that it makes, rechecks and the state file would come within that time.
_WINDOW = 0.5
EVENTS = ("CreateContainer", "PostCreateContainer", "StartContainer", "PostStartContainer", "PostUpdateContainer",
          "StopContainer", "RemoveContainer")
#: System calls of an event by itself, and of a container's life in one burst: three of a call (poll, recv, send), and
#: those that wake the loop once.
MOST, MOST_OF_A_LIFE = 12, 3 * len(EVENTS) + 10
#: Calls about files, or processes.
FILES = {"open", "openat", "getdents64", "execve", "rename", "unlink", "stat", "newfstatat", "lstat", "readlink"}


class Strace:
    """The system calls of all threads of a process, with their times."""

    def __init__(self, pid: int, out: Path) -> None:
        self._out = out
        self._process = subprocess.Popen([need_tool("strace"), "-f", "-ttt", "-s", "200", "-o", out, "-p", str(pid)],
                                         stderr=subprocess.PIPE)
        assert self._process.stderr is not None
        assert b"attached" in self._process.stderr.readline()

    def end(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=PATIENCE)

    def calls(self) -> list[tuple[float, str]]:
        """:returns: (CLOCK_REALTIME, name and arguments) of each call so far, without those of the event loop's turns
        that the kernel's reports of processes alone have caused: these are about other work on the machine."""
        turns: defaultdict[str, list[list[tuple[float, str]]]] = defaultdict(lambda: [[]])
        begun: dict[str, tuple[float, str]] = {}  # by thread, the call of which another thread's cut off the result
        for line in self._out.read_text(errors="replace").split("\n")[:-1]:  # the last one is not whole yet
            thread, when, call = line.split(maxsplit=2)
            time_of = float(when)
            if call.startswith("<... "):
                time_of, first = begun.pop(thread, (time_of, ""))
                call = first + call.partition(" resumed>")[2]
            elif call.endswith("<unfinished ...>"):
                begun[thread] = time_of, call.removesuffix("<unfinished ...>")
                continue
            if call.startswith("epoll_wait"):
                turns[thread].append([])
            if call[:1].isalpha():
                turns[thread][-1].append((time_of, call))
        return sorted(call for of_thread in turns.values() for turn in of_thread if not _reports_alone(turn)
                      for call in turn)


def _reports_alone(turn: Sequence[tuple[float, str]]) -> bool:
    """Whether a turn of the event loop reads the proc connector, and nothing else woke it."""
    connectors = {call.partition(",")[0].removeprefix("recvfrom(") for _, call in turn if "AF_NETLINK" in call}
    return bool(connectors) and set(re.findall(r"u32=(\d+)", turn[0][1])) <= connectors


@contextmanager
def connected(node: Node) -> Iterator[NriRuntime]:
    """A runtime of the test's own, to which the watcher has connected."""
    path = node.top / "nri.sock"
    node.configure(watch={"nri": "on", "resync_seconds": 3600}, paths={"nri": str(path)})
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        listener.settimeout(PATIENCE)
        node.start()
        runtime = NriRuntime(listener.accept()[0])
    try:
        yield runtime
    finally:
        runtime.close()


def life(runtime: NriRuntime, name: str, pid: int, then: Callable[[str], None]) -> None:
    """A container without a cpuset, from its creation to its end. :param then: called after each event."""
    of = pod("runc", pid=pid)
    made = container(name, "runc", state=CREATED)
    for method in EVENTS:
        made.state = CREATED if method in EVENTS[:3] else RUNNING
        made.pid = 0 if method in EVENTS[:2] else pid
        runtime.call(method, MESSAGES["EventRequest"](pod=of, container=made))
        then(method)


def test_an_event_of_a_shared_container_looks_at_no_file_and_makes_few_system_calls() -> None:
    """Of each kind of event the one counts that was least disturbed, of as many as it takes: other work on the
    machine, which the kernel reports too, samples, and what is looked at again and again after a start only add
    calls."""
    windows: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    with Node() as node, subprocess.Popen(["sleep", "600"]) as process, connected(node) as runtime:
        runtime.begin([pod("runc", pid=process.pid), pod("vm")], [container("c0", "runc", pid=process.pid)])
        wait(lambda: node.status()["sources"]["new_threads"]["state"].startswith("reported"),
             lambda: f"{node.status()['sources']}")
        life(runtime, "first", process.pid, lambda _: None)
        assert node.watcher is not None
        strace = Strace(node.watcher.pid, node.top / "strace")
        numbers, ends = count(), [0.0]

        def pause(method: str) -> None:
            time.sleep(_WINDOW)
            windows[method].append((ends[-1], time.time()))
            ends.append(windows[method][-1][1])

        def costly() -> list[tuple[str, list[str]]]:
            """After two more lives, one event by event and one in a burst: the kinds that were costly each time."""
            number = next(numbers)
            ends[:] = [time.time()]
            life(runtime, f"c{number}", process.pid, pause)
            life(runtime, f"d{number}", process.pid, lambda _: None)
            pause("life")
            calls = strace.calls()
            least = {method: min(([call for when, call in calls if begin <= when < end] for begin, end in times),
                                 key=len) for method, times in windows.items()}
            return [(method, made) for method, made in least.items() if _is_costly(method, made)]

        try:
            wait(lambda: not costly(), lambda: f"{costly()}")
        finally:
            strace.end()
            process.kill()


def _is_costly(method: str, made: Sequence[str]) -> bool:
    names = {call.partition("(")[0] for call in made}
    return not 0 < len(made) <= (MOST_OF_A_LIFE if method == "life" else MOST) or bool(FILES & names)
