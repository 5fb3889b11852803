"""The map of a node whose CPUs vmpin gives out: the holder of each CPU by the ledger, and what is free in pieces."""

from __future__ import annotations

import re
from typing import Any

import pytest

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.domain.topology import Topology
from vmpin.features.allocator.allocation_report import AllocatorView, allocation_report
from vmpin.features.allocator.grants.allocation_options import AllocationMode, AllocationOptions, GroupRule
from vmpin.features.allocator.grants.cpu_request import CpuPolicy, CpuWish
from vmpin.features.allocator.grants.ledger import Grant, GrantState, Ledger
from vmpin.features.allocator.grants.pool_cpus import pool
from vmpin.features.allocator.ledger_holders import held_cpus, ledger_owners
from vmpin.features.isolation.others import judge
from vmpin.features.isolation.usage import SampledProcess, SampledThread
from vmpin.features.map.node_map import Picture, picture
from vmpin.features.map.text import lines

CPUS = CpuSet.parse("0-15")
MACHINE = Topology.build(CPUS, [CpuSet.parse(f"{cpu},{cpu + 8}") for cpu in range(8)],
                         [CpuSet.parse(cpus) for cpus in ("0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15")],
                         nodes={0: CpuSet.parse("0-3,8-11"), 1: CpuSet.parse("4-7,12-15")})


def grant(pod: str, name: str, policy: CpuPolicy, cpus: str = "", **changes: Any) -> Grant:
    made = Grant(ContainerId(f"id-{pod}-{name}"), SandboxId(pod), name, "shop", pod, pod, CpuWish(policy), policy,
                 state=GrantState.RUNNING, cpus=CpuSet.parse(cpus))
    return made._replace(**changes)


GRANTS = (
    grant("db", "main", CpuPolicy.EXCLUSIVE, "2,10"),
    grant("db", "init", CpuPolicy.EXCLUSIVE, "2-3,10-11", state=GrantState.LAPSED),
    grant("web", "main", CpuPolicy.FIXED, "4"),
    grant("vm", "main", CpuPolicy.EXCLUSIVE, "1,9", vm=True, spare=CpuSet.parse("4")),
    grant("big", "main", CpuPolicy.EXCLUSIVE, "5", vm=True, spare=CpuSet.parse("13"), own_spare=True),
    grant("a", "one", CpuPolicy.GROUP, "6", group="shop/g"),
    grant("b", "two", CpuPolicy.GROUP, "14", group="shop/g"),
    grant("c", "dns", CpuPolicy.INFRA),
    grant("d", "main", CpuPolicy.NONE))


def report(*grants: Grant, mode: AllocationMode = AllocationMode.ON) -> dict[str, Any]:
    options = AllocationOptions(mode=mode, reserved=CpuSet((0,)), groups={"rt": GroupRule(CpuSet((15,)))},
                                strict_reserved=True)
    ledger = Ledger({each.container: each for each in grants})
    left = pool(MACHINE, ledger, options)
    return allocation_report(AllocatorView(mode, "", MACHINE, options, ledger._replace(shared=left), left))


def document(*owners: dict[str, Any]) -> dict[str, Any]:
    return {"time": "2026-01-01T00:00:00Z", "sandboxes": [],
            "node": {"online": str(CPUS), "shared_pool": "3,7-8,11-12", "exclusive": "1", "housekeeping": "0",
                     "owners": owners, "collisions": []}}


def owner(container: str, cpus: str) -> dict[str, Any]:
    return {"sandbox": "db", "container": container, "cpus": cpus, "kind": "runc", "pod": None, "name": "x"}


@pytest.fixture
def drawn() -> Picture:
    # One that another plugin gave its CPUs is not in the ledger; one that is there counts by the ledger alone.
    return picture(document(owner("id-db-main", "2"), owner("foreign", "7")), MACHINE, held_cpus(report(*GRANTS)))


def test_each_holder_has_a_letter_and_its_kind(drawn: Picture) -> None:
    assert [owner.legend for owner in drawn.owners] == [
        "shop/vm main: CPUs 1,9 (exclusive, VM)",
        "shop/db main: CPUs 2,10 (exclusive, runc)",
        "shop/db init: CPUs 3,11 (lapsed: its pod keeps them until it ends, runc)",
        "shop/big main: CPUs 5 (exclusive, VM)",
        "group shop/g: CPUs 6,14 (of shop/a one, shop/b two)",
        "shop/big main: CPUs 13 (spare CPUs of the VM, the VM's own)",
        "group rt: CPUs 15 (of no container yet)",
        "shop/vm main: CPUs 4 (spare CPUs of the VM, also in the shared pool)",
        "shop/web main: CPUs 4 (fixed, also in the shared pool, runc)",
        "db x: CPUs 7 (runc)"]
    assert [owner.letter for owner in drawn.owners] == ["A1", "B1", "B2", "C1", "D", "C2", "E", "A2", "F", "B3"]


def test_every_cpu_shows_its_holders_without_colour(drawn: Picture) -> None:
    text = "\n".join("".join(word for word, _ in line) for line in lines(drawn, 200))
    cells = dict(re.findall(r"(?:\[|\|) +(\d+) +([^\s|\]]*)", text))
    assert cells == {"0": "hr", "1": "A1", "2": "B1", "3": "B2", "4": "A2,F·", "5": "C1", "6": "D", "7": "B3·",
                     "8": "·", "9": "A1", "10": "B1", "11": "B2", "12": "·", "13": "C2", "14": "D", "15": "E"}
    for sign in ("A·: A has it, and so has the shared pool", "A,B: both have it", "r: reserved"):
        assert sign in text


def test_fragmentation_and_reserved_cpus_are_sentences_above_the_cpus(drawn: Picture) -> None:
    said = ["".join(word for word, _ in line) for line in lines(drawn, 200)]
    assert said[0].endswith("; reserved 0")
    assert said[1:3] == [
        "free 7-8,12 (node 0: 8, node 1: 7,12); of these 3 CPUs the largest set that fits has 3, within one NUMA node "
        "2, within one last-level cache 1", "reserved 0: 1 container of policy infra on it"]


def test_groups_and_a_vms_own_spare_set_are_owners_for_the_audit() -> None:
    owners = ledger_owners(report(*GRANTS))
    assert [(owner.label, str(owner.cpus)) for owner in owners] == [
        ("group rt", "15"), ("group shop/g", "6,14"), ("shop/big main", "13")]

    def process(pid: int, cpus: str, container: str = "") -> SampledProcess:
        cgroup = f"/sys/fs/cgroup/kubepods/pod1/{container}" if container else ""
        return SampledProcess(pid, "x", False, cgroup, False, (
            SampledThread(pid, "x", CpuSet.parse(cpus), {}, True),))

    member, vmm, foreign = process(1, "6,14", "id-a-one"), process(2, "13"), process(3, "6,13-15", "id-d-main")
    found = judge(owners, {2: "big"}, [member, vmm, foreign])
    assert [(finding.process.pid, str(finding.may)) for finding in found.findings] == [(3, "6,13-15")]
    assert found.contested == CpuSet()


@pytest.mark.parametrize("mode", [AllocationMode.OBSERVE, AllocationMode.OFF])
def test_where_nothing_is_given_out_the_map_is_as_before(mode: AllocationMode) -> None:
    ledger = held_cpus(report(*GRANTS, mode=mode))
    assert ledger is None
    before = picture(document(owner("id-db-main", "2")), MACHINE, ledger)
    text = "".join(word for line in lines(before, 200) for word, _ in line)
    assert (before.notes, [each.legend for each in before.owners]) == ((), ["db x: CPUs 2 (runc)"])
    for word in ("reserved", "largest", "A·"):
        assert word not in text
