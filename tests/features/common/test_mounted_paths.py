"""The files of a process in a container, and their places on the node (host.mounts, features.common.mounted_paths)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from need import need_root, need_tool

from vmpin.features.common.mounted_paths import path_on_node
from vmpin.host.files import Files
from vmpin.host.mounts import own_files
from vmpin.host.procfs import Procfs

NODE = r"""21 1 8:1 / / rw - ext4 /dev/sda1 rw
22 21 8:2 / /data rw - ext4 /dev/sdb1 rw
23 21 8:2 /kube\040let /var/lib/kubelet rw - ext4 /dev/sdb1 rw
"""
CONTAINER = r"""41 1 0:50 / / rw - overlay overlay rw
42 41 8:1 / /host ro - ext4 /dev/sda1 rw
43 41 8:2 /kube\040let /var/lib/kubelet rw - ext4 /dev/sdb1 rw
44 41 8:1 /etc/kubernetes /etc/kubernetes ro - ext4 /dev/sda1 rw
45 41 0:51 / /secret rw - tmpfs tmpfs rw
"""


def proc(tmp_path: Path, *, apart: bool = True) -> Procfs:
    for pid, mounts in (("1", NODE), ("7", CONTAINER if apart else NODE)):
        (tmp_path / pid / "root").mkdir(parents=True)
        (tmp_path / pid / "mountinfo").write_text(mounts)
    return Procfs(tmp_path)


@pytest.mark.parametrize(("path", "place"), [
    ("/var/lib/kubelet", "/data/kube let"), ("/var/lib/kubelet/pods/", "/data/kube let/pods"),
    ("/host/var/lib/k0s", "/var/lib/k0s"), ("/host", "/"), ("/etc/kubernetes/k.conf", "/etc/kubernetes/k.conf"),
    ("/opt/kubelet", "/opt/kubelet"), ("/secret/kubelet", "/secret/kubelet"), ("/hostile", "/hostile")])
def test_a_path_of_a_container_is_looked_up_in_the_nodes_mounts(tmp_path: Path, path: str, place: str) -> None:
    assert path_on_node(proc(tmp_path), 7, path) == place


def test_a_process_with_the_nodes_mounts_has_its_paths(tmp_path: Path) -> None:
    node = Files(tmp_path / "node")
    shared = proc(tmp_path, apart=False)
    assert (path_on_node(shared, 7, "/host/x"), own_files(shared, 7, node)) == ("/host/x", node)
    assert path_on_node(shared, 9, "/host/x") == "/host/x"


def test_a_process_with_mounts_of_its_own_has_its_files(tmp_path: Path) -> None:
    apart = proc(tmp_path)
    (tmp_path / "7/root/etc").mkdir()
    (tmp_path / "7/root/etc/x").write_text("inside")
    assert own_files(apart, 7, Files(tmp_path)).text("/etc/x") == "inside"


def test_a_real_process_with_mounts_of_its_own(tmp_path: Path) -> None:
    need_root()
    need_tool("unshare")
    (tmp_path / "kubelet").mkdir()
    (tmp_path / "host").mkdir()
    script = f"mount --bind {tmp_path}/kubelet {tmp_path}/host && echo ready && exec sleep 600"
    with subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            assert os.path.samefile(path_on_node(Procfs(), process.pid, f"{tmp_path}/host"), tmp_path / "kubelet")
        finally:
            process.kill()
