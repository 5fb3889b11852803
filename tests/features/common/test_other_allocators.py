"""Other programs that give out CPUs are found by what ties them to this node, and not by their names."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from trees import make_tree

from vmpin.cpuset import CpuSet
from vmpin.domain.facts import OtherAllocator
from vmpin.features.common.other_allocators import OtherAllocatorSearch
from vmpin.host.files import Files
from vmpin.host.procfs import Procfs

BALLOONS = "nri-resource-policy-balloons"
_CONNECTS = "import socket, sys; c = socket.socket(socket.AF_UNIX); c.connect(sys.argv[1]); sys.stdin.read()"


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.settimeout(120)  # who should connect may have ended
        yield server


@contextlib.contextmanager
def connected(server: socket.socket, name: str) -> Iterator[int]:
    """A process of this name that is connected to a server: its pid."""
    process = subprocess.Popen([name, "-c", _CONNECTS, server.getsockname()], executable=sys.executable,
                               stdin=subprocess.PIPE)
    try:
        with server.accept()[0]:
            yield process.pid
    finally:
        process.communicate()


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose paths fit into a socket's address."""
    return tmp_path_factory.mktemp("o")


def search(root: Path, *sockets: Path, proc: str | Path = "/proc") -> OtherAllocatorSearch:
    return OtherAllocatorSearch(Procfs(proc), Files(root), sockets, root / "kubelet")


def test_a_program_counts_that_is_connected_to_this_nodes_runtime(short: Path) -> None:
    with listening(short / "nri.sock") as nri, listening(short / "other/nri.sock") as other:
        on_node = search(short, short / "nri.sock")
        with connected(other, BALLOONS), connected(nri, "device-injector"):
            assert on_node.find() == ()
            with connected(nri, BALLOONS) as pid:
                assert on_node.find() == (OtherAllocator(
                    "balloons", f"{BALLOONS} (pid {pid}) is connected to {short / 'nri.sock'}"),)
            assert on_node.find() == ()


@pytest.mark.parametrize(("path", "name"), [
    ("kubelet/plugins_registry/dra.cpu-reg.sock", "dra-driver-cpu"),
    ("kubelet/plugins_registry/dra.cpu-5f2c8e91-reg.sock", "dra-driver-cpu"),  # with rolling updates
    ("var/run/koordlet/koordlet.sock", "koordinator"),
    ("var/run/cri-resmgr/cri-resmgr.sock", "cri-resmgr")])
def test_a_program_counts_whose_socket_answers(short: Path, path: str, name: str) -> None:
    on_node = search(short)
    assert on_node.find() == ()
    with listening(short / path):
        assert [(other.name, other.cpus) for other in on_node.find()] == [(name, None)]
    assert (short / path).exists()
    assert on_node.find() == ()  # left behind


def test_another_drivers_registration_is_none(short: Path) -> None:
    with listening(short / "kubelet/plugins_registry/gpu.example.com-reg.sock"):
        assert search(short).find() == ()


def node_with(root: Path, tree: str, runs: str = "crio") -> OtherAllocatorSearch:
    """A node of these files, with one process."""
    make_tree(root, tree)
    process = root / "proc/4"
    process.mkdir(parents=True)
    (process / "cmdline").write_bytes(runs.encode() + b"\0")
    (process / "stat").write_text(f"4 (x) S 1 {'0 ' * 50}")
    return search(root, proc=root / "proc")


CRIO = """\
    etc/crio/crio.conf = [crio.nri]\\nnri_plugin_dir = "/plugins"\\nenable_nri = true
    """


def test_a_policy_counts_that_the_runtime_starts_by_itself(tmp_path: Path) -> None:
    on_node = node_with(tmp_path, f"{CRIO}\nplugins/90-vmpin = \nplugins/10-nri-resource-policy-topology-aware = ")
    assert on_node.find() == (OtherAllocator(
        "topology-aware", "crio starts /plugins/10-nri-resource-policy-topology-aware"),)


def test_what_lies_in_a_directory_that_no_running_runtime_reads_does_not_count(tmp_path: Path) -> None:
    tree = f"opt/nri/plugins/90-{BALLOONS} = \nplugins/90-{BALLOONS} = \n"
    assert node_with(tmp_path / "other", f"{CRIO}\nopt/nri/plugins/90-{BALLOONS} = ").find() == ()
    assert node_with(tmp_path / "off", CRIO.replace("true", "false") + tree).find() == ()
    assert node_with(tmp_path / "none", CRIO + tree, runs="cat").find() == ()


def test_crios_workloads_count_unless_their_cpus_are_reserved(tmp_path: Path) -> None:
    (other,) = node_with(tmp_path, f"""{CRIO}
    etc/crio/crio.conf.d/01-workload = [crio.runtime.workloads.management]\\nactivation_annotation = "a"\\n\
resources = {{ "cpushares" = 0, "cpuset" = "0-1" }}
    etc/crio/crio.conf.d/02-workload = [crio.runtime.workloads.shares]\\nresources = {{ "cpushares" = 10 }}
    """).find()
    assert (other.name, other.cpus) == ("CRI-O's workloads", CpuSet.parse("0-1"))
    assert [other.is_rival(CpuSet.parse(reserved)) for reserved in ("", "0", "0-1", "0-3")] == [
        True, True, False, False]
