"""The node's links from within a namespace that stands for the node's, as the watcher reads them there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from network_node import NetworkNode, NetworkSpace

from vmpin.features.network.netns import read_namespaces
from vmpin.features.network.vm_network import NetLink

_READ = """
import json, sys
from vmpin.domain.model import ThreadId
from vmpin.features.network.node_links import read_node_links
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
