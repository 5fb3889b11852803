"""The guest's agent killed at any point, containers that end at any point, and a cgroup that really refuses.

Killed: before each system call that changes anything, which are all the states that a kill can leave.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from guest_tree import agent, fill, made_up_proc, mask, put, states, v1_cgroup, worker, write
from need import lacking, need_root, need_tool

from vmpin.protocol.messages import Applied, Unpin
from vmpin_agent.agent import Agent

ID, OTHER = secrets.token_hex(32), secrets.token_hex(32)  # of this process alone: an agent on /sys/fs/cgroup finds it


@pytest.fixture(autouse=True)
def two_cpus() -> None:
    if not {0, 1} <= os.sched_getaffinity(0):
        lacking("needs CPUs 0 and 1")


@pytest.fixture
def real_v1() -> None:
    need_root()
    if not os.path.exists("/sys/fs/cgroup/cpuset/cpuset.cpus"):
        pytest.skip("needs cpuset cgroups of version 1")


class Killed(BaseException):
    """In place of SIGKILL: nothing in the agent catches it."""


@contextlib.contextmanager
def at_call(number: int, names: tuple[str, ...], do: Callable[[], None]) -> Iterator[list[str]]:
    """`do` before the system call of that number, of those named. :returns: the calls that were made."""
    calls: list[str] = []
    patch = pytest.MonkeyPatch()

    def wrap(name: str) -> None:
        call: Callable[..., Any] = getattr(os, name)

        def counted(*args: Any, **more: Any) -> Any:
            calls.append(name)
            if len(calls) == number + 1:
                do()
            return call(*args, **more)

        patch.setattr(os, name, counted)

    for name in names:
        wrap(name)
    try:
        yield calls
    finally:
        patch.undo()


def kill() -> None:
    raise Killed


def killed_at_each_point(start: Callable[[], Agent], steps: list[Callable[[Agent], object]],
                         state: Callable[[], object]) -> int:
    """Do the steps with an agent that is killed at the nth point, for each n. The next agent takes everything back, at
    once or after the steps; then the state is as before. :returns: how many points there were."""
    before, number = state(), 0
    while True:
        for after in [], steps:
            guest_agent = start()
            with at_call(number, ("sched_setaffinity", "write", "replace"), kill) as calls:
                try:
                    for step in steps:
                        step(guest_agent)
                except Killed:
                    pass
            ended = len(calls) <= number
            again = start()
            for step in after:
                step(again)
            again.answer(Unpin())
            assert state() == before, f"killed before call {number} of {calls}"
        if ended:
            return number
        number += 1


def test_killed_at_any_point_threads_get_their_original_masks_back(tmp_path: Path) -> None:
    with worker() as inside, worker() as other, worker() as own:
        inside.threads(2)
        inside.narrow(1)
        own.narrow(0)
        root = write(tmp_path / "cgroup", {"cgroup.controllers": "memory"})
        for name, member in {"a": inside, "b": other}.items():
            fill(root / name, member, every=True)
        proc = made_up_proc(tmp_path, inside, other, own)
        tids = [tid for member in (inside, other, own) for tid in member.tids()]
        points = killed_at_each_point(
            lambda: agent(tmp_path, proc=proc, sys=tmp_path / "sys"),
            [lambda to: put(to, {"a": "0", "b": "1"}, 1, system="1"), lambda to: put(to, {"a": "1"}, 2, system="0"),
             lambda to: put(to, {"a": "0-1", "b": "0"}, 3)], lambda: [mask(tid) for tid in tids])
        assert points > 20


@pytest.mark.root
@pytest.mark.usefixtures("real_v1")
def test_killed_at_any_point_cpusets_are_as_before(tmp_path: Path) -> None:
    with v1_cgroup(ID, "own") as (top, place, inner), worker(inner) as first, worker(place) as second:
        (inner / "cpuset.cpus").write_text("1")
        second.narrow(0)
        beside = top / OTHER
        beside.mkdir()
        with worker() as third:
            points = killed_at_each_point(
                lambda: agent(tmp_path, "/sys/fs/cgroup"),
                [lambda to: put(to, {ID: "0", OTHER: "1"}, 1), lambda to: put(to, {ID: "1"}, 2),
                 lambda to: put(to, {ID: "0-1", OTHER: "0"}, 3)],
                lambda: ([(path / "cpuset.cpus").read_text() for path in (top, place, inner)],
                         [mask(tid) for worker in (first, second, third) for tid in worker.tids()]))
        assert points > 15


@pytest.mark.root
@pytest.mark.usefixtures("real_v1")
def test_killed_for_real_again_and_again(tmp_path: Path) -> None:
    """At random moments of its work, by SIGKILL."""
    chance = random.Random(5)
    root = Path(__file__).parents[3]
    with v1_cgroup(ID) as (_, place), worker(place) as first:
        first.threads(30)
        first.narrow(1)
        before = [mask(tid) for tid in first.tids()]
        code = ("import sys\nfrom guest_tree import agent, put\nfrom pathlib import Path\n"
                "it = agent(Path(sys.argv[1]), '/sys/fs/cgroup')\nprint('ready', flush=True)\n"
                "for number in range(1, 10**6): put(it, {sys.argv[2]: ('0', '1', '0-1')[number % 3]}, number)\n")
        environment = {**os.environ, "PYTHONPATH": f"{root}:{root / 'guest'}:{root / 'tests'}"}
        for _ in range(8):
            with subprocess.Popen([sys.executable, "-c", code, str(tmp_path), ID], env=environment,
                                  stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                process.stdout.readline()
                time.sleep(chance.random() / 20)
                process.kill()
        agent(tmp_path, "/sys/fs/cgroup").answer(Unpin())
        assert [mask(tid) for tid in first.tids()] == before
        assert (place / "cpuset.cpus").read_text() == "0-1\n"


@pytest.mark.root
@pytest.mark.usefixtures("real_v1")
def test_a_container_may_end_at_any_point(tmp_path: Path) -> None:
    """Its processes are killed and its cgroups removed between any two system calls: the other container is pinned."""
    with v1_cgroup(OTHER) as (top, beside), worker(beside) as other:
        place, number, done = top / ID, 0, False
        while not done:
            for path in place, place / "own":
                path.mkdir()
                for file in "cpuset.cpus", "cpuset.mems":
                    (path / file).write_text((top / file).read_text())
            victims = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
            for victim, path in zip(victims, (place, place / "own"), strict=True):
                (path / "cgroup.procs").write_text(str(victim.pid))
            os.sched_setaffinity(victims[0].pid, {1})

            def end(victims: list[subprocess.Popen[bytes]] = victims) -> None:
                for victim in victims:
                    victim.kill()
                    victim.wait()
                for path in place / "own", place:
                    while True:
                        with contextlib.suppress(OSError):
                            path.rmdir()
                            break

            guest_agent = agent(tmp_path, "/sys/fs/cgroup")
            put(guest_agent, {ID: "0-1", OTHER: "0-1"}, 1)
            with at_call(number, ("open", "scandir", "sched_getaffinity", "sched_setaffinity", "write"), end):
                applied = put(guest_agent, {ID: "0", OTHER: "1"}, 2)
            assert applied.containers[OTHER].state == "applied", applied
            assert applied.containers[ID].state in ("applied", "unknown", "pending", "error"), applied
            assert other.masks() == {"1"}
            done = place.exists()
            if done:
                end()
            again = put(guest_agent, {ID: "0", OTHER: "1"}, 3)
            assert states(again) == {ID: "unknown", OTHER: "applied"}
            assert guest_agent.answer(Unpin()) == Applied(None, 3, {})
            assert other.masks() == {"0-1"}
            number += 1
        assert number > 40


@pytest.mark.root
@pytest.mark.usefixtures("real_v1")
def test_where_a_real_cgroup_refuses_threads_are_pinned(tmp_path: Path) -> None:
    """The file is another user's, and the agent may not pass over that."""
    need_tool("setpriv")
    root = Path(__file__).parents[3]
    with v1_cgroup(ID) as (_, place), worker(place) as first:
        first.threads(3)
        os.chown(place / "cpuset.cpus", 65534, 65534)
        code = ("import json, sys\nfrom guest_tree import agent, put\nfrom pathlib import Path\n"
                "from vmpin.protocol.messages import as_json\nit = agent(Path(sys.argv[1]), '/sys/fs/cgroup')\n"
                "print(json.dumps(as_json(put(it, {sys.argv[2]: '1'}))))")
        ran = subprocess.run(["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override", sys.executable,
                               "-c", code, str(tmp_path), ID], capture_output=True, text=True, timeout=120, check=True,
                              env={**os.environ, "PYTHONPATH": f"{root}:{root / 'guest'}:{root / 'tests'}"})
        assert '"state": "applied", "cgroup": null' in ran.stdout
        assert "Permission denied" in ran.stdout
        assert (place / "cpuset.cpus").read_text() == "0-1\n"
        assert first.masks() == {"1"}
        agent(tmp_path, "/sys/fs/cgroup").answer(Unpin())
        assert first.masks() == {"0-1"}


def test_originals_that_could_not_be_written_are_written_later(tmp_path: Path) -> None:
    with worker() as first:
        root = write(tmp_path / "cgroup", {"cgroup.controllers": "memory"})
        fill(root / "a", first)
        in_the_way = tmp_path / "run/agent.json.part"
        in_the_way.mkdir(parents=True)
        put(one := agent(tmp_path), {"a": "1"})
        in_the_way.rmdir()
        put(one, {"a": "1"})
        agent(tmp_path).answer(Unpin())
        assert first.masks() == {"0-1"}


def test_the_file_of_originals_is_void_after_a_boot(tmp_path: Path) -> None:
    with worker() as first:
        root = write(tmp_path / "cgroup", {"cgroup.controllers": "memory"})
        fill(root / "a", first)
        put(agent(tmp_path), {"a": "1"})
        kept = tmp_path / "run/agent.json"
        kept.write_text(kept.read_text().replace('"boot":"', '"boot":"0'))
        agent(tmp_path).answer(Unpin())
        assert first.masks() == {"1"}
