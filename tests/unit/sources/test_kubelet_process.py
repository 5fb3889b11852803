"""Whether a kubelet runs, by the node's processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kubelet_processes import proc_tree, process

from vmpin.host.procfs import Procfs
from vmpin.sources.kubelet_process import PAUSE, KubeletProcess


@pytest.mark.parametrize(("command", "runs"), [
    ("/usr/bin/kubelet|--config=/var/lib/kubelet/config.yaml", True), ("kubelet", True),
    ("/usr/local/bin/k3s server", True), ("/snap/microk8s/1/kubelite|--kubelet-args-file=x", True),
    ("/usr/local/bin/k3s|etcd-snapshot|save", False), ("/usr/local/bin/k3s etcd-snapshot save", False),
    ("/usr/bin/kubelet1.28|--config=/var/lib/kubelet/config.yaml", True), ("/usr/bin/kubelet1.28|--version", False),
    ("/usr/bin/kubelet|--version", False), ("/usr/bin/kubelet2", False),
    ("/usr/bin/microshift|run", True), ("/usr/bin/kubelet-proxy", False), ("sh|-c|kubelet", False)])
def test_it_is_known_by_its_program_also_where_it_is_a_part_of_one(tmp_path: Path, command: str, runs: bool) -> None:
    process(tmp_path, 20, command)
    assert KubeletProcess(proc_tree(tmp_path)).runs() is runs


def test_it_is_remembered_until_it_ends_and_looked_for_now_and_then(tmp_path: Path) -> None:
    kubelet = KubeletProcess(proc_tree(tmp_path))
    assert kubelet.runs(100.0) is False
    process(tmp_path, 20, "kubelet")
    assert kubelet.runs(100.0 + PAUSE / 2) is False  # nothing is read again so soon
    assert kubelet.runs(100.0 + PAUSE) is True
    shutil.rmtree(tmp_path / "1")  # from here on the walk would not see anything
    assert kubelet.runs(101.0 + PAUSE) is True
    process(tmp_path, 1, "/sbin/init")
    process(tmp_path, 20, "sh", starttime=200)  # its number is another's
    assert kubelet.runs(102.0 + PAUSE) is False
    process(tmp_path, 30, "kubelet", state="Z")
    assert kubelet.runs(200.0) is False


@pytest.mark.parametrize(("command", "other"), [
    ("kubelet|--root-dir=/data/kubelet", "/data/kubelet"), ("kubelet|--root-dir|/data/kubelet", "/data/kubelet"),
    ("kubelet|--root-dir=/old", ""), ("kubelet|--root-dir=/link", ""), ("kubelet|--root-dir=/gone", ""),
    ("kubelet|--root-dir=data", ""), ("kubelet", ""), ("k3s server", "")])
def test_a_kubelet_may_have_moved_to_another_directory(tmp_path: Path, command: str, other: str) -> None:
    process(tmp_path, 20, command)
    for name in ("data/kubelet", "old"):
        (tmp_path / "20/root" / name).mkdir(parents=True)
    (tmp_path / "20/root/link").symlink_to("old")
    kubelet = KubeletProcess(proc_tree(tmp_path))
    assert kubelet.other_directory(tmp_path / "20/root/old") == "", "not searched"
    assert kubelet.runs() is True
    assert kubelet.other_directory(tmp_path / "20/root/old") == other


def test_a_users_process_of_that_name_is_no_kubelet(tmp_path: Path) -> None:
    process(tmp_path, 20, "kubelet|--root-dir=/tmp")
    status = tmp_path / "20/status"
    status.write_text("Name:\tkubelet\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t20\n")
    assert KubeletProcess(proc_tree(tmp_path)).runs() is False
    status.write_text(status.read_text().replace("1000", "0"))
    assert KubeletProcess(proc_tree(tmp_path)).runs() is True


@pytest.mark.parametrize(("name", "runs"), [
    ("kubelet", None), ("k3s-server", None), ("kubelet1.28", None), ("kubelet-csr-app", False),
    ("k3s-upgrade", False)])
def test_a_containers_process_is_known_by_its_threads_name_alone(
        tmp_path: Path, name: str, runs: bool | None) -> None:
    process(tmp_path, 20, name, namespace="pid:[2]")
    assert KubeletProcess(proc_tree(tmp_path)).runs() is runs


def test_what_cannot_be_seen_is_not_called_absent(tmp_path: Path) -> None:
    """A container's process of that name may be the node's kubelet (Talos), or its author's wish."""
    for pid, name in (19, "java"), (20, "kubelet"):
        process(tmp_path, pid, name, namespace="pid:[2]")
        (tmp_path / f"{pid}/cmdline").unlink()
        (tmp_path / f"{pid}/cmdline").mkdir()  # a read of it may wait for ever (is_containers): here it raises
    assert KubeletProcess(proc_tree(tmp_path)).runs() is None
    process(tmp_path, 30, "kubelet")
    assert KubeletProcess(proc_tree(tmp_path)).runs() is True
    shutil.rmtree(tmp_path / "1")
    assert KubeletProcess(Procfs(tmp_path)).runs() is None
    assert KubeletProcess(Procfs(tmp_path / "none")).runs() is None
