"""NodeResourceTopology under the chart's rules and policies, beside another writer and alone. The other writer applies
as NFD does: forced."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cluster.build import Programs
from cluster.rendered import objects
from cluster.reporter_node import CLIENTS, ReporterNode, client, until
from cluster.server import ApiServer
from cluster.test_policies import TOPOLOGIES, Cluster
from vmpin.features.cluster.kube.node_topology import topology_of, topology_withdrawal

pytestmark = pytest.mark.cluster

NFD = "node-feature-discovery-topology-updater"
TWO = {"cores": 8, "threads_per_core": 1, "caches": [], "isolated": "", "nodes": {"0": "0-3", "1": "4-7"},
       "distances": {"0": {"0": 10, "1": 21}, "1": {"0": 21, "1": 10}}}
_numbers = itertools.count()
Given = Callable[[str], ReporterNode]


@pytest.fixture(scope="module")
def newest() -> Iterator[Path]:
    with client(CLIENTS[-1]) as found:
        yield found


@pytest.fixture
def given_node(built: Programs, newest: Path) -> Iterator[Given]:
    """Makes a node in a cluster of its own with the chart's rules and policies, and a pod on it."""
    with ExitStack() as stack:
        def make(values: str) -> ReporterNode:
            server = stack.enter_context(ApiServer(built))
            Cluster(server, objects(built, values, "-crds")).wait()
            name = f"numa-{next(_numbers)}"
            token = server.service_account("vmpin", "vmpin-reporter", node=name)
            node = stack.enter_context(ReporterNode(server, name, newest, token))
            node.pod("web")
            node.peer.report(node.entry("web"), topology=TWO, exclusive="4-5", shared_pool="0-3,6-7",
                             kubelet={"topologyManagerPolicy": "single-numa-node", "reservedSystemCPUs": "0"})
            return node
        yield make


def topology(node: ReporterNode) -> dict[str, Any] | None:
    found = node.server.get(f"{TOPOLOGIES}/{node.name}")
    return dict(found.body) if found.code == 200 else None


def free(node: ReporterNode) -> list[str]:
    """CPUs that each zone has available."""
    zones = (topology(node) or {"zones": []})["zones"]
    return [cpu["available"] for zone in zones for cpu in zone["resources"] if cpu["name"] == "cpu"]


def other_applies(node: ReporterNode, **parts: object) -> dict[str, Any]:
    reply = node.server.apply(f"{TOPOLOGIES}/{node.name}", {
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
        "metadata": {"name": node.name}, **parts}, manager=NFD, force=True)
    assert reply.code in (200, 201), reply
    return dict(reply.body)


def shows(node: ReporterNode, text: str) -> bool:
    """In the NodePinning."""
    found = node.pinning()
    return found is not None and text in found["status"].get("nodeResourceTopology", "")


def test_own_zones_are_written_left_to_another_writer_and_withdrawn(given_node: Given) -> None:
    node = given_node("reporter: {nrt: own}")
    server = node.server
    node.start(nrt="own", startup_taint="")
    found = until(lambda: topology(node), node.log())
    as_it_was = topology_of(found)
    assert [(zone["name"], zone["type"], zone["costs"], zone["resources"]) for zone in found["zones"]] == [
        ("node-0", "Node", [{"name": "node-0", "value": 10}, {"name": "node-1", "value": 21}],
         [{"name": "cpu", "capacity": "4", "allocatable": "3", "available": "3"}]),
        ("node-1", "Node", [{"name": "node-0", "value": 21}, {"name": "node-1", "value": 10}],
         [{"name": "cpu", "capacity": "4", "allocatable": "4", "available": "2"}])]
    assert found["attributes"] == [{"name": "topologyManagerPolicy", "value": "single-numa-node"}]
    assert found["metadata"]["ownerReferences"][0]["uid"] == node.object()["metadata"]["uid"]
    until(lambda: shows(node, "own zones"), node.log())
    node.peer.report(exclusive="1,4-5")
    until(lambda: free(node) == ["2", "2"], node.log())
    deletion = topology_withdrawal(as_it_was)
    assert deletion is not None
    assert server.request(deletion.method, deletion.path, deletion.body).code == 409, "it has changed since"

    # A watcher that gives out the CPUs sends what its ledger has.
    node.peer.report(features={"allocator": {"allocatable": "1-7", "free": "2,6-7", "why": ""}})
    until(lambda: free(node) == ["1", "2"], node.log())
    node.peer.report(features={})
    until(lambda: free(node) == ["2", "2"], node.log())

    # Another program takes a part that is no zone: a conflict, and nothing of either changes.
    other_applies(node, attributes=[{"name": "other", "value": "x"}])
    node.peer.report(exclusive="4-7")
    until(lambda: "not written: another program has changed it" in node.log(), node.log())
    assert free(node) == ["2", "2"]
    # It takes the zones.
    zones = [{"name": "node-0", "type": "Node", "resources": []}]
    other_applies(node, attributes=[{"name": "other", "value": "x"}], zones=zones)
    node.peer.report(exclusive="4-6")
    until(lambda: shows(node, f"not written: zones are written by {NFD}"), node.log())
    assert (topology(node) or {})["zones"] == zones
    assert node.log().count(f"zones are written by {NFD}") == 1
    # It is gone.
    assert server.request("DELETE", f"{TOPOLOGIES}/{node.name}").code == 200
    node.peer.report(exclusive="4-5")
    until(lambda: free(node) == ["3", "2"], node.log())

    assert node.end() == 0
    done = node.run("--withdraw", token=server.service_account("vmpin", "vmpin-withdraw"), nrt="own")
    assert done.returncode == 0, done.stderr
    assert topology(node) is None


def test_without_the_rights_the_rest_is_written(given_node: Given) -> None:
    node = given_node("{}")
    node.start(nrt="own", startup_taint="")
    until(lambda: node.shows("web", "Pinned"), node.log())
    until(lambda: shows(node, "not permitted"), node.log())
    assert topology(node) is None
