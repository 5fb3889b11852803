"""`vmpin gather` on this machine, with a real watcher and a real VM."""

from __future__ import annotations

import io
import json
import os
import resource
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from need import need_root, need_tool
from process_masks import two_cpus
from real_node import COMMAND, Node
from real_qemu import Qemu
from waiting import wait

from vmpin.reconcile.state_file import unsealed
from vmpin.reconcile.state_format import VERSION

SECRETS = {"environment": "hush-in-the-environment", "argv": "hush-in-a-command-line", "vmm": "hush-in-the-vmm"}


@dataclass
class Lab:
    node: Node
    vm: Qemu


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A watcher, and a VM with a container of its own and with secrets."""
    need_root()
    need_tool("qemu-system-x86_64")
    first, second = two_cpus()
    os.environ["HUSH"] = SECRETS["environment"]  # QEMU and the watcher have it from here
    try:
        with Node() as node, Qemu(node.id("a"), vcpus=2, extra=[
                "-fw_cfg", f"name=opt/x,string={SECRETS['vmm']}",
                "-object", f"secret,id=s1,data={SECRETS['vmm']}",
                "-object", f"id=s2,qom-type=secret,data={SECRETS['vmm']}",
                "-object", json.dumps({"qom-type": "secret", "id": "s3", "data": SECRETS["vmm"]})]) as vm:
            node.configure(node={"shared_pool": first})
            node.start()
            node.container(vm.sandbox, "web", second)
            node.wait_for_all(vm.pid, second)
            wait(lambda: node.sandbox(vm.sandbox)["verdict"] == "pinned", "the sandbox is not pinned")
            yield Lab(node, vm)
    finally:
        del os.environ["HUSH"]


def unpacked(raw: bytes) -> dict[str, bytes]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        for member in archive.getmembers():
            assert member.isreg()
            assert (member.mode, member.uid, member.gid) == (0o600, 0, 0)
            top, _, name = member.name.partition("/")
            assert top.startswith("vmpin-gather-")
            file = archive.extractfile(member)
            assert file is not None
            found[name] = file.read()
    return found


@pytest.mark.root
def test_a_report_holds_what_is_known_of_the_vm_and_no_secret(lab: Lab, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", f"--password={SECRETS['argv']}"], stdin=subprocess.PIPE,
                          env={"SECRET": SECRETS["environment"]}) as stranger:
        done = lab.node.cli("gather", "--out", str(tmp_path / "r.tar.gz"))
        assert stranger.poll() is None
        stranger.communicate(b"\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert stat.S_IMODE((tmp_path / "r.tar.gz").stat().st_mode) == 0o600
    found = unpacked((tmp_path / "r.tar.gz").read_bytes())
    assert list(found)[:-1] == sorted(list(found)[:-1])
    assert {"README.txt", "vmpin/status.json", "vmpin/doctor.json", "vmpin/doctor.txt", "vmpin/explain.txt",
            "vmpin/state.json", "vmpin/plan.json", "vmpin/config.json", "vmpin/watcher.json", "node/kernel.txt",
            "manifest.json"} <= set(found)
    for secret in SECRETS.values():
        assert not [name for name, data in found.items() if secret.encode() in data]
    processes = found[f"vms/{lab.vm.sandbox}/processes.txt"].decode()
    assert f"process {lab.vm.pid} (" in processes
    for tid, _ in lab.vm.threads():
        assert f"thread {tid} (" in processes
    assert f"-name sandbox-{lab.vm.sandbox},debug-threads=on" in processes
    assert "-fw_cfg '<left out>'" in processes
    assert processes.count("-object 'secret,<left out>'") == 3
    assert "Cpus_allowed_list=" in processes
    assert "cpuset" in found[f"vms/{lab.vm.sandbox}/cgroups.txt"].decode()
    status = json.loads(found["vmpin/status.json"])
    assert [sandbox["id"] for sandbox in status["sandboxes"]] == [lab.vm.sandbox]
    watcher = json.loads(found["vmpin/watcher.json"])
    assert lab.node.watcher is not None
    assert (watcher["state"], watcher["pid"]) == ("running", lab.node.watcher.pid)
    # A whole file, with its checksum; the watcher may have written another one since.
    assert list(unsealed(found["vmpin/state.json"], VERSION)["sandboxes"]) == [lab.vm.sandbox]
    assert b"sandbox " in found["vmpin/explain.txt"].lower()


@pytest.mark.root
def test_a_report_never_writes_over_a_file_nor_leaves_half_a_one(lab: Lab, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.write_text("mine")
    done = lab.node.cli("gather", "--out", str(there))
    assert (done.returncode, there.read_text()) == (2, "mine")
    assert " exists" in done.stderr
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    assert lab.node.cli("gather", "--out", str(link)).returncode == 2
    assert not (tmp_path / "elsewhere").exists()
    assert lab.node.cli("gather", "--out", str(tmp_path / "no" / "x")).returncode == 2
    full = tmp_path / "full.tar.gz"
    done = subprocess.run([*COMMAND, "--config", str(lab.node.config), "gather", "--out", str(full)],
                          env=lab.node.environment, capture_output=True, text=True, timeout=120,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024)))
    assert done.returncode == 1
    assert done.stderr.startswith("vmpin: ")
    assert not full.exists()


@pytest.mark.root
def test_a_report_can_go_to_standard_output_or_nowhere(lab: Lab, tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "--config", str(lab.node.config), "gather", "--out", "-"], cwd=tmp_path,
                          env=lab.node.environment, capture_output=True, timeout=120)
    assert done.returncode == 0
    assert "README.txt" in unpacked(done.stdout)
    dry = lab.node.cli("gather", "--dry-run", cwd=tmp_path)
    assert dry.returncode == 0
    assert "  vmpin/status.json" in dry.stdout
    assert list(tmp_path.iterdir()) == []
    report = json.loads(lab.node.cli("gather", "-o", "json", cwd=tmp_path).stdout)
    (made,) = tmp_path.iterdir()
    assert (report["file"], report["bytes"]) == (made.name, made.stat().st_size)
    assert made.name.startswith("vmpin-gather-")
    assert [piece["name"] for piece in report["pieces"]] == list(unpacked(made.read_bytes()))
    refused = lab.node.cli("gather", "--limit", "0", cwd=tmp_path)
    assert (refused.returncode, len(list(tmp_path.iterdir()))) == (2, 1)


@pytest.mark.root
def test_a_report_stays_within_its_limit(lab: Lab, tmp_path: Path) -> None:
    (lab.node.run / "state.json.bad").write_bytes(os.urandom(2 << 20))
    try:
        report = json.loads(lab.node.cli("gather", "--limit", "1", "--out", str(tmp_path / "r"), "-o", "json").stdout)
    finally:
        (lab.node.run / "state.json.bad").unlink()
    assert sum(piece["bytes"] for piece in report["pieces"]) <= (1 << 20) + 65536
    assert any(piece["cut"] for piece in report["pieces"])


@pytest.mark.root
def test_a_report_of_a_node_without_a_watcher_says_what_it_lacks(tmp_path: Path) -> None:
    need_root()
    with Node() as node:
        report = json.loads(node.cli("gather", "--out", str(tmp_path / "r"), "-o", "json").stdout)
        assert not node.run.exists()
    assert report["missing"]["vmpin/plan.json"] == "no watcher runs"
    assert "vmpin/state.json" in report["missing"]
