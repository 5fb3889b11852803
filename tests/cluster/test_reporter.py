"""The reporter at a real API server, under the rights that its help lists: what it writes, survives and undoes."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cluster.build import Programs
from cluster.reporter_node import (
    CLIENTS,
    NODES,
    PINNINGS,
    ReporterNode,
    client,
    prepare,
    until,
)
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
            prepare(server)
            name = f"node-{next(_numbers)}"
            token = server.service_account("vmpin", "reporter", node=name)
            return stack.enter_context(ReporterNode(server, name, package, token))
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
        "1 vCPU for 2 exclusive CPUs: raise default_maxvcpus to at least 2; no one-to-one")
    node.peer.report(node.entry(name))
    until(lambda: node.shows(name, "Pinned"), node.log())
    until(lambda: len(node.events(name)) == 3, node.log())
    assert sorted(node.events(name)) == ["PinRestored", "Pinned", "PinningDegraded"]
    # Started again it repeats nothing.
    assert node.end() == 0
    before, writes = node.condition(name), node.log().count("wrote kind=pinning")
    node.start()
    until(lambda: node.log().count("wrote kind=pinning") > writes, node.log())
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
    assert min(node.pauses("as faults.json says")) >= 1.0
    server.faults({"code": 403, "reason": "Forbidden", "verbs": ["create", "patch"], "resources": ["events"]})
    until(lambda: node.shows(name, "Pinned"), node.log())
    until(node.pinning, node.log())
    until(lambda: "is not permitted (RBAC" in node.log(), node.log())
    check_alive(node, name)
    (said,) = [each for each in node.log().splitlines() if "is not permitted (RBAC" in each]
    assert said.endswith(f"up to 300 s (as faults.json says) pod=default/{name}")


def test_a_watcher_that_comes_back_is_followed_again(server: ApiServer, newest: Path, given_node: Given,
                                                    name: str) -> None:
    node = given_node(server, newest)
    node.start()
    pod_seen(node, name)
    node.peer.stop()
    until(lambda: "the watcher does not report" in node.log(), node.log())
    node.peer.start()
    check_alive(node, name)


def test_hostile_names_and_texts_reach_nothing_but_their_own_pod(server: ApiServer, newest: Path,
                                                                given_node: Given, name: str) -> None:
    """Of pods' owners, by the API server, and of images and runtimes, by the watcher."""
    node = given_node(server, newest)
    victim = node.pod(name)
    long = ".".join(["a" * 63] * 3 + [name])
    node.pod(long, annotations={"kubernetes.io/config.mirror": victim, "example.com/x": "\x1b[2J" + "x" * 200_000})
    text = "\x1b]0;title\x07\r\n\u202e" + "y" * 100_000
    container = {"name": text, "cpus": text, "exclusive": True, "vcpus": text, "guest": text}
    others: list[dict[str, Any]] = [
        {"pod": {"namespace": "..", "name": "../../../api/v1/nodes", "uid": "no-uid"}},
        {"pod": {"namespace": text, "name": text, "uid": text}, "reasons": [text] * 100, "verdict": text},
        {"pod": None, "handler": text, "mask": text, "guest": {"by": text, "state": text}}]
    hostile = [node.entry(name, id=f"other-{number}", **changes) for number, changes in enumerate(others)]
    node.peer.report(*hostile, node.entry(name, verdict="degraded", reasons=[text], containers=[container],
                                          handler=text), why=text, trouble=text, version=text)
    node.start()
    until(lambda: node.shows(name, "PinningDegraded"), node.log())
    until(lambda: node.events(name) == ["PinningDegraded"], node.log())
    pinning = until(node.pinning, node.log())
    assert pinning["status"]["total"] == 4
    assert len(pinning["status"]["sandboxes"]) == 4
    shown = server.kubectl("describe", "pod", name).stdout + server.kubectl("describe", "nodepinning",
                                                                            node.name).stdout
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(shown)
    # The other pod names this one as its original, which only a kubelet may.
    assert node.condition(long) is None
    asked = {(each.verb, each.resource, each.name) for each in server.served() if each.node == node.name}
    assert {each for each in asked if each[0] == "patch"} == {
        ("patch", "nodes", node.name), ("patch", "pods/status", name), ("patch", "nodepinnings", node.name)}


def test_a_clock_that_is_wrong_and_jumps_changes_only_times(server: ApiServer, newest: Path, tmp_path: Path,
                                                           name: str) -> None:
    """Of the whole node; the API server's is right."""
    skew = tmp_path / "skew"
    (tmp_path / "sitecustomize.py").write_text(
        f"import pathlib, time\n"
        f"_time = time.time\n"
        f"time.time = lambda: _time() + float(pathlib.Path({str(skew)!r}).read_text())\n")

    def jump(seconds: float) -> None:
        skew.with_suffix(".new").write_text(str(seconds))
        skew.with_suffix(".new").rename(skew)
        node.peer.clock = lambda: time.time() + seconds

    prepare(server)
    node_name = f"node-{next(_numbers)}"
    token = server.service_account("vmpin", "reporter", node=node_name)
    with ReporterNode(server, node_name, newest, token, tmp_path) as node:
        node.pod(name)
        jump(-400 * 86_400)
        node.peer.report(node.entry(name))
        node.start()
        until(lambda: node.events(name) == ["Pinned"], node.log())
        pinning = until(node.pinning, node.log())
        before = (node.condition(name) or {})["lastTransitionTime"]
        now = server.get(f"/api/v1/namespaces/default/pods/{name}").body["metadata"]["creationTimestamp"]
        assert before < now
        assert pinning["status"]["observedAt"] < now
        for seconds in 400 * 86_400, -86_400, 0:
            jump(seconds)
            node.peer.report()
        node.peer.report(node.entry(name, verdict="degraded"))
        until(lambda: "PinningDegraded" in node.events(name), node.log())
        assert (node.condition(name) or {})["lastTransitionTime"] >= now
        asked = Counter(each.short for each in server.served() if each.node == node_name)
        assert (asked["patch pods/status"], asked["create events"]) == (2, 2)


# What it withdraws.

def test_all_nodes_are_withdrawn_by_one_command(own_server: ApiServer, newest: Path, given_node: Given,
                                              name: str) -> None:
    server = own_server
    nodes = [given_node(server, newest) for _ in range(2)]
    for number, node in enumerate(nodes):
        node.start()
        pod_seen(node, f"{name}-{number}")
        until(node.pinning, node.log())
        assert node.end() == 0
    node = nodes[0]
    token = server.service_account("vmpin", "withdraw")
    done = node.run("--withdraw", token=token)
    assert done.returncode == 0, done.stderr
    assert not any(any(each.written(f"{name}-{number}").values()) for number, each in enumerate(nodes))
    assert done.stdout == "6 objects were changed or removed\n"
    assert node.run("--withdraw", token=token).stdout == "0 objects were changed or removed\n"
    assert server.get(PINNINGS).body["items"] == []
    assert server.get(NODES).code == 200


def test_a_reporter_is_ready_while_it_reaches_the_api_server_and_reports_to_its_watcher(
        own_server: ApiServer, newest: Path, given_node: Given, name: str) -> None:
    node = given_node(own_server, newest)
    node.ready.touch()  # of a container before it, in the same pod
    own_server.freeze()
    node.start()
    until(lambda: not node.ready.exists(), node.log())
    own_server.thaw()
    pod_seen(node, name)
    until(node.ready.exists, node.log())
    own_server.kill()
    until(lambda: not node.ready.exists() and "refused" in node.peer.trouble, node.log())
    own_server.start()
    until(lambda: node.ready.exists() and not node.peer.trouble, node.log())
    assert node.end() == 0
