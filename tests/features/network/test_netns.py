"""Real namespaces with real interfaces, read by the real child process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from need import need_root
from network_node import NetworkNode
from waiting import wait

from vmpin.domain.model import ThreadId
from vmpin.features.network.netns import MOST_BYTES, NamespacesRead, read_namespaces
from vmpin.features.network.vm_network import NetLink
from vmpin.host.procfs import Procfs


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NetworkNode]:
    with NetworkNode(tmp_path) as made:
        yield made


def by_name(found: NamespacesRead, pid: int) -> dict[str, NetLink]:
    namespace = found.of[pid]
    assert namespace is not None
    return {link.name: link for link in namespace.links.values()}


def test_links_redirects_and_the_nodes_number_are_read(node: NetworkNode) -> None:
    node("ip link add br0 type bridge")
    pod = node.kata("br0")
    found = read_namespaces(node.proc, [pod.main])
    assert (found.trouble, found.why) == ("", {})
    assert found.node is not None
    outside = {link.name: link for link in found.node.links.values()}
    inside, sandbox = by_name(found, pod.pid), found.of[pod.pid]
    assert sandbox is not None
    assert inside["tap0_kata"].kind == "tun"
    assert inside["eth0"].kind == "veth"
    peer = outside[f"veth{pod.pid}"]
    assert (inside["eth0"].lower, inside["eth0"].lower_ns) == (peer.ifindex, sandbox.node_ns)
    assert peer.master == outside["br0"].ifindex
    tap, eth = inside["tap0_kata"].ifindex, inside["eth0"].ifindex
    assert sandbox.redirects == {tap: (eth,), eth: (tap,)}


def test_filters_of_clsact_and_links_in_other_namespaces_are_read(node: NetworkNode) -> None:
    pod = node.sandbox()
    node("ip link add name a type veth peer name b")
    node(f"ip link add link a name mv netns {pod.pid} type macvlan mode bridge")
    node("tc qdisc add dev a clsact")
    node("tc filter add dev a ingress protocol all u32 match u32 0 0 action mirred egress redirect dev b")
    node("ip link add name c type veth peer name d")
    node("tc qdisc add dev c clsact")
    node("tc filter add dev c egress protocol all u32 match u32 0 0 action mirred egress redirect dev lo")
    node("tc qdisc add dev b clsact")
    node("tc filter add dev b ingress protocol all u32 match u32 0 0 action mirred egress mirror dev lo")
    found = read_namespaces(node.proc, [pod.main])
    assert found.node is not None
    numbers = {link.name: link.ifindex for link in found.node.links.values()}
    assert found.node.redirects == {numbers["a"]: (numbers["b"],)}
    macvlan = by_name(found, pod.pid)["mv"]
    assert (macvlan.kind, macvlan.lower) == ("macvlan", numbers["a"])


def test_hardware_is_named_by_its_bus() -> None:
    """Of this machine's own namespace, which is only read."""
    need_root()
    found = read_namespaces(Procfs(), [])
    assert found.node is not None
    for link in found.node.links.values():
        real = Path(f"/sys/class/net/{link.name}/device")
        if real.exists():
            assert link.device == f"{(real / 'subsystem').resolve().name}/{real.resolve().name}"
        else:
            assert link.device == ""


def test_a_process_of_the_nodes_namespace_has_no_other(node: NetworkNode) -> None:
    with subprocess.Popen(node.argv("sleep", "infinity")) as beside:
        try:
            node.show(beside.pid)
            wait(lambda: os.readlink(f"/proc/{beside.pid}/ns/net") == node.link(), "in the namespace")
            stat = Procfs().thread_stat(beside.pid, beside.pid)
            assert stat is not None
            assert read_namespaces(node.proc, [ThreadId(beside.pid, stat.starttime)]).of == {beside.pid: None}
        finally:
            beside.kill()


def test_another_process_with_the_same_number_is_not_looked_at(node: NetworkNode) -> None:
    pod = node.sandbox()
    found = read_namespaces(node.proc, [ThreadId(pod.pid, pod.main.starttime + 1), ThreadId(2**22 + 1, 5)])
    assert found.of == {}
    assert found.why == {pod.pid: "its process has ended", 2**22 + 1: "No such file or directory"}


def test_any_bytes_may_be_a_name(node: NetworkNode) -> None:
    subprocess.run([*node.argv("ip"), "link", "add", b"a\xff\x1b[31m\xc3\xa9", "type", "bridge"], check=True)
    found = read_namespaces(node.proc, [])
    assert found.node is not None
    assert "a\\xff\x1b[31m\xe9" in {link.name for link in found.node.links.values()}


def test_without_the_capability_the_reason_is_reported(node: NetworkNode) -> None:
    pod = node.sandbox()
    child = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-m",
             "vmpin.features.network.netns_reader"]
    assert read_namespaces(node.proc, [pod.main], child).trouble == "needs CAP_SYS_ADMIN (run it as root)"


def test_a_namespace_that_cannot_be_made_out_hides_no_other(node: NetworkNode) -> None:
    pod, odd = node.sandbox(), 2**22 - 2
    entry = Path(node.proc.root, str(odd))
    (entry / "ns").mkdir(parents=True)
    (entry / "ns/net").symlink_to(f"/proc/{pod.pid}/ns/net")
    (entry / f"task/{odd}").mkdir(parents=True)
    (entry / f"task/{odd}/stat").write_text(f"{odd} (x) S {'x ' * 50}")
    found = read_namespaces(node.proc, [ThreadId(odd, 1), pod.main])
    assert found.of.keys() == {pod.pid}
    assert found.why[odd].startswith("ValueError: ")


def test_this_process_never_leaves_its_namespace(node: NetworkNode) -> None:
    before = {tid: os.readlink(f"/proc/self/task/{tid}/ns/net") for tid in os.listdir("/proc/self/task")}
    pod = node.kata()
    assert read_namespaces(node.proc, [pod.main]).of
    assert {os.readlink(f"/proc/self/task/{tid}/ns/net") for tid in os.listdir("/proc/self/task")} == set(
        before.values())
    assert "pyroute2" not in sys.modules


def test_a_child_that_hangs_is_ended_at_the_deadline() -> None:
    found = read_namespaces(Procfs(), [], ["sleep", "infinity"], deadline=0.2)
    assert found == NamespacesRead(trouble="network namespaces were not read within 0 s")


def test_an_endless_or_broken_answer_is_none() -> None:
    assert "too many" in read_namespaces(Procfs(), [], ["head", "-c", str(MOST_BYTES * 2), "/dev/zero"]).trouble
    for child in (["true"], ["echo", "[1]"], ["echo", '{"node": {"links": 5}, "processes": {}}']):
        assert "without an answer" in read_namespaces(Procfs(), [], child).trouble
    assert read_namespaces(Procfs(), [], ["/nonexistent"]).trouble == "/nonexistent: No such file or directory"


def test_a_process_that_is_not_asked_about_is_not_shown_in_the_nodes_namespace() -> None:
    """Beyond the most processes, and where the child leaves one out."""
    answer = {"node": {"links": [], "redirects": {}, "node_ns": None}, "processes": {"11": {"same": True}}}
    asked = [ThreadId(pid, 1) for pid in (11, 12, 13)]
    found = read_namespaces(Procfs(), asked, ["echo", json.dumps(answer)], most=2)
    assert (found.of, found.why) == ({11: None}, {12: "no answer about it", 13: "too many VMs"})


def test_the_child_imports_nothing_from_the_directory_of_the_caller(tmp_path: Path,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's command may be called in a directory of anybody's."""
    (tmp_path / "json.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    read_namespaces(Procfs(), [])
    assert not (tmp_path / "ran").exists()
