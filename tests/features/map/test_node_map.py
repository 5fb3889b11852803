"""The node as a picture: every CPU once, whose it is, who is on it; whatever names there are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vmpin.cpuset import CpuSet
from vmpin.domain.topology import Topology
from vmpin.features.map.node_map import OFFLINE, SHARED, Picture, letter, picture
from vmpin.features.map.text import guest_marks, lines

NODE = Topology.build(
    CpuSet.parse("0-6"), cores=[CpuSet((cpu, cpu + 4)) for cpu in range(4)],
    caches=[CpuSet.parse("0-1,4-5"), CpuSet.parse("2-3,6-7")],
    nodes={0: CpuSet.parse("0-1,4-5"), 1: CpuSet.parse("2-3,6")},
    isolated=CpuSet.parse("3"), present=CpuSet.parse("0-7"))


def thread(tid: int, actual: str, vcpu: int | None = None, role: str = "vcpu") -> dict[str, Any]:
    return {"tid": tid, "role": role, "name": "x", "vcpu": vcpu, "wanted": actual, "actual": actual, "ok": True}


def document(name: str = "web") -> dict[str, Any]:
    pod = {"namespace": "shop", "name": name, "uid": "1"}
    return {
        "time": "2026-01-01T00:00:00Z",
        "node": {"online": "0-6", "shared_pool": "0-1,4", "exclusive": "2,5-6", "housekeeping": "0",
                 "owners": [{"sandbox": "pod-b", "container": "c" * 64, "cpus": "5", "kind": "runc", "pod": None},
                            {"sandbox": "pod-a", "container": "main", "cpus": "2,6", "kind": "vm", "pod": pod}],
                 "collisions": [{"cpu": 5, "sandboxes": ["pod-a"], "what": f"thread 12 of {name} may run there"}]},
        "sandboxes": [
            {"id": "pod-a", "vmm": {"type": "qemu", "pid": 7}, "pod": pod, "mask": "0-2,4,6", "verdict": "pinned",
             "containers": [{"id": "main", "name": name}],
             "threads": [thread(8, "2", 0), thread(9, "6", 1), thread(10, "0-1,4", 2), thread(11, "0-1,4", 3),
                         thread(12, "5", role="vhost"), thread(13, "0-2,4,6", role="emulator"),
                         thread(14, "", role="emulator")]},
            {"id": "pod-off", "vmm": None, "pod": None, "mask": None, "verdict": "off", "containers": [],
             "threads": []}]}


@pytest.fixture
def drawn() -> Picture:
    return picture(document(), NODE)


def test_every_cpu_is_there_once_below_its_node_cache_and_core(drawn: Picture) -> None:
    assert sorted(cpu.number for cpu in drawn.cpus()) == list(range(8))
    shape = [(name, [[[cpu.number for cpu in core] for core in cores] for cores in caches])
             for name, caches in drawn.nodes]
    # The kernel forgets the node of a CPU that is offline.
    assert shape == [("NUMA node 0", [[[0, 4], [1, 5]]]), ("NUMA node 1", [[[2, 6], [3]]]),
                     ("in no NUMA node", [[[7]]])]


def test_a_cpus_owner_and_its_threads(drawn: Picture) -> None:
    by_number = {cpu.number: cpu for cpu in drawn.cpus()}
    assert {number: cpu.kind for number, cpu in by_number.items()} == {
        0: SHARED, 1: SHARED, 2: "exclusive", 3: "free", 4: SHARED, 5: "exclusive", 6: "exclusive", 7: OFFLINE}
    assert [(owner.letter, owner.title, str(owner.cpus)) for owner in drawn.owners] == [
        ("A", "shop/web web", "2,6"), ("B", "pod-b cccccccccccc", "5")]
    assert {number: guest_marks(cpu) for number, cpu in by_number.items() if cpu.pinned} == {
        2: ["a:v0"], 5: ["a:+1"], 6: ["a:v1"]}
    assert {number: cpu.floating for number, cpu in by_number.items()} == {
        0: 3, 1: 3, 2: 1, 3: 0, 4: 3, 5: 0, 6: 1, 7: 0}
    assert drawn.guests[0].floats == ("emulator on 0-2,4,6", "vCPUs 2-3 on 0-1,4")
    assert [number for number, cpu in by_number.items() if cpu.collisions] == [5]
    assert [number for number, cpu in by_number.items() if cpu.isolated] == [3]
    assert len(drawn.guests) == 1  # one without a VM has no threads to show


def test_one_that_is_not_placed_is_not_said_to_be_on_no_cpu() -> None:
    held = document()
    held["sandboxes"][0].update(mask=None, verdict="off", threads=[
        thread(8, "0-1", 0), thread(9, "0-1", role="vhost")])
    assert picture(held, NODE).guests[0].legend == "shop/web: off; vCPU 0, vhost on 0-1"


def test_vcpus_on_one_cpu_are_shown_in_ranges() -> None:
    crowd = document()
    crowd["sandboxes"][0]["threads"] = [*(thread(8 + number, "2", number) for number in (2, 0, 1, 5)),
                                        thread(20, "2", role="vhost")]
    assert {cpu.number: guest_marks(cpu) for cpu in picture(crowd, NODE).cpus() if cpu.pinned} == {
        2: ["a:v0-2,5,+1"]}


def test_a_collision_has_the_names_of_the_legend_and_is_reported_once_for_many_cpus() -> None:
    shown = document()
    sandbox, container, unknown = "5e" * 32, "c0" * 32, "f" * 64
    shown["sandboxes"][0].update(id=sandbox, containers=[{"id": container, "name": "web"}])
    what = f"exclusive to {unknown} of pod-b, but in the shared cpuset of {container} of {sandbox}"
    shown["node"]["collisions"] = [{"cpu": cpu, "what": what} for cpu in (5, 2, 6)]
    assert list(picture(shown, NODE).alarms()) == [
        "CPUs 2,5-6: exclusive to ffffffffffff of pod-b, but in the shared cpuset of web of shop/web"]


def test_letters_do_not_run_out() -> None:
    assert [letter(number) for number in (0, 25, 26, 51, 52, 701, 702)] == ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]


@pytest.mark.parametrize("width", [20, 80, 200])
def test_as_text_it_has_every_cpu_whatever_the_width(drawn: Picture, width: int) -> None:
    said = ["".join(word for word, _ in line) for line in lines(drawn, width)]
    cells = [cell for line in said if "[" in line for cell in line.replace("LLC", "").strip(" []").replace(
        "] [", "|").split("|")]
    assert sorted(int(cell.split()[0]) for cell in cells) == list(range(8))
    assert said[0].startswith("COLLISION on CPU 5:"[:width])
    if width >= 80:
        assert all(len(line) <= width for line in said if line.startswith("LLC"))


@given(st.text(max_size=20))
def test_no_name_breaks_it(name: str) -> None:
    hostile = picture(document(f"<b>&'\"]]>\x1b[31m\x00\ud800{name}"), NODE)
    assert all(word.isprintable() for line in lines(hostile, 100) for word, _ in line)


def test_cpus_the_topology_does_not_know_are_drawn_all_the_same() -> None:
    grown = document()
    grown["node"]["online"] = "0-9"
    assert sorted(cpu.number for cpu in picture(grown, NODE).cpus()) == list(range(10))
