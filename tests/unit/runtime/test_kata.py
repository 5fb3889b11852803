"""What Kata's runtimes leave on disk: whole, half written, and hostile."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from system_calls import system_calls

from vmpin.cpuset import MAX_REGIONS, CpuSet
from vmpin.domain.model import Container, ContainerId, ContainerState, Pod, SandboxId
from vmpin.errors import SourceError
from vmpin.runtime import kata
from vmpin.runtime.dialect import KATA_BUNDLE
from vmpin.runtime.kata import (
    MAX_CONTAINERS,
    MAX_VALUES,
    SETTLING,
    KataSandbox,
    KataState,
    parse_go,
    parse_rs,
)

SID = SandboxId("5a" * 32)
#: As Kata 3 and 4 write it (virtcontainers/persist/api): Go's field names, most of it of no concern here.
GO: dict[str, Any] = {
    "SandboxContainer": SID, "State": "running", "PersistVersion": 2,
    "SandboxCgroupPath": f"/kubepods/kata_{SID}", "OverheadCgroupPath": f"/kata_overhead/{SID}",
    "HypervisorState": {"Type": "qemu", "UUID": "0a8b0c0e-1111-4222-8333-444455556666", "Pid": 4242,
                        "VirtiofsDaemonPid": 4240, "HotpluggedVCPUs": [{"ID": "cpu-0"}]},
    "AgentState": {"URL": "vsock://77:1024"},
    "Config": {
        "HypervisorType": "qemu", "SandboxCgroupOnly": False, "EnableVCPUsPinning": False,
        "ContainerConfigs": [
            {"ID": SID, "Annotations": {"io.kubernetes.cri.container-type": "sandbox",
                                        "io.kubernetes.cri.sandbox-namespace": "shop",
                                        "io.kubernetes.cri.sandbox-name": "web-0",
                                        "io.kubernetes.cri.sandbox-uid": "uid-1"}, "Resources": {}},
            {"ID": "c1", "Annotations": {"io.kubernetes.cri.container-type": "container",
                                         "io.kubernetes.cri.container-name": "app"},
             "Resources": {"cpu": {"shares": 1024, "cpus": "2-3"}}},
            {"ID": "c2", "Annotations": {}, "Resources": {"cpu": {"cpus": ""}}}],
        "HypervisorConfig": {"NumVCPUsF": 1, "DefaultMaxVCPUs": 8}}}
RS: dict[str, Any] = {
    "sandbox_type": "virt_container",
    "resource": {"endpoint": [], "cgroup_state": {"path": f"/kubepods/{SID}", "overhead_path": "",
                                                  "sandbox_cgroup_only": True, "enable_vcpus_pinning": False}},
    "hypervisor": {"hypervisor_type": "qemu", "id": SID, "pid": None, "virtiofs_daemon_pid": 0, "netns": None,
                   "config": {}}}
#: Long enough ago to be known by its stamp.
AGO = 1_700_000_000_000_000_000


class Disk:
    """Both runtimes' state directories, and what was complained of."""

    def __init__(self, root: Path) -> None:
        self.go, self.rs = root / "vc", root / "kata"
        self.complaints: list[str] = []
        self.state = KataState(self.go, self.rs, self.complaints.append)

    def write(self, content: object, *under: str, sid: str = SID, at: int = AGO, rs: bool = False) -> Path:
        path = self.rs.joinpath(sid, "state.json") if rs else self.go.joinpath("sbs", sid, *under, "persist.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        os.utime(path, ns=(at, at))
        return path

    def only(self) -> KataSandbox:
        (found,) = self.state.sandboxes().values()
        return found


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def containers(*cpusets: tuple[str, str]) -> dict[str, Any]:
    """GO with other containers."""
    configs = [{"ID": name, "Resources": {"cpu": {"cpus": cpus}}} for name, cpus in cpusets]
    return {**GO, "Config": {**GO["Config"], "ContainerConfigs": configs}}


def shown(sandbox: KataSandbox) -> dict[str, str]:
    return {each.id: str(each.cpuset) for each in sandbox.containers or ()}


# --- as it should be -------------------------------------------------------------------------------------------------

def test_the_go_runtimes_state_has_vmm_containers_and_pod(disk: Disk) -> None:
    disk.write(GO)
    assert disk.state.sandboxes() == {SID: KataSandbox(
        SID, "kata-go", 4242, (
            Container(ContainerId(SID), "", None, pause=True),
            Container(ContainerId("c1"), "app", CpuSet.parse("2-3")),
            Container(ContainerId("c2"))),
        Pod("shop", "web-0", "uid-1"), "0a8b0c0e-1111-4222-8333-444455556666", AGO, False,
        "vsock://77:1024", "qemu")}
    assert disk.complaints == []


def test_runtime_rs_has_neither_vmm_nor_containers(disk: Disk) -> None:
    disk.write(RS, rs=True)
    assert disk.state.sandboxes() == {SID: KataSandbox(SID, "kata-rs", 0, None, None, "", AGO, False)}


def test_runtime_rs_has_the_vmm_where_it_knows_it() -> None:
    state = {**RS, "hypervisor": {**RS["hypervisor"], "pid": 4242, "virtiofs_daemon_pid": 4240}}
    found = parse_rs(SID, json.dumps(state).encode(), AGO)
    assert found.vmm_pid == 4242


def test_a_vm_on_another_machine_is_known_by_its_hypervisor() -> None:
    """virtcontainers/remote.go, Save: the Go runtime records it in the configuration alone."""
    go = {**GO, "HypervisorState": {}, "Config": {**GO["Config"], "HypervisorType": "remote"}}
    rs = {**RS, "hypervisor": {**RS["hypervisor"], "hypervisor_type": "remote"}}
    for here, away, parse in ((GO, go, parse_go), (RS, rs, parse_rs)):
        assert not parse(SID, json.dumps(here).encode(), AGO).remote
        assert parse(SID, json.dumps(away).encode(), AGO).remote


def test_katas_own_pinning_is_reported(disk: Disk) -> None:
    disk.write({**GO, "Config": {**GO["Config"], "EnableVCPUsPinning": True}})
    assert disk.only().pins_vcpus
    rs = {**RS, "resource": {"cgroup_state": {"enable_vcpus_pinning": True}}}
    assert parse_rs(SID, json.dumps(rs).encode(), AGO).pins_vcpus


@pytest.mark.parametrize(("annotations", "alone", "pause"), [
    ({"io.kubernetes.cri.container-type": "sandbox"}, True, True),
    ({"io.kubernetes.cri-o.ContainerType": "sandbox", KATA_BUNDLE: "/o/ID/userdata"}, True, True),
    # Under CRI-O the author's annotations come last there, and no pod is without a pause container.
    ({"io.kubernetes.cri-o.ContainerType": "container", KATA_BUNDLE: "/o/ID/userdata"}, True, True),
    ({"io.kubernetes.cri.container-type": "container"}, False, True),
    ({"io.katacontainers.pkg.oci.container_type": "pod_sandbox"}, True, True),
    ({"io.kubernetes.cri.container-type": "container"}, True, False),
    # No annotation shows what it is: with the sandbox's id, and others beside it, it is the sandbox's own.
    ({}, False, True),
    (None, False, True),
    # And without others (ctr, podman), it is the one that works.
    ({}, True, False),
])
def test_the_sandboxes_own_container_is_recognized_by_annotation_or_id(
        annotations: dict[str, str] | None, alone: bool, pause: bool) -> None:
    configs: list[dict[str, Any]] = [{"ID": SID, "Annotations": annotations}]
    if not alone:
        configs.append({"ID": "c1"})
    found = parse_go(SID, json.dumps({"Config": {"ContainerConfigs": configs}}).encode(), AGO)
    assert found.containers is not None
    assert [each.pause for each in found.containers] == [pause, *([] if alone else [False])]


def test_both_runtimes_sandboxes_are_found(disk: Disk) -> None:
    disk.write(GO, sid="one")
    disk.write(RS, sid="two", rs=True)
    (disk.go / "sbs" / "three").mkdir()
    found = disk.state.sandboxes()
    assert {sid: sandbox.runtime for sid, sandbox in found.items()} == {"one": "kata-go", "two": "kata-rs"}


def test_a_sandbox_that_is_in_both_places_is_the_go_runtimes(disk: Disk) -> None:
    disk.write(GO)
    disk.write(RS, rs=True)
    assert disk.only().runtime == "kata-go"


def test_where_kata_is_not_there_is_nothing(disk: Disk) -> None:
    assert disk.state.sandboxes() == {}
    assert disk.complaints == []


def test_a_stopped_container_is_recognized_by_its_own_file(disk: Disk) -> None:
    disk.write(GO)
    disk.write({"State": "running"}, "c1")
    disk.write({"State": "stopped"}, "c2")
    assert [each.state.value for each in disk.only().containers or ()] == ["running", "running", "stopped"]
    disk.write({"State": "stopped"}, "c1", at=AGO + 1)
    disk.write(b'{"State": "stop', "c2", at=AGO + 1)
    states = {each.id: each.state for each in disk.only().containers or ()}
    assert states[ContainerId("c1")] is ContainerState.STOPPED
    assert disk.complaints == []


# --- changes ---------------------------------------------------------------------------------------------------------

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


# --- hostile content -------------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize(("annotation", "said", "read"), [
    ("vmpin.io/exclusive", "true", True), ("vmpin.io/exclusive", "false", False), ("vmpin.io/exclusive", "yes", None),
    ("", "true", None), ("other", "true", None)])
def test_a_container_declares_its_cpus_its_own_where_that_is_heeded(annotation: str, said: str,
                                                                    read: bool | None) -> None:
    state = {"Config": {"ContainerConfigs": [{"ID": "web", "Annotations": {"vmpin.io/exclusive": said}}]}}
    (container,) = parse_go(SID, json.dumps(state).encode(), AGO, annotation).containers or ()
    assert container.exclusive is read


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
