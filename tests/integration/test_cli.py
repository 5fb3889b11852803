"""Every verb as an operator types it: what it prints for people and for programs, and its exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from need import need_root, need_tool
from real_node import COMMAND, Node, by_tid, cri, two_cpus, union, wait
from real_qemu import Qemu

VERBS = ("watch", "status", "explain", "verify", "audit", "map", "doctor", "gather", "plan", "reconcile", "unpin",
         "config", "install-hook", "demo")
ESCAPE = "\x1b[2J\x07"


def run(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command that needs no watcher."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("VMPIN_")}
    return subprocess.run([*COMMAND, *args], env={**clean, **(env or {})}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120)


def refused(done: subprocess.CompletedProcess[str], *parts: str, code: int = 2) -> None:
    """An error is what failed, on what, and what to do: one line and a hint, and nothing else."""
    assert (done.returncode, done.stdout) == (code, ""), done
    lines = done.stderr.splitlines()
    assert len(lines) <= 2, lines
    assert lines[0].startswith("vmpin: ")
    assert all(line.startswith("  ") for line in lines[1:])
    for part in parts:
        assert part in done.stderr, done.stderr


# Without root


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_verb_has_help(verb: str, flag: str) -> None:
    done = run(verb, flag)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: vmpin {verb} ")
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_the_help_lists_every_verb() -> None:
    done = run("--help")
    assert done.returncode == 0
    for verb in VERBS:
        assert re.search(rf"^ +{verb} ", done.stdout, re.MULTILINE), verb


@pytest.mark.parametrize("args", [(), ("no-such-verb",), ("status", "--no-such-flag"), ("status", "-o", "xml"),
                                  ("explain",), ("status", "a", "b")])
def test_what_cannot_be_understood_is_exit_code_2(args: tuple[str, ...]) -> None:
    done = run(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: vmpin" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_version_is_printed() -> None:
    done = run("--version")
    assert done.returncode == 0
    assert re.fullmatch(r"vmpin [0-9]+\.[0-9]+\.[0-9]+\S*\n", done.stdout)


SCENARIO = """\
topology:
  online: "0-15"
  cores: ["0,8", "1,9"]
  nodes: {0: "0-3,8-11", 1: "4-7,12-15"}
housekeeping: "0"
shared_pool: "0-1,8-9"
policy: {vcpus: auto, spare_vcpus: sandbox, iothreads: sandbox, vhost: sandbox, emulator: sandbox}
sandboxes:
  - id: pod-a
    vcpus: 3
    iothreads: 1
    vhost: 2
    containers:
      - {id: main, cpuset: "2-3", exclusive: true}
      - {id: sidecar, cpuset: "0-1,8-9"}
      - {id: init}
"""
PLACED = {
    "sandboxes": [{
        "id": "pod-a", "mask": "0-3,8-9", "verdict": "pinned", "reasons": [],
        "vcpus": [{"id": 0, "cpus": "0-1,8-9", "container": None}, {"id": 1, "cpus": "2", "container": "main"},
                  {"id": 2, "cpus": "3", "container": "main"}],
        "iothreads": [{"index": 0, "cpus": "0-3,8-9"}], "vhost": "0-3,8-9", "emulator": "0-3,8-9",
        "containers": [{"id": "main", "vcpus": "1-2"}, {"id": "sidecar", "vcpus": "0"}, {"id": "init", "vcpus": "0"}],
    }],
    "collisions": [], "moves": 0}


def test_a_scenario_is_placed(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(SCENARIO)
    done = run("plan", "--scenario", str(file), "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == PLACED
    before = tmp_path / "before.json"
    before.write_text(done.stdout)
    again = run("plan", "--scenario", str(file), "--previous", str(before), "-o", "json")
    assert json.loads(again.stdout) == PLACED
    file.write_text(SCENARIO.replace('cpuset: "2-3"', 'cpuset: "3-4"'))
    moved = json.loads(run("plan", "--scenario", str(file), "--previous", str(before), "-o", "json").stdout)
    assert [vcpu["cpus"] for vcpu in moved["sandboxes"][0]["vcpus"]] == ["0-1,8-9", "4", "3"]
    assert moved["moves"] == 1


def test_a_scenario_in_words(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text(SCENARIO)
    done = run("plan", "--scenario", str(file))
    assert done.returncode == 0
    assert "sandbox pod-a: pinned, mask 0-3,8-9" in done.stdout
    assert "\x1b" not in done.stdout


def test_a_scenario_on_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("sandboxes: [{id: a, vcpus: 1, containers: [{id: c}]}]\n")
    done = run("plan", "--scenario", str(file), "-o", "json")
    assert json.loads(done.stdout)["sandboxes"][0]["verdict"] == "floating"


@pytest.mark.parametrize(("old", "new", "parts"), [
    ("housekeeping:", "housekeepers:", ["unknown key 'housekeepers'"]),
    ('"2-3"', '"2-99"', ["sandboxes[0].containers[0].cpuset", "16-99", "not in the topology"]),
    ("id: sidecar", "id: main", ["sandboxes[0].containers[1].id", "'main' is there twice"]),
    ("vcpus: 3", "vcpus: -3", ["sandboxes[0].vcpus", "-3"]),
    ("vcpus: auto", "vcpus: car", ["policy", "'car'"]),
    ('"2-3"', '"3-2"', ["sandboxes[0].containers[0].cpuset", "3-2"]),
    ("sandboxes:", "sandboxes: [", ["node.yaml:"]),
])
def test_a_scenario_that_makes_no_sense_is_refused_in_one_line(tmp_path: Path, old: str, new: str,
                                                               parts: list[str]) -> None:
    file = tmp_path / "node.yaml"
    assert old in SCENARIO
    file.write_text(SCENARIO.replace(old, new, 1))
    done = run("plan", "--scenario", str(file))
    refused(done, str(file), *parts)


def test_a_scenario_or_a_previous_output_that_is_not_there_is_named(tmp_path: Path) -> None:
    refused(run("plan", "--scenario", str(tmp_path / "no.yaml")), str(tmp_path / "no.yaml"))
    refused(run("plan", "--previous", "x"), "--previous goes with --scenario only")
    file = tmp_path / "node.yaml"
    file.write_text(SCENARIO)
    refused(run("plan", "--scenario", str(file), "--previous", str(tmp_path / "no.json")), "no.json")


@pytest.mark.parametrize("verb", ["status", "verify", "plan", "reconcile", "unpin", "config", "watch"])
def test_an_unknown_key_is_refused_by_name_and_file(tmp_path: Path, verb: str) -> None:
    file = tmp_path / "vmpin.yaml"
    file.write_text("node: {shared_poool: 0}\n")
    for args in (("--config", str(file), verb), (verb, "--config", str(file))):
        refused(run(*args), f"{file}: unknown key 'node.shared_poool'", "did you mean 'node.shared_pool'?")


@pytest.mark.parametrize(("text", "parts"), [
    ("nodes: {}\n", ["unknown section 'nodes'"]), ("node: {shared_pool: 3-1}\n", ["node.shared_pool", "3-1"]),
    ("- a\n", ["is no mapping"]), ("node: [\n", ["vmpin.yaml:"]), ("watch: {resync_seconds: never}\n", ["never"]),
    ("policy: {vcpus: perhaps}\n", ["policy.vcpus", "perhaps"]), ("paths: {run: relative}\n", ["paths.run"]),
    ("log: {level: [}\n", ["vmpin.yaml:"]), ("watch: {only: 'a b'}\n", ["watch.only"]), ("\x00", ["vmpin.yaml"])])
def test_a_value_that_cannot_be_used_is_refused_with_its_place(tmp_path: Path, text: str, parts: list[str]) -> None:
    file = tmp_path / "vmpin.yaml"
    file.write_text(text)
    refused(run("--config", str(file), "config"), str(file), *parts)


def test_a_configuration_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    refused(run("--config", str(tmp_path / "no.yaml"), "status"), str(tmp_path / "no.yaml"))


def test_the_configuration_says_where_each_value_came_from(tmp_path: Path) -> None:
    file = tmp_path / "vmpin.yaml"
    file.write_text("node: {shared_pool: 0-1}\npolicy: {vcpus: union, vhost: 'off'}\n")
    args = ("--config", str(file), "--set", "policy.emulator=0", "config", "--set", "log.level=debug")
    done = run(*args, "-o", "json", env={"VMPIN_POLICY_VCPUS": "auto"})
    found = json.loads(done.stdout)
    assert found["node.shared_pool"] == {"value": "0-1", "from": str(file)}
    assert found["policy.vcpus"] == {"value": "auto", "from": "environment VMPIN_POLICY_VCPUS"}
    assert found["policy.vhost"] == {"value": "off", "from": str(file)}
    assert found["policy.emulator"] == {"value": "0", "from": "flag"}
    assert found["log.level"] == {"value": "debug", "from": "flag"}
    assert found["watch.resync_seconds"] == {"value": 10.0, "from": "default"}
    assert yaml.safe_load(run(*args, "-o", "yaml").stdout).keys() == found.keys()
    shown = run(*args).stdout
    assert re.search(rf"^node.shared_pool +0-1 +{re.escape(str(file))}$", shown, re.MULTILINE)
    refused(run("config", "--set", "nonsense"), "--set nonsense: is no KEY=VALUE")
    refused(run("config", "--set", "a.b=1"), "unknown key 'a.b'")
    refused(run("config", env={"VMPIN_POLICY_VCPUS": "x"}), "VMPIN_POLICY_VCPUS", "'x'")
    refused(run("config", env={"VMPIN_POLICY_VPCUS": "auto"}), "VMPIN_POLICY_VPCUS", "'VMPIN_POLICY_VCPUS'")


def test_an_output_that_nobody_reads_is_no_error() -> None:
    for args in ("config", "plan --help", "status --help"):
        done = subprocess.run(["sh", "-c", f'"$@" {args} | head -0', "sh", *COMMAND], capture_output=True, text=True,
                              timeout=120)
        assert done.stderr == ""
        assert done.stdout == ""


# On a node with one VM


@dataclass
class Lab:
    node: Node
    vm: Qemu
    first: str
    second: str


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """A watcher, a VM with two containers, and names that steer a terminal wherever a name can come from."""
    need_root()
    need_tool("qemu-system-x86_64")
    first, second = two_cpus()
    with Node() as node, Qemu(node.id("a"), vcpus=2, iothreads=["io1"], extra=[
            "-name", f"sandbox-{node.id('a')},debug-threads=on,process=\x1b[31mred\x1b[2J"]) as vm:
        node.configure(node={"shared_pool": first})
        assert "\x1b[31mred\x1b[2J" in {stat.comm for _, stat in vm.threads()}
        node.start()
        for name, where in (("web", second), ("logs", first)):
            state = node.state(vm.sandbox, name, node.bundle(name, where), vm.pid)
            state["annotations"] = {**cri(vm.sandbox, f"{name}{ESCAPE}", pod=f"pod{ESCAPE}"),
                                    "io.kubernetes.cri.sandbox-uid": f"1{ESCAPE}"}
            assert node.hook("createRuntime", state) == b"ok\n"
        node.wait_for_vcpus(vm.pid, {0: first, 1: second}, first)
        yield Lab(node, vm, first, second)


@pytest.mark.root
def test_the_status_as_json(lab: Lab) -> None:
    raw = lab.node.cli("status", "-o", "json")
    assert raw.stdout.count("\n") == 1
    found = json.loads(raw.stdout)
    assert list(found) == ["version", "time", "watcher", "policy", "node", "sources", "sandboxes"]
    assert found["version"] == 1
    assert lab.node.watcher is not None
    assert found["watcher"] == lab.node.watcher.pid
    assert set(found["node"]) == {"online", "shared_pool", "exclusive", "housekeeping", "collisions", "owners",
                                  "disagreements"}
    assert (found["node"]["shared_pool"], found["node"]["exclusive"]) == (lab.first, lab.second)
    assert (found["node"]["housekeeping"], found["node"]["collisions"]) == ("", [])
    (owner,) = found["node"]["owners"]
    assert owner == {"sandbox": lab.vm.sandbox, "container": lab.node.id("web"), "cpus": lab.second, "kind": "vm",
                     "pod": found["sandboxes"][0]["pod"], "name": "web[2J", "init": None, "cgroup": None}
    assert set(found["sources"]) == {"nri", "kubelet", "births", "hooks", "repairs"}
    (sandbox,) = found["sandboxes"]
    assert set(sandbox) == {"id", "runtime", "handler", "vmm", "cgroup", "pod", "mask", "verdict", "reasons",
                            "found_by", "containers", "threads", "guest", "birth", "drift", "proof"}
    assert sandbox["id"] == lab.vm.sandbox
    assert sandbox["vmm"] == {"type": "qemu", "pid": lab.vm.pid}
    assert set(sandbox["pod"]) == {"namespace", "name", "uid"}
    assert (sandbox["mask"], sandbox["verdict"], sandbox["reasons"], sandbox["found_by"]) == (
        union((lab.first, lab.second)), "pinned", [], "names")
    for container in sandbox["containers"]:
        assert set(container) == {"id", "name", "cpuset", "exclusive", "exclusive_by", "vcpus", "guest", "state",
                                  "pause", "source", "since", "words", "kubelet", "disagreement", "shared_with",
                                  "stale_cpuset"}
        assert container["words"] == {"bundle": {"cpus": container["cpuset"], "since": container["since"]}}
        assert container["exclusive_by"] == ("pool" if container["exclusive"] else None)
        assert container["source"] == "bundle"
    assert {(entry["id"], entry["cpuset"], entry["exclusive"], entry["vcpus"]) for entry in sandbox["containers"]} == {
        (lab.node.id("web"), lab.second, True, "1"), (lab.node.id("logs"), lab.first, False, "0")}
    for thread in sandbox["threads"]:
        assert set(thread) == {"tid", "role", "name", "vcpu", "wanted", "actual", "ok", "cgroup"}
        assert thread["ok"] is True
        assert thread["actual"] == thread["wanted"]
    assert {thread["tid"] for thread in sandbox["threads"]} >= set(by_tid(lab.vm.pid))
    assert {thread["tid"]: thread["vcpu"] for thread in sandbox["threads"] if thread["role"] == "vcpu"} == (
        lab.vm.vcpus())
    assert {thread["tid"] for thread in sandbox["threads"] if thread["role"] == "iothread"} == lab.vm.iothreads()


@pytest.mark.root
def test_actual_is_what_the_kernel_has_at_that_moment(lab: Lab) -> None:
    lab.node.configure(watch={"resync_seconds": 600})
    assert lab.node.watcher is not None
    lab.node.watcher.send_signal(signal.SIGHUP)
    lab.node.wait_for_log("configuration loaded again")
    (victim,) = lab.vm.iothreads()
    try:
        def told() -> tuple[str, bool]:
            os.sched_setaffinity(victim, {int(lab.second)})
            (thread,) = [entry for entry in lab.node.sandbox(lab.vm.sandbox)["threads"] if entry["tid"] == victim]
            return thread["actual"], thread["ok"]

        # More than once: in the seconds after a hook spoke, its sandbox is looked at (and repaired) again.
        wait(lambda: told() == (lab.second, False), "status does not show what the kernel has")
    finally:
        lab.node.configure(watch={"resync_seconds": 0.2})
        lab.node.watcher.send_signal(signal.SIGHUP)
    lab.node.wait_for_vcpus(lab.vm.pid, {0: lab.first, 1: lab.second}, lab.first)


@pytest.mark.root
def test_the_status_as_yaml_and_of_one_sandbox(lab: Lab) -> None:
    found = yaml.safe_load(lab.node.cli("status", "-o", "yaml").stdout)
    one = lab.node.data("status", lab.vm.sandbox)
    assert one.keys() == found.keys()
    assert [entry["id"] for entry in one["sandboxes"]] == [entry["id"] for entry in found["sandboxes"]]
    begun = lab.node.data("status", lab.node.prefix)
    assert [entry["id"] for entry in begun["sandboxes"]] == [lab.vm.sandbox], "the first digits are enough"


@pytest.mark.root
@pytest.mark.parametrize("verb", ["status", "explain", "verify", "reconcile", "unpin"])
def test_an_unknown_sandbox_is_exit_code_2(lab: Lab, verb: str) -> None:
    for name in ("no-such-pod", "", "\x1b[2J", "../x"):
        done = lab.node.cli(verb, name)
        refused(done, "no VM sandbox", "`vmpin status` lists them")
        assert "\x1b" not in done.stderr


@pytest.mark.root
def test_every_verb_speaks_json(lab: Lab) -> None:
    node = lab.node
    threads = len(node.sandbox(lab.vm.sandbox)["threads"])
    assert node.data("verify") == {"ok": True, "threads": threads, "sandboxes": 1, "drift": [], "collisions": [],
                                   "unmanaged": []}
    assert node.data("plan") == {"operations": [], "unmanaged": []}
    reconciled = node.data("reconcile")
    assert set(reconciled) == {"vms", "operations", "seconds"}
    assert (reconciled["vms"], reconciled["operations"]) == (1, [])
    explained = node.data("explain", lab.vm.sandbox)
    assert set(explained) == {"sandbox", "sentences"}
    assert all(sentence.endswith(".") for sentence in explained["sentences"])
    unpinned = node.data("unpin", lab.vm.sandbox)
    assert set(unpinned) == {"operations", "guests", "kept"}
    assert len(unpinned["operations"]) == threads
    assert node.sandbox(lab.vm.sandbox)["verdict"] == "off"
    done = node.data("reconcile", lab.vm.sandbox)
    assert {"what", "outcome", "got", "why"} <= set(done["operations"][0])
    written = node.data("install-hook", "--hooks-dir", str(node.top / "more-hooks.d"))
    assert all(Path(path).exists() for path in written["written"])
    node.wait_for_vcpus(lab.vm.pid, {0: lab.first, 1: lab.second}, lab.first)


@pytest.mark.root
def test_map_draws_the_node_and_the_vm_on_it(lab: Lab, tmp_path: Path) -> None:
    said = lab.node.cli("map").stdout
    assert "NUMA node" in said
    assert " a:v1" in said
    assert "\x1b" not in said
    page = lab.node.cli("map", "-o", "html").stdout
    assert page.startswith("<!doctype html>")
    assert "guest a" in page
    assert "\x1b" not in page
    file = tmp_path / "node.svg"
    lab.node.cli("map", "-o", "svg", "--file", str(file))
    assert file.read_text().startswith("<svg")


def test_explain_says_why_in_sentences(lab: Lab) -> None:
    done = lab.node.cli("explain", lab.vm.sandbox)
    assert done.returncode == 0
    (tid,) = [tid for tid, vcpu in lab.vm.vcpus().items() if vcpu == 1]
    assert f"Thread {tid} (CPU 1/TCG) is vCPU 1 and belongs on {lab.second}: it backs that CPU of " in done.stdout
    for verb in ("explain", "status"):
        assert lab.node.cli(verb, lab.node.prefix).returncode == 0


@pytest.mark.root
@pytest.mark.parametrize("args", [("status",), ("status", "-o", "wide"), ("status", "-o", "yaml"),
                                  ("status", "-o", "json"), ("explain", "SANDBOX"), ("verify",), ("status", "SANDBOX"),
                                  ("unpin", "--every"), ("reconcile",), ("plan",)])
def test_names_that_steer_a_terminal_are_printed_harmless(lab: Lab, args: tuple[str, ...]) -> None:
    args = tuple(lab.vm.sandbox if word == "SANDBOX" else word for word in args)
    done = lab.node.cli(*args)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert "\x07" not in done.stdout + done.stderr
    seen = on_a_terminal(lab.node, *args)
    assert "\x1b[2J" not in seen
    assert "\x1b[31mred" not in seen
    assert "\x07" not in seen
    assert "\x1b" not in lab.node.log()


def on_a_terminal(node: Node, *args: str, size: tuple[int, int] = (50, 160)) -> str:
    """What a person sees."""
    import fcntl
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))
    environment = {key: value for key, value in node.environment.items() if key not in ("NO_COLOR", "COLUMNS")}
    with subprocess.Popen([*COMMAND, "--config", str(node.config), *args], stdin=slave, stdout=slave, stderr=slave,
                          env={**environment, "TERM": "xterm-256color"}) as process:
        os.close(slave)
        parts = []
        try:
            while select.select([master], [], [], 30)[0] and (part := os.read(master, 65536)):
                parts.append(part)
        except OSError:
            pass  # EIO: the other side has closed
        finally:
            os.close(master)
        assert process.wait(120) == 0
    return b"".join(parts).decode()


@pytest.mark.root
def test_a_person_sees_a_coloured_table_and_a_pipe_plain_text(lab: Lab) -> None:
    seen = on_a_terminal(lab.node, "status")
    assert "\x1b[1mSANDBOX" in seen
    assert "─" in seen
    assert "\x1b[32mpinned" in seen
    plain = lab.node.cli("status").stdout
    assert "─" not in plain
    header, row = plain.splitlines()[1:3]
    assert header.split() == ["SANDBOX", "POD", "VMM", "PID", "MASK", "VERDICT", "VCPUS", "THREADS"]
    assert row.index(lab.vm.sandbox) == header.index("SANDBOX")
    assert row[header.index("VERDICT"):].split()[0] == "pinned"
    assert row[header.index("MASK"):].split()[0] == union((lab.first, lab.second))
    narrow = on_a_terminal(lab.node, "status", "-o", "wide", size=(24, 60))
    assert "Traceback" not in narrow
    # One line more of JSON for a person.
    assert on_a_terminal(lab.node, "status", "-o", "json").startswith("{\r\n  ")


@pytest.mark.root
@pytest.mark.parametrize("args", ["status", "status -o json", "status -o yaml", "status -o wide", "verify"])
def test_a_reader_that_goes_away_is_no_error(lab: Lab, args: str) -> None:
    command = [*COMMAND, "--config", str(lab.node.config)]
    done = subprocess.run(["sh", "-c", f'"$@" {args} | head -0', "sh", *command], capture_output=True, text=True,
                          timeout=120, env=lab.node.environment)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.root
def test_watching_the_status_shows_it_again_and_again(lab: Lab) -> None:
    command = [*COMMAND, "--config", str(lab.node.config), "status", "--watch", "--interval", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=lab.node.environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [process.stdout.readline() for _ in range(10)]
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert "Traceback" not in process.stderr.read()
        assert process.wait(120) == 130
    assert sum(line.startswith("watcher pid ") for line in lines) >= 3


@pytest.mark.root
def test_without_a_watcher_the_status_is_looked_up(lab: Lab) -> None:
    with Node() as other:
        other.configure(watch={"only": f"{lab.node.prefix}*"}, node={"shared_pool": lab.second})
        found: Any = other.status()
        assert found["watcher"] is None
        assert [entry["id"] for entry in found["sandboxes"]] == [lab.vm.sandbox]
        done = other.cli("verify")
        assert done.returncode == 1, "it is another watcher's, with another pool"
        assert other.cli("plan").stdout != ""
        assert not other.run.exists(), "looking writes nothing"
        assert "no watcher runs" in other.cli("status").stdout


@pytest.mark.root
@pytest.mark.parametrize("verb", ["status", "plan", "verify"])
def test_looking_leaves_a_damaged_state_file_where_it_is(verb: str) -> None:
    with Node() as node:
        node.run.mkdir()
        (node.run / "state.json").write_text("{")
        done = node.cli(verb)
        assert done.returncode == 0
        assert "its content is not used" in done.stderr
        assert [path.name for path in node.run.iterdir()] == ["state.json"]


@pytest.mark.root
def test_an_empty_node_says_so(lab: Lab) -> None:
    with Node() as empty:
        assert "no VM sandbox runs on this node" in empty.cli("status").stdout
        assert empty.cli("verify").stdout == "no VM sandbox runs on this node: nothing was compared\n"
        assert empty.cli("verify").returncode == 0
        assert empty.cli("plan").stdout == "nothing to do: every thread is in place\n"
        assert empty.cli("unpin", "--every").stdout == "nothing to restore\n"
        refused(empty.cli("explain", "x"), "no VM sandbox 'x' is on this node")
