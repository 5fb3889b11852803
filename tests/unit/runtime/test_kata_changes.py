"""What Kata's runtimes leave on disk while they write: updates, and half of a file."""

from __future__ import annotations

import json
import os
import threading
import time

import kata_state
import pytest
from kata_state import AGO, GO, RS, SID, Disk, containers, shown
from system_calls import system_calls

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerState
from vmpin.runtime import kata
from vmpin.runtime.kata import SETTLING

disk = kata_state.disk


def test_an_update_is_seen_and_what_did_not_change_is_not_read_again(disk: Disk) -> None:
    disk.write(containers(("c1", "2-3")))
    first = disk.only()
    assert disk.only() is first
    disk.write(containers(("c1", "4-6,7")), at=AGO + 1)
    assert shown(disk.only()) == {"c1": "4-7"}


def test_an_update_of_the_same_length_in_the_same_tick_of_the_clock_is_seen(disk: Disk) -> None:
    now = time.time_ns()
    disk.write(containers(("c1", "2-3")), at=now)
    disk.write({"State": "running"}, "c1", at=now)
    assert shown(disk.only()) == {"c1": "2-3"}
    disk.write(containers(("c1", "4-5")), at=now)
    disk.write({"State": "stopped"}, "c1", at=now)
    (container,) = disk.only().containers or ()
    assert (container.cpuset, container.state) == (CpuSet.parse("4-5"), ContainerState.STOPPED)


def test_the_containers_files_are_read_no_more_when_the_sandboxs_is_old(
        disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kata writes theirs after the sandbox's, in one go, and never alone."""
    disk.write(GO)
    disk.write({"State": "running"}, "c1")
    disk.write({"State": "stopped"}, "c2")
    first = disk.only()
    assert disk.only() is first  # also with a stopped container
    monkeypatch.setattr(kata, "CONTAINERS_FOLLOW", 0.0)
    assert system_calls(disk.state.sandboxes) == {"listdir": 2, "stat": 1}
    assert disk.only() is first
    disk.write({**GO, "State": "paused"}, at=AGO + 1)
    disk.write({"State": "stopped"}, "c1", at=AGO + 1)
    assert [each.state.value for each in disk.only().containers or ()] == ["running", "stopped", "stopped"]


def test_a_sandbox_that_is_gone_is_forgotten(disk: Disk) -> None:
    path = disk.write(GO)
    disk.write({"State": "stopped"}, "c1")
    assert disk.only().id == SID
    path.unlink()
    assert disk.state.sandboxes() == {}
    disk.write(containers(("c1", "5")))
    (disk.go / "sbs" / SID / "c1" / "persist.json").unlink()
    assert [each.state.value for each in disk.only().containers or ()] == ["running"]


def test_a_half_written_file_is_read_again_until_it_is_whole(disk: Disk) -> None:
    """Kata truncates the file and writes it anew; here another thread does, with a pause in the middle."""
    path = disk.write(containers(("c1", "2-3")))
    assert shown(disk.only()) == {"c1": "2-3"}
    whole = json.dumps(containers(("c1", "4-7"))).encode()

    def write(halfway: threading.Event) -> None:
        with path.open("wb", buffering=0) as file:
            file.write(whole[: len(whole) // 2])
            halfway.set()
            time.sleep(0.003)
            file.write(whole[len(whole) // 2:])

    for _ in range(20):  # a machine that stalls may not get there in time at once
        disk.complaints.clear()
        halfway = threading.Event()
        writer = threading.Thread(target=write, args=(halfway,))
        writer.start()
        assert halfway.wait(120)
        found = shown(disk.only())
        writer.join()
        if found == {"c1": "4-7"}:
            break
    assert disk.complaints == []
    assert found == {"c1": "4-7"}
    assert shown(disk.only()) == {"c1": "4-7"}


def test_a_file_that_stays_half_written_leaves_its_last_state_in_use(disk: Disk) -> None:
    disk.write(containers(("c1", "2-3")))
    assert shown(disk.only()) == {"c1": "2-3"}
    path = disk.write(b'{"Config": {"ContainerCo', at=AGO + 1)
    assert shown(disk.only()) == {"c1": "2-3"}
    assert len(disk.complaints) == 1
    assert disk.complaints[0].startswith(f"{path}: is not JSON: ")
    assert disk.complaints[0].endswith(": its last state is used")
    assert shown(disk.only()) == {"c1": "2-3"}
    assert len(disk.complaints) == 1  # once for each state of the file
    disk.write(containers(("c1", "4")), at=AGO + 2)
    assert shown(disk.only()) == {"c1": "4"}
    assert len(disk.complaints) == 1


@pytest.mark.parametrize("rs", [False, True])
@pytest.mark.parametrize("half", [b"", b'{"Conf'])
def test_a_file_that_is_being_written_is_no_trouble_until_it_stays_so(disk: Disk, rs: bool, half: bytes) -> None:
    """runtime-rs writes state.json in place: a slow node showed it empty at a resync."""
    path = disk.write(half, rs=rs)
    os.utime(path, (time.time() + 3600,) * 2)  # however long this machine takes for what follows
    for _ in range(3):
        disk.state._incomplete.clear()
        assert disk.state.sandboxes() == {}
        assert disk.complaints == []
        assert disk.state.unsettled
    path.write_bytes(json.dumps(RS if rs else GO).encode())
    assert len(disk.state.sandboxes()) == 1
    assert not disk.state.unsettled
    disk.write(half, rs=rs)  # long ago
    assert len(disk.state.sandboxes()) == 1
    assert [text.endswith(": its last state is used") for text in disk.complaints] == [True]
    assert not disk.state.unsettled


def test_a_half_written_file_counts_after_a_second_whatever_its_time(disk: Disk) -> None:
    path = disk.write(b"{")
    os.utime(path, (time.time() + 3600,) * 2)
    assert disk.state.sandboxes() == {}
    assert disk.complaints == []
    disk.state._incomplete[str(path)] -= SETTLING
    assert disk.state.sandboxes() == {}
    assert len(disk.complaints) == 1
    disk.write(b"{", at=AGO)
    path.unlink()
    assert disk.state.sandboxes() == {}
    assert not disk.state.unsettled
