"""NodeResourceTopology: zones from a report, what other writers have is left to them, and each step at its time."""

from __future__ import annotations

from typing import Any

import pytest
from kube_given import NODE, node_part, reported

from vmpin.features.cluster.kube.api_request import APPLY, FIRST, LONGEST, ApiRequest
from vmpin.features.cluster.kube.identifiers import MANAGER
from vmpin.features.cluster.kube.node_pinning import REFRESH
from vmpin.features.cluster.kube.node_topology import (
    PAUSE,
    TopologyAgenda,
    attributes_of,
    topology_of,
    topology_withdrawal,
    zone_data,
    zones_of,
    zones_update,
)
from vmpin.features.cluster.kube.reported_node import NodePart

PATH = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/node-a"
TWO = {"cores": 8, "threads_per_core": 1, "caches": [], "isolated": "", "nodes": {"0": "0-3", "1": "4-7"},
       "distances": {"0": {"0": 10, "1": 21, "2": 28}, "1": {"0": 21, "1": 10, "2": 28}}}


def part(**changes: Any) -> NodePart:
    return reported(**{"topology": TWO, **changes}).node


def cpu_of(report: NodePart) -> list[tuple[str, str, str, str]]:
    """Of each zone its name, and what it has of CPUs: capacity, allocatable, available."""
    zones: list[Any] = [zone_data(zone) for zone in zones_of(report)]
    assert [[resource["name"] for resource in zone["resources"]] for zone in zones] == [["cpu"]] * len(zones)
    return [(zone["name"], cpu["capacity"], cpu["allocatable"], cpu["available"])
            for zone in zones for cpu in zone["resources"]]


def item(*managers: str, **parts: Any) -> dict[str, Any]:
    """An object whose zones these managers have."""
    return {"metadata": {"name": "node-a", "uid": "u", "resourceVersion": "7",
                         "managedFields": [{"manager": manager, "operation": "Apply", "fieldsV1": {"f:zones": {}}}
                                           for manager in managers]}, **parts}


# Zones.

def test_zones_have_their_cpus_without_those_that_a_container_owns() -> None:
    assert cpu_of(part()) == [("node-0", "4", "4", "4"), ("node-1", "4", "4", "2")]
    report = part(exclusive="1-2,4-5", kubelet={"reservedSystemCPUs": "0,4"})
    assert cpu_of(report) == [("node-0", "4", "3", "1"), ("node-1", "4", "3", "2")]
    zone = zone_data(zones_of(report)[0])
    costs = [{"name": "node-0", "value": 10}, {"name": "node-1", "value": 21}]
    assert (zone["type"], zone["costs"]) == ("Node", costs), "node 2 has no CPU"


def test_where_the_watcher_gives_out_the_cpus_its_ledger_has_what_is_allocatable_and_available() -> None:
    """The kubelet's reservation does not count then, nor which containers the watcher has seen with CPUs."""
    given = {"allocatable": "1-7", "free": "1,3,6-7", "why": ""}
    report = part(exclusive="4-5", kubelet={"reservedSystemCPUs": "7"}, features={"allocator": given})
    assert cpu_of(report) == [("node-0", "4", "3", "2"), ("node-1", "4", "4", "2")]
    assert cpu_of(report._replace(online="0-2,4-7")) == [("node-0", "3", "2", "1"), ("node-1", "4", "4", "2")]


@pytest.mark.parametrize("given", [{"allocatable": "0-", "free": "1", "why": ""},
                                   {"allocatable": "1-7", "free": "0," * 5000, "why": ""}])
def test_a_ledgers_part_that_cannot_be_read_makes_no_zone(given: dict[str, str]) -> None:
    assert zones_of(part(features={"allocator": given})) == ()


def test_cpus_that_are_offline_count_for_nothing() -> None:
    assert cpu_of(part(online="0-2,4-7")) == [("node-0", "3", "3", "3"), ("node-1", "4", "4", "2")]


def test_a_kernel_that_shows_no_distances_gives_no_costs() -> None:
    (zone,) = zones_of(reported().node)
    assert "costs" not in zone_data(zone)


@pytest.mark.parametrize("changes", [
    {"exclusive": "0-" * 5000}, {"online": "x"}, {"topology": {}}, {"topology": {"nodes": []}},
    {"topology": {"nodes": {"a": "0"}}}, {"topology": {"nodes": {"0": 7}}}, {"topology": {"nodes": {}}},
    {"topology": {"nodes": {"0": "0-7"}, "distances": {"0": [10]}}}, {"kubelet": {"reservedSystemCPUs": "all"}}])
def test_of_what_cannot_be_read_no_zone_is_made(changes: dict[str, Any]) -> None:
    assert zones_of(part(**changes)) == ()
    assert TopologyAgenda(True).due(NODE, part(**changes), 0.0) is None


def test_attributes_are_what_the_kubelets_configuration_sets_and_no_other() -> None:
    assert attributes_of(part()) == []
    assert attributes_of(part(kubelet={"topologyManagerPolicy": "magic", "topologyManagerScope": "pod"})) == [
        {"name": "topologyManagerScope", "value": "pod"}]


# Writers.

def test_writers_are_the_managers_that_have_zones() -> None:
    topology = item("nfd", MANAGER)
    topology["metadata"]["managedFields"] += [
        {"manager": "koordlet", "operation": "Update", "fieldsV1": {"f:metadata": {"f:annotations": {}}}},
        {"manager": "bad\x1b[2J", "operation": "Update", "fieldsV1": {"f:zones": {}}}]
    record = topology_of(topology)
    assert (record.writers, record.own, record.applied) == (("bad\\x1b[2J", "nfd"), True, True)


@pytest.mark.parametrize("answer", [{}, {"metadata": {"name": "n"}}, {"metadata": []}, {"metadata": {
    "name": "n", "uid": "u", "resourceVersion": "1", "managedFields": [{"operation": "Apply"}]}}])
def test_what_is_no_such_object_is_refused(answer: Any) -> None:
    with pytest.raises(ValueError, match="NodeResourceTopology"):
        topology_of(answer)
    agenda = TopologyAgenda(True)
    request = agenda.due(NODE, part(), 0.0)
    assert request is not None
    assert "NodeResourceTopology" in agenda.done(request, 200, answer, 0.0)
    assert agenda.due(NODE, part(), 1.0) is None


def test_zones_are_applied_without_force_and_with_the_node_as_their_owner() -> None:
    request = zones_update(NODE, part(kubelet={"topologyManagerPolicy": "none"}), zones_of(part()), None)
    assert request is not None
    body: Any = request.body
    assert (request.content_type, dict(request.query)) == (APPLY, {"fieldManager": MANAGER, "force": "false"})
    assert body["metadata"] == {"name": "node-a", "ownerReferences": [
        {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-uid"}]}
    assert body["attributes"] == [{"name": "topologyManagerPolicy", "value": "none"}]
    shown = topology_of(item(MANAGER, zones=body["zones"], attributes=body["attributes"]))
    assert zones_update(NODE, part(kubelet={"topologyManagerPolicy": "none"}), zones_of(part()), shown) is None
    assert zones_update(NODE, part(), zones_of(part(exclusive="")), shown) is not None


# What is sent, and when.

class Given:
    """An agenda, and the object as a cluster has it."""

    def __init__(self, topology: dict[str, Any] | None = None) -> None:
        self.agenda, self.item = TopologyAgenda(True), topology
        self.now, self.status, self.log = 0.0, 200, list[str]()

    def sent(self, report: NodePart, seconds: float = 0.0) -> list[ApiRequest]:
        """All but what is read."""
        self.now += seconds
        requests = []
        while (request := self.agenda.due(NODE, report, self.now)) is not None:
            reads = request.method == "GET"
            answer = self.item if reads else {}
            status = 404 if reads and self.item is None else 200 if reads and self.status != 403 else self.status
            requests += [] if reads else [request]
            if text := self.agenda.done(request, status, answer or {}, self.now + 0.01):
                self.log.append(text)
        return requests


def test_off_asks_nothing() -> None:
    assert TopologyAgenda(False).due(NODE, part(), 0.0) is None


def test_own_zones_are_written_at_first_and_at_each_change() -> None:
    given = Given()
    (request,) = given.sent(part())
    body: Any = request.body
    given.item = item(MANAGER, zones=body["zones"], attributes=[])
    assert (request.path, given.agenda.note, given.log) == (PATH, "own zones", [])
    assert given.sent(part(), PAUSE + 1) == []
    (request,) = given.sent(part(exclusive=""))
    body = request.body
    assert body["zones"][1]["resources"][0]["available"] == "4"
    assert body["metadata"]["uid"] == "u"
    assert given.sent(part(), PAUSE / 2) == [], "too soon"
    # As another reporter of this node finds it.
    given = Given(item(MANAGER, zones=body["zones"], attributes=[]))
    assert given.sent(part(exclusive="")) == []
    assert given.agenda.note == "own zones"


def test_nothing_is_written_beside_another_writer_of_zones_until_it_is_gone() -> None:
    given = Given(item("nfd", "other"))
    assert given.sent(part()) == []
    assert given.log == ["NodeResourceTopology: not written: zones are written by nfd, other"]
    for _ in range(3):
        assert given.sent(part(), REFRESH) == []
    assert len(given.log) == 1, "said once"
    given.item = None
    assert len(given.sent(part(), REFRESH)) == 1
    assert given.agenda.note == "own zones"


def test_a_conflict_stops_it_until_a_change_or_the_next_refresh() -> None:
    given = Given()
    given.status = 409
    assert len(given.sent(part())) == 1
    assert given.log == ["NodeResourceTopology: not written: another program has changed it"]
    assert given.sent(part(), REFRESH - 1) == []
    given.status, given.item = 200, item("nfd")
    assert given.sent(part(), 1) == []
    assert given.agenda.note == "not written: zones are written by nfd"


def test_what_is_forbidden_is_tried_again_after_a_while() -> None:
    given = Given()
    given.status, given.item = 403, {}
    assert given.sent(part()) == []
    assert "not permitted" in given.log[0]
    assert given.agenda.due(NODE, part(exclusive=""), FIRST / 2) is None
    assert 0 < given.agenda.next_due(FIRST / 2) <= FIRST
    given.status, given.item = 200, None
    assert len(given.sent(part(), FIRST + 1)) == 1


def test_a_write_that_is_forbidden_is_tried_again_ever_later() -> None:
    given = Given()
    given.status = 403
    tries = sum(len(given.sent(part(), second)) for second in [1.0] * int(2 * LONGEST))
    assert 8 <= tries <= 10
    assert given.log == ["NodeResourceTopology: not written: it is not permitted (RBAC, or the policy for the node)"]
    given.status = 200
    assert len(given.sent(part(), LONGEST)) == 1


def test_while_the_kubelets_checkpoint_cannot_be_used_nothing_changes() -> None:
    given = Given()
    assert len(given.sent(part())) == 1
    assert given.sent(part(exclusive="", trouble="cpu_manager_state: is no JSON"), REFRESH) == []
    assert given.agenda.note == "not written: cpu_manager_state: is no JSON"
    (request,) = given.sent(part(), 1)
    assert (request.method, given.agenda.note) == ("PATCH", "own zones")
    assert given.sent(part(topology={}), PAUSE + 1) == []
    assert given.agenda.note == "not written: the watcher reports no NUMA nodes"


def test_while_the_ledger_is_unknown_nothing_is_written() -> None:
    given = Given()
    why = "the container runtime has not listed its containers yet"
    assert given.sent(part(features={"allocator": {"why": why}})) == []
    assert given.agenda.note == f"not written: {why}"
    (request,) = given.sent(part(features={"allocator": {"allocatable": "1-7", "free": "1-6", "why": ""}}), 1)
    body: Any = request.body
    assert [zone["resources"][0]["available"] for zone in body["zones"]] == ["3", "3"]


# Withdrawal.

def test_an_object_is_deleted_only_if_its_zones_are_vmpins_alone() -> None:
    deletion, release = (topology_withdrawal(topology_of(item(*names))) for names in ([MANAGER], ["nfd", MANAGER]))
    assert deletion is not None
    assert release is not None
    body: Any = deletion.body
    assert (deletion.method, body["preconditions"]) == ("DELETE", {"uid": "u", "resourceVersion": "7"})
    assert topology_withdrawal(topology_of(item("nfd"))) is None
    body = release.body
    assert (release.method, body.keys(), body["metadata"]) == ("PATCH", {"apiVersion", "kind", "metadata"},
                                                               {"name": "node-a", "uid": "u"})


def test_a_report_of_an_older_watcher_has_no_configuration_of_the_kubelet() -> None:
    entry = node_part()
    assert "kubelet" not in entry
    assert reported().node.kubelet == {}
