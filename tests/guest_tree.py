"""What the tests of the guest's agent work on: an agent with directories of its own, made-up trees of /proc, /sys and
cgroups, and processes of the test's own. A tree never holds the machine's other processes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from vmpin.cpuset import CpuSet
from vmpin.protocol.frames import parse_ids
from vmpin.protocol.messages import Applied, ContainerVcpus, VcpuMap
from vmpin_agent.agent import Agent

#: Starts threads and a child on command, by lines on its standard input, and answers each with one.
_WORKER = """
import os, subprocess, sys, threading, time
print("ready", flush=True)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "thread":
        for _ in range(int(rest[0])):
            threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
        print("ok", flush=True)
    elif word == "narrow":
        made = []
        def run():
            os.sched_setaffinity(0, {int(rest[0])})
            made.append(threading.get_native_id())
            time.sleep(1e6)
        threading.Thread(target=run, daemon=True).start()
        while not made:
            time.sleep(0.001)
        print(made[0], flush=True)
    elif word == "child":
        print(subprocess.Popen(["sleep", "1000"]).pid, flush=True)
"""


class Worker:
    """A process with threads and children."""

    def __init__(self, *into: Path) -> None:
        """:param into: the cgroups that it is put into."""
        self._process = subprocess.Popen([sys.executable, "-ISc", _WORKER], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        self._children: list[int] = []
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        for cgroup in into:
            (cgroup / "cgroup.procs").write_text(str(self.pid))

    def ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def threads(self, count: int) -> None:
        self.ask(f"thread {count}")

    def narrow(self, cpu: int) -> int:
        """A thread that keeps itself to one CPU; its tid."""
        return int(self.ask(f"narrow {cpu}"))

    def child(self) -> int:
        self._children.append(int(self.ask("child")))
        return self._children[-1]

    def pids(self) -> list[int]:
        return [self.pid, *self._children]

    def tids(self) -> list[int]:
        return sorted(int(name) for pid in self.pids() for name in os.listdir(f"/proc/{pid}/task"))

    def masks(self) -> set[str]:
        return {mask(tid) for tid in self.tids()}

    def stop(self) -> None:
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        self._process.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def mask(tid: int) -> str:
    return str(CpuSet(os.sched_getaffinity(tid)))


@contextlib.contextmanager
def worker(*into: Path) -> Iterator[Worker]:
    made = Worker(*into)
    try:
        yield made
    finally:
        made.stop()


def write(root: Path, files: Mapping[str, str]) -> Path:
    """A tree of files; `root`."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def cpu_files(online: str, present: str = "", possible: str = "") -> dict[str, str]:
    """/sys of a guest with these CPUs."""
    top = "sys/devices/system/cpu"
    return {f"{top}/online": online, f"{top}/present": present or online,
            f"{top}/possible": possible or present or online}


def cpuinfo(apicids: Mapping[int, int]) -> str:
    return "".join(f"processor\t: {cpu}\napicid\t\t: {apic}\ninitial apicid\t: {apic}\n\n"
                   for cpu, apic in apicids.items())


def made_up_proc(tmp: Path, *workers: Worker) -> Path:
    """A /proc of these processes and CPUs 0 and 1 alone. Unlike a real one it lists every thread like a process."""
    write(tmp, {**cpu_files("0-1"), "proc/cpuinfo": cpuinfo({0: 0, 1: 1})})
    for tid in (tid for each in workers for tid in each.tids()):
        with contextlib.suppress(FileExistsError):
            (tmp / f"proc/{tid}").symlink_to(f"/proc/{tid}")
    return tmp / "proc"


def fill(cgroup: Path, *workers: Worker, every: bool = False) -> None:
    """The files of a made-up cgroup of version 2 list these processes. :param every: as made_up_proc lists them."""
    write(cgroup, {"cgroup.procs": "".join(f"{pid}\n" for each in workers
                                           for pid in (each.tids() if every else each.pids())),
                   "cgroup.threads": "".join(f"{tid}\n" for each in workers for tid in each.tids())})


def agent(tmp: Path, cgroup: Path | str = "", proc: Path | str = "/proc", sys: Path | str = "/sys") -> Agent:
    return Agent(str(proc), str(cgroup or tmp / "cgroup"), str(sys), str(tmp / "run"), str(tmp / "kata"))


def put(to: Agent, containers: Mapping[str, str], generation: int = 1, system: str | None = None,
        exclusive: tuple[str, ...] = (), export: bool = False) -> Applied:
    """Send a map. :param containers: lists of hardware ids."""
    answer = to.answer(VcpuMap(9, generation, "pod", {cid: ContainerVcpus(parse_ids(hw), cid in exclusive)
                                                      for cid, hw in containers.items()},
                               None if system is None else parse_ids(system), export))
    assert isinstance(answer, Applied)
    assert answer.id == 9
    return answer


def states(applied: Applied) -> dict[str, str]:
    return {cid: outcome.state for cid, outcome in applied.containers.items()}


@contextlib.contextmanager
def v1_cgroup(*names: str) -> Iterator[list[Path]]:
    """Cgroups of the machine's own version 1 cpuset, one in the other, for this test alone. Needs root."""
    top = Path("/sys/fs/cgroup/cpuset")
    unique = f"vmpin-agent-{secrets.token_hex(6)}"
    made = []
    at = top
    for name in (unique, *names):
        at /= name
        at.mkdir()
        for file in "cpuset.cpus", "cpuset.mems":
            (at / file).write_text((at.parent / file).read_text())
        made.append(at)
    try:
        yield made
    finally:
        deadline = time.monotonic() + 120
        for path, _, _ in sorted(os.walk(made[0]), key=lambda each: -len(each[0])):
            while True:
                try:
                    os.rmdir(path)
                    break
                except OSError:
                    for pid in Path(path, "cgroup.procs").read_text().split():
                        with contextlib.suppress(OSError):
                            os.kill(int(pid), 9)
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)


def plain(tmp_path: Path, **containers: Worker) -> Path:
    """A cgroup of version 2 without the cpuset controller."""
    root = write(tmp_path / "cgroup", {"cgroup.controllers": "memory"})
    for name, each in containers.items():
        fill(root / name, each)
    return root
