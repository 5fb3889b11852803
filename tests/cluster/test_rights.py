"""No right of the chart is missing and none is needless: the reporter, and the Job that withdraws, do all that they
can under exactly the rendered rules and policies; the API server's audit log has the rights that each request took."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from cluster.audit_log import Served
from cluster.build import Programs
from cluster.rendered import objects
from cluster.reporter_node import CLIENTS, ReporterNode, client, until
from cluster.server import ApiServer
from cluster.test_policies import TOPOLOGIES, Cluster
from vmpin.features.cluster.kube.identifiers import MANAGER

pytestmark = pytest.mark.cluster

REPORTER, WITHDRAW = "vmpin-reporter", "vmpin-withdraw"


class Right(NamedTuple):
    """A verb of a rule; namespace and name are "" for all."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str

    def covers(self, verb: str, served: Served) -> bool:
        return ((self.verb, self.group, self.resource) == (verb, served.group, served.resource)
                and self.namespace in ("", served.namespace) and self.name in ("", served.name))


def granted(documents: Iterable[dict[str, Any]], account: str) -> set[Right]:
    """The rights of a service account, by the rendered roles and bindings."""
    documents = list(documents)
    roles = {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each["rules"]
             for each in documents if each["kind"] in ("Role", "ClusterRole")}
    found = set()
    for binding in documents:
        if not binding["kind"].endswith("Binding") or account not in {
                each["name"] for each in binding.get("subjects", ())}:
            continue
        namespace, role = binding["metadata"].get("namespace", ""), binding["roleRef"]
        for rule in roles[role["kind"], namespace if role["kind"] == "Role" else "", role["name"]]:
            found |= {Right(*each) for each in itertools.product(
                rule["verbs"], rule["apiGroups"], rule["resources"], [namespace], rule.get("resourceNames", [""]))}
    return found


def needless(rights: set[Right], served: Iterable[Served]) -> set[Right]:
    """Those without which each request would be allowed as well."""
    needed = set()
    for each in served:
        for verb in each.rights:
            covering = [right for right in rights if right.covers(verb, each)]
            needed |= set(covering) if len(covering) == 1 else set()
    return rights - needed


def test_a_right_is_needless_without_a_request_that_it_alone_allows() -> None:
    served = Served("u", "n", "a", "patch", "", "pods/status", "default", "p", 200, {"patch": True})
    one, other = (Right("patch", "", "pods/status", *place) for place in (("", ""), ("default", "")))
    listing = Right("list", "", "pods", "", "")
    assert needless({one, listing}, [served]) == {listing}
    assert needless({one, other}, [served]) == {one, other}
    assert needless({Right("patch", "", "pods/status", "default", "q")}, [served]) != set()


@pytest.fixture(scope="module")
def newest() -> Iterator[Path]:
    with client(CLIENTS[-1]) as found:
        yield found


def keys(documents: list[dict[str, Any]], kind: str, name: str) -> dict[str, str]:
    """The keys `kubernetes` that the chart sets for a DaemonSet's or a Job's process, but for the node's name and the
    pod's own directory."""
    (made,) = [each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    (container,) = made["spec"]["template"]["spec"]["containers"]
    prefix = "VMPIN_KUBERNETES_"
    found = {each["name"].removeprefix(prefix).lower(): each["value"] for each in container.get("env", ())
             if each["name"].startswith(prefix) and "value" in each}
    found.pop("ready_file", None)
    return {"startup_taint": "", **found}


@pytest.mark.parametrize("values", [
    "{}", "reporter: {nrt: own, startupTaint: vmpin.io/starting}"], ids=["default", "own"])
def test_every_right_is_needed_and_none_is_missing(built: Programs, newest: Path, values: str) -> None:
    rendered = objects(built, values, "-crds")
    documents = [each for each in yaml.safe_load_all(rendered) if each is not None]
    with ApiServer(built) as server:
        Cluster(server, rendered).wait()
        token = server.service_account("vmpin", REPORTER, node="here")
        with ReporterNode(server, "here", newest, token) as node:
            _act(node, keys(documents, "DaemonSet", REPORTER))
            _withdrawn(node, keys(documents, "Job", WITHDRAW))
            assert node.pinning() is None, node.log()
            assert node.condition("here") is None
        for account in REPORTER, WITHDRAW:
            # Others with this account asked whether the policies are in force.
            served = [each for each in server.served() if each.user == f"system:serviceaccount:vmpin:{account}"
                      and each.node == "here"]
            assert [each for each in served if False in each.rights.values()] == [], "a right is missing"
            # What is not there: a topology at first.
            assert [each for each in served if each.code >= 300 and (each.verb, each.code) != ("get", 404)] == []
            assert needless(granted(documents, account), served) == set()


def _act(node: ReporterNode, keys: dict[str, str]) -> None:
    """All but the withdrawal."""
    name = node.name
    node.pod(name)
    node.peer.report(node.entry(name))
    node.start(**keys)
    # The second time that an Event has the same text, its count is raised.
    for verdict, reason in (("pinned", "Pinned"), ("degraded", "PinningDegraded")) * 2:
        node.peer.report(node.entry(name, verdict=verdict))
        until(partial(node.shows, name, reason), node.log())
    written = ["event /api/v1/namespaces/default/events/", "pinning ", "labels "]
    options = ("taint", "startup_taint"), ("topology", "nrt")
    written += [f"{kind} " for kind, key in options if keys.get(key)]
    for each in written:
        until(lambda: f"wrote kind={each}" in node.log(), f"{each}: {node.log()}")  # noqa: B023


def _apply_zones(server: ApiServer, name: str, manager: str) -> None:
    """:param manager: the reporter's own for what that of a node that is down has left."""
    reply = server.apply(f"{TOPOLOGIES}/{name}", {
        "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": {"name": name},
        "attributes": [{"name": "by", "value": manager}], "zones": []}, manager=manager, force=True)
    assert reply.code in (200, 201), reply


def _withdrawn(node: ReporterNode, keys: dict[str, str]) -> None:
    """The Job withdraws, also for a node that is down."""
    node.kill()
    if keys.get("nrt") == "own":  # one object is to be deleted, the other is by now another program's
        _apply_zones(node.server, "down", MANAGER)
        _apply_zones(node.server, node.name, "other")
    done = node.run("--withdraw", token=node.server.service_account("vmpin", WITHDRAW, node=node.name), **keys)
    assert done.returncode == 0, done.stderr
