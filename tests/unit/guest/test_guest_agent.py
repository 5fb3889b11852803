"""The guest's agent: applying maps, answers, and hostile input, in made-up trees."""

from __future__ import annotations

import errno
import json
import os
import random
import struct
from pathlib import Path

import pytest
from guest_fuzz import spoilt
from guest_tree import Worker, agent, cpu_files, cpuinfo, plain, put, write

from vmpin.cpuset import CpuSet
from vmpin.protocol.frames import ProtocolError, encode
from vmpin.protocol.messages import (
    AgentMessage,
    Applied,
    ContainerVcpus,
    HostMessage,
    Ping,
    Pong,
    Unpin,
    VcpuMap,
)
from vmpin_agent import VERSION, cpusets
from vmpin_agent.guest_cgroups import GuestCgroups
from vmpin_agent.guest_cpus import CpuReader, GuestCpu
from vmpin_agent.link import Link, LinkClosed

pytest_plugins = ["given_unit"]
pytestmark = pytest.mark.usefixtures("two_cpus")

ID = "0123456789abcdef" * 4
OTHER = "f" * 64


# Which vCPU is which CPU


def test_cpus_are_known_by_their_initial_apic_id(tmp_path: Path) -> None:
    write(tmp_path, {**cpu_files("0-2", "0-4"), "proc/cpuinfo": cpuinfo({0: 0, 1: 7, 2: 0x100})})
    table = CpuReader(str(tmp_path / "proc"), str(tmp_path / "sys")).read()
    assert table.cpus == (GuestCpu(0, 0, True), GuestCpu(1, 7, True), GuestCpu(2, 0x100, True),
                          GuestCpu(3, None, False), GuestCpu(4, None, False))
    assert table.find((7, 0x100)) == (CpuSet([1, 2]), "", False)
    assert table.find((7, 3)) == (CpuSet([1]), "vCPU 3 is not online in the guest", True)
    assert table.find((1, 2, 3)) == (CpuSet(), "there is no vCPU 1-3 in the guest", False)


def test_a_vcpu_that_is_not_plugged_in_may_come(tmp_path: Path) -> None:
    write(tmp_path, {**cpu_files("0-1", possible="0-7"), "proc/cpuinfo": cpuinfo({0: 0, 1: 1})})
    cpus = CpuReader(str(tmp_path / "proc"), str(tmp_path / "sys"))
    assert cpus.read().find((1, 7)) == (CpuSet([1]), "there is no vCPU 7 in the guest yet", True)
    before = cpus.plugged()
    write(tmp_path, cpu_files("0-1", "0-2", "0-7"))
    assert cpus.plugged() != before
    assert cpus.read().find((1, 7)) == (CpuSet([1]), "vCPU 7 is not online in the guest", True)


def test_a_vcpu_that_cannot_come_is_no_vcpu(tmp_path: Path) -> None:
    write(tmp_path, {**cpu_files("0-1"), "proc/cpuinfo": cpuinfo({0: 0, 1: 1})})
    table = CpuReader(str(tmp_path / "proc"), str(tmp_path / "sys")).read()
    assert table.find((1, 9)) == (CpuSet([1]), "there is no vCPU 9 in the guest", False)


def test_on_arm64_mpidr_is_read_from_the_device_tree(tmp_path: Path) -> None:
    write(tmp_path, {**cpu_files("0-1", "0-2"), "proc/cpuinfo": "processor\t: 0\nBogoMIPS\t: 125.00\n"})
    for cpu, raw in enumerate([struct.pack(">I", 0), struct.pack(">Q", 0x100000001), struct.pack(">I", 0x80000100)]):
        reg = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/of_node/reg"
        reg.parent.mkdir(parents=True)
        reg.write_bytes(raw)
    table = CpuReader(str(tmp_path / "proc"), str(tmp_path / "sys")).read()
    assert [(row.hw, row.online) for row in table.cpus] == [(0, True), (0x100000001, True), (0x100, False)]
    assert table.note == ""


def test_on_arm64_with_acpi_it_is_the_order_of_madt(tmp_path: Path) -> None:
    write(tmp_path, cpu_files("0-1"))
    raw = bytes(44) + bytes([12, 24]) + bytes(22)
    for flags, mpidr in (1, 0), (0, 5), (8, 0x101):
        raw += struct.pack("<BBHIII", 11, 80, 0, 0, 0, flags) + bytes(52) + struct.pack("<Q", mpidr) + bytes(4)
    tables = tmp_path / "sys/firmware/acpi/tables"
    tables.mkdir(parents=True)
    (tables / "APIC").write_bytes(raw + b"\x0b")
    table = CpuReader(str(tmp_path / "proc"), str(tmp_path / "sys")).read()
    assert [row.hw for row in table.cpus] == [0, 0x101]


def test_without_evidence_it_is_reported_as_guessed(tmp_path: Path) -> None:
    write(tmp_path, cpu_files("0-1"))
    table = CpuReader(str(tmp_path / "proc"), str(tmp_path / "sys")).read()
    assert [row.hw for row in table.cpus] == [0, 1]
    assert "assumed to equal the guest's CPU numbers" in table.note


# Which cgroup is whose


@pytest.mark.parametrize("path", [ID, f"kubepods/pod1/{ID}", f"a.slice/cri-containerd-{ID}.scope",
                                  f"a.slice/b.slice/crio-{ID}.scope", f"{ID}/{ID}"])
def test_a_container_is_found_by_its_cgroups_last_part(tmp_path: Path, path: str) -> None:
    write(tmp_path, {"cgroup.controllers": "cpuset", f"{path}/cgroup.procs": "", "system.slice/cgroup.procs": ""})
    cgroups = GuestCgroups(str(tmp_path), kata=str(tmp_path / "none"))
    wanted = tmp_path / path if path != f"{ID}/{ID}" else tmp_path / ID
    assert cgroups.locate({ID, "c1"}).keys() == {ID}
    assert Path(cgroups.locate({ID})[ID].path) == wanted
    assert cgroups.all(set()).keys() == {ID}


def test_short_ids_are_found_when_they_are_named(tmp_path: Path) -> None:
    write(tmp_path, {"cg/cgroup.controllers": "", "cg/x/pod-a-1.scope/cgroup.procs": "", "cg/b/cgroup.procs": ""})
    (tmp_path / "kata" / "b").mkdir(parents=True)
    cgroups = GuestCgroups(str(tmp_path / "cg"), kata=str(tmp_path / "kata"))
    assert cgroups.locate({"a-1", "b", "1", "pod"}).keys() == {"a-1", "b", "1"}
    assert cgroups.all(set()).keys() == {"b"}


def test_hierarchies_mounted_later_are_found(tmp_path: Path) -> None:
    """An init mounts version 1 piece by piece, and the agent may be there before it."""
    cgroups = GuestCgroups(str(write(tmp_path, {"memory/tasks": ""})))
    assert [hierarchy.cpuset for hierarchy in cgroups.hierarchies] == [False]
    write(tmp_path, {"cpuset/tasks": "", "cpuset/cpuset.cpus": "0-1"})
    assert [hierarchy.cpuset for hierarchy in cgroups.hierarchies] == [True, False]


# What it says


def test_the_newest_map_wins(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    first, _ = both
    plain(tmp_path, a=first)
    guest_agent = agent(tmp_path)
    put(guest_agent, {"a": "1"}, 5)
    older = put(guest_agent, {"a": "0"}, 4)
    assert (older.generation, str(older.containers["a"].wanted)) == (5, "1")
    assert first.masks() == {"1"}
    guest_agent.answer(Unpin())
    assert put(guest_agent, {"a": "0"}, 4) == Applied(9, 5, {})
    assert first.masks() == {"0-1"}


def test_a_pong_has_the_agents_version_and_its_doubts(tmp_path: Path) -> None:
    write(tmp_path, cpu_files("0-1"))
    guest_agent = agent(tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys")
    pong = guest_agent.answer(Ping(1))
    assert isinstance(pong, Pong)
    assert (pong.id, pong.version) == (1, VERSION)
    assert "assumed to equal the guest's CPU numbers" in pong.note
    write(tmp_path, {"proc/cpuinfo": cpuinfo({0: 0, 1: 1})})
    assert guest_agent.answer(Ping(2)) == Pong(2, VERSION)


def test_a_failed_unpin_is_repeated(tmp_path: Path, both: tuple[Worker, Worker],
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = both
    plain(tmp_path, a=first)
    guest_agent = agent(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    for again in (lambda: guest_agent.answer(Unpin(2)), lambda: [guest_agent.check() for _ in range(11)]):
        put(guest_agent, {"a": "0"}, 1)
        with monkeypatch.context() as patch:
            patch.setattr(cpusets, "restore", fail)
            with pytest.raises(OSError, match="no memory"):
                guest_agent.answer(Unpin(1))
        assert first.masks() == {"0"}
        again()
        assert first.masks() == {"0-1"}


def test_no_cgroup_is_read_while_no_thread_is_created_or_ends(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    first, _ = both
    plain(tmp_path, a=first)
    write(tmp_path, {**cpu_files("0-1"), "proc/cpuinfo": cpuinfo({0: 0, 1: 1}), "proc/loadavg": "0 0 0 1/9 17\n"})
    guest_agent = agent(tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys")
    for tid in first.tids():
        (tmp_path / f"proc/{tid}").symlink_to(f"/proc/{tid}")
    put(guest_agent, {"a": "0"})
    for _ in range(4):
        guest_agent.check()
    os.sched_setaffinity(first.pid, {0, 1})
    guest_agent.check()
    assert first.masks() == {"0-1"}
    for _ in range(10):  # but every now and then all the same
        guest_agent.check()
    assert first.masks() == {"0"}


def test_a_program_may_read_its_cpus(tmp_path: Path, both: tuple[Worker, Worker]) -> None:
    first, second = both
    plain(tmp_path, a=first, b=second)
    guest_agent = agent(tmp_path)
    put(guest_agent, {"a": "0", "b": "1"}, 7, exclusive=("a",), export=True)
    answered = tmp_path / "run/cpus.json"
    assert json.loads(answered.read_text()) == {"generation": 7, "containers": {
        "a": {"own": "0", "shared": "1"}, "b": {"own": "", "shared": "1"}}}
    assert answered.stat().st_mode & 0o777 == 0o644
    guest_agent.answer(VcpuMap(None, 8, "pod", {"a": ContainerVcpus((0,), True, CpuSet([14, 15])),
                                         "b": ContainerVcpus((1,))}, export=True))
    assert json.loads(answered.read_text()) == {"generation": 8, "containers": {
        "a": {"own": "0", "shared": "1", "host": "14-15"}, "b": {"own": "", "shared": "1"}}}
    put(guest_agent, {"a": "0"}, 9)
    assert not answered.exists()


def test_a_file_of_cpus_that_cannot_be_written_is_logged_once(
        tmp_path: Path, both: tuple[Worker, Worker], capsys: pytest.CaptureFixture[str]) -> None:
    """The map is applied again once a second while the guest creates threads."""
    plain(tmp_path, a=both[0])
    guest_agent = agent(tmp_path)
    file = tmp_path / "run/cpus.json"
    logged = f"vmpin-agent: {file}: Is a directory\n"
    for times in 1, 2:
        file.mkdir(parents=True)
        for number in range(3):
            put(guest_agent, {"a": "0"}, 10 * times + number, export=True)
        assert capsys.readouterr().err == logged
        file.rmdir()
        put(guest_agent, {"a": "0"}, 10 * times + 5, export=True)
        assert file.is_file()
        file.unlink()


# Hostile input


def test_the_agent_survives_anything(tmp_path: Path) -> None:
    seed = os.environ.get("VMPIN_FUZZ_SEED") or "agent"
    chance = random.Random(seed)
    write(tmp_path, {**cpu_files("0-1"), "proc/cpuinfo": cpuinfo({0: 0, 1: 1}),
                     "cgroup/cgroup.controllers": "cpuset", "cgroup/a/cgroup.threads": ""})
    share = {"hw": "0-1", "exclusive": True, "host": "4-5"}
    frames = [encode(message) for message in (
        {"v": 1, "type": "ping", "id": 1}, {"v": 1, "type": "unpin", "id": 3},
        {"v": 1, "type": "map", "id": 4, "generation": 5, "sandbox": "pod", "containers": {"a": share},
         "system": None},
        {"v": 1, "type": "map", "generation": 5, "containers": {"a": share, "b": {"hw": "1"}}, "system": {"hw": "0"},
         "export": True})]
    sink = os.open(os.devnull, os.O_WRONLY)
    ended = 0
    applied: set[int] = set()
    link: Link

    def answer(request: HostMessage) -> AgentMessage:
        found = guest_agent.answer(request)
        if isinstance(request, VcpuMap) and isinstance(found, Applied) and found.generation == request.generation:
            applied.add(number)
        return found

    try:
        for number in range(70_000):
            if number % 100 == 0:  # it soon has a map that is newer than all
                guest_agent = agent(tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys")
                link = Link(sink, answer)
            raw = spoilt(chance, chance.choice(frames))
            try:
                link.feed(raw)
                if number % 10 == 0 and (changed := guest_agent.check()) is not None:
                    link.send(changed)
            except (ProtocolError, LinkClosed):
                ended += 1
                link = Link(sink, answer)
            except Exception as err:
                pytest.fail(f"seed {seed}, {number}: {err!r} of {raw!r}")
    finally:
        os.close(sink)
    assert 1000 < ended < 69_000
    assert len(applied) > 1000
