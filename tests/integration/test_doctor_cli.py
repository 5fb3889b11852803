"""`vmpin doctor` and `vmpin gather` on this machine, with a real watcher and a real VM."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from enclosure import Enclosure
from need import need_root, need_tool
from process_masks import two_cpus
from real_containerd import Containerd
from real_node import COMMAND, Node
from real_qemu import Qemu
from waiting import wait

from vmpin.install import oci_hook

SECRETS = {"environment": "hush-in-the-environment", "argv": "hush-in-a-command-line", "vmm": "hush-in-the-vmm"}
#: Whatever else this machine is, the watcher and its sandboxes are as they should be.
OURS = ["privileges", "namespaces", "watcher", "config", "resync", "run-directory", "state-file", "vcpu-threads",
        "sandboxes"]


def findings(node: Node, *args: str, code: int = 0) -> dict[str, Any]:
    """By check; `code` is the exit code."""
    found = node.data("doctor", *args, code=code)
    assert found["counts"] == {level: sum(finding["level"] == level for finding in found["findings"])
                               for level in ("ok", "warn", "bad", "unknown")}
    assert found["ok"] is (code == 0)
    return {finding["check"]: finding for finding in found["findings"]}


@dataclass
class Lab:
    node: Node
    vm: Qemu
    own: str

    def findings(self, *args: str, code: int = 0) -> dict[str, Any]:
        return findings(self.node, *args, code=code)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A watcher, and a VM with a container of its own."""
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
            yield Lab(node, vm, second)
    finally:
        del os.environ["HUSH"]


@pytest.mark.root
def test_a_node_where_all_is_well(lab: Lab) -> None:
    found = lab.findings(*OURS)
    assert list(found) == OURS
    assert {finding["level"] for finding in found.values()} == {"ok"}, found
    assert lab.node.watcher is not None
    assert f"pid {lab.node.watcher.pid}" in found["watcher"]["what"]
    assert f"the watcher (pid {lab.node.watcher.pid}, uid 0)" in found["privileges"]["evidence"][0]
    assert "1 sandbox, every thread in place" in found["sandboxes"]["what"]
    everything = lab.node.cli("doctor", "-o", "json")
    assert everything.returncode in (0, 1)
    assert len(json.loads(everything.stdout)["findings"]) > 20


@pytest.mark.root
def test_text_has_a_line_a_check_and_evidence_where_something_is_wrong(lab: Lab) -> None:
    done = lab.node.cli("doctor", "watcher", "guests")
    lines = done.stdout.splitlines()
    assert lines[0].split()[:2] == ["ok", "watcher"]
    assert lines[1].split()[0] in ("ok", "warn")
    assert lines[-1].split()[0] in ("1", "2")
    wide = lab.node.cli("doctor", "watcher", "-o", "wide").stdout
    assert "source resync: up" in wide
    assert "\x1b" not in done.stdout + wide


@pytest.mark.root
def test_a_configuration_that_was_changed_and_not_loaded_is_seen(lab: Lab) -> None:
    watcher = lab.node.watcher
    assert watcher is not None
    lab.node.configure(policy={"emulator": "shared"})
    try:
        found = lab.findings("config")["config"]
        assert found["level"] == "warn"
        assert found["evidence"][0].startswith("policy.emulator: the watcher has apart (default), this command")
        watcher.send_signal(signal.SIGHUP)
        wait(lambda: lab.findings("config")["config"]["level"] == "ok", "the watcher does not load it")
    finally:
        lab.node.configure(policy={"emulator": "apart"})
        watcher.send_signal(signal.SIGHUP)
        wait(lambda: lab.findings("config")["config"]["level"] == "ok", "the watcher does not load it again")
        lab.node.wait_for_all(lab.vm.pid, lab.own)


@pytest.mark.root
def test_katas_own_pinning_is_bad_and_so_is_the_exit_code(lab: Lab) -> None:
    state = lab.node.top / "vc" / "sbs" / lab.vm.sandbox
    state.mkdir(parents=True)
    (state / "persist.json").write_text(json.dumps({"Config": {"EnableVCPUsPinning": True}}))
    try:
        found = lab.findings("kata-pinning", code=1)["kata-pinning"]
        assert found["level"] == "bad"
        assert f"{lab.vm.sandbox} runs with it" in found["evidence"]
        assert "enable_vcpus_pinning = false" in found["remedy"]
    finally:
        (state / "persist.json").unlink()
        state.rmdir()


@pytest.mark.root
def test_a_hook_that_is_gone_is_found_below_the_root_that_is_given(lab: Lab, tmp_path: Path) -> None:
    directory = tmp_path / "usr" / "share" / "containers" / "oci" / "hooks.d"
    oci_hook.install(directory, lab.node.options())
    for file in directory.glob("*.json"):  # as they are when the node's root is mounted elsewhere
        file.write_text(file.read_text().replace(str(tmp_path), ""))
    (tmp_path / "etc" / "crio").mkdir(parents=True)
    found = lab.findings("hooks", "--root", str(tmp_path), code=1)["hooks"]
    assert "its interpreter /usr/bin/python3 is not there" in found["what"]
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "usr" / "bin" / "python3").touch()
    assert lab.findings("hooks", "--root", str(tmp_path))["hooks"]["level"] == "ok"
    (directory / "vmpin-hook").unlink()
    found = lab.findings("hooks", "--root", str(tmp_path), code=1)["hooks"]
    assert "no container starts" in found["what"]


@pytest.mark.root
def test_a_check_that_there_is_none_of_is_refused(lab: Lab) -> None:
    done = lab.node.cli("doctor", "watchr")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean watcher?" in done.stderr


# Without a watcher, or with one that is not well


@pytest.mark.root
def test_a_watcher_that_is_stopped_or_killed_is_distinguished_from_none() -> None:
    need_root()
    with Node() as node:
        found = findings(node, *OURS, code=1)
        assert found["watcher"]["level"] == "bad"
        assert "no watcher runs" in found["watcher"]["what"]
        assert "this command" in found["privileges"]["what"]
        assert (found["resync"]["level"], found["sandboxes"]["level"]) == ("unknown", "ok")
        assert not node.run.exists(), "nothing is made by looking"
        node.start()
        assert node.watcher is not None
        pid = node.watcher.pid
        node.watcher.send_signal(signal.SIGSTOP)
        found = findings(node, "watcher", "sandboxes", code=1)
        assert found["watcher"]["level"] == "bad"
        assert f"pid {pid}" in found["watcher"]["what"]
        assert "does not answer within" in found["watcher"]["what"]
        assert found["sandboxes"]["level"] == "ok"
        node.watcher.send_signal(signal.SIGCONT)
        assert findings(node, "watcher")["watcher"]["level"] == "ok"
        node.kill()
        assert (node.run / "vmpin.sock").exists()
        assert "no watcher runs" in findings(node, "watcher", code=1)["watcher"]["what"]


@pytest.mark.root
def test_what_the_capabilities_do_not_allow_is_reported() -> None:
    need_root()
    with Node() as node:
        done = subprocess.run(
            [need_tool("setpriv"), "--bounding-set=-sys_nice,-sys_ptrace", "--inh-caps=-all", *COMMAND, "--config",
             str(node.config), "doctor", "privileges", "-o", "json"], env=node.environment, capture_output=True,
            text=True, timeout=120)
    (found,) = json.loads(done.stdout)["findings"]
    assert (done.returncode, found["level"]) == (1, "bad")
    assert "this command cannot set masks" in found["what"]
    assert any("CAP_SYS_PTRACE" in line and "without" in line for line in found["evidence"])


@pytest.mark.root
def test_a_real_containerd_is_found_with_its_configuration_and_its_nri() -> None:
    with Node() as node, Containerd("trixie") as containerd:
        node.configure(paths={"nri": str(containerd.nri_socket)})

        def look() -> dict[str, Any]:
            """From where it runs: a containerd in a pid namespace below is none of the node's."""
            with (node.top / "out").open("wb") as out:
                process = containerd.enclosure.popen(
                    [*COMMAND, "--config", str(node.config), "doctor", "nri", "-o", "json"], env=node.environment,
                    stdout=out)
                process.wait(120)
            (found,) = json.loads((node.top / "out").read_text())["findings"]
            assert isinstance(found, dict)
            return found

        assert not any(str(containerd.top) in line for line in findings(node, "nri")["nri"]["evidence"][2:])
        found = look()
        assert (found["level"], found["what"]) == ("ok", "NRI is available to a watcher")
        (line,) = [line for line in found["evidence"] if f"{containerd.top}/config.toml" in line]
        assert line.startswith("containerd: pid ")
        assert "NRI on" in line
        containerd.kill()
        assert not any(str(containerd.top) in line and "config.toml" in line for line in look()["evidence"])


@pytest.mark.root
def test_a_pid_namespace_of_its_own_is_bad() -> None:
    """As a pod without hostPID."""
    with Node() as node, Enclosure() as enclosure, (node.top / "out").open("wb") as out:
        process = enclosure.popen([*COMMAND, "--config", str(node.config), "doctor", "namespaces", "-o", "json"],
                                  env=node.environment, stdout=out)
        assert process.wait(120) == 1
        (found,) = json.loads((node.top / "out").read_text())["findings"]
    assert found["level"] == "bad"
    assert "pid namespace" in found["what"]


# Gather


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
    assert found["vmpin/state.json"] == (lab.node.run / "state.json").read_bytes()
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
