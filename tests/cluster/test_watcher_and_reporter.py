"""A real watcher and a real reporter on one node, at a real API server: what each brings the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from allocating_node import WHOLE, AllocatingNode
from process_masks import by_tid, kept
from real_containerd import Containerd
from real_node import Node
from real_qemu import Qemu
from runtime_bundle import cri

from cluster.build import Programs
from cluster.rendered import objects
from cluster.reporter_node import CLIENTS, ReporterNode, client, prepare, until
from cluster.server import ApiServer
from cluster.test_policies import TOPOLOGIES, Cluster
from vmpin.cpuset import CpuSet
from vmpin.host.sysfs import Sysfs

pytest_plugins = ["given"]
pytestmark = [pytest.mark.cluster, pytest.mark.root]


@pytest.fixture(scope="module")
def newest() -> Iterator[Path]:
    with client(CLIENTS[-1]) as found:
        yield found


def test_a_rollout_of_the_reporter_withdraws_nothing_and_no_mask_changes(
        server: ApiServer, newest: Path, node: Node, cpus: tuple[str, str]) -> None:
    prepare(server)
    token = server.service_account("vmpin", "reporter", node=node.id("node"))
    name = node.id("web")
    node.configure(node={"shared_pool": cpus[0]})
    with (Qemu(node.id("a")) as vm,
          ReporterNode(server, node.id("node"), newest, token, run=node.run) as reporter):
        node.start()
        contain(node, vm, cpus[1], name, reporter.pod(name))
        node.wait_for_all(vm.pid, cpus[1])
        before = by_tid(vm.pid)
        reporter.start()
        until(lambda: all(reporter.written(name).values()) and reporter.shows(name, "Pinned"), reporter.log())
        written = reporter.written(name)
        assert reporter.end() == 0
        assert reporter.written(name) == written
        writes = reporter.log().count("wrote kind=pinning")
        reporter.start()
        until(lambda: reporter.log().count("wrote kind=pinning") > writes, reporter.log())
        assert reporter.end() == 0
        node.resyncs()
        assert kept(vm.pid, before)


def contain(node: Node, vm: Qemu, cpu_list: str, name: str, uid: str) -> None:
    """A container in the VM, which is that of a pod of the API server's, as the hook reports it."""
    of_pod = {f"io.kubernetes.cri.sandbox-{key}": value for key, value in (
        ("uid", uid), ("namespace", "default"), ("name", name))}
    state = node.state(vm.sandbox, "main", node.bundle("main", cpu_list),
                       annotations={**cri(vm.sandbox, "main"), **of_pod})
    assert node.hook("createRuntime", state) == b"ok\n"


def test_zones_are_what_a_real_watcher_has_set(built: Programs, newest: Path, node: Node,
                                               cpus: tuple[str, str]) -> None:
    with ApiServer(built) as server:
        Cluster(server, objects(built, "reporter: {nrt: own}", "-crds")).wait()
        name = node.id("node")
        token = server.service_account("vmpin", "vmpin-reporter", node=name)
        node.configure(node={"shared_pool": cpus[0]})
        with Qemu(node.id("a")) as vm, ReporterNode(server, name, newest, token, run=node.run) as reporter:
            node.start()
            contain(node, vm, cpus[1], "web", reporter.pod("web"))
            node.wait_for_all(vm.pid, cpus[1])
            reporter.start(nrt="own")
            owned = len(CpuSet.parse(cpus[1]))

            def free() -> tuple[int, int]:
                """CPUs that are allocatable, and available."""
                zones = server.get(f"{TOPOLOGIES}/{name}").body.get("zones") or []
                found = [resource for zone in zones for resource in zone["resources"]]
                return sum(int(each["allocatable"]) for each in found), sum(int(each["available"]) for each in found)

            until(lambda: owned == free()[0] - free()[1], reporter.log())
            zones = {each["name"]: each for each in server.get(f"{TOPOLOGIES}/{name}").body["zones"]}
            assert zones.keys() == {f"node-{number}" for number in Sysfs().topology().nodes}
            assert reporter.end() == 0


def test_nrt_zones_follow_the_ledger_of_a_watcher_that_gives_out_the_cpus(built: Programs, newest: Path) -> None:
    """One CPU can be given out. Whether it is exclusive or fixed, no further container can have it as its own."""
    with ApiServer(built) as server, Containerd("trixie") as containerd, AllocatingNode(containerd) as node:
        Cluster(server, objects(built, "reporter: {nrt: own}", "-crds")).wait()
        name = node.id("node")
        token = server.service_account("vmpin", "vmpin-reporter", node=name)
        with ReporterNode(server, name, newest, token, run=node.run) as reporter:
            node.connect()
            reporter.start(nrt="own")

            def cpus(key: str) -> int:
                zones = server.get(f"{TOPOLOGIES}/{name}").body.get("zones") or []
                return sum(int(each[key]) for zone in zones for each in zone["resources"])

            until(lambda: (cpus("allocatable"), cpus("available")) == (1, 1), reporter.log())
            for policy in ("exclusive", "fixed"):
                pod = node.pod(policy, policy)
                assert pod.container("main", **WHOLE).cgroup_cpus() == node.own
                until(lambda: (cpus("allocatable"), cpus("available")) == (1, 0), reporter.log())
                pod.remove()
                until(lambda: cpus("available") == 1, reporter.log())
            assert cpus("capacity") == len(Sysfs().topology().online)
            assert reporter.end() == 0
