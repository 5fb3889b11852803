"""The kubelet's checkpoint as an authority."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from vmpin.authorities.kubelet_authority import KubeletCheckpoint, assignments_of
from vmpin.cpuset import EMPTY, CpuSet
from vmpin.domain.kubelet_cpus import CpuManagerState
from vmpin.domain.model import Container, ContainerId
from vmpin.reconcile import state_file
from vmpin.reconcile.state_format import SavedState
from vmpin.runtime.kubelet import MAX_BYTES

UID = "uid-1"


def cpus(text: str) -> CpuSet:
    return CpuSet.parse(text)


def write(directory: Path, policy: str = "static", default: str = "0-1", **entries: str) -> None:
    (directory / "new").write_text(json.dumps({"policyName": policy, "defaultCpuSet": default,
                                               "entries": {UID: entries}, "checksum": 0}))
    (directory / "new").rename(directory / "cpu_manager_state")


@pytest.mark.parametrize("state", [None, CpuManagerState("none", CpuSet()), CpuManagerState("none", cpus("0-3"))])
def test_without_the_static_policy_it_does_not_rule(state: CpuManagerState | None) -> None:
    assert assignments_of(state) is None


def test_a_container_is_found_by_pod_and_name() -> None:
    by_name = assignments_of(CpuManagerState("static", cpus("0-1"), {(UID, "app"): cpus("2-3")}, {UID: cpus("2-4")}))
    assert by_name is not None
    app, side, nameless = (Container(ContainerId("c1"), name) for name in ("app", "side", ""))
    assert by_name.cpus_of(UID, app) == cpus("2-3")
    assert [by_name.cpus_of(UID, side), by_name.cpus_of("", app), by_name.cpus_of(UID, nameless)] == [None] * 3
    assert (by_name.owned, dict(by_name.by_pod), by_name.complete) == (cpus("2-4"), {UID: cpus("2-4")}, True)


def test_the_assignments_follow_the_contents_of_the_file(tmp_path: Path) -> None:
    checkpoint = KubeletCheckpoint(tmp_path, lambda text: None)
    write(tmp_path, app="2-3")
    first = assignments_of(checkpoint.read())
    assert first is not None
    assert (first.pool, first.complete, first.writes) == (cpus("0-1"), True, False)
    assert first.since.keys() == {(UID, "app")}
    write(tmp_path, app="2-3")
    assert assignments_of(checkpoint.read()) == first
    write(tmp_path, default="0", app="2-3")
    second = assignments_of(checkpoint.read())
    assert second is not None
    assert second.pool == cpus("0")
    write(tmp_path, policy="none", default="")
    assert assignments_of(checkpoint.read()) is None


@pytest.mark.parametrize("default", ["", "0-1"])
def test_its_pool_is_the_default_set_even_if_that_is_empty(default: str) -> None:
    found = assignments_of(CpuManagerState("static", cpus(default)))
    assert found is not None
    assert found.pool == cpus(default)


#: Long enough ago to be known by its stamp.
AGO = 1_700_000_000_000_000_000


class Node:
    """A kubelet's directory, who reads it, and what was warned of."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "cpu_manager_state"
        self.warnings: list[str] = []
        self.state = KubeletCheckpoint(root, self.warnings.append)

    def write(self, content: bytes | str, at: int | None = AGO) -> None:
        """As the kubelet writes: a file beside it, renamed. `content` may be the CPUs of the container `app`."""
        made = self.root / ".new"
        made.write_bytes(content if isinstance(content, bytes) else checkpoint(content))
        if at is not None:
            os.utime(made, ns=(at, at))
        os.rename(made, self.path)

    def owned(self) -> str | None:
        found = self.state.read()
        return None if found is None else str(found.exclusive)


def checkpoint(cpus: str, **more: object) -> bytes:
    return json.dumps({"policyName": "static", "defaultCpuSet": "0-1", "entries": {"uid": {"app": cpus}},
                       "checksum": 0, **more}).encode()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_without_a_kubelet_there_is_nothing(node: Node, tmp_path: Path) -> None:
    assert node.state.read() is None
    assert KubeletCheckpoint(tmp_path / "none", node.warnings.append).read() is None
    node.path.touch()
    assert KubeletCheckpoint(node.path, node.warnings.append).read() is None  # a file where the directory should be
    assert node.warnings == []


def test_a_checkpoint_is_parsed_once_and_again_when_it_was_replaced(node: Node) -> None:
    node.write("2-3")
    first = node.state.read()
    assert first is not None
    assert first.entries == {("uid", "app"): CpuSet.parse("2-3")}
    assert node.state.written == AGO
    assert node.state.read() is first
    node.write("4-5", AGO + 1)
    assert node.owned() == "4-5"
    assert node.state.written == AGO + 1
    assert node.warnings == []


def test_the_same_written_again_is_the_same_state_of_a_later_time(node: Node) -> None:
    node.write("2-3")
    first = node.state.read()
    node.write("2-3", AGO + 1)
    assert node.state.read() is first
    assert node.state.written == AGO + 1


def test_changes_within_one_tick_of_the_clock_are_not_missed(node: Node) -> None:
    for turn in range(200):
        node.write(str(2 + turn % 2), None)
        assert node.owned() == str(2 + turn % 2)


def test_a_removed_checkpoint_of_the_static_policy_is_used_on_until_there_is_another(node: Node) -> None:
    """The kubelet has it in memory, and writes it again at its next allocation (seen with 1.36)."""
    node.write("2-3")
    assert (node.owned(), node.state.stale) == ("2-3", False)
    node.path.unlink()
    for _ in range(3):
        assert (node.owned(), node.state.stale, node.state.written) == ("2-3", True, AGO)
    assert node.warnings == [f"{node.path}: is gone: the last checkpoint is used until there is another"]
    assert node.state.trouble == node.warnings[0]
    node.write("4-5", AGO + 1)
    assert (node.owned(), node.state.stale, node.state.trouble) == ("4-5", False, "")
    node.path.unlink()  # once more is news
    assert (node.owned(), len(node.warnings)) == ("4-5", 2)


def test_cpus_of_system_pods_stay_theirs_when_one_of_these_ends(node: Node, tmp_path: Path) -> None:
    """Of StarlingX' kubelet, also for a watcher that is started meanwhile: its state file has them."""
    def write(*uids: str, default: str = "2-7") -> None:
        entries = {uid: {"main": "0-1"} for uid in uids}
        node.write(json.dumps({"policyName": "static", "defaultCpuSet": default, "entries": entries,
                               "checksum": 0}).encode(), None)

    write("a", "b", "c")
    assert node.owned() == ""
    write("a", "b")
    assert (node.owned(), node.state.trouble) == ("", "")
    kept = SavedState(kubelet=node.state.read())
    state_file.save(tmp_path / "state.json", "boot", kept)
    again = KubeletCheckpoint(node.root, node.warnings.append,
                              state_file.load(tmp_path / "state.json", "boot")[0].kubelet)
    write("a")
    assert (again.read() or CpuManagerState("", EMPTY)).entries == {}
    write("a", default="0-7")
    assert node.owned() == "0-1"


def test_what_a_removed_checkpoint_said_is_over_when_another_names_another_policy(node: Node) -> None:
    node.write("2-3")
    node.owned()
    node.path.unlink()
    node.owned()
    node.write(b'{"policyName":"none","defaultCpuSet":"","checksum":0}')
    assert (node.owned(), node.state.stale) == ("", False)
    node.path.unlink()
    assert (node.state.read(), node.state.written, node.state.stale) == (None, 0, False)
    assert len(node.warnings) == 1


def test_the_last_one_of_an_earlier_run_is_used_where_there_is_none(node: Node) -> None:
    node.write("2-3")
    last = node.state.read()
    node.path.unlink()
    again = KubeletCheckpoint(node.root, node.warnings.append, last)
    assert (again.read(), again.stale, again.written) == (last, True, AGO)
    node.write("4-5")
    assert (again.read() or last) != last
    node.write(b"{")  # nor is it lost to one that cannot be read
    third = KubeletCheckpoint(node.root, node.warnings.append, last)
    assert (third.read(), third.stale) == (last, False)
    assert third.trouble


def test_an_entry_keeps_its_age_while_others_change(node: Node) -> None:
    node.write("2-3")
    first = node.state.read()
    assert first is not None
    node.write(checkpoint("2-3", defaultCpuSet="0"), AGO + 9)
    found = node.state.read()
    assert found is not None
    assert (found.since, found.written, first.written) == (first.since, AGO + 9, AGO)
    node.write("4-5", AGO + 10)
    found = node.state.read()
    assert found is not None
    assert found.since["uid", "app"] > first.since["uid", "app"]


@pytest.mark.parametrize("bad", [b"", checkpoint("2-3")[:40], b"[]", checkpoint("3-2"), b"x" * (MAX_BYTES + 1)])
def test_what_was_read_before_a_bad_checkpoint_stays(node: Node, bad: bytes) -> None:
    node.write("2-3")
    assert node.owned() == "2-3"
    node.write(bad)
    for _ in range(3):
        assert node.owned() == "2-3"
    assert len(node.warnings) == 1
    assert node.warnings[0].startswith(str(node.path))
    assert node.warnings[0].endswith(": the checkpoint before it is used")
    assert node.state.trouble == node.warnings[0]
    assert (node.state.bad, node.state.written) == (1, AGO)
    node.write("4-5")
    assert node.owned() == "4-5"
    assert node.state.trouble == ""
    node.write(bad)  # once more is news
    assert node.owned() == "4-5"
    assert (len(node.warnings), node.state.bad) == (2, 2)


def test_a_bad_checkpoint_alone_is_none(node: Node) -> None:
    node.write(b"{")
    assert node.state.read() is None
    assert node.state.read() is None
    assert len(node.warnings) == 1
    assert "used" not in node.warnings[0]


def test_the_one_before_a_bad_checkpoint_counts_again_when_it_is_put_back(node: Node) -> None:
    node.write("2-3")
    node.state.read()
    node.write(b"{", None)
    node.state.read()
    node.write("2-3")
    assert node.owned() == "2-3"
    assert (node.state.trouble, node.state.written) == ("", AGO)


def test_a_wrong_checksum_is_warned_of_once_and_used(node: Node) -> None:
    for turn, cpus in enumerate(("2-3", "4-5", "6-7")):
        node.write(checkpoint(cpus, checksum=7), AGO + turn)
        assert node.owned() == cpus
    assert len(node.warnings) == 1
    assert "checksum" in node.warnings[0]
    assert node.state.trouble == node.warnings[0]
    assert node.state.bad == 0


def test_what_is_no_regular_file_is_not_read(node: Node, tmp_path: Path) -> None:
    node.write("2-3")
    node.state.read()
    other = tmp_path / "other"
    os.rename(node.path, other)
    node.path.symlink_to(other)
    assert node.owned() == "2-3"
    assert "symbolic link" in node.warnings[-1]
    node.path.unlink()
    os.mkfifo(node.path)
    assert node.owned() == "2-3"  # and does not wait for a writer
    assert "no regular file" in node.warnings[-1]
    node.path.unlink()
    node.path.mkdir()
    assert node.owned() == "2-3"
    assert "Is a directory" in node.warnings[-1]
    node.path.rmdir()
    os.rename(other, node.path)
    assert node.owned() == "2-3"
    assert node.state.trouble == ""
    assert node.state.bad == 3


def test_a_checkpoint_replaced_all_the_time_is_always_read_whole(node: Node) -> None:
    """Two contents, each of which is coherent in itself: container and pool never overlap."""
    contents = [checkpoint(own, defaultCpuSet=pool, x="y" * 50_000) for pool, own in (("0-1", "2-3"), ("2-3", "0-1"))]
    node.write(contents[0], None)
    done = threading.Event()

    def replace() -> None:
        turn = 0
        while not done.is_set():
            turn += 1
            node.write(contents[turn % 2], None)

    writer = threading.Thread(target=replace)
    writer.start()
    seen = set[tuple[str, str]]()
    try:
        began = time.monotonic()
        while (passed := time.monotonic() - began) < 1 or (len(seen) < 2 and passed < 300):
            found = node.state.read()
            assert found is not None
            seen.add((str(found.default), str(found.exclusive)))
    finally:
        done.set()
        writer.join()
    assert seen == {("0-1", "2-3"), ("2-3", "0-1")}
    assert node.warnings == []


def test_a_checkpoint_written_in_place_is_read_whole_or_not_at_all(node: Node) -> None:
    """Which no kubelet does. Half a file is not JSON, and half of a longer one before it gives itself away."""
    contents = [checkpoint(cpus, x="y" * 20_000) for cpus in ("2-3", "4-5")]
    node.write(contents[0], None)
    done = threading.Event()

    def rewrite() -> None:
        turn = 0
        while not done.is_set():
            turn += 1
            with open(node.path, "r+b", buffering=0) as file:
                file.truncate()
                for at in range(0, len(contents[0]), 4096):
                    file.write(contents[turn % 2][at:at + 4096])

    writer = threading.Thread(target=rewrite)
    writer.start()
    seen = set()
    try:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            seen.add(node.owned())
    finally:
        done.set()
        writer.join()
    assert seen <= {"2-3", "4-5", None}
    node.write("6-7")
    assert node.owned() == "6-7"
