"""What the tests do in the guest: its process 1, at the guest's end of a virtio-serial port.

A JSON line asks ({"do": NAME, …}), one answers ({"ok": …} or {"error": …}). None of it is vmpin's: it is what holds
against the agent. Like Kata's agent it makes the containers, as cgroups, and is the parent of what runs in them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

PORT = "org.vmpin.test.0"
CGROUPS = Path("/sys/fs/cgroup")
CPUS = Path("/sys/devices/system/cpu")
_PYTHON = [sys.executable, "-S", "-E", "-c"]
_THREADS = """
import sys, threading, time
def spin():
    while True:
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            pass
        time.sleep(0.03)
for _ in range(int(sys.argv[1])):
    threading.Thread(target=spin).start()
time.sleep(1e6)
"""
#: What a process of a container does, by name.
WORK: dict[str, list[str]] = {
    "busy": ["/bin/busybox", "sh", "-c", "while :; do :; done"],
    "idle": ["/bin/busybox", "sleep", "1000000"],
    # A child is born every twentieth of a second, and lives as long.
    "forks": ["/bin/busybox", "sh", "-c", "while :; do /bin/busybox sleep 0.05; done"],
    # Threads that run a quarter of the time, on any of their CPUs: the build machine's are needed for others, too.
    "threads": [*_PYTHON, _THREADS],
}


def main() -> NoReturn:
    _name_ports()
    port = os.open(f"/dev/virtio-ports/{PORT}", os.O_RDWR | os.O_CLOEXEC)
    _send(port, {"ok": "ready"})
    rest = b""
    while True:
        # Not a blocking read: without a peer it is end of file, at once, and until a peer is there.
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        ready = select.select([port], [], [], 0.5)[0]
        part = os.read(port, 1 << 16) if ready else b""
        if ready and not part:
            time.sleep(0.05)
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            _send(port, _answer(json.loads(line)))


def _name_ports() -> None:
    """What udev does elsewhere: /dev/virtio-ports/NAME."""
    names = Path("/dev/virtio-ports")
    names.mkdir()
    deadline = time.monotonic() + 120
    while not (names / PORT).is_symlink():
        for port in sorted(Path("/sys/class/virtio-ports").glob("*/name")):
            link = names / port.read_text().strip()
            if not link.is_symlink():
                link.symlink_to(f"../{port.parent.name}")
        if time.monotonic() > deadline:
            sys.exit(f"there is no port {PORT}")
        time.sleep(0.01)


def _send(port: int, message: object) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(port, data):]


def _answer(message: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"ok": COMMANDS[message.pop("do")](**message)}
    except Exception:
        return {"error": traceback.format_exc()}


def cpus() -> dict[str, Any]:
    """`apicid`: of each online CPU."""
    apicids, cpu = {}, -1
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "processor":
            cpu = int(value)
        elif key.strip() == "initial apicid":
            apicids[cpu] = int(value)
    return {"online": read(f"{CPUS}/online"), "present": read(f"{CPUS}/present"), "apicid": apicids}


def online(cpu: int, on: bool) -> None:
    """A CPU that was plugged in just now is there once the kernel has carried out ACPI's notification."""
    file = Path(f"{CPUS}/cpu{cpu}/online")
    deadline = time.monotonic() + 100
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    write(str(file), "1" if on else "0")


def read(path: str) -> str:
    return Path(path).read_text().strip()


def write(path: str, text: str) -> None:
    Path(path).write_text(text)


def make_cgroup(cgroup: str) -> list[str]:
    """In every hierarchy. :returns: its directories."""
    made = []
    for top in _hierarchies():
        directory = top
        for part in Path(cgroup).parts:
            directory /= part
            if not directory.exists():
                directory.mkdir()
                if "cpuset" in top.name:  # of v1: empty at first
                    for file in "cpuset.cpus", "cpuset.mems":
                        (directory / file).write_text((directory.parent / file).read_text())
        made.append(str(directory))
    return made


def _hierarchies() -> list[Path]:
    if (CGROUPS / "cgroup.procs").exists():
        return [CGROUPS]
    return [path for path in sorted(CGROUPS.iterdir()) if (path / "cgroup.procs").exists()]


def start(cgroup: str, work: str = "", argv: list[str] | None = None, log: str = "/dev/console",
          cpus: list[int] | None = None) -> int:
    """Start a process in a cgroup ("": where this one is). :param cpus: its mask. :returns: its pid; it runs there."""
    run = argv or [*WORK[work.split()[0]], *work.split()[1:]]
    begun, report = os.pipe()  # closed by its exec
    pid = os.fork()
    if pid:
        os.close(report)
        with open(begun, "rb") as reported:
            trouble = reported.read().decode()
        if trouble:
            raise RuntimeError(f"{run}: {trouble}")
        return pid
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for fd in 1, 2:
            os.dup2(output, fd)
        if cgroup:
            for top in _hierarchies():
                (top / cgroup / "cgroup.procs").write_text("0")
        if cpus:
            os.sched_setaffinity(0, cpus)
        os.execv(run[0], run)
    except BaseException:
        os.write(report, traceback.format_exc().encode())
    os._exit(127)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """And wait until it is gone; the reaping is done here, too."""
    os.kill(pid, number)
    if number == signal.SIGKILL:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def end_processes(cgroup: str) -> None:
    """Those in it and below it, and what they start meanwhile."""
    deadline = time.monotonic() + 120
    while pids := processes(cgroup):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                kill(pid)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{cgroup} still has {pids}")


def remove_cgroup(cgroup: str) -> None:
    """With everything in and below it."""
    end_processes(cgroup)
    for top in _hierarchies():
        for directory, _, _ in os.walk(top / cgroup, topdown=False):
            os.rmdir(directory)


def processes(cgroup: str) -> list[int]:
    """Those in it and below it."""
    found: set[int] = set()
    for top in _hierarchies():
        for file in (top / cgroup).rglob("cgroup.procs"):
            found |= set(map(int, file.read_text().split()))
    return sorted(found)


def threads(cgroup: str) -> dict[int, dict[str, Any]]:
    return {tid: each for pid in processes(cgroup) for tid, each in process(pid).items()}


def process(pid: int) -> dict[int, dict[str, Any]]:
    """Its threads: mask (a list as the kernel writes it), comm, the seconds that it has run, and its process."""
    found = {}
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
            found[int(task.name)] = {"cpus": status["Cpus_allowed_list"], "comm": status["Name"], "pid": pid,
                                     "ran": int((task / "schedstat").read_text().split()[0]) / 1e9}
    return found


def system() -> dict[int, dict[str, Any]]:
    """The threads of the processes that are in no container, less the kernel's."""
    found: dict[int, dict[str, Any]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            kernels = int((path / "stat").read_text().rpartition(")")[2].split()[6]) & 0x00200000  # PF_KTHREAD
            cgroups = {line.partition(":")[2].partition(":")[2] for line in (path / "cgroup").read_text().splitlines()}
            if not kernels and cgroups == {"/"}:
                found |= process(int(path.name))
    return found


def load() -> dict[int, float]:
    """The seconds that each online CPU was busy since it booted."""
    tick = os.sysconf("SC_CLK_TCK")
    return {int(name.removeprefix("cpu")): sum(map(int, [*times[:3], *times[5:8]])) / tick
            for name, *times in _stat() if name != "cpu"}


def _stat() -> Iterator[list[str]]:
    return (line.split() for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu"))


def exists(path: str) -> bool:
    return os.path.exists(path)


def affinity(tid: int, cpus: list[int]) -> None:
    os.sched_setaffinity(tid, cpus)


COMMANDS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (
        cpus, online, read, write, make_cgroup, end_processes, remove_cgroup, start, kill, processes, threads,
        process, system, load, exists, affinity)}

if __name__ == "__main__":
    main()
