"""The guest's agent: what it does with a map, on processes of the test's own, in made-up trees and real cgroups."""

from __future__ import annotations

import errno
import json
import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest_fuzz import spoilt
from guest_tree import (
    Worker,
    agent,
    cpu_files,
    cpuinfo,
    fill,
    made_up_proc,
    mask,
    put,
    states,
    v1_cgroup,
    worker,
    write,
)
from need import lacking, need_root

from vmpin.cpuset import CpuSet
from vmpin.guestproto import (
    Answer,
    Applied,
    Event,
    Inventory,
    InventoryRequest,
    Map,
    NeedMap,
    Ping,
    Pong,
    ProtocolError,
    Request,
    Share,
    Subscribe,
    Unpin,
    encode,
)
from vmpin_agent import apply, cpusets, files, threads
from vmpin_agent.cgroups import Cgroups
from vmpin_agent.cpus import Cpus
from vmpin_agent.link import Closed, Link

ID = "0123456789abcdef" * 4
OTHER = "f" * 64


@pytest.fixture(autouse=True)
def two_cpus() -> None:
    if not {0, 1} <= os.sched_getaffinity(0):
        lacking("needs CPUs 0 and 1")


@pytest.fixture
def both() -> Iterator[tuple[Worker, Worker]]:
    with worker() as one, worker() as two:
        yield one, two


# Which vCPU is which CPU


def test_cpus_are_known_by_their_initial_apic_id(tmp_path: Path) -> None:
    write(tmp_path, {**cpu_files("0-2", "0-4"), "proc/cpuinfo": cpuinfo({0: 0, 1: 7, 2: 0x100}),
                     "sys/devices/system/node/node1/cpulist": "1-2\n"})
    table = Cpus(str(tmp_path / "proc"), str(tmp_path / "sys")).read()
    assert [(each.cpu, each.hw, each.online, each.node) for each in table.cpus] == [
        (0, 0, True, 0), (1, 7, True, 1), (2, 0x100, True, 1), (3, None, False, 0), (4, None, False, 0)]
    assert table.find((7, 0x100)) == (CpuSet([1, 2]), "", False)
    assert table.find((7, 3)) == (CpuSet([1]), "vCPU 3 is not online in the guest", True)
    assert table.find((1, 2, 3)) == (CpuSet(), "there is no vCPU 1-3 in the guest", False)


def test_a_vcpu_that_is_not_plugged_in_may_come(tmp_path: Path) -> None:
    write(tmp_path, {**cpu_files("0-1", possible="0-7"), "proc/cpuinfo": cpuinfo({0: 0, 1: 1})})
    cpus = Cpus(str(tmp_path / "proc"), str(tmp_path / "sys"))
    assert cpus.read().find((1, 7)) == (CpuSet([1]), "there is no vCPU 7 in the guest yet", True)
    before = cpus.plugged()
    write(tmp_path, cpu_files("0-1", "0-2", "0-7"))
    assert cpus.plugged() != before
    assert cpus.read().find((1, 7)) == (CpuSet([1]), "vCPU 7 is not online in the guest", True)


def test_a_vcpu_that_cannot_come_is_no_vcpu(tmp_path: Path) -> None:
    write(tmp_path, {**cpu_files("0-1"), "proc/cpuinfo": cpuinfo({0: 0, 1: 1})})
    table = Cpus(str(tmp_path / "proc"), str(tmp_path / "sys")).read()
    assert table.find((1, 9)) == (CpuSet([1]), "there is no vCPU 9 in the guest", False)


def test_on_arm64_mpidr_is_read_from_the_device_tree(tmp_path: Path) -> None:
    write(tmp_path, {**cpu_files("0-1", "0-2"), "proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 125.00\n"})
    for cpu, raw in enumerate([struct.pack(">I", 0), struct.pack(">Q", 0x100000001), struct.pack(">I", 0x80000100)]):
        reg = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/of_node/reg"
        reg.parent.mkdir(parents=True)
        reg.write_bytes(raw)
    table = Cpus(str(tmp_path / "proc"), str(tmp_path / "sys")).read()
    assert [(each.hw, each.online) for each in table.cpus] == [(0, True), (0x100000001, True), (0x100, False)]
    assert table.note == ""


def test_on_arm64_with_acpi_it_is_the_order_of_madt(tmp_path: Path) -> None:
    write(tmp_path, cpu_files("0-1"))
    raw = bytes(44) + bytes([12, 24]) + bytes(22)
    for flags, mpidr in (1, 0), (0, 5), (8, 0x101):
        raw += struct.pack("<BBHIII", 11, 80, 0, 0, 0, flags) + bytes(52) + struct.pack("<Q", mpidr) + bytes(4)
    tables = tmp_path / "sys/firmware/acpi/tables"
    tables.mkdir(parents=True)
    (tables / "APIC").write_bytes(raw + b"\x0b")
    table = Cpus(str(tmp_path / "proc"), str(tmp_path / "sys")).read()
    assert [each.hw for each in table.cpus] == [0, 0x101]


def test_where_nothing_tells_it_is_said_to_be_guessed(tmp_path: Path) -> None:
    write(tmp_path, cpu_files("0-1"))
    table = Cpus(str(tmp_path / "proc"), str(tmp_path / "sys")).read()
    assert [each.hw for each in table.cpus] == [0, 1]
    assert "taken to be the guest's own" in table.note


# Which cgroup is whose


@pytest.mark.parametrize("path", [ID, f"kubepods/pod1/{ID}", f"a.slice/cri-containerd-{ID}.scope",
                                  f"a.slice/b.slice/crio-{ID}.scope", f"{ID}/{ID}"])
def test_a_container_is_found_by_its_cgroups_last_part(tmp_path: Path, path: str) -> None:
    write(tmp_path, {"cgroup.controllers": "cpuset", f"{path}/cgroup.procs": "", "system.slice/cgroup.procs": ""})
    cgroups = Cgroups(str(tmp_path), kata=str(tmp_path / "none"))
    wanted = tmp_path / path if path != f"{ID}/{ID}" else tmp_path / ID
    assert cgroups.locate({ID, "c1"}).keys() == {ID}
    assert Path(cgroups.locate({ID})[ID].path) == wanted
    assert cgroups.all(set()).keys() == {ID}


def test_short_ids_are_found_when_they_are_named(tmp_path: Path) -> None:
    write(tmp_path, {"cg/cgroup.controllers": "", "cg/x/pod-a-1.scope/cgroup.procs": "", "cg/b/cgroup.procs": ""})
    (tmp_path / "kata" / "b").mkdir(parents=True)
    cgroups = Cgroups(str(tmp_path / "cg"), kata=str(tmp_path / "kata"))
    assert cgroups.locate({"a-1", "b", "1", "pod"}).keys() == {"a-1", "b", "1"}
    assert cgroups.all(set()).keys() == {"b"}


@pytest.mark.parametrize(("made", "layout"), [
    ({"cgroup.controllers": ""}, "v2"), ({"cpuset/tasks": "", "cpuset/cpuset.cpus": ""}, "v1"), ({"x/y": ""}, "none"),
    ({"cpuset/tasks": "", "unified/cgroup.controllers": ""}, "hybrid"),
])
def test_the_layout_is_named(tmp_path: Path, made: dict[str, str], layout: str) -> None:
    assert Cgroups(str(write(tmp_path, made))).layout == layout


def test_what_is_mounted_later_is_found(tmp_path: Path) -> None:
    """An init mounts version 1 piece by piece, and the agent may be there before it."""
    cgroups = Cgroups(str(write(tmp_path, {"memory/tasks": ""})))
    assert [each.cpuset for each in cgroups.hierarchies] == [False]
    write(tmp_path, {"cpuset/tasks": "", "cpuset/cpuset.cpus": "0-1"})
    assert [each.cpuset for each in cgroups.hierarchies] == [True, False]


# Threads, where there is no cpuset


def plain(tmp_path: Path, **containers: Worker) -> Path:
    """A cgroup of version 2 without the cpuset controller."""
    root = write(tmp_path / "cgroup", {"cgroup.controllers": "memory"})
    for name, each in containers.items():
        fill(root / name, each)
    return root


def test_every_thread_is_pinned_and_the_ones_born_later_too(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    one, two = both
    one.threads(5)
    root = plain(tmp_path, a=one, b=two)
    made = agent(tmp_path)
    applied = put(made, {"a": "0", "b": "1"})
    assert states(applied) == {"a": "applied", "b": "applied"}
    assert (one.masks(), two.masks()) == ({"0"}, {"1"})
    told = applied.containers["a"]
    assert (told.processes, told.threads, told.cgroup, str(told.effective)) == (1, 6, None, "0")
    os.sched_setaffinity(two.pid, {0, 1})
    two.threads(2)
    fill(root / "b", two)
    assert made.look(False) == []  # nothing new to be told: it is put right
    assert two.masks() == {"1"}


def test_containers_change_places_and_get_back_what_they_had(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    one, two = both
    plain(tmp_path, a=one, b=two)
    made = agent(tmp_path)
    put(made, {"a": "0", "b": "1"}, 1)
    put(made, {"a": "1", "b": "0"}, 2)
    assert (one.masks(), two.masks()) == ({"1"}, {"0"})
    put(made, {"b": "0"}, 3)
    assert (one.masks(), two.masks()) == ({"0-1"}, {"0"})
    assert made.answer(Unpin(4)) == Applied(4, 3, {})
    assert two.masks() == {"0-1"}
    assert json.loads((tmp_path / "run/agent.json").read_text())["threads"] == []


def test_a_threads_own_mask_is_never_widened(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    one, _ = both
    plain(tmp_path, a=one)
    own = one.narrow(1)
    fill(tmp_path / "cgroup/a", one)
    made = agent(tmp_path)
    put(made, {"a": "0-1"}, 1)
    assert (mask(one.pid), mask(own)) == ("0-1", "1")
    put(made, {"a": "0"}, 2)
    assert (mask(one.pid), mask(own)) == ("0", "0")
    put(made, {"a": "0-1"}, 3)
    assert (mask(one.pid), mask(own)) == ("0-1", "1")
    os.sched_setaffinity(own, {0})  # it changes its mind
    made.look(False)
    assert mask(own) == "0"
    made.answer(Unpin())
    assert (mask(one.pid), mask(own)) == ("0-1", "0")


def test_who_was_born_since_the_last_look_is_let_go_too(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    """It begins with the mask of who made it, and what it had before is not known."""
    one, two = both
    root = plain(tmp_path, a=one)

    def show() -> None:
        fill(root / "a", one, every=True)
        made_up_proc(tmp_path, one, two)

    show()
    made = agent(tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys")
    put(made, {"a": "1"}, 1, system="0")
    for each in one, two:
        each.threads(3)
        each.child()
    show()
    assert (one.masks(), two.masks()) == ({"1"}, {"0"})
    put(made, {}, 2)
    assert (one.masks(), two.masks()) == ({"0-1"}, {"0-1"})
    put(made, {"a": "1"}, 3, system="0")
    for each in one, two:
        each.child()
    show()
    made.answer(Unpin())
    assert (one.masks(), two.masks()) == ({"0-1"}, {"0-1"})


def test_an_agent_that_was_killed_knows_its_own_work(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    one, _ = both
    plain(tmp_path, a=one)
    put(agent(tmp_path), {"a": "0"}, 1)
    again = agent(tmp_path)
    assert again.greeting() == [NeedMap()]
    put(again, {"a": "0-1"}, 1)
    assert one.masks() == {"0-1"}
    put(again, {"a": "1"}, 2)
    agent(tmp_path).answer(Unpin())
    assert one.masks() == {"0-1"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot": 1}', "[" * 100000, "null",
                                  '{"boot":"","cgroups":{"a":[1]},"threads":[],"enabled":[],"system":[]}'])
def test_a_spoilt_memory_is_no_memory(tmp_path: Path, text: str, both: tuple[Worker, Worker]) -> None:
    plain(tmp_path, a=both[0])
    (tmp_path / "run").mkdir()
    (tmp_path / "run/agent.json").write_text(text)
    assert states(put(agent(tmp_path), {"a": "0"})) == {"a": "applied"}


def test_a_container_that_is_not_there_is_said_and_the_others_applied(tmp_path: Path,
                                                                     both: tuple[Worker, Worker]) -> None:
    one, two = both
    plain(tmp_path, a=one, b=two)
    write(tmp_path, {**cpu_files("0-1"), "proc/cpuinfo": cpuinfo({0: 0, 1: 1})})
    for tid in one.tids():
        (tmp_path / f"proc/{tid}").symlink_to(f"/proc/{tid}")
    applied = put(agent(tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys"), {"a": "0", "gone": "1", "b": "4096"})
    assert states(applied) == {"a": "applied", "gone": "unknown", "b": "error"}
    assert applied.containers["b"].error == "there is no vCPU 4096 in the guest"
    assert applied.containers["b"].threads == 1
    assert one.masks() == {"0"}
    assert two.masks() == {"0-1"}


def test_a_container_that_ends_in_the_middle_is_no_error(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    one, _ = both
    root = plain(tmp_path, a=one)
    made = agent(tmp_path)
    one.stop()
    assert states(put(made, {"a": "0"})) == {"a": "applied"}
    for name in "cgroup.procs", "cgroup.threads":
        (root / "a" / name).unlink()
    (root / "a").rmdir()
    (told,) = made.look(False)
    assert isinstance(told, Applied)
    assert states(told) == {"a": "unknown"}


def test_a_vcpu_is_used_once_it_is_online(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    """Also when one goes: never an empty mask."""
    one, _ = both
    plain(tmp_path, a=one)
    write(tmp_path, {**cpu_files("0", "0-1"), "proc/cpuinfo": cpuinfo({0: 0}), "proc/loadavg": "0 0 0 1/9 17\n"})
    for tid in one.tids():
        (tmp_path / f"proc/{tid}").symlink_to(f"/proc/{tid}")
    made = agent(tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys")
    applied = put(made, {"a": "7"}, 1)
    assert applied.containers["a"].state == "pending"
    assert "vCPU 7 is not online" in applied.containers["a"].error
    assert one.masks() == {"0-1"}
    write(tmp_path, {**cpu_files("0-1"), "proc/cpuinfo": cpuinfo({0: 0, 1: 7})})
    told = made.look(True)
    assert told[0] == Event("cpus", CpuSet([0, 1]))
    assert isinstance(told[-1], Applied)
    assert states(told[-1]) == {"a": "applied"}
    assert one.masks() == {"1"}
    write(tmp_path, {**cpu_files("0", "0-1"), "proc/cpuinfo": cpuinfo({0: 0})})
    (told_last,) = (each for each in made.look(False) if isinstance(each, Applied))
    assert told_last.containers["a"].state == "pending"
    assert one.masks() == {"1"}


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
    made = agent(tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys")
    applied = put(made, {"a": "1"}, 1, system="0")
    assert inside.masks() == {"1"}
    assert other.masks() == {"0"}
    assert applied.system is not None
    assert applied.system.state == "applied"
    # A container's process that the guest's own have just made has their mask, and no wish of its own.
    os.sched_setaffinity(inside.pid, {0})
    put(made, {"a": "0-1"}, 2, system="0")
    assert inside.masks() == {"0-1"}
    put(made, {"a": "0-1"}, 3)
    assert mask(other.pid) == "0-1"
    assert mask(own) == "1"


def test_without_cgroups_nobodys_processes_are_taken_for_the_guests_own(tmp_path: Path,
                                                                        both: tuple[Worker, Worker]) -> None:
    write(tmp_path, {**cpu_files("0-1"), "proc/cpuinfo": cpuinfo({0: 0, 1: 1})})
    for tid in both[0].tids():
        (tmp_path / f"proc/{tid}").symlink_to(f"/proc/{tid}")
    applied = put(agent(tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys"), {"a": "1"}, system="0")
    assert states(applied) == {"a": "unknown"}
    assert applied.system is not None
    assert applied.system.state == "error"
    assert both[0].masks() == {"0-1"}


# Cpusets


def v2(tmp_path: Path, each: Worker, effective: str, cpus: str = "") -> Path:
    root = write(tmp_path / "cgroup", {"cgroup.controllers": "cpuset memory", "cgroup.subtree_control": "cpuset"})
    fill(root / "a", each)
    return write(root / "a", {"cpuset.cpus": cpus, "cpuset.cpus.effective": effective})


def test_on_v2_the_containers_cpuset_is_written(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    one, _ = both
    place = v2(tmp_path, one, "0-1")
    made = agent(tmp_path)
    applied = put(made, {"a": "0-1"})
    assert (place / "cpuset.cpus").read_text() == "0-1\n"
    assert applied.containers["a"].cgroup == "/a"
    assert states(applied) == {"a": "applied"}
    made.answer(Unpin())
    assert (place / "cpuset.cpus").read_text().startswith("\n")


def test_what_others_write_to_a_cpuset_meanwhile_is_no_wish_of_the_threads(
        tmp_path: Path, both: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kata's agent, between the agent's look at the cpuset and at the threads."""
    one, _ = both
    place = v2(tmp_path, one, "0-1")

    def late(tid: int) -> CpuSet | None:
        write(place, {"cpuset.cpus.effective": "0"})
        os.sched_setaffinity(tid, {0})
        return threads.mask(tid)

    monkeypatch.setattr(apply, "mask", late)
    assert states(put(agent(tmp_path), {"a": "0"})) == {"a": "applied"}
    assert json.loads((tmp_path / "run/agent.json").read_text())["threads"] == []


def test_where_a_cpuset_is_narrower_above_threads_are_pinned_as_far_as_that_goes(
        tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    one, _ = both
    v2(tmp_path, one, "0")
    applied = put(agent(tmp_path), {"a": "0-1"}).containers["a"]
    assert (applied.state, applied.error) == ("error", "the cgroups above leave it 0")


def test_a_cgroup_file_that_refuses_leaves_the_masks(tmp_path: Path, both: tuple[Worker, Worker],
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = both
    v2(tmp_path, one, "0-1")

    def refuse(path: str, text: str) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(files, "write", refuse)
    applied = put(agent(tmp_path), {"a": "1"}).containers["a"]
    assert (applied.state, applied.cgroup) == ("applied", None)
    assert "cpuset.cpus does not take '1': Device or resource busy" in applied.error
    assert one.masks() == {"1"}


def test_the_controller_is_enabled_down_the_path_and_disabled_again(
        tmp_path: Path, both: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel answers it: a cgroup's files are there once its parent passes the controller on."""
    one, _ = both
    root = write(tmp_path / "cgroup", {"cgroup.controllers": "cpuset", "cgroup.subtree_control": "memory",
                                       "pods/cgroup.subtree_control": ""})
    fill(root / "pods/a", one)
    done = []

    def kernel(path: str, text: str) -> None:
        done.append((path.removeprefix(f"{root}"), text))
        if path.endswith("cpuset.cpus"):
            write(Path(path).parent, {"cpuset.cpus": text, "cpuset.cpus.effective": text or "0-1"})
        elif path == f"{root}/pods/cgroup.subtree_control" and text == "+cpuset":
            write(root / "pods/a", {"cpuset.cpus": "", "cpuset.cpus.effective": "0-1"})

    monkeypatch.setattr(files, "write", kernel)
    made = agent(tmp_path)
    assert put(made, {"a": "0"}).containers["a"].cgroup == "/pods/a"
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
def test_on_v1_new_processes_are_born_inside(tmp_path: Path) -> None:
    with v1_cgroup(ID) as (_, place), worker(place) as one:
        one.threads(3)
        made = agent(tmp_path, "/sys/fs/cgroup")
        applied = put(made, {ID: "1"}, 1)
        assert states(applied) == {ID: "applied"}
        assert str(applied.containers[ID].cgroup).endswith(ID)
        assert (applied.containers[ID].processes, applied.containers[ID].threads) == (1, 4)
        one.child()
        assert one.masks() == {"1"}
        put(made, {ID: "0"}, 2)
        assert one.masks() == {"0"}
        assert made.answer(Unpin()) == Applied(None, 2, {})
        assert one.masks() == {"0-1"}
        assert (place / "cpuset.cpus").read_text() == "0-1\n"


@pytest.mark.root
@pytest.mark.usefixtures("real_v1")
def test_on_v1_a_narrower_cgroup_within_stays_so(tmp_path: Path) -> None:
    with v1_cgroup(ID, "own") as (_, place, inner), worker(inner) as one:
        (inner / "cpuset.cpus").write_text("1")
        same = place / "same"
        same.mkdir()
        for name, text in ("cpuset.cpus", "0-1"), ("cpuset.mems", "0"):
            (same / name).write_text(text)
        made = agent(tmp_path, "/sys/fs/cgroup")

        def have() -> list[str]:
            return [(each / "cpuset.cpus").read_text().strip() for each in (place, inner, same)]

        put(made, {ID: "0"}, 1)
        assert have() == ["0", "0", "0"]
        assert one.masks() == {"0"}
        put(made, {ID: "0-1"}, 2)
        assert have() == ["0-1", "1", "0-1"]
        assert one.masks() == {"1"}
        put(agent(tmp_path, "/sys/fs/cgroup"), {ID: "0"}, 1)
        later = place / "later"  # a runtime gives it its parent's CPUs, which are few for now
        later.mkdir()
        for name in "cpuset.cpus", "cpuset.mems":
            (later / name).write_text("0")
        put(agent(tmp_path, "/sys/fs/cgroup"), {ID: "0"}, 2)
        agent(tmp_path, "/sys/fs/cgroup").answer(Unpin())
        assert have() == ["0-1", "1", "0-1"]
        assert (later / "cpuset.cpus").read_text().strip() == "0-1"
        assert one.masks() == {"1"}


@pytest.mark.root
@pytest.mark.usefixtures("real_v1")
def test_on_v1_the_cgroups_above_are_widened_and_get_memory_nodes(tmp_path: Path) -> None:
    with v1_cgroup("pods") as (top, pods):
        (pods / "cpuset.cpus").write_text("0")
        place = pods / ID
        place.mkdir()  # with neither CPUs nor memory nodes
        made = agent(tmp_path, "/sys/fs/cgroup")
        assert states(put(made, {ID: "1"})) == {ID: "applied"}
        assert [(each / "cpuset.cpus").read_text().strip() for each in (top, pods, place)] == ["0-1", "0-1", "1"]
        with worker(place) as one:
            assert one.masks() == {"1"}
            made.answer(Unpin())
            assert (place / "cpuset.cpus").read_text().strip() == "1"  # with a process it cannot be empty again


@pytest.mark.root
@pytest.mark.usefixtures("real_v1")
def test_in_a_cpuset_a_threads_own_mask_is_never_widened(tmp_path: Path) -> None:
    with v1_cgroup(ID) as (_, place), worker(place) as one:
        own = one.narrow(1)
        made = agent(tmp_path, "/sys/fs/cgroup")
        for generation, (cpus, wanted) in enumerate([("0-1", "1"), ("0", "0"), ("0-1", "1"), ("1", "1")]):
            put(made, {ID: cpus}, generation)
            assert (mask(one.pid), mask(own)) == (cpus, wanted)
        made.answer(Unpin())
        assert (mask(one.pid), mask(own)) == ("0-1", "1")


@pytest.mark.root
@pytest.mark.usefixtures("real_v1")
def test_a_cgroup_that_is_made_anew_under_its_name_is_another(tmp_path: Path) -> None:
    with v1_cgroup(ID) as (top, place):
        made = agent(tmp_path, "/sys/fs/cgroup")
        put(made, {ID: "0"})
        place.rmdir()
        place.mkdir()
        for file in "cpuset.cpus", "cpuset.mems":
            (place / file).write_text((top / file).read_text())
        made.look(False)
        assert (place / "cpuset.cpus").read_text().strip() == "0"
        made.answer(Unpin())
        assert (place / "cpuset.cpus").read_text().strip() == "0-1"


@pytest.mark.root
@pytest.mark.usefixtures("real_v1")
def test_cgroups_that_came_and_went_are_forgotten(tmp_path: Path) -> None:
    with v1_cgroup(ID) as (_, place):
        made = agent(tmp_path, "/sys/fs/cgroup")
        for number in range(20):
            inner = place / f"run-{number}"
            inner.mkdir()
            for file in "cpuset.cpus", "cpuset.mems":
                (inner / file).write_text((place / file).read_text())
            put(made, {ID: "1"}, number)
            assert str(inner) in made._memory.cgroups
            inner.rmdir()
        put(made, {ID: "1"}, 20)
        assert made._memory.cgroups.keys() == {str(place)}
        assert json.loads((tmp_path / "run/agent.json").read_text())["cgroups"].keys() == {str(place)}
        made.answer(Unpin())
        assert (place / "cpuset.cpus").read_text() == "0-1\n"


def test_an_error_is_no_longer_than_the_host_shows(tmp_path: Path, both: tuple[Worker, Worker],
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    v2(tmp_path, both[0], "0-1")

    def refuse(path: str, text: str) -> None:
        raise OSError(errno.EBUSY, "busy" * 300)

    monkeypatch.setattr(files, "write", refuse)
    assert len(put(agent(tmp_path), {"a": "1"}).containers["a"].error) == 400


def test_what_a_cgroup_leaves_its_threads_is_its_nearest_ancestors(tmp_path: Path) -> None:
    write(tmp_path, {"cgroup.controllers": "cpuset", "a/cpuset.cpus.effective": "0-2", "a/b/c/cgroup.procs": ""})
    (hierarchy,) = Cgroups(str(tmp_path)).hierarchies
    assert cpusets.effective(hierarchy, f"{tmp_path}/a/b/c") == CpuSet([0, 1, 2])
    assert cpusets.effective(hierarchy, f"{tmp_path}/x") is None


# What it says


def test_the_newest_map_wins(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    one, _ = both
    plain(tmp_path, a=one)
    made = agent(tmp_path)
    put(made, {"a": "1"}, 5)
    older = put(made, {"a": "0"}, 4)
    assert (older.generation, str(older.containers["a"].wanted)) == (5, "1")
    assert one.masks() == {"1"}
    made.answer(Unpin())
    assert put(made, {"a": "0"}, 4) == Applied(9, 5, {})
    assert one.masks() == {"0-1"}


def test_it_answers_a_ping_and_an_inventory(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    root = plain(tmp_path)
    fill(root / f"x-{ID}.scope", both[0])
    made = agent(tmp_path)
    pong = made.answer(Ping(1))
    assert isinstance(pong, Pong)
    assert pong.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert pong.uptime > 0
    told = made.answer(InventoryRequest(2))
    assert isinstance(told, Inventory)
    assert [(each.id, each.cgroup, each.processes) for each in told.containers] == [(ID, f"/x-{ID}.scope", 1)]
    assert told.cgroup == "v2"
    assert {each.cpu for each in told.cpus if each.online} >= {0, 1}


def test_who_subscribed_is_told_of_containers(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    root = plain(tmp_path)
    fill(root / ID, both[0])
    made = agent(tmp_path)
    made.answer(Subscribe(1))
    fill(root / OTHER, both[1])
    (root / ID / "cgroup.procs").unlink()
    (root / ID / "cgroup.threads").unlink()
    (root / ID).rmdir()
    made._newest = ("", "")
    assert made.look(True) == [Event("containers", started=(OTHER,), stopped=(ID,))]
    assert made.look(True) == []


def test_a_second_subscriber_takes_nothing_from_the_first(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    root = plain(tmp_path)
    made = agent(tmp_path)
    made.answer(Subscribe(1))
    fill(root / ID, both[0])
    made.answer(Subscribe(2))
    made._newest = ("", "")
    assert made.look(True) == [Event("containers", started=(ID,))]
    made.look(False)  # both have gone
    fill(root / OTHER, both[1])
    made.answer(Subscribe(3))
    made._newest = ("", "")
    assert made.look(True) == []


def test_what_could_not_be_taken_back_is_tried_again(tmp_path: Path, both: tuple[Worker, Worker],
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = both
    plain(tmp_path, a=one)
    made = agent(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    for again in (lambda: made.answer(Unpin(2)), lambda: [made.look(False) for _ in range(11)]):
        put(made, {"a": "0"}, 1)
        with monkeypatch.context() as patch:
            patch.setattr(cpusets, "restore", fail)
            with pytest.raises(OSError, match="no memory"):
                made.answer(Unpin(1))
        assert one.masks() == {"0"}
        again()
        assert one.masks() == {"0-1"}


def test_nothing_is_looked_at_while_no_thread_is_born_or_ends(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    one, _ = both
    plain(tmp_path, a=one)
    write(tmp_path, {**cpu_files("0-1"), "proc/cpuinfo": cpuinfo({0: 0, 1: 1}), "proc/loadavg": "0 0 0 1/9 17\n"})
    made = agent(tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys")
    for tid in one.tids():
        (tmp_path / f"proc/{tid}").symlink_to(f"/proc/{tid}")
    put(made, {"a": "0"})
    for _ in range(4):
        made.look(False)
    os.sched_setaffinity(one.pid, {0, 1})
    made.look(False)
    assert one.masks() == {"0-1"}
    for _ in range(10):  # but every now and then all the same
        made.look(False)
    assert one.masks() == {"0"}


def test_a_program_may_read_its_cpus(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    one, two = both
    plain(tmp_path, a=one, b=two)
    made = agent(tmp_path)
    put(made, {"a": "0", "b": "1"}, 7, exclusive=("a",), export=True)
    told = tmp_path / "run/cpus.json"
    assert json.loads(told.read_text()) == {"generation": 7, "containers": {
        "a": {"own": "0", "shared": "1"}, "b": {"own": "", "shared": "1"}}}
    assert told.stat().st_mode & 0o777 == 0o644
    made.answer(Map(None, 8, "pod", {"a": Share((0,), True, CpuSet([14, 15])), "b": Share((1,))}, export=True))
    assert json.loads(told.read_text()) == {"generation": 8, "containers": {
        "a": {"own": "0", "shared": "1", "host": "14-15"}, "b": {"own": "", "shared": "1"}}}
    put(made, {"a": "0"}, 9)
    assert not told.exists()


# Hostile input


def test_the_agent_survives_anything(tmp_path: Path) -> None:
    seed = os.environ.get("VMPIN_FUZZ_SEED") or "agent"
    chance = random.Random(seed)
    write(tmp_path, {**cpu_files("0-1"), "proc/cpuinfo": cpuinfo({0: 0, 1: 1}),
                     "cgroup/cgroup.controllers": "cpuset", "cgroup/a/cgroup.threads": ""})
    share = {"hw": "0-1", "exclusive": True, "host": "4-5"}
    frames = [encode(each) for each in (
        {"v": 1, "type": "ping", "id": 1}, {"v": 1, "type": "inventory", "id": 2}, {"v": 1, "type": "unpin", "id": 3},
        {"v": 1, "type": "subscribe"}, {"v": 1, "type": "map", "id": 4, "generation": 5, "sandbox": "pod",
                                        "containers": {"a": share}, "system": None}, {
            "v": 1, "type": "map", "generation": 5, "containers": {"a": share, "b": {"hw": "1"}},
            "system": {"hw": "0"}, "export": True})]
    sink = os.open(os.devnull, os.O_WRONLY)
    ended = 0
    applied: set[int] = set()
    link: Link

    def answer(request: Request) -> Answer:
        found = made.answer(request)
        if isinstance(request, Map) and isinstance(found, Applied) and found.generation == request.generation:
            applied.add(number)
        return found

    try:
        for number in range(70_000):
            if number % 100 == 0:  # it soon has a map that is newer than all
                made = agent(tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys")
                link = Link(sink, answer)
            raw = spoilt(chance, chance.choice(frames))
            try:
                link.feed(raw)
                link.tell(made.look(link.subscribed) if number % 10 == 0 else [])
            except (ProtocolError, Closed):
                ended += 1
                link = Link(sink, answer)
            except Exception as err:
                pytest.fail(f"seed {seed}, {number}: {err!r} of {raw!r}")
    finally:
        os.close(sink)
    assert 1000 < ended < 69_000
    assert len(applied) > 1000
