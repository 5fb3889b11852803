"""The guest's agent and cpusets: in made-up trees, and in real cgroups."""

from __future__ import annotations

import errno
import json
import os
import secrets
from pathlib import Path

import pytest
from guest_tree import Worker, agent, fill, mask, put, states, v1_cgroup, worker, write
from need import need_root

from vmpin.cpuset import CpuSet
from vmpin.protocol.messages import Applied, Unpin
from vmpin_agent import cpusets, file_io, guest_threads, map_applier
from vmpin_agent.guest_cgroups import GuestCgroups

pytest_plugins = ["given_unit"]
pytestmark = pytest.mark.usefixtures("two_cpus")

ID = secrets.token_hex(32)  # of this process alone: an agent on /sys/fs/cgroup finds it wherever it is


def v2(tmp_path: Path, worker: Worker, effective: str) -> Path:
    root = write(tmp_path / "cgroup", {"cgroup.controllers": "cpuset memory", "cgroup.subtree_control": "cpuset"})
    fill(root / "a", worker)
    return write(root / "a", {"cpuset.cpus": "", "cpuset.cpus.effective": effective})


def test_on_v2_the_containers_cpuset_is_written(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    first, _ = both
    place = v2(tmp_path, first, "0-1")
    guest_agent = agent(tmp_path)
    applied = put(guest_agent, {"a": "0-1"})
    assert (place / "cpuset.cpus").read_text() == "0-1\n"
    assert applied.containers["a"].cgroup == "/a"
    assert states(applied) == {"a": "applied"}
    guest_agent.answer(Unpin())
    assert (place / "cpuset.cpus").read_text().startswith("\n")


def test_a_cpuset_that_another_program_writes_meanwhile_is_no_mask_of_the_threads_own(
        tmp_path: Path, both: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kata's agent, between the agent's look at the cpuset and at the threads."""
    first, _ = both
    place = v2(tmp_path, first, "0-1")

    def late(tid: int) -> CpuSet | None:
        write(place, {"cpuset.cpus.effective": "0"})
        os.sched_setaffinity(tid, {0})
        return guest_threads.mask(tid)

    monkeypatch.setattr(map_applier, "mask", late)
    assert states(put(agent(tmp_path), {"a": "0"})) == {"a": "applied"}
    assert json.loads((tmp_path / "run/agent.json").read_text())["threads"] == []


def test_below_a_narrower_cpuset_threads_are_pinned_within_it(
        tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    first, _ = both
    v2(tmp_path, first, "0")
    applied = put(agent(tmp_path), {"a": "0-1"}).containers["a"]
    assert (applied.state, applied.error) == ("error", "the cgroups above leave it 0")


def test_a_cgroup_file_that_refuses_leaves_the_masks(tmp_path: Path, both: tuple[Worker, Worker],
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = both
    v2(tmp_path, first, "0-1")

    def refuse(path: str, text: str) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(file_io, "write", refuse)
    applied = put(agent(tmp_path), {"a": "1"}).containers["a"]
    assert (applied.state, applied.cgroup) == ("applied", None)
    assert "cpuset.cpus refused '1': Device or resource busy" in applied.error
    assert first.masks() == {"1"}


def test_the_controller_is_enabled_down_the_path_and_disabled_again(
        tmp_path: Path, both: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the kernel: a cgroup has the files once its parent passes the controller on."""
    first, _ = both
    root = write(tmp_path / "cgroup", {"cgroup.controllers": "cpuset", "cgroup.subtree_control": "memory",
                                       "pods/cgroup.subtree_control": ""})
    fill(root / "pods/a", first)
    done = []

    def kernel(path: str, text: str) -> None:
        done.append((path.removeprefix(f"{root}"), text))
        if path.endswith("cpuset.cpus"):
            write(Path(path).parent, {"cpuset.cpus": text, "cpuset.cpus.effective": text or "0-1"})
        elif path == f"{root}/pods/cgroup.subtree_control" and text == "+cpuset":
            write(root / "pods/a", {"cpuset.cpus": "", "cpuset.cpus.effective": "0-1"})

    monkeypatch.setattr(file_io, "write", kernel)
    guest_agent = agent(tmp_path)
    assert put(guest_agent, {"a": "0"}).containers["a"].cgroup == "/pods/a"
    assert done == [("/cgroup.subtree_control", "+cpuset"), ("/pods/cgroup.subtree_control", "+cpuset"),
                    ("/pods/a/cpuset.cpus", "0")]
    done.clear()
    agent(tmp_path).answer(Unpin())
    assert done == [("/pods/a/cpuset.cpus", ""), ("/pods/cgroup.subtree_control", "-cpuset"),
                    ("/cgroup.subtree_control", "-cpuset")]


@pytest.fixture
def real_v1() -> None:
    need_root()
    if not os.path.exists("/sys/fs/cgroup/cpuset/cpuset.cpus"):
        pytest.skip("needs cpuset cgroups of version 1")


@pytest.mark.root
@pytest.mark.usefixtures("real_v1")
def test_on_v1_new_processes_begin_inside(tmp_path: Path) -> None:
    with v1_cgroup(ID) as (_, place), worker(place) as first:
        first.threads(3)
        guest_agent = agent(tmp_path, "/sys/fs/cgroup")
        applied = put(guest_agent, {ID: "1"}, 1)
        assert states(applied) == {ID: "applied"}
        assert str(applied.containers[ID].cgroup).endswith(ID)
        assert (applied.containers[ID].processes, applied.containers[ID].threads) == (1, 4)
        first.child()
        assert first.masks() == {"1"}
        put(guest_agent, {ID: "0"}, 2)
        assert first.masks() == {"0"}
        assert guest_agent.answer(Unpin()) == Applied(None, 2, {})
        assert first.masks() == {"0-1"}
        assert (place / "cpuset.cpus").read_text() == "0-1\n"


@pytest.mark.parametrize("prefix", ["cpuset.", ""])
def test_on_v1_the_files_may_lack_the_controllers_name(
        tmp_path: Path, both: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    """Mounted with noprefix."""
    top, place = tmp_path / "cgroup/cpuset", tmp_path / "cgroup/cpuset/a"
    for path, nodes in (top, "0"), (place, ""):
        write(path, {f"{prefix}cpus": "0-1", f"{prefix}effective_cpus": "0-1", f"{prefix}mems": nodes, "tasks": ""})
    fill(place, both[0])
    done = []

    def kernel(path: str, text: str) -> None:
        done.append((path.removeprefix(str(top)), text))
        if path.endswith("cpus"):
            write(place, {f"{prefix}cpus": text, f"{prefix}effective_cpus": text})

    monkeypatch.setattr(file_io, "write", kernel)
    guest_agent = agent(tmp_path)
    assert put(guest_agent, {"a": "1"}).containers["a"].cgroup == "/a"
    assert done == [(f"/a/{prefix}mems", "0"), (f"/a/{prefix}cpus", "1")]
    guest_agent.answer(Unpin())
    assert done[2:] == [(f"/a/{prefix}cpus", "0-1")]


@pytest.mark.root
@pytest.mark.usefixtures("real_v1")
def test_on_v1_a_narrower_cgroup_within_stays_so(tmp_path: Path) -> None:
    with v1_cgroup(ID, "own") as (_, place, inner), worker(inner) as first:
        (inner / "cpuset.cpus").write_text("1")
        same = place / "same"
        same.mkdir()
        for name, text in ("cpuset.cpus", "0-1"), ("cpuset.mems", "0"):
            (same / name).write_text(text)
        guest_agent = agent(tmp_path, "/sys/fs/cgroup")

        def have() -> list[str]:
            return [(path / "cpuset.cpus").read_text().strip() for path in (place, inner, same)]

        put(guest_agent, {ID: "0"}, 1)
        assert have() == ["0", "0", "0"]
        assert first.masks() == {"0"}
        put(guest_agent, {ID: "0-1"}, 2)
        assert have() == ["0-1", "1", "0-1"]
        assert first.masks() == {"1"}
        put(agent(tmp_path, "/sys/fs/cgroup"), {ID: "0"}, 1)
        later = place / "later"  # a runtime gives it its parent's CPUs, which are few for now
        later.mkdir()
        for name in "cpuset.cpus", "cpuset.mems":
            (later / name).write_text("0")
        put(agent(tmp_path, "/sys/fs/cgroup"), {ID: "0"}, 2)
        agent(tmp_path, "/sys/fs/cgroup").answer(Unpin())
        assert have() == ["0-1", "1", "0-1"]
        assert (later / "cpuset.cpus").read_text().strip() == "0-1"
        assert first.masks() == {"1"}


@pytest.mark.root
@pytest.mark.usefixtures("real_v1")
def test_on_v1_the_cgroups_above_are_widened_and_get_memory_nodes(tmp_path: Path) -> None:
    with v1_cgroup("pods") as (top, pods):
        (pods / "cpuset.cpus").write_text("0")
        place = pods / ID
        place.mkdir()  # with neither CPUs nor memory nodes
        guest_agent = agent(tmp_path, "/sys/fs/cgroup")
        assert states(put(guest_agent, {ID: "1"})) == {ID: "applied"}
        assert [(path / "cpuset.cpus").read_text().strip() for path in (top, pods, place)] == ["0-1", "0-1", "1"]
        with worker(place) as first:
            assert first.masks() == {"1"}
            guest_agent.answer(Unpin())
            assert (place / "cpuset.cpus").read_text().strip() == "1"  # with a process it cannot be empty again


@pytest.mark.root
@pytest.mark.usefixtures("real_v1")
def test_in_a_cpuset_a_threads_own_mask_is_never_widened(tmp_path: Path) -> None:
    with v1_cgroup(ID) as (_, place), worker(place) as first:
        own = first.narrow(1)
        guest_agent = agent(tmp_path, "/sys/fs/cgroup")
        for generation, (cpus, wanted) in enumerate([("0-1", "1"), ("0", "0"), ("0-1", "1"), ("1", "1")]):
            put(guest_agent, {ID: cpus}, generation)
            assert (mask(first.pid), mask(own)) == (cpus, wanted)
        guest_agent.answer(Unpin())
        assert (mask(first.pid), mask(own)) == ("0-1", "1")


@pytest.mark.root
@pytest.mark.usefixtures("real_v1")
def test_a_cgroup_that_is_made_anew_under_its_name_is_another(tmp_path: Path) -> None:
    with v1_cgroup(ID) as (top, place):
        guest_agent = agent(tmp_path, "/sys/fs/cgroup")
        put(guest_agent, {ID: "0"})
        place.rmdir()
        place.mkdir()
        for file in "cpuset.cpus", "cpuset.mems":
            (place / file).write_text((top / file).read_text())
        guest_agent.check()
        assert (place / "cpuset.cpus").read_text().strip() == "0"
        guest_agent.answer(Unpin())
        assert (place / "cpuset.cpus").read_text().strip() == "0-1"


@pytest.mark.root
@pytest.mark.usefixtures("real_v1")
def test_removed_cgroups_are_forgotten(tmp_path: Path) -> None:
    with v1_cgroup(ID) as (_, place):
        guest_agent = agent(tmp_path, "/sys/fs/cgroup")
        for number in range(20):
            inner = place / f"run-{number}"
            inner.mkdir()
            for file in "cpuset.cpus", "cpuset.mems":
                (inner / file).write_text((place / file).read_text())
            put(guest_agent, {ID: "1"}, number)
            assert str(inner) in guest_agent.originals.cgroups
            inner.rmdir()
        put(guest_agent, {ID: "1"}, 20)
        assert guest_agent.originals.cgroups.keys() == {str(place)}
        assert json.loads((tmp_path / "run/agent.json").read_text())["cgroups"].keys() == {str(place)}
        guest_agent.answer(Unpin())
        assert (place / "cpuset.cpus").read_text() == "0-1\n"


def test_an_error_is_no_longer_than_the_host_shows(tmp_path: Path, both: tuple[Worker, Worker],
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    v2(tmp_path, both[0], "0-1")

    def refuse(path: str, text: str) -> None:
        raise OSError(errno.EBUSY, "busy" * 300)

    monkeypatch.setattr(file_io, "write", refuse)
    assert len(put(agent(tmp_path), {"a": "1"}).containers["a"].error) == 400


def test_a_cgroup_without_the_file_has_its_nearest_ancestors_cpus(tmp_path: Path) -> None:
    write(tmp_path, {"cgroup.controllers": "cpuset", "a/cpuset.cpus.effective": "0-2", "a/b/c/cgroup.procs": ""})
    (hierarchy,) = GuestCgroups(str(tmp_path)).hierarchies
    assert cpusets.effective(hierarchy, f"{tmp_path}/a/b/c") == CpuSet([0, 1, 2])
    assert cpusets.effective(hierarchy, f"{tmp_path}/x") is None
