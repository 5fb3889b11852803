"""The network's side of a real QEMU, in namespaces of its own, as each command shows it."""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runs import ESCAPE, run
from need import need_tool, need_unshare
from network_node import NetworkNode
from real_qemu import Qemu

PATH = ["tap0_kata", "eth0", "veth", "cni0"]


class Story:
    """A VM as Kata's, with two queues and one vCPU, and vmpin's commands about it, which see no other process."""

    def __init__(self, node: NetworkNode, vm: Qemu, directory: Path) -> None:
        self.node, self.vm = node, vm
        self._flags = [f"--set=paths.proc={node.proc.root}", f"--set=paths.run={directory}/run",
                       f"--set=paths.kata_go={directory}/go", f"--set=paths.kata_rs={directory}/rs",
                       "--set=node.shared_pool=0"]

    def __call__(self, verb: str, *more: str, before: tuple[str, ...] = ()) -> str:
        done = run(verb, *self._flags, *more) if not before else subprocess.run(
            [*before, *_command(), verb, *self._flags, *more], capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return done.stdout


def _command() -> list[str]:
    from real_node import COMMAND
    return list(COMMAND)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    directory = tmp_path_factory.mktemp("network")
    with NetworkNode(directory) as node:
        node("ip link add cni0 type bridge")
        pod = node.kata("cni0")
        tap = "tap,id=n0,ifname=tap0_kata,script=no,downscript=no,queues=2"
        with Qemu(program=pod.argv(need_tool("qemu-system-x86_64")), iothreads=["io1"], extra=[
                "-netdev", tap, "-device", "virtio-net-pci,netdev=n0,mq=on,romfile="]) as vm:
            node.show(vm.pid)
            yield Story(node, vm, directory)


def test_status_wide_shows_the_device_and_its_way(story: Story) -> None:
    out = story("status", "-o", "wide", "--direct")
    (row,) = (line for line in out.splitlines() if line.startswith("tap0_kata"))
    assert row.split()[:3] == ["tap0_kata", "tap", "2"]
    assert "eth0 (veth, tc mirred) → node: veth" in row
    assert "→ cni0 (bridge)" in row
    assert "  tap0_kata has 2 queues for 1 vCPU" in out.splitlines()
    assert "tap0_kata" not in story("status", "--direct")


def test_status_network_has_it_as_data(story: Story) -> None:
    (sandbox,) = json.loads(story("status", "--inspect", "-o", "json", "--direct"))["sandboxes"]
    (device,) = sandbox["network"]["devices"]
    assert (device["kind"], device["queues"], device["vhost"], device["workers"]) == ("tap", 2, 0, [])
    assert [hop["name"].rstrip("0123456789") if hop["name"].startswith("veth") else hop["name"]
            for hop in device["path"]] == PATH
    assert [hop["by"] for hop in device["path"]] == ["", "redirect", "peer", "bridge"]
    (plain,) = json.loads(story("status", "-o", "json", "--direct"))["sandboxes"]
    assert "network" not in plain


def test_explain_map_and_doctor_show_it(story: Story) -> None:
    explained = story("status", "--explain", story.vm.sandbox[:12], "--direct")
    assert "Its network device tap tap0_kata (2 queues) leads to no NIC that was found: " in explained
    assert "network tap0_kata (2 queues)" in story("map", "--direct")
    doctor = story("doctor", "network")
    assert doctor.startswith("warn    network  1 finding: ")
    assert "tap0_kata has 2 queues for 1 vCPU" in doctor


def test_the_bundle_has_it(story: Story, tmp_path: Path) -> None:
    story("gather", "--out", str(tmp_path / "bundle.tar.gz"))
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        (status,) = (name for name in archive.getnames() if name.endswith("vmpin/status.json"))
        file = archive.extractfile(status)
        assert file is not None
        (sandbox,) = json.load(file)["sandboxes"]
    assert [device["name"] for device in sandbox["network"]["devices"]] == ["tap0_kata"]


def test_without_the_capability_it_is_not_inspected_and_says_why(story: Story) -> None:
    out = story("status", "-o", "wide", "--direct",
                before=("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"))
    assert "not inspected: needs CAP_SYS_ADMIN (run it as root)" in out
    (row,) = (line for line in out.splitlines() if line.startswith("tap0_kata"))
    assert row.split()[:3] == ["tap0_kata", "tap", "2"]


def test_a_name_that_steers_terminals_is_escaped(story: Story) -> None:
    name = b"\x1b[2J\x07\xff"
    subprocess.run([*story.node.argv("ip"), "link", "set", "cni0", "name", name], check=True)
    try:
        for out in (story("status", "-o", "wide", "--direct"),
                    story("status", "--explain", story.vm.sandbox[:12], "--direct"),
                    story("doctor", "network", "-o", "wide"), story("map", "--direct")):
            assert not set(ESCAPE) & set(out) & {"\x1b", "\x07"}
        assert "\\x1b[2J\\x07" in story("status", "-o", "wide", "--direct")
    finally:
        subprocess.run([*story.node.argv("ip"), "link", "set", name, "name", "cni0"], check=True)


#: Opens the character device of a macvtap, as a runtime does, and lets QEMU have it: in a /dev of its own, as the
#: machine's is left alone.
_WITH_MACVTAP = """
mount -t sysfs sysfs /sys
dev=$(cat /sys/class/net/mvt0/tap*/dev)
number=$(cat /sys/class/net/mvt0/ifindex)
cp -a /dev/null /dev/zero /dev/urandom "$1" && mount --bind "$1" /dev
mknod "/dev/tap$number" c "${dev%:*}" "${dev#*:}"
shift
exec "$@" -netdev tap,id=m0,fd=9 -device virtio-net-pci,netdev=m0,romfile= 9<>"/dev/tap$number"
"""


def test_a_macvtap_is_found_by_its_descriptor(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    with NetworkNode(tmp_path) as node:
        node("ip link add name up0 type veth peer name up1")
        pod = node.sandbox()
        node(f"ip link add link up0 name mvt0 netns {pod.pid} type macvtap mode bridge")
        script = [*need_unshare("--mount"), "sh", "-ec", _WITH_MACVTAP, "sh", str(tmp_path / "dev")]
        with Qemu(program=pod.argv(*script, need_tool("qemu-system-x86_64"))) as vm:
            node.show(vm.pid)
            (sandbox,) = json.loads(Story(node, vm, tmp_path)("status", "--inspect", "-o", "json", "--direct"))[
                "sandboxes"]
    (device,) = sandbox["network"]["devices"]
    assert (device["kind"], device["name"], device["queues"], device["vhost"]) == ("macvtap", "", 1, 0)
    assert [(hop["name"], hop["kind"], hop["namespace"]) for hop in device["path"]] == [
        ("mvt0", "macvtap", "sandbox"), ("up0", "veth", "node"), ("up1", "veth", "node")]
