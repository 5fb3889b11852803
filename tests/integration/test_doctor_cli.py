"""`vmpin doctor` on this machine, with a real watcher and a real VM."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from enclosure import Enclosure
from lab_node import Lab
from need import need_machines_pids, need_root, need_tool
from real_containerd import Containerd
from real_node import COMMAND, Node
from waiting import wait

from vmpin.features.installer import file_operations, oci_hook

pytest_plugins = ["given_lab"]

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


@pytest.mark.root
def test_a_node_where_all_is_well(lab: Lab) -> None:
    need_machines_pids()
    found = findings(lab.node, *OURS)
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
        found = findings(lab.node, "config")["config"]
        assert found["level"] == "warn"
        assert found["evidence"][0].startswith("policy.emulator: the watcher has apart (default), this command")
        watcher.send_signal(signal.SIGHUP)
        wait(lambda: findings(lab.node, "config")["config"]["level"] == "ok", "the watcher does not load it")
    finally:
        lab.node.configure(policy={"emulator": "apart"})
        watcher.send_signal(signal.SIGHUP)
        wait(lambda: findings(lab.node, "config")["config"]["level"] == "ok", "the watcher does not load it again")
        lab.wait_for_masks()


@pytest.mark.root
def test_katas_own_pinning_is_bad_and_so_is_the_exit_code(lab: Lab) -> None:
    state = lab.node.top / "vc" / "sbs" / lab.vm.sandbox
    state.mkdir(parents=True)
    (state / "persist.json").write_text(json.dumps({"Config": {"EnableVCPUsPinning": True}}))
    try:
        found = findings(lab.node, "kata-pinning", code=1)["kata-pinning"]
        assert found["level"] == "bad"
        assert f"{lab.vm.sandbox} runs with it" in found["evidence"]
        assert "enable_vcpus_pinning = false" in found["remedy"]
    finally:
        (state / "persist.json").unlink()
        state.rmdir()


@pytest.mark.root
def test_a_hook_that_is_gone_is_found_below_the_root_that_is_given(lab: Lab, tmp_path: Path) -> None:
    directory = tmp_path / "usr" / "share" / "containers" / "oci" / "hooks.d"
    file_operations.execute(oci_hook.plan_install(directory, lab.node.options()))
    for file in directory.glob("*.json"):  # as they are when the node's root is mounted elsewhere
        file.write_text(file.read_text().replace(str(tmp_path), ""))
    (tmp_path / "etc" / "crio").mkdir(parents=True)
    found = findings(lab.node, "hooks", "--root", str(tmp_path), code=1)["hooks"]
    assert "its interpreter /usr/bin/python3 is not there" in found["what"]
    (tmp_path / "usr" / "bin").mkdir(parents=True)
    (tmp_path / "usr" / "bin" / "python3").touch()
    assert findings(lab.node, "hooks", "--root", str(tmp_path))["hooks"]["level"] == "ok"
    (directory / "vmpin-hook").unlink()
    found = findings(lab.node, "hooks", "--root", str(tmp_path), code=1)["hooks"]
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
    need_machines_pids()
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
        assert f"the watcher (pid {pid}) is stopped" in found["watcher"]["what"]
        assert f"kill -CONT {pid}" in found["watcher"]["remedy"]
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
