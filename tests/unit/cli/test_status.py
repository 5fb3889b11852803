"""The status as a person reads it: pods instead of ids, 80 columns, and first what is not as it should be."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from vmpin.cli.status import print_chosen, print_status
from vmpin.domain.pod_names import names_of
from vmpin.domain.terminal import human_age, number_of, short_id, with_ages

ID, OTHER = "5f2c" * 16, "77aa" * 16
NODE: dict[str, Any] = {"online": "0-127", "shared_pool": "0-63", "pool_known": True, "unknown_owners": [],
                        "exclusive": "64-71", "housekeeping": "0-1",
                        "impostors": [], "disagreements": [], "owners": [], "collisions": [
                            {"cpu": 64, "sandboxes": [ID, OTHER], "what": f"exclusive to c1 of {ID}, but in {OTHER}"}]}


def thread(tid: int, vcpu: int | None, ok: bool = True) -> dict[str, Any]:
    return {"tid": tid, "role": "emulator" if vcpu is None else "vcpu", "vcpu": vcpu, "name": "CPU 0/KVM",
            "wanted": "64", "actual": "64" if ok else "0-127", "ok": ok}


def container(name: str, cpuset: str, **more: object) -> dict[str, Any]:
    return {"id": "c1", "name": name, "cpuset": cpuset, "own_cpus": cpuset, "exclusive": True, "shared_with": [],
            "pause": False, "vcpus": "0-3", "guest": None, "since": "2026-01-01T00:00:00Z", **more}


def sandbox(id: str, name: str, **more: object) -> dict[str, Any]:
    return {"id": id, "pod": {"namespace": "shop", "name": name, "uid": f"u-{name}"},
            "vmm": {"type": "cloud-hypervisor", "pid": 4194303}, "mask": "64-67",
            "verdict": "degraded", "reasons": ["1 of 2 threads are misplaced"], "drift": None,
            "threads": [thread(7, 0), thread(8, None, ok=False)], "containers": [container("web", "64-67")], **more}


def document(*sandboxes: dict[str, Any]) -> dict[str, Any]:
    return {"watcher": 1, "time": "2026-01-01T00:06:10Z", "node": NODE, "sandboxes": list(sandboxes),
            "state_file": {"save_trouble": "", "load_trouble": "", "unknown_originals": 0},
            "sources": {"kubelet": None}, "features": {}}


def printed(capsys: pytest.CaptureFixture[str], *sandboxes: dict[str, Any], chosen: bool = False) -> list[str]:
    status = document(*sandboxes)
    if chosen:
        print_chosen(status, names_of(status))
    else:
        print_status(status, False, names_of(status))
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("chosen", [False, True])
def test_what_is_wrong_with_the_state_file_is_shown(chosen: bool, capsys: pytest.CaptureFixture[str]) -> None:
    status = document(sandbox(ID, "web")) | {"state_file": {
        "save_trouble": "/r/state.json: the state cannot be saved: No space left on device",
        "load_trouble": "/r/state.json: the checksum is wrong", "unknown_originals": 2}}
    if chosen:
        print_chosen(status, names_of(status))
    else:
        print_status(status, False, names_of(status))
    text = capsys.readouterr().out
    assert "\nNOT SAVED: /r/state.json: the state cannot be saved: No space left on device; until" in text
    assert "\nLOST STATE: /r/state.json: the checksum is wrong\n" in text
    assert "\nLOST STATE: the original masks of 2 VMs are not known" in text


def test_exclusive_cpus_without_a_container_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """All of them for the node, those of its pod for one sandbox."""
    status = document(sandbox(ID, "web"))
    status["node"] = {**NODE, "unknown_owners": [{"pod": f"u-{name}", "what": f"CPU 9 of {name}"}
                                                 for name in ("web", "gone")]}
    print_status(status, False, names_of(status))
    text = capsys.readouterr().out
    assert "\nUNKNOWN OWNER: CPU 9 of web\nUNKNOWN OWNER: CPU 9 of gone\n" in text
    print_chosen(status, names_of(status))
    text = capsys.readouterr().out
    assert "\nUNKNOWN OWNER: CPU 9 of web\n" in text
    assert "gone" not in text


def test_the_table_names_pods_and_fits_into_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, sandbox(ID, "web-7d9f8c6b5-x2z"), sandbox(OTHER, "db"))
    assert lines[1].split() == ["POD", "VERDICT", "VM", "MASK", "VCPUS", "IN", "PLACE"]
    assert lines[2].split() == ["shop/web-7d9f8c6b5-x2z", "degraded", "cloud-hypervisor", "64-67", "1", "1/2"]
    assert lines[4] == "shop/web-7d9f8c6b5-x2z: 1 of 2 threads are misplaced"
    assert lines[-1] == "COLLISION on CPU 64: exclusive to c1 of shop/web-7d9f8c6b5-x2z, but in shop/db"
    assert max(map(len, lines[1:])) <= 80
    assert not any(ID[:12] in line for line in lines)


def test_two_sandboxes_of_a_pod_are_distinguished_by_their_ids(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, sandbox(ID, "db"), sandbox(OTHER, "db"), sandbox("x", "y", pod=None))
    assert [line.split("  ")[0] for line in lines[2:5]] == [
        "shop/db (5f2c5f2c5f2c)", "shop/db (77aa77aa77aa)", "x"]


def test_one_sandbox_begins_with_its_verdict_and_lists_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, sandbox(ID, "db"), chosen=True)
    assert lines[:5] == [
        "shop/db is degraded: cloud-hypervisor process 4194303, 1/2 threads in place",
        "CONTAINER  CPUS   KIND       VCPUS  GUEST  SINCE",
        "web        64-67  exclusive  0-3    -      6m10s",
        "1 of 2 threads are misplaced",
        "THREAD  ROLE      NAME       WANTED  ACTUAL  OK"]
    assert lines[5].split()[0] == "8"  # the thread that is in place is left out
    assert lines[6].startswith("COLLISION on CPU 64")
    assert lines[7].startswith("its CPUs 64-67; watcher pid 1; CPUs online")
    assert len(lines[0]) <= 80


def test_one_sandbox_is_shown_without_the_conflicts_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    disagreement = {"sandbox": OTHER, "pod": None, "name": "", "container": "c9", "what": "two sources differ"}
    status = document(sandbox(ID, "db"))
    collision = {"cpu": 3, "sandboxes": [OTHER], "what": "x"}
    status["node"] = {**NODE, "disagreements": [disagreement], "collisions": [collision]}
    print_chosen(status, {})
    assert "DISAGREEMENT" not in (text := capsys.readouterr().out)
    assert "COLLISION" not in text


@pytest.mark.parametrize(("seconds", "text"), [
    (-1, "0s"), (119, "119s"), (120, "2m"), (370, "6m10s"), (600, "10m"), (10_799, "179m"), (11_160, "3h6m"),
    (28_900, "8h"), (172_799, "47h"), (180_000, "2d2h"), (8 * 86_400 + 7200, "8d")])
def test_ages_are_as_kubectl_has_them(seconds: float, text: str) -> None:
    assert human_age(seconds) == text


def test_a_sentence_has_ages_in_place_of_time_stamps() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert with_ages("over NRI (since 2026-01-02T02:57:55.120Z), since vcpu 2", now) == (
        "over NRI (6m9s ago), since vcpu 2")
    assert with_ages("since 2026-01-02T03:04:05Z", now) == "0s ago"


def test_one_thing_is_no_plural() -> None:
    assert (number_of(1, "thread"), number_of(0, "VM")) == ("1 thread", "0 VMs")
    assert (short_id(ID), short_id("pod-a")) == (ID[:12], "pod-a")


def test_of_mixed_cpus_those_that_are_its_own_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """CRI-O's mixed CPUs: the container shares CPU 1 with other pods."""
    mixed = container("web", "1,64-67", own_cpus="64-67")
    print_chosen(document(sandbox(ID, "web", containers=[mixed])), {})
    assert "web        1,64-67  64-67 exclusive" in capsys.readouterr().out


def test_a_pool_that_nothing_names_is_not_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside a sandbox that is unmanaged for want of a pool."""
    status = document(sandbox(ID, "web", containers=[]))
    print_chosen({**status, "node": {**status["node"], "shared_pool": "0-1", "pool_known": False}}, {})
    assert "no shared pool known (without an owner: 0-1), exclusive 64-71" in capsys.readouterr().out


def test_a_feature_that_does_nothing_for_now_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    status = {**document(), "features": {"allocator": {"suspended": "balloons may give out CPUs, too"}, "top": {}}}
    print_status(status, False, {})
    assert "SUSPENDED: allocator: balloons may give out CPUs, too" in capsys.readouterr().out


def test_two_that_decide_are_named_with_their_pods(capsys: pytest.CaptureFixture[str]) -> None:
    rival = {"authorities": ["kubelet", "dra"], "cpus": "64", "sandboxes": [ID],
             "what": f"CPUs 64 are given to c1 of {ID} by dra"}
    status = document(sandbox(ID, "web"), sandbox(OTHER, "db"))
    status["node"] = {**NODE, "rivals": [rival], "collisions": []}
    print_status(status, False, {ID: "shop/web"})
    assert "RIVALS kubelet and dra: CPUs 64 are given to c1 of shop/web by dra" in capsys.readouterr().out
    for chosen, shown in ((0, True), (1, False)):
        print_chosen({**status, "sandboxes": [status["sandboxes"][chosen]]}, {})
        assert ("RIVALS" in capsys.readouterr().out) == shown
