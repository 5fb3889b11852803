"""CPUs that need not be the best ones, as the machine has more sets of nodes than can be tried: what is recorded and
shown of it."""

from __future__ import annotations

import json
import random

import pytest
from played_calls import EXCLUSIVE, ON, Played, a_container

from vmpin.cpuset import CpuSet, union
from vmpin.domain.model import ContainerId
from vmpin.domain.topology import Topology
from vmpin.features.allocator.allocation_report import AllocatorView, allocation_report, explanations
from vmpin.features.allocator.grants.decisions import on_update
from vmpin.features.allocator.grants.live_change import set_policy
from vmpin.features.allocator.grants.pool_cpus import pool
from vmpin.features.allocator.scenario_allocation import AllocationPart
from vmpin.features.allocator.scenario_events import ContainerCreated
from vmpin.features.allocator.texts.grant_data import LedgerError, from_data, to_data


def scattered(nodes: int, width: int) -> Topology:
    """Nodes at distances of their own."""
    parts = [CpuSet(range(width * node, width * node + width)) for node in range(nodes)]
    chance = random.Random(1)
    distances = {a: {b: 10 if a == b else chance.randint(12, 60) for b in range(nodes)} for a in range(nodes)}
    return Topology.build(union(parts), nodes=dict(enumerate(parts)), distances=distances)


@pytest.fixture(scope="module")
def node() -> Played:
    made = Played(ON, scattered(32, 4))
    assert made.create("far", 64, EXCLUSIVE)
    return made


def test_the_ledger_and_the_report_have_the_bound(node: Played) -> None:
    [grant] = node.ledger.grants.values()
    assert grant.least_distance is not None
    data = json.loads(json.dumps(to_data(node.ledger)))
    assert from_data(data) == node.ledger
    data["grants"][0]["least_distance"] = -1
    with pytest.raises(LedgerError, match="least_distance=-1"):
        from_data(data)
    view = AllocatorView("on", "", node.machine, node.options, node.ledger,
                         pool(node.machine, node.ledger, node.options))
    assert allocation_report(view)["grants"][0]["least_distance"] == grant.least_distance
    _, cost, bound, today = explanations(view, "web/pod/far")
    distance = int(cost.partition(" distance ")[2].partition(",")[0])
    assert distance > grant.least_distance
    assert bound.endswith(f"its distance is {distance}, and none as good in the parts before had less than "
                          f"{grant.least_distance}")
    assert "no better set was found; not all sets of nodes could be tried today" in today


def test_a_search_that_is_proven_takes_the_bound_away(node: Played) -> None:
    other = Played(ON, node.machine)
    other.ledger = node.ledger
    small = set_policy(node.machine, node.ledger, ContainerId("far"), {"policy": "none"}, node.options)
    assert small.ledger.grants[ContainerId("far")].least_distance is None
    assert other.create("near", 2, EXCLUSIVE)
    assert other.ledger.grants[ContainerId("near")].least_distance is None
    other.call(on_update, a_container("far", 4))
    assert len(other.ledger.grants[ContainerId("far")].cpus) == 4
    assert other.ledger.grants[ContainerId("far")].least_distance is None


def test_a_scenario_names_the_bound() -> None:
    machine = scattered(32, 4)
    event = ContainerCreated("web/pod", "far", 64_000, 64_000, dict(EXCLUSIVE), False, 0, 0, None)
    played = AllocationPart(machine, ON, (event,)).played()
    [outcome] = played.members["events"]
    assert 0 < outcome["least_distance"] < outcome["cost"]["distance"]
    assert "not all sets of nodes could be tried" in " ".join(played.lines[0].split())
