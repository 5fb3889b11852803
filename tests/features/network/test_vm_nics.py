"""When the NIC of a VM is read. It is this machine's own network that is read, and a VM is a process of the test."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from network_node import NetworkNode, NetworkSpace

from vmpin.domain.model import SandboxId, ThreadId, ThreadRole
from vmpin.features.network.netns import read_namespaces
from vmpin.features.network.vm_network import NetLink
from vmpin.features.network.vm_nics import VmNics
from vmpin.host.procfs import Procfs
from vmpin.vmm.process_table import ROUNDS
from vmpin.vmm.qemu import QEMU
from vmpin.vmm.virtual_machine import Process, Vm

POD, OTHER = SandboxId("pod"), SandboxId("other")


@pytest.fixture
def nics() -> VmNics:
    return VmNics(Procfs(), "/sys")


def vm(sandbox: SandboxId, late: int = 0) -> Vm:
    stat = Procfs().thread_stat(os.getpid(), os.getpid())
    assert stat is not None
    main = ThreadId(os.getpid(), stat.starttime + late)
    return Vm(sandbox, QEMU, Process(main.tid, main, ThreadRole.EMULATOR, []))


def test_with_another_policy_nothing_is_read(nics: VmNics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vmpin.features.network.vm_nics.read_node_links", lambda *_: pytest.fail("links were read"))
    vms = {POD: vm(POD)}
    assert nics.refresh(vms, 0, wanted=False) == set()
    assert vms[POD].nic is None


def test_a_new_vm_is_read_once_and_again_at_its_turn(nics: VmNics) -> None:
    vms = {POD: vm(POD)}
    assert nics.refresh(vms, 1, wanted=True) == {POD}
    first = vms[POD].nic
    assert first is not None
    assert nics.refresh(vms, 2, wanted=True) == set()
    assert vms[POD].nic is first
    assert nics.refresh(vms, ROUNDS, wanted=True) == set()  # read, and the same
    assert vms[POD].nic == first
    assert vms[POD].nic is not first
    vms[OTHER] = vm(OTHER, late=1)
    assert nics.refresh(vms, ROUNDS + 1, wanted=True) == {OTHER}
    assert nics.refresh(vms, 2 * ROUNDS, wanted=True) == set()
    assert vms[OTHER].nic is not None


def test_a_policy_that_is_near_no_longer_has_all_placed_again(nics: VmNics) -> None:
    vms = {POD: vm(POD)}
    nics.refresh(vms, 1, wanted=True)
    assert nics.refresh(vms, 2, wanted=False) == {POD}
    assert (vms[POD].nic, nics.refresh(vms, 3, wanted=False)) == (None, set())


def test_links_that_cannot_be_read_are_logged_once(nics: VmNics, caplog: pytest.LogCaptureFixture) -> None:
    vms = {POD: vm(POD)}
    nics.refresh({OTHER: vm(OTHER)}, 0, wanted=True)  # loads what it takes to read
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        for turn in (1, ROUNDS, 2 * ROUNDS):
            nics.refresh(vms, turn, wanted=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    nic = vms[POD].nic
    assert nic is not None
    assert nic.numa_node is None
    assert nic.why.startswith("the node's links cannot be read: rtnetlink: ")
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "links of the node not read (rtnetlink"]


_READ = """
import json, sys
from vmpin.domain.model import ThreadId
from vmpin.features.network.vm_nics import read_node_links
from vmpin.host.procfs import Procfs
found = read_node_links(Procfs(), "/sys", [ThreadId(*each) for each in json.loads(sys.argv[1])])
print(json.dumps([list(found.links.links.values()), found.links.default_routes,
                  [[main.tid, number] for main, number in found.numbers.items()]]))
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NetworkNode]:
    with NetworkNode(tmp_path) as made:
        yield made


def read(node: NetworkNode, *processes: NetworkSpace, capabilities: bool = True, late: int = 0
         ) -> tuple[list[NetLink], list[int], dict[int, int | None]]:
    asked = json.dumps([[each.main.tid, each.main.starttime + late] for each in processes])
    command = [sys.executable, "-c", _READ, asked]
    if not capabilities:  # those of config/vmpin.service but for CHOWN and SYS_NICE
        kept = "-all,+net_admin,+sys_ptrace,+dac_read_search"
        command = ["setpriv", f"--bounding-set={kept}", f"--inh-caps={kept}", *command]
    done = subprocess.run(node.argv(*command), capture_output=True, text=True, check=True)
    links, routes, numbers = json.loads(done.stdout)
    return [NetLink(*each) for each in links], routes, {tid: number for tid, number in numbers}


@pytest.mark.parametrize("capabilities", [True, False])
def test_links_are_those_that_pyroute2_reads_and_pods_have_numbers(node: NetworkNode, capabilities: bool) -> None:
    node("ip link add cni0 type bridge")
    bridged, routed, apart = node.kata("cni0"), node.kata(), node.sandbox()
    links, _, numbers = read(node, bridged, routed, apart, node, capabilities=capabilities)
    known = read_namespaces(node.proc, [])
    assert known.node is not None
    assert {link.ifindex: link for link in links} == known.node.links
    by_name = {link.name: link for link in links}
    assert numbers == {bridged.pid: by_name[f"veth{bridged.pid}"].lower_ns,
                       routed.pid: by_name[f"veth{routed.pid}"].lower_ns, node.pid: None}


def test_the_default_route_is_an_interface(node: NetworkNode) -> None:
    node("ip link add name up0 type veth peer name up1")
    for command in ("link set up0 up", "link set up1 up", "addr add 192.0.2.1/24 dev up0",
                    "route add default via 192.0.2.2"):
        node(f"ip {command}")
    links, routes, _ = read(node)
    assert routes == [link.ifindex for link in links if link.name == "up0"]


def test_another_process_with_the_pid_has_no_number(node: NetworkNode) -> None:
    assert read(node, node.kata(), late=1)[2] == {}
