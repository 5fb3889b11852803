"""The guest's agent where there is no cpuset: the masks of threads, on processes of the test's own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from guest_tree import Worker, agent, cpu_files, cpuinfo, fill, made_up_proc, mask, plain, put, states, write

from vmpin.protocol.messages import Applied, NeedMap, Unpin

pytest_plugins = ["given_unit"]
pytestmark = pytest.mark.usefixtures("two_cpus")


# Threads, where there is no cpuset


def test_every_thread_is_pinned_and_later_ones_too(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    first, second = both
    first.threads(5)
    root = plain(tmp_path, a=first, b=second)
    guest_agent = agent(tmp_path)
    applied = put(guest_agent, {"a": "0", "b": "1"})
    assert states(applied) == {"a": "applied", "b": "applied"}
    assert (first.masks(), second.masks()) == ({"0"}, {"1"})
    reported = applied.containers["a"]
    assert (reported.processes, reported.threads, reported.cgroup, str(reported.effective)) == (1, 6, None, "0")
    os.sched_setaffinity(second.pid, {0, 1})
    second.threads(2)
    fill(root / "b", second)
    assert guest_agent.check() is None  # nothing new to report: it is put right
    assert second.masks() == {"1"}


def test_containers_swap_vcpus_and_get_their_original_masks_back(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    first, second = both
    plain(tmp_path, a=first, b=second)
    guest_agent = agent(tmp_path)
    put(guest_agent, {"a": "0", "b": "1"}, 1)
    put(guest_agent, {"a": "1", "b": "0"}, 2)
    assert (first.masks(), second.masks()) == ({"1"}, {"0"})
    put(guest_agent, {"b": "0"}, 3)
    assert (first.masks(), second.masks()) == ({"0-1"}, {"0"})
    assert guest_agent.answer(Unpin(4)) == Applied(4, 3, {})
    assert second.masks() == {"0-1"}
    assert json.loads((tmp_path / "run/agent.json").read_text())["threads"] == []


def test_a_threads_own_mask_is_never_widened(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    first, _ = both
    plain(tmp_path, a=first)
    own = first.narrow(1)
    fill(tmp_path / "cgroup/a", first)
    guest_agent = agent(tmp_path)
    put(guest_agent, {"a": "0-1"}, 1)
    assert (mask(first.pid), mask(own)) == ("0-1", "1")
    put(guest_agent, {"a": "0"}, 2)
    assert (mask(first.pid), mask(own)) == ("0", "0")
    put(guest_agent, {"a": "0-1"}, 3)
    assert (mask(first.pid), mask(own)) == ("0-1", "1")
    os.sched_setaffinity(own, {0})  # it changes its mind
    guest_agent.check()
    assert mask(own) == "0"
    guest_agent.answer(Unpin())
    assert (mask(first.pid), mask(own)) == ("0-1", "0")


def test_a_process_created_since_the_last_reading_is_released_too(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    """It begins with its creator's mask, and has no original mask of its own."""
    first, second = both
    root = plain(tmp_path, a=first)

    def show() -> None:
        fill(root / "a", first, every=True)
        made_up_proc(tmp_path, first, second)

    show()
    guest_agent = agent(tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys")
    put(guest_agent, {"a": "1"}, 1, system="0")
    for worker in first, second:
        worker.threads(3)
        worker.child()
    show()
    assert (first.masks(), second.masks()) == ({"1"}, {"0"})
    put(guest_agent, {}, 2)
    assert (first.masks(), second.masks()) == ({"0-1"}, {"0-1"})
    put(guest_agent, {"a": "1"}, 3, system="0")
    for worker in first, second:
        worker.child()
    show()
    guest_agent.answer(Unpin())
    assert (first.masks(), second.masks()) == ({"0-1"}, {"0-1"})


def test_an_agent_that_was_killed_knows_its_own_work(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    first, _ = both
    plain(tmp_path, a=first)
    put(agent(tmp_path), {"a": "0"}, 1)
    again = agent(tmp_path)
    assert again.greeting() == [NeedMap()]
    put(again, {"a": "0-1"}, 1)
    assert first.masks() == {"0-1"}
    put(again, {"a": "1"}, 2)
    agent(tmp_path).answer(Unpin())
    assert first.masks() == {"0-1"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot": 1}', "[" * 100000, "null",
                                  '{"boot":"","cgroups":{"a":[1]},"threads":[],"enabled":[],"system":[]}'])
def test_a_damaged_file_of_originals_is_ignored(tmp_path: Path, text: str, both: tuple[Worker, Worker]) -> None:
    plain(tmp_path, a=both[0])
    (tmp_path / "run").mkdir()
    (tmp_path / "run/agent.json").write_text(text)
    assert states(put(agent(tmp_path), {"a": "0"})) == {"a": "applied"}


def test_a_missing_container_is_reported_and_the_others_are_applied(tmp_path: Path,
                                                                     both: tuple[Worker, Worker]) -> None:
    first, second = both
    plain(tmp_path, a=first, b=second)
    write(tmp_path, {**cpu_files("0-1"), "proc/cpuinfo": cpuinfo({0: 0, 1: 1})})
    for tid in first.tids():
        (tmp_path / f"proc/{tid}").symlink_to(f"/proc/{tid}")
    applied = put(agent(tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys"), {"a": "0", "gone": "1", "b": "4096"})
    assert states(applied) == {"a": "applied", "gone": "unknown", "b": "error"}
    assert applied.containers["b"].error == "there is no vCPU 4096 in the guest"
    assert applied.containers["b"].threads == 1
    assert first.masks() == {"0"}
    assert second.masks() == {"0-1"}


def test_a_container_that_ends_in_the_middle_is_no_error(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    first, _ = both
    root = plain(tmp_path, a=first)
    guest_agent = agent(tmp_path)
    first.stop()
    assert states(put(guest_agent, {"a": "0"})) == {"a": "applied"}
    for name in "cgroup.procs", "cgroup.threads":
        (root / "a" / name).unlink()
    (root / "a").rmdir()
    reported = guest_agent.check()
    assert isinstance(reported, Applied)
    assert states(reported) == {"a": "unknown"}


def test_a_vcpu_is_used_once_it_is_online(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    """Also when a CPU goes offline: never an empty mask."""
    first, _ = both
    plain(tmp_path, a=first)
    write(tmp_path, {**cpu_files("0", "0-1"), "proc/cpuinfo": cpuinfo({0: 0}), "proc/loadavg": "0 0 0 1/9 17\n"})
    for tid in first.tids():
        (tmp_path / f"proc/{tid}").symlink_to(f"/proc/{tid}")
    guest_agent = agent(tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys")
    applied = put(guest_agent, {"a": "7"}, 1)
    assert applied.containers["a"].state == "pending"
    assert "vCPU 7 is not online" in applied.containers["a"].error
    assert first.masks() == {"0-1"}
    write(tmp_path, {**cpu_files("0-1"), "proc/cpuinfo": cpuinfo({0: 0, 1: 7})})
    reported = guest_agent.check()
    assert reported is not None
    assert states(reported) == {"a": "applied"}
    assert first.masks() == {"1"}
    write(tmp_path, {**cpu_files("0", "0-1"), "proc/cpuinfo": cpuinfo({0: 0})})
    last = guest_agent.check()
    assert last is not None
    assert last.containers["a"].state == "pending"
    assert first.masks() == {"1"}


# The guest's own processes


def test_the_guests_own_processes_go_on_the_spare_vcpus(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    inside, other = both
    other.threads(2)
    own = other.narrow(1)
    plain(tmp_path, a=inside)
    write(tmp_path, {"proc/2/stat": f"2 (kthreadd) S 0 0 0 0 -1 {0x00200000} {'0 ' * 12}1 0\n", "proc/cpuinfo": ""})
    write(tmp_path, cpu_files("0-1"))
    for tid in [*inside.tids(), *other.tids()]:
        (tmp_path / f"proc/{tid}").symlink_to(f"/proc/{tid}")
    guest_agent = agent(tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys")
    applied = put(guest_agent, {"a": "1"}, 1, system="0")
    assert inside.masks() == {"1"}
    assert other.masks() == {"0"}
    assert applied.system is not None
    assert applied.system.state == "applied"
    # A container's process that the guest's own have just created has their mask, and no wish of its own.
    os.sched_setaffinity(inside.pid, {0})
    put(guest_agent, {"a": "0-1"}, 2, system="0")
    assert inside.masks() == {"0-1"}
    put(guest_agent, {"a": "0-1"}, 3)
    assert mask(other.pid) == "0-1"
    assert mask(own) == "1"


def test_without_cgroups_no_processes_are_taken_for_the_guests_own(tmp_path: Path,
                                                                        both: tuple[Worker, Worker]) -> None:
    write(tmp_path, {**cpu_files("0-1"), "proc/cpuinfo": cpuinfo({0: 0, 1: 1})})
    for tid in both[0].tids():
        (tmp_path / f"proc/{tid}").symlink_to(f"/proc/{tid}")
    applied = put(agent(tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys"), {"a": "1"}, system="0")
    assert states(applied) == {"a": "unknown"}
    assert applied.system is not None
    assert applied.system.state == "error"
    assert both[0].masks() == {"0-1"}
