"""Nodes without a static CPU manager and without a configured pool, under a real containerd: who owns which CPU
follows from the cpusets of all containers, or from DRA claims."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator

import given_containerd
import pytest
from cri_node import CriNode
from process_masks import union
from real_containerd import VM, Containerd, Pod
from waiting import wait

pytest_plugins = ["given"]
containerd = given_containerd.containerd
pytestmark = pytest.mark.root
UID = "6d7b0e04-44a7-4a3f-9f5e-0f3d3c1f9a10"


@pytest.fixture
def node(containerd: Containerd) -> Iterator[CriNode]:
    with CriNode(containerd) as made:
        (made.top / "cdi").mkdir()
        made.configure(paths={"cdi": str(made.top / "cdi")})
        yield made


def ruled_by(node: CriNode, pod: Pod) -> str | None:
    """The authority by which the only container of a VM owns its CPUs, None without one."""
    (container,) = (container for sandbox in node.status()["sandboxes"] if sandbox["id"] == pod.id
                    for container in sandbox["containers"])
    return container["exclusive_by"]  # type: ignore[no-any-return]


def wait_for_authority(node: CriNode, pod: Pod, authority: str | None) -> None:
    wait(lambda: ruled_by(node, pod) == authority, lambda: f"{node.status()['sandboxes']}\n{node.log()}")


def test_cpus_that_no_other_pod_may_use_are_a_vms_own_until_another_pod_comes(
        node: CriNode, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.connect()
    node.containerd.pod("web").container("main", cpus=first)
    vm = node.containerd.pod("vm", VM)
    vm.container("main", cpus=second)
    wait_for_authority(node, vm, "observed")
    node.wait_for_vcpus(vm.pid, {0: second})
    assert node.status()["node"]["authorities"] == ["declared", "observed"]
    newcomer = node.containerd.pod("newcomer").container("main", cpus=union(cpus))
    wait_for_authority(node, vm, None)
    newcomer.remove()
    node.containerd.pod("unbound").container("main")  # without a cpuset it may use every CPU
    wait_for_authority(node, vm, None)


def test_what_was_observed_stays_over_a_restart_until_the_next_list(node: CriNode, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.connect()
    node.containerd.pod("web").container("main", cpus=first)
    vm = node.containerd.pod("vm", VM)
    vm.container("main", cpus=second)
    wait_for_authority(node, vm, "observed")
    node.kill()
    node.connect()
    wait_for_authority(node, vm, "observed")
    assert "floating" not in node.log().rpartition("watching vms=")[2]


def test_switched_off_no_container_owns_a_cpu(node: CriNode, cpus: tuple[str, str]) -> None:
    node.configure(policy={"observed_ownership": "off"})
    node.connect()
    vm = node.containerd.pod("vm", VM)
    vm.container("main", cpus=cpus[1])
    node.wait_for_all(vm.pid, cpus[1])
    assert ruled_by(node, vm) is None


def test_a_claim_makes_its_pods_cpus_its_own_until_it_is_unprepared(node: CriNode, cpus: tuple[str, str]) -> None:
    """A claim is prepared before its pod runs; its files are those of dra-driver-cpu and the kubelet."""
    first, second = cpus
    spec = node.top / "cdi" / f"dra.k8s.io-cpu_claim-{UID}.json"
    node.connect()
    other = node.containerd.pod("other", VM)
    other.container("main", cpus=union(cpus))
    node.wait_for_all(other.pid, union(cpus))
    data = json.dumps({"ClaimInfoStateList": [{"ClaimUID": UID, "PodUIDs": {"uid-claim": {}}}]})
    (node.kubelet / "dra_manager_state").write_text(json.dumps({"Data": data, "Checksum": zlib.crc32(data.encode())}))
    spec.write_text(json.dumps({"kind": "dra.k8s.io/cpu", "devices": [
        {"name": f"claim-{UID}", "containerEdits": {"env": [f"DRA_CPUSET_{UID}={second}"]}}]}))
    node.wait_for_all(other.pid, first)
    assert node.status()["node"]["authorities"] == ["dra"]
    vm = node.containerd.pod("vm", VM, uid="uid-claim")
    vm.container("main", cpus=second)
    wait_for_authority(node, vm, "dra")
    node.wait_for_vcpus(vm.pid, {0: second})
    # The author of a pod writes the claim into the environment of his own container.
    liar = node.containerd.pod("liar", VM)
    liar.container("main", cpus=union(cpus), env={f"DRA_CPUSET_{UID}": second})
    node.wait_for_all(liar.pid, first)
    assert ruled_by(node, liar) is None
    spec.unlink()
    wait_for_authority(node, vm, None)
    node.wait_for_all(other.pid, union(cpus))


def test_a_cpuset_that_another_program_moves_onto_a_containers_cpus_is_named_by_every_command(
        node: CriNode, cpus: tuple[str, str]) -> None:
    first, second = cpus
    node.configure(watch={"resync_seconds": 0.5})
    node.checkpoint(first, {UID: {"main": second}})
    node.connect()
    vm = node.containerd.pod("vm", VM, uid=UID)
    vm.container("main", cpus=second)
    balloon = node.containerd.pod("balloon").container("main", cpus=first)
    wait_for_authority(node, vm, "kubelet")

    def named() -> list[tuple[list[str], str, set[str]]]:
        return [(rival["authorities"], rival["cpus"], set(rival["sandboxes"]))
                for rival in node.status()["node"]["rivals"]]

    assert named() == []
    (balloon.cgroup / "cpuset.cpus").write_text(second)
    wait(lambda: named() == [(["kubelet", "observed"], second, {vm.id, balloon.pod.id})],
         lambda: f"{node.status()['node']}\n{node.log()}")
    assert f"RIVALS kubelet and observed: CPUs {second} are given to main of tests/vm" in " ".join(
        node.cli("status", "-o", "wide").stdout.split())
    assert f"Two decide on CPUs {second}" in node.cli("status", "--explain", "vm").stdout
    assert "RIVALS kubelet and observed" in node.cli("verify", "--others", "--seconds", "0").stdout
    assert "two decide on the same CPUs" in node.cli("doctor", "authorities").stdout
    assert node.log().count("two decide on the same CPUs") == 1
    (balloon.cgroup / "cpuset.cpus").write_text(first)
    wait(lambda: named() == [], node.log)
