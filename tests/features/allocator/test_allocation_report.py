"""What `vmpin alloc` shows of a ledger."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from vmpin.cpuset import CpuSet
from vmpin.domain.model import ContainerId, SandboxId
from vmpin.domain.topology import Topology
from vmpin.features.allocator.allocation_report import (
    AllocatorView,
    allocation_report,
    brief,
    explanations,
    grant_columns,
    grant_rows,
    misplaced,
    refusals,
    summary,
)
from vmpin.features.allocator.grants.allocation_options import AllocationOptions, GroupRule
from vmpin.features.allocator.grants.cpu_request import Alignment, CpuPolicy, CpuWish
from vmpin.features.allocator.grants.ledger import CpuAmount, Grant, GrantState, Ledger, RefusedRequest

MACHINE = Topology.build(CpuSet.parse("0-7"), [CpuSet.parse(f"{cpu},{cpu + 4}") for cpu in range(4)],
                         [CpuSet.parse(f"{cpu},{cpu + 4}") for cpu in range(4)],
                         nodes={0: CpuSet.parse("0-1,4-5"), 1: CpuSet.parse("2-3,6-7")})

NOW = datetime.fromtimestamp(1_800_000_370, UTC)


def grant(name: str, cpus: str, **changes: object) -> Grant:
    made = Grant(ContainerId(f"id-{name}"), SandboxId("pod-id"), name, "shop", "web", "uid-1",
                 CpuWish(CpuPolicy.EXCLUSIVE, align=Alignment.CACHE, align_required=True), CpuPolicy.EXCLUSIVE,
                 state=GrantState.RUNNING, amount=CpuAmount(2000, 2000, 2), cpus=CpuSet.parse(cpus),
                 written=CpuSet.parse(cpus), since_ns=1_800_000_000 * 10**9)
    return made._replace(**changes)  # type: ignore[arg-type]


def view(*grants: Grant, refused: tuple[RefusedRequest, ...] = (), mode: str = "on") -> AllocatorView:
    ledger = Ledger({each.container: each for each in grants}, CpuSet.parse("0-1,3-5,7"), refused)
    return AllocatorView(mode, "", MACHINE, AllocationOptions(reserved=CpuSet.parse("0")), ledger,
                         CpuSet.parse("0-1,3-5,7"))


def test_who_has_what_why_and_since_when() -> None:
    found = allocation_report(view(grant("main", "2,6")))
    assert found["free"] == {
        "cpus": "1,3-5,7", "largest": 5, "largest_in_node": 3, "largest_in_cache": 2,
        "nodes": {"0": "1,4-5", "1": "3,7"},
        "caches": [{"cpus": f"{cpu},{cpu + 4}", "free": free} for cpu, free in enumerate(("4", "1,5", "", "3,7"))]}
    [one] = found["grants"]
    assert (one["cpus"], one["policy"], one["request"], one["since"]) == ("2,6", "exclusive", 2.0,
                                                                         "2027-01-15T08:00:00Z")
    assert one["asked"] == {"policy": "exclusive", "align": "cache!"}
    [row] = grant_rows(found, NOW)
    assert row == ["shop/web", "main", "exclusive", "2,6", "running", "policy=exclusive align=cache!",
                   "6m10s"]
    assert len(row) == len(grant_columns())
    assert summary(found)[0] == "allocate.mode on"
    assert summary(found)[2] == ("free 1,3-5,7 (node 0: 1,4-5, node 1: 3,7); of these 5 CPUs the largest set that "
                                 "fits has 5, within one NUMA node 3, within one last-level cache 2")


def test_the_headroom_is_named() -> None:
    given = view(grant("main", "2,6"))
    assert summary(allocation_report(given))[1] == "pool 0-1,3-5,7, reserved 0"
    kept = given._replace(ledger=given.ledger._replace(shared=CpuSet.parse("0,3-4,7")))
    assert summary(allocation_report(kept))[1] == "pool 0-1,3-5,7, reserved 0, headroom 1,5"


def test_containers_on_other_cpus_than_they_were_given_are_misplaced() -> None:
    found = allocation_report(view(
        grant("same", "2"), grant("other", "3"), grant("offline", "1", written=CpuSet.parse("1,9")),
        grant("unread", "4"), grant("ended", "5", state=GrantState.LAPSED),
        grant("foreign", "", left_alone=True, written=CpuSet.parse("6"))))
    actual = {"same": "2", "other": "0-3", "offline": "1", "ended": "0-7", "foreign": "7"}
    for each in found["grants"]:
        each["actual"] = actual.get(each["container"])
    assert misplaced(found) == [{"namespace": "shop", "pod": "web", "container": "other", "id": "id-other",
                                 "sandbox": "pod-id", "policy": "exclusive", "cpuset": "3", "actual": "0-3"}]
    assert misplaced(allocation_report(view(grant("main", "2")))) == [], "of cgroups nothing is known"


def test_followers_get_what_is_allocatable_and_free_after_every_kind_of_grant() -> None:
    """A fixed grant and a lapsed one are not free: no other container gets their CPUs as its own."""
    assert brief(view()) == {"allocatable": "1-7", "free": "1-7", "why": ""}
    given = view(grant("main", "2"), grant("fixed", "3", policy=CpuPolicy.FIXED),
                 grant("group", "4", policy=CpuPolicy.GROUP, group="shop/g"),
                 grant("ended", "5", state=GrantState.LAPSED), grant("shared", "", policy=CpuPolicy.NONE),
                 grant("vm", "6", spare=CpuSet.parse("7")))
    assert brief(given) == {"allocatable": "1-7", "free": "1,7", "why": ""}


def test_the_fixed_set_of_a_group_is_not_free() -> None:
    given = view(grant("main", "2,6"))
    fixed = GroupRule(CpuSet.parse("0,3,7"), frozenset())
    found = allocation_report(given._replace(options=given.options._replace(groups={"rt": fixed})))
    assert found["groups"] == {"rt": "3,7"}
    assert (found["free"]["cpus"], found["free"]["largest_in_node"]) == ("1,4-5", 3)


def test_those_on_the_pool_are_in_the_wide_table_alone() -> None:
    shared = grant("side", "", policy=CpuPolicy.NONE, wish=CpuWish(), written=CpuSet.parse("0-1"))
    found = allocation_report(view(shared))
    assert grant_rows(found, NOW) == []
    [row] = grant_rows(found, NOW, wide=True)
    assert row[3:6] == ["-", "-", "0-1"]
    assert row[-2] == "allocate.default"
    assert len(row) == len(grant_columns(wide=True))


def test_what_vmpin_sets_no_cpuset_of_is_left_alone() -> None:
    preserved = grant("side", "", policy=CpuPolicy.NONE, wish=CpuWish(), left_alone=True)
    rivals = preserved._replace(written=CpuSet.parse("0-1"))
    for one, why, said in ((preserved, "left alone", "has no cpuset, and vmpin sets none: it is left alone"),
                           (rivals, "another program's cpuset", "has the cpuset 0-1, which another program gave it")):
        [row] = grant_rows(allocation_report(view(one)), NOW, wide=True)
        assert row[-2] == why
        [sentence] = explanations(view(one), "shop/web")
        assert said in sentence


def test_how_long_a_container_has_its_cpus_is_an_age() -> None:
    assert grant_rows(allocation_report(view(grant("main", "2"))), NOW)[0][-1] == "6m10s"


def test_what_was_refused_has_its_reason() -> None:
    refused = (RefusedRequest("main", "shop", "web", "4 CPUs are asked for, 3 are free", 1_800_000_000 * 10**9),)
    assert refusals(allocation_report(view(refused=refused)), NOW) == [
        "refused 6m10s ago: shop/web/main: 4 CPUs are asked for, 3 are free"]
    for name, count in (("shop/web", 1), ("shop/web/main", 1), ("shop/web/side", 0), ("shop/other", 0), ("main", 0)):
        assert explanations(view(refused=refused), name) == [
            "container main of shop/web was refused at 2027-01-15T08:00:00Z: 4 CPUs are asked for, 3 are free"] * count
    running = view(grant("main", "2,6"), grant("side", "3,7"), refused=refused)
    for name, count in (("pod-id", 1), ("id-main", 1), ("id-side", 0)):
        assert sum("was refused" in each for each in explanations(running, name)) == count


def test_what_is_observed_is_called_so() -> None:
    assert summary(allocation_report(view(mode="observe")))[-1].startswith("observed: ")


def test_another_programs_cpuset_is_named() -> None:
    left = grant("main", "", left_alone=True, written=CpuSet.parse("2"))
    assert grant_rows(allocation_report(view(left)), NOW, wide=True)[0][-2] == "another program's cpuset"


def test_a_grant_is_explained_with_its_cost_and_the_next_best_set() -> None:
    found = explanations(view(grant("main", "2,6")), "shop/web")
    assert found == [
        "container main of shop/web has CPUs 2,6 (policy=exclusive align=cache!), since 2027-01-15T08:00:00Z; running",
        "container main of shop/web: cost: NUMA nodes 1, last-level caches 1, whole nodes broken 1, CPUs left in the "
        "touched nodes 2",
        "container main of shop/web: today CPUs 1,5 would be better (cost: NUMA nodes 1, last-level caches 1, CPUs "
        "left in the touched nodes 1); what runs is not moved unasked"]
    first = explanations(view(grant("main", "1,5")), "id-main")
    assert first[-1] == ("container main of shop/web: the next best set is 2,6 (cost: NUMA nodes 1, last-level "
                         "caches 1, whole nodes broken 1, CPUs left in the touched nodes 2)")


def test_a_grant_near_a_node_is_compared_with_sets_there_alone() -> None:
    near = grant("main", "2,6", wish=CpuWish(CpuPolicy.EXCLUSIVE, near="nodes:1"), near=CpuSet((1,)))
    assert "better" not in " ".join(explanations(view(near), "shop/web"))


@pytest.mark.parametrize(("near", "nodes", "shown"), [
    ("devices", "1", "near=devices (NUMA node 1)"), ("devices", "0-1", "near=devices (NUMA nodes 0-1)"),
    ("eth0", "", "near=eth0 (no NUMA node)"), ("nodes:1", "1", "near=nodes:1")])
def test_the_nodes_of_devices_are_named(near: str, nodes: str, shown: str) -> None:
    own = grant("main", "2,6", wish=CpuWish(CpuPolicy.EXCLUSIVE, near=near), near=CpuSet.parse(nodes))
    found = allocation_report(view(own))
    assert (found["grants"][0]["near"], found["grants"][0]["asked"]["near"]) == (nodes, near)
    why = grant_columns().index("WHY")
    assert grant_rows(found, NOW)[0][why] == f"policy=exclusive {shown}"
    assert f"(policy=exclusive {shown}), since" in explanations(view(own), "shop/web")[0]


def test_a_container_without_cpus_of_its_own_is_explained() -> None:
    shared = grant("side", "", policy=CpuPolicy.NONE, wish=CpuWish(), written=CpuSet.parse("0-1"))
    assert explanations(view(shared), "shop/web/side") == [
        "container side of shop/web has no CPUs of its own (allocate.default): it runs on 0-1"]
    assert explanations(view(shared), "shop/other") == []
