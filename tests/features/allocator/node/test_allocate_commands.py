"""`vmpin alloc`, `set` and `explain` at a running watcher that gives out CPUs, with a real containerd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from allocating_node import POLICY, WHOLE, AllocatingNode
from real_containerd import Containerd
from real_node import Node
from waiting import wait

pytestmark = pytest.mark.root

TARGET = "tests/web/main"


@pytest.fixture
def node() -> Iterator[AllocatingNode]:
    with Containerd("trixie") as containerd, AllocatingNode(containerd) as made:
        yield made


def test_what_was_given_is_shown_explained_and_changed(node: AllocatingNode) -> None:
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    main = node.containerd.pod("web", annotations={POLICY: "none"}).container("main", **WHOLE)
    node.wait_for(main, node.all)
    plan = node.data("alloc", "set", "web", "policy=exclusive", "--dry-run")
    assert (plan["cpus"], plan["policy"]) == (node.own, "exclusive")
    # CPUs are taken from the shared container before they are given.
    assert [(update["container"], update["cpus"]) for update in plan["updates"]] == [
        (shared.id, node.rest), (main.id, node.own)]
    assert (main.cgroup_cpus(), shared.cgroup_cpus()) == (str(node.all), str(node.all))
    done = node.cli("alloc", "set", TARGET, "policy=exclusive")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("the container runtime is asked for these changes now\n")
    node.wait_for(shared, node.rest)
    node.wait_for(main, node.own)
    found = node.data("alloc")
    grants = {each["pod"]: each for each in found["grants"]}
    assert (grants["web"]["cpus"], grants["web"]["asked"]) == (node.own, {"policy": "exclusive"})
    assert (found["mode"], found["shared"], found["free"]["cpus"]) == ("on", node.rest, "")
    table = node.cli("alloc").stdout
    assert "tests/web" in table
    assert "tests/shared" not in table
    assert "tests/shared" in node.cli("alloc", "-o", "wide").stdout
    drawn = node.cli("map").stdout
    assert f"tests/web main: CPUs {node.own} (exclusive, runc)" in drawn
    assert "the largest set that fits has 0" in drawn
    sentences = node.data("status", "--explain", "tests/web")["sentences"]
    assert f"has CPUs {node.own} (policy=exclusive)" in sentences[0]
    for name in (["web"], ["-n", "tests", "web/main"], [main.id[:12]]):
        assert node.data("status", "--explain", *name)["sentences"] == sentences
    assert node.cli("alloc", "set", TARGET, "policy=none").returncode == 0
    for each in (shared, main):
        node.wait_for(each, node.all)


def test_verify_and_audit_know_what_was_given(node: AllocatingNode) -> None:
    node.configure(watch={"resync_seconds": 3600})  # no resync gives the container its own CPUs again meanwhile
    node.connect()
    pod = node.pod()
    own = pod.container("main", **WHOLE)
    shared = node.containerd.pod("shared").container("main")
    assert (own.cgroup_cpus(), shared.cgroup_cpus()) == (node.own, node.rest)

    def audited() -> Any:
        done = node.cli("verify", "--others", "--seconds", "0", "-o", "json")
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)

    wait(lambda: node.cli("verify").returncode == 0, lambda: node.cli("verify").stdout)
    assert node.data("verify")["grants"] == []
    assert node.cli("verify").stdout.splitlines() == [
        "no VM sandbox runs on this node: no thread was compared",
        "each container outside of VMs has the CPUs that vmpin has given it"]
    assert [(each["container"], each["cpus"]) for each in audited()["owners"]] == [(own.id, node.own)]
    # Another hand widens the shared container: it may run on the other's CPU.
    (shared.cgroup / "cpuset.cpus").write_text(str(node.all))
    done = node.cli("verify")
    assert done.returncode == 1
    assert f"tests/shared/main has CPUs {node.all}, and not {node.rest}, which vmpin has given it" in done.stdout
    found = audited()
    assert (found["alone"], shared.id in [each["container"] for each in found["findings"]]) == (False, True)
    # The CPUs of a group are owned, too.
    pod.remove()
    node.pod("group", "group:g").container("main", **WHOLE)
    assert [(each["name"], each["cpus"]) for each in audited()["owners"]] == [("group tests/g", node.own)]


def test_what_cannot_be_is_refused_with_the_reason(node: AllocatingNode) -> None:
    node.connect()
    pod = node.containerd.pod("web")
    pod.container("main")
    pod.container("side")
    for words, why in ((("tests/web", "policy=fixed"), "has 2 containers: tests/web/main, tests/web/side"),
                       ((TARGET, "policy=fixed"), "needs request = limit in whole CPUs"),
                       ((TARGET, "policy=mine"), "policy=mine: it is none of"),
                       ((TARGET, "policies=fixed"), "is no KEY=VALUE"),
                       ((TARGET, "policy=none", "policy=fixed"), "policy is given twice"),
                       (("tests/none", "policy=fixed"), "no running container 'tests/none' is on this node")):
        done = node.cli("alloc", "set", *words)
        assert (done.returncode, why in done.stderr) == (2, True), done
    assert node.cli("status", "--explain", "tests/none").returncode == 2


def test_where_nothing_is_given_out_it_is_said(node: AllocatingNode) -> None:
    assert node.cli("alloc").returncode == 1
    assert "no watcher runs" in node.cli("alloc").stderr
    node.configure(allocate={"mode": "off"})
    node.connect()
    done = node.cli("alloc")
    assert (done.returncode, "gives out no CPUs" in done.stderr) == (2, True), done
    assert wait(lambda: Node.data(node, "status")["node"], "no status")
    assert "largest set that fits" not in node.cli("map").stdout


def test_unpin_all_gives_the_pool_back(node: AllocatingNode) -> None:
    node.connect()
    shared = node.containerd.pod("shared").container("main")
    node.pod().container("main", **WHOLE)
    node.stop()
    assert str(node.run / "ledger.json") in node.cli("unpin", "--all", "--dry-run").stdout
    done = node.cli("unpin", "--all")
    assert done.returncode == 0, done.stderr
    assert "allocate: tests/own/main keeps its CPUs until it ends pod=tests/own" in done.stderr
    assert shared.cgroup_cpus() == str(node.all)
    assert node.ledger() is None
