"""Annotations that were changed while their containers run, with a real containerd: what the watcher makes of what a
reporter hands over on the status socket, and what a hostile one gets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from allocating_node import POLICY, WHOLE, AllocatingNode
from real_containerd import Containerd, one_in_ci
from real_node import talk
from waiting import wait

from vmpin.features.cluster.kube.watched_annotations import encode

pytestmark = pytest.mark.root

OWN, NONE = {POLICY: "exclusive"}, {POLICY: "none"}


class FollowingNode(AllocatingNode):
    """Which changed annotations come to from a reporter that the test plays."""

    def __init__(self, containerd: Containerd) -> None:
        super().__init__(containerd)
        self.configure(allocate={"live_annotations": True})

    def hand(self, pods: Mapping[str, Mapping[str, str]]) -> None:
        """Hand over the annotations of pods, by uid. The watcher takes one request a second."""
        request = encode(pods)
        wait(lambda: json.loads(talk(self.run / "status" / "vmpin.sock", request)) == {"pods": len(pods)},
             lambda: f"not taken\n{self.log()}")

    def uid(self, pod: str) -> str:
        return str(self.grant(pod)["pod_uid"])

    def grant(self, pod: str) -> dict[str, Any]:
        """By the ledger's file: with its running container."""
        def found() -> list[dict[str, Any]]:
            ledger = self.ledger() or {"grants": []}
            return [each for each in ledger["grants"] if each["pod"] == pod and each["state"] == "running"]

        wait(lambda: len(found()) == 1, lambda: f"no grant of {pod}: {self.ledger()}")
        return found()[0]

    def refused(self) -> list[str]:
        return [each["reason"] for each in self.data("alloc")["refused"]]


@pytest.fixture(params=one_in_ci())
def node(request: pytest.FixtureRequest) -> Iterator[FollowingNode]:
    with Containerd(request.param) as containerd, FollowingNode(containerd) as made:
        yield made


def test_a_changed_annotation_moves_the_container_and_its_removal_moves_it_back(node: FollowingNode) -> None:
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    main = node.pod("web", policy="none").container("main", **WHOLE)
    uid = node.uid("web")
    # As it was created: nothing changes.
    node.hand({uid: NONE})
    node.hand({uid: OWN})
    for each, cpus in ((shared, node.rest), (main, node.own)):
        node.wait_for(each, cpus)
    assert node.grant("web")["policy"] == "exclusive"
    assert node.log().count("its annotations were changed") == 1
    digest = node.grant("web")["annotated"]
    # The same text after a kill, and after vmpin alloc set: it has been decided on.
    node.kill()
    node.connect()
    assert node.cli("alloc", "set", "-n", "tests", "web", "policy=none").returncode == 0
    for each in (shared, main):
        node.wait_for(each, node.all)
    node.hand({uid: OWN})
    assert (node.grant("web")["policy"], node.grant("web")["annotated"]) == ("none", digest)
    node.hand({uid: {POLICY: "fixed"}})
    node.wait_for(main, node.own)
    node.wait_for(shared, node.all)
    assert node.grant("web")["policy"] == "fixed"
    # It may wait for some seconds, as the one before was just now.
    node.hand({uid: {}})
    node.wait_for(main, node.all)
    assert "annotated" not in node.grant("web")


def test_a_hostile_reporter_gets_no_more_than_a_creation_and_that_of_pods_that_run(node: FollowingNode) -> None:
    node.connect()
    shared = node.containerd.pod("shared").container("main", cpu_shares=1500, cpu_quota=150_000, cpu_period=100_000)
    own = node.pod().container("main", **WHOLE)
    pod = node.pod("web", policy="none")
    pod.container("main", **WHOLE)
    uids = {name: node.uid(name) for name in ("shared", "own", "web")}
    pod.remove()
    # The same name, but another pod.
    web = node.pod("web", policy="none").container("main", **WHOLE)
    last = node.pod("last", policy="none").container("main", **WHOLE)
    wait(lambda: node.uid("web") != uids["web"], "the pod that has gone is still in the ledger")
    hostile = {uids["own"]: OWN, uids["shared"]: OWN, uids["web"]: {POLICY: "fixed"}, node.uid("last"):
               {POLICY: "infra"}, "uid-elsewhere": OWN, "tests/own": NONE, own.id: NONE, own.pod.id: NONE, "": OWN}
    for _ in range(2):
        node.hand(hostile)
        wait(lambda: len(node.refused()) == 2, lambda: f"{node.refused()}\n{node.log()}")
    assert sorted("whole CPUs" in each for each in node.refused()) == [False, True]
    assert sorted("privileged_namespaces" in each for each in node.refused()) == [False, True]
    assert node.log().count("is refused") == 2
    assert "its annotations were changed" not in node.log()
    assert own.cgroup_cpus() == node.own
    assert {each.cgroup_cpus() for each in (shared, web, last)} == {node.rest}
    sentences = node.data("status", "--explain", "tests/last")["sentences"]
    assert any("was refused" in each and "privileged_namespaces" in each for each in sentences), sentences


def test_switched_off_nothing_is_followed(node: FollowingNode) -> None:
    node.configure(allocate={"live_annotations": False})
    node.connect()
    main = node.pod("web", policy="none").container("main", **WHOLE)
    uid = node.uid("web")
    before = node.ledger()
    answer = json.loads(talk(node.run / "status" / "vmpin.sock", encode({uid: OWN})))
    assert answer["hint"] == "allocate.live_annotations"
    assert node.ledger() == before
    assert main.cgroup_cpus() == str(node.all)
