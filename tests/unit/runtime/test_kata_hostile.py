"""What Kata's runtimes leave on disk, with values of any shape and size."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import kata_state
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kata_state import AGO, GO, RS, SID, Disk, shown

from vmpin.cpuset import MAX_REGIONS, CpuSet
from vmpin.domain.model import Container, ContainerId
from vmpin.errors import SourceError
from vmpin.runtime.kata import MAX_CONTAINERS, MAX_VALUES, parse_go, parse_rs

disk = kata_state.disk


@pytest.mark.parametrize(("raw", "why"), [
    (b"", "is not JSON"), (b"{", "is not JSON"), (b"\xff\x00", "is not JSON"),
    (b"[" * 1_000_000, "is not JSON"), (b'{"Pid": ' + b"9" * 9999 + b"}", "is not JSON"),
    (b"[]", "is no JSON object"), (b"null", "is no JSON object"), (b"7", "is no JSON object")])
def test_a_file_that_makes_no_sense_is_complained_of_in_one_line(disk: Disk, raw: bytes, why: str) -> None:
    good = disk.write(RS, sid="good", rs=True)
    bad = [disk.write(raw), disk.write(raw, sid="bad", rs=True)]
    assert list(disk.state.sandboxes()) == ["good"]
    assert good.exists()
    assert [each.startswith(f"{path}: {why}") for each, path in zip(disk.complaints, bad, strict=True)] == [True, True]
    assert all(each.isprintable() and len(each) < 300 for each in disk.complaints)


def test_a_file_beyond_any_size_is_not_read_whole(disk: Disk) -> None:
    path = disk.write(b"{}")
    with path.open("ab") as file:
        file.truncate(1 << 40)
    assert disk.state.sandboxes() == {}
    assert len(disk.complaints) == 1


def test_what_is_no_regular_file_is_passed_over(disk: Disk) -> None:
    """A FIFO would block the watcher for ever."""
    path = disk.write(GO)
    path.unlink()
    os.mkfifo(path)
    assert disk.state.sandboxes() == {}
    path.unlink()
    path.mkdir()
    assert disk.state.sandboxes() == {}
    disk.write(GO, sid="other")
    os.mkfifo(disk.write({}, "c1", sid="other").with_name("x"))
    os.replace(disk.go / "sbs" / "other" / "c1" / "x", disk.go / "sbs" / "other" / "c1" / "persist.json")
    assert [each.state.value for each in disk.only().containers or ()] == ["running"] * 3


@pytest.mark.parametrize("sid", [".hidden", "-x", "a b", "a\nb", "a..b", "ä", "x" * 250 + "~"])
def test_a_directory_whose_name_is_no_id_is_no_sandbox(disk: Disk, sid: str) -> None:
    disk.write(GO, sid=sid)
    assert disk.state.sandboxes() == {}


@pytest.mark.parametrize("cid", ["../../../etc", "/etc/passwd", "a/b", "..", "", "c\n", "a b", 7, None, ["c1"]])
def test_a_container_whose_id_is_no_id_is_no_container(disk: Disk, cid: object) -> None:
    """Its id becomes part of a path."""
    secret = disk.go / "etc" / "persist.json"
    secret.parent.mkdir(parents=True)
    secret.write_text('{"State": "stopped"}')
    configs = [{"ID": cid, "Resources": {"cpu": {"cpus": "2"}}}, {"ID": "c1", "Resources": {"cpu": {"cpus": "3"}}}]
    disk.write({**GO, "Config": {"ContainerConfigs": configs}})
    assert shown(disk.only()) == {"c1": "3"}


@pytest.mark.parametrize("cpus", ["garbage", "5-1", "0-99999999", 3, True, ["2"], {"a": 1}, None])
def test_a_cpuset_that_is_garbage_is_no_cpuset(cpus: object) -> None:
    state = {"Config": {"ContainerConfigs": [{"ID": "c1", "Resources": {"cpu": {"cpus": cpus}}}]}}
    found = parse_go(SID, json.dumps(state).encode(), AGO)
    assert found.containers == (Container(ContainerId("c1")),)


def test_what_a_pods_file_costs_is_bounded_by_its_containers_lists_and_values() -> None:
    def of(configs: list[dict[str, Any]]) -> bytes:
        return json.dumps({"Config": {"ContainerConfigs": configs}}).encode()

    configs = [{"ID": f"c{number}", "Resources": {"cpu": {"cpus": "0-3"}}} for number in range(MAX_CONTAINERS)]
    assert len(parse_go(SID, of(configs), AGO).containers or ()) == MAX_CONTAINERS
    with pytest.raises(SourceError, match=f"names {MAX_CONTAINERS + 1} containers"):
        parse_go(SID, of([*configs, {"ID": "more"}]), AGO)
    with pytest.raises(SourceError, match=f"more than {MAX_VALUES} values"):
        parse_go(SID, of([{"ID": "c1", "Annotations": {str(number): "" for number in range(MAX_VALUES)}}]), AGO)
    long = ",".join(str(2 * number) for number in range(MAX_REGIONS))
    found = parse_go(SID, of([{"ID": cid, "Resources": {"cpu": {"cpus": cpus}}}
                              for cid, cpus in (("c1", long), ("c2", long), ("c3", "1"), ("c4", "0-7:1/2"))]), AGO)
    assert [each.cpuset for each in found.containers or ()] == [CpuSet.parse(long), CpuSet.parse(long), None, None]


@pytest.mark.parametrize("pid", [0, -1, 1 << 22, 1 << 80, True, "4242", 4.2, None, [4242]])
def test_a_pid_that_is_none_is_unknown(pid: object) -> None:
    go = {"HypervisorState": {"Pid": pid, "VirtiofsDaemonPid": pid}}
    rs = {"hypervisor": {"pid": pid, "virtiofs_daemon_pid": pid}}
    for found in (parse_go(SID, json.dumps(go).encode(), AGO), parse_rs(SID, json.dumps(rs).encode(), AGO)):
        assert found.vmm_pid == 0


def garbled(path: Sequence[str | int], value: object) -> bytes:
    document: Any = json.loads(json.dumps(GO))
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize("path", [
    ("HypervisorState",), ("HypervisorState", "UUID"), ("Config",), ("Config", "ContainerConfigs"),
    ("Config", "EnableVCPUsPinning"), ("Config", "ContainerConfigs", 1),
    ("Config", "ContainerConfigs", 1, "Annotations"), ("Config", "ContainerConfigs", 1, "Resources"),
    ("Config", "ContainerConfigs", 1, "Resources", "cpu")])
@pytest.mark.parametrize("value", [None, 7, "x", [], [1], {}, {"x": {"y": 1}}, True])
def test_a_value_of_another_shape_costs_no_more_than_itself(path: tuple[str | int, ...], value: object) -> None:
    found = parse_go(SID, garbled(path, value), AGO)
    assert found.id == SID
    assert found.pins_vcpus == (path[-1] == "EnableVCPUsPinning" and value is True)
    if path[0] == "Config":
        assert found.vmm_pid == 4242
    else:
        assert shown(found) == {SID: "None", "c1": "2-3", "c2": "None"}


KEYS = st.sampled_from(["Config", "ContainerConfigs", "ID", "Annotations", "Resources", "cpu", "cpus",
                        "HypervisorState", "Pid", "hypervisor", "pid"])


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner)))
def test_any_json_is_understood_or_refused(state: object) -> None:
    raw = json.dumps(state).encode()
    for parse in (parse_go, parse_rs):
        if isinstance(state, dict):
            assert parse(SID, raw, AGO).id == SID
        else:
            with pytest.raises(SourceError):
                parse(SID, raw, AGO)
