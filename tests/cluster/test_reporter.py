"""The reporter at a real API server, under the rights that its help lists: what it writes, survives and undoes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cluster.build import Programs
from cluster.reporter_node import CLIENTS, DAEMON_SETS, NODES, PINNINGS, ReporterNode, client, prepare, until
from cluster.server import ApiServer

pytestmark = pytest.mark.cluster

_numbers = itertools.count()


@pytest.fixture(scope="module", params=CLIENTS)
def package(request: pytest.FixtureRequest) -> Iterator[Path]:
    with client(request.param) as found:
        yield found


@pytest.fixture(scope="module")
def newest() -> Iterator[Path]:
    with client(CLIENTS[-1]) as found:
        yield found


Given = Callable[[ApiServer, Path], ReporterNode]


@pytest.fixture
def given_node() -> Iterator[Given]:
    """Makes a node with a name of its own."""
    with ExitStack() as stack:
        def make(server: ApiServer, package: Path) -> ReporterNode:
            return stack.enter_context(ReporterNode(server, f"node-{next(_numbers)}", package, prepare(server)))
        yield make


@pytest.fixture
def name() -> str:
    return f"pod-{next(_numbers)}"


def managers(body: dict[str, Any]) -> set[tuple[str, str]]:
    return {(each["manager"], each.get("subresource", "")) for each in body["metadata"]["managedFields"]
            if each["manager"].startswith("vmpin")}


# What it writes.

def test_all_of_a_node_is_written(server: ApiServer, package: Path, given_node: Given, name: str) -> None:
    node = given_node(server, package)
    node.pod(name)
    node.pod("runc-" + name)
    node.peer.report(node.entry(name), shared_pool="0-1", version="0.1.0")
    node.start()
    until(lambda: node.shows(name, "Pinned"), node.log())
    found = node.condition(name) or {}
    assert found["status"] == "True"
    assert found["message"] == ("2 of 3 vCPUs have a CPU of their own (4-5), and all threads are within CPUs 0-1,4-5")
    until(lambda: node.events(name) == ["Pinned"], node.log())
    pinning = until(node.pinning, node.log())
    assert pinning["metadata"]["ownerReferences"][0]["uid"] == node.object()["metadata"]["uid"]
    (line,) = pinning["status"]["sandboxes"]
    assert (line["pod"], line["state"], line["vcpus"]) == (name, "Pinned", {"0": "0-1", "1": "4", "2": "5"})
    item = node.object()
    assert {key: value for key, value in item["metadata"]["labels"].items() if key.startswith("vmpin.io/")} == {
        "vmpin.io/ready": "true", "vmpin.io/version": "0.1.0"}
    assert item["spec"]["taints"] == [{"key": "other", "effect": "NoExecute"}]
    assert node.condition("runc-" + name) is None
    pod = server.get(f"/api/v1/namespaces/default/pods/{name}").body
    assert managers(pod) == {("vmpin-reporter", "status")}
    assert managers(server.get(f"/api/v1/namespaces/default/pods/runc-{name}").body) == set()
    columns = server.kubectl("get", "nodepinnings", node.name).stdout.split()
    assert columns[:9] == ["NAME", "READY", "PINNED", "DEGRADED", "COLLISIONS", "SHARED", "EXCLUSIVE", "OBSERVED",
                           node.name]
    assert columns[9:15] == ["true", "1/1", "0", "0", "0-1", "4-5"]
    assert "vmpin-reporter" in server.kubectl("describe", "pod", name).stdout
    assert node.end() == 0
    # A rollout withdraws nothing.
    assert node.shows(name, "Pinned")
    assert node.pinning() is not None


def test_a_change_is_shown_by_condition_and_event(server: ApiServer, package: Path, given_node: Given,
                                                   name: str) -> None:
    node = given_node(server, package)
    node.pod(name)
    node.peer.report(node.entry(name))
    node.start()
    until(lambda: node.events(name) == ["Pinned"], node.log())
    node.peer.report(node.entry(name, verdict="degraded", vcpus={"0": "4-5"}, reasons=["no one-to-one"]))
    until(lambda: node.shows(name, "PinningDegraded"), node.log())
    assert (node.condition(name) or {})["message"] == (
        "1 vCPUs for 2 exclusive CPUs: raise default_maxvcpus to at least 2; no one-to-one")
    node.peer.report(node.entry(name))
    until(lambda: node.shows(name, "Pinned"), node.log())
    until(lambda: len(node.events(name)) == 3, node.log())
    assert sorted(node.events(name)) == ["PinRestored", "Pinned", "PinningDegraded"]
    # Started again it repeats nothing.
    assert node.end() == 0
    before = node.condition(name)
    node.start()
    until(lambda: node.log().count("wrote kind=pinning") >= 2, node.log())
    assert node.condition(name) == before
    assert len(node.events(name)) == 3


def test_a_pod_that_was_made_again_under_its_name_is_another(server: ApiServer, newest: Path, given_node: Given,
                                                            name: str) -> None:
    node = given_node(server, newest)
    node.pod(name)
    old = node.entry(name)
    node.peer.report(old)
    node.start()
    until(lambda: node.shows(name, "Pinned"), node.log())
    path = f"/api/v1/namespaces/default/pods/{name}"
    server.request("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0})
    until(lambda: server.get(path).code == 404)
    node.pod(name)
    node.peer.report({**old, "verdict": "degraded"})
    # The report is of the pod before, by its uid; another pod's condition shows that it was processed.
    other = name + "-other"
    node.pod(other)
    node.peer.report(node.entry(other))
    until(lambda: node.shows(other, "Pinned"), node.log())
    assert node.condition(name) is None
    node.peer.report(node.entry(name))
    until(lambda: node.shows(name, "Pinned"), node.log())


# What it survives.

def check_alive(node: ReporterNode, name: str) -> None:
    """A change gets through."""
    reason = "NoExclusiveCPUs" if node.shows(name, "Pinned") else "Pinned"
    node.peer.report(node.entry(name, verdict="floating" if reason != "Pinned" else "pinned"))
    until(lambda: node.shows(name, reason), node.log()[-3000:])


def pod_seen(node: ReporterNode, name: str) -> None:
    """A new pod reaches it: the watch is well."""
    node.pod(name)
    node.peer.report(node.entry(name))
    until(lambda: node.shows(name, "Pinned"), node.log()[-3000:])


@pytest.fixture
def own_server(built: Programs) -> Iterator[ApiServer]:
    with ApiServer(built) as started:
        yield started


def test_it_survives_a_restart_another_ca_an_expired_token_and_a_frozen_server(
        own_server: ApiServer, package: Path, given_node: Given, name: str) -> None:
    server = own_server
    node = given_node(server, package)
    node.start()
    pod_seen(node, name)
    server.kill()
    until(lambda: "tried again after" in node.log(), node.log())
    server.start()
    pod_seen(node, name + "-restarted")
    server.restart(new_ca=True)
    pod_seen(node, name + "-ca")
    check_alive(node, name)
    token = server.service_account("vmpin", "reporter")
    server.expire(node._token)
    node.peer.report(node.entry(name, verdict="degraded"))
    until(lambda: "Unauthorized" in node.log(), node.log())
    before = node.log().count("Unauthorized")
    assert before < 20, "it asks without a pause"
    node.set_token(token)
    until(lambda: node.shows(name, "PinningDegraded"), node.log()[-3000:])
    pod_seen(node, name + "-token")
    server.freeze()
    node.peer.report(node.entry(name))
    until(lambda: "imed out" in node.log(), node.log()[-3000:])
    server.thaw()
    until(lambda: node.shows(name, "Pinned"), node.log()[-3000:])
    pod_seen(node, name + "-thawed")


def test_after_a_compaction_it_lists_again(built: Programs, newest: Path, given_node: Given, name: str) -> None:
    with ApiServer(built, watch_cache=False) as server:
        node = given_node(server, newest)
        node.start()
        pod_seen(node, name)
        server.kill()
        until(lambda: "tried again after" in node.log(), node.log())
        server.start()
        # Until its watch begins again, the version that it has is forgotten.
        for number in range(3):
            server.create("/api/v1/namespaces", {"metadata": {"name": f"ns{number}"}})
            server.compact()
        pod_seen(node, name + "-after")


def test_what_is_forbidden_or_delayed_does_not_stop_the_rest(own_server: ApiServer, newest: Path, given_node: Given,
                                                           name: str) -> None:
    server = own_server
    node = given_node(server, newest)
    server.faults({"code": 403, "reason": "Forbidden", "verbs": ["create", "patch"], "resources": ["events"]},
                  {"code": 429, "reason": "TooManyRequests", "retryAfter": 1, "verbs": ["patch"],
                   "resources": ["pods/status"]})
    node.pod(name)
    node.peer.report(node.entry(name))
    node.start()
    delayed = f"pods/{name}/status: as faults.json says; tried again after"
    until(lambda: node.log().count(delayed) >= 2, node.log())
    server.faults({"code": 403, "reason": "Forbidden", "verbs": ["create", "patch"], "resources": ["events"]})
    until(lambda: node.shows(name, "Pinned"), node.log())
    until(node.pinning, node.log())
    until(lambda: "is not permitted (RBAC" in node.log(), node.log())
    check_alive(node, name)
    assert node.log().count("is not permitted (RBAC") == 1


def test_a_watcher_that_comes_back_is_followed_again(server: ApiServer, newest: Path, given_node: Given,
                                                    name: str) -> None:
    node = given_node(server, newest)
    node.start()
    pod_seen(node, name)
    node.peer.stop()
    until(lambda: "the watcher does not report" in node.log(), node.log())
    node.peer.start()
    check_alive(node, name)


# What it withdraws.

def withdrawn(node: ReporterNode, name: str) -> bool:
    labels = node.object()["metadata"].get("labels") or {}
    return node.pinning() is None and node.condition(name) is None and not any(
        key.startswith("vmpin.io/") for key in labels)


def daemon_set(server: ApiServer, name: str) -> str:
    labels = {"app": name}
    made = server.create(DAEMON_SETS, {"metadata": {"name": name, "finalizers": ["vmpin.io/test"]}, "spec": {
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {
            "containers": [{"name": "main", "image": "none"}]}}}})
    assert made.code == 201, made.body
    return f"vmpin/{name}"


@pytest.mark.parametrize("how", ["deleting", "gone", "kept"])
def test_at_its_end_it_withdraws_only_if_its_daemon_set_goes(server: ApiServer, newest: Path, given_node: Given,
                                                           name: str, how: str) -> None:
    node = given_node(server, newest)
    full = daemon_set(server, name)
    node.pod(name)
    node.peer.report(node.entry(name))
    node.start(daemonset=full)
    until(lambda: node.shows(name, "Pinned") and node.pinning() is not None, node.log())
    path = f"{DAEMON_SETS}/{name}"
    if how != "kept":
        server.request("DELETE", path)
    if how == "gone":
        server.request("PATCH", path, {"metadata": {"finalizers": None}}, kind="application/merge-patch+json")
        until(lambda: server.get(path).code == 404)
    assert node.end() == 0
    assert withdrawn(node, name) == (how != "kept"), node.log()


def test_all_nodes_are_withdrawn_by_one_command(own_server: ApiServer, package: Path, given_node: Given,
                                              name: str) -> None:
    server = own_server
    nodes = [given_node(server, package) for _ in range(2)]
    for number, node in enumerate(nodes):
        node.start()
        pod_seen(node, f"{name}-{number}")
        until(node.pinning, node.log())
        assert node.end() == 0
    node = nodes[0]
    node._token = server.service_account("vmpin", "withdraw")
    done = node.run("--withdraw")
    assert done.returncode == 0, done.stderr
    assert all(withdrawn(each, f"{name}-{number}") for number, each in enumerate(nodes))
    assert done.stdout == "6 objects were changed or removed\n"
    assert node.run("--withdraw").stdout == "0 objects were changed or removed\n"
    assert server.get(PINNINGS).body["items"] == []
    assert server.get(NODES).code == 200
