"""The command line on a node with one VM."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_runs import ESCAPE, refused
from lab_node import Lab
from need import need_root, need_tool
from process_masks import by_tid, two_cpus, union
from real_node import COMMAND, Node
from real_qemu import Qemu
from runtime_bundle import cri
from waiting import wait

from vmpin.host.procfs import Procfs


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
        made = Lab(node, vm, first, second)
        made.wait_for_masks()
        yield made


@pytest.mark.root
def test_the_status_as_json(lab: Lab) -> None:
    raw = lab.node.cli("status", "-o", "json")
    assert raw.stdout.count("\n") == 1
    found = json.loads(raw.stdout)
    assert list(found) == ["version", "time", "watcher", "policy", "node", "sources", "state_file", "features",
                           "sandboxes"]
    assert found["version"] == 1
    assert lab.node.watcher is not None
    assert found["watcher"] == lab.node.watcher.pid
    assert (found["node"]["shared_pool"], found["node"]["exclusive"]) == (lab.first, lab.second)
    assert (found["node"]["housekeeping"], found["node"]["collisions"]) == ("", [])
    (owner,) = found["node"]["owners"]
    assert owner == {"sandbox": lab.vm.sandbox, "container": lab.node.id("web"), "cpus": lab.second, "kind": "vm",
                     "pod": found["sandboxes"][0]["pod"], "name": "web[2J", "init": None, "cgroup": None}
    assert set(found["sources"]) == {"nri", "kubelet", "new_threads", "hooks"}
    (sandbox,) = found["sandboxes"]
    assert sandbox["id"] == lab.vm.sandbox
    vmm = Procfs().stat(lab.vm.pid)
    assert vmm is not None
    assert sandbox["vmm"] == {"type": "qemu", "pid": lab.vm.pid, "starttime": vmm.starttime}
    assert set(sandbox["pod"]) == {"namespace", "name", "uid"}
    assert (sandbox["mask"], sandbox["verdict"], sandbox["reasons"], sandbox["found_by"]) == (
        union((lab.first, lab.second)), "pinned", [], "names")
    for container in sandbox["containers"]:
        assert container["cpusets_by_source"] == {"bundle": {"cpus": container["cpuset"], "since": container["since"]}}
        assert container["exclusive_by"] == ("pool" if container["exclusive"] else None)
        assert container["source"] == "bundle"
    assert {(entry["id"], entry["cpuset"], entry["exclusive"], entry["vcpus"]) for entry in sandbox["containers"]} == {
        (lab.node.id("web"), lab.second, True, "1"), (lab.node.id("logs"), lab.first, False, "0")}
    for thread in sandbox["threads"]:
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
        def moved_and_shown() -> tuple[str, bool]:
            os.sched_setaffinity(victim, {int(lab.second)})
            (thread,) = [entry for entry in lab.node.sandbox(lab.vm.sandbox)["threads"] if entry["tid"] == victim]
            return thread["actual"], thread["ok"]

        # More than once: in the seconds after a hook message its sandbox is reconciled again.
        wait(lambda: moved_and_shown() == (lab.second, False), "status does not show what the kernel has")
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
@pytest.mark.parametrize("verb", ["status", "verify", "repin", "unpin"])
def test_an_unknown_sandbox_is_exit_code_2(lab: Lab, verb: str) -> None:
    for name in ("no-such-pod", "", "\x1b[2J", "../x"):
        done = lab.node.cli(verb, name)
        refused(done, "no VM sandbox", "`vmpin status` lists them")
        assert "\x1b" not in done.stderr


@pytest.mark.root
def test_every_verb_speaks_json(lab: Lab) -> None:
    node = lab.node
    threads = len(node.sandbox(lab.vm.sandbox)["threads"])
    assert node.data("verify") == {"version": 1, "ok": True, "threads": threads, "sandboxes": 1, "drift": [],
                                   "collisions": [], "contested": [], "unmanaged": [], "unknown_owners": [],
                                   "unknown_vms": []}
    assert node.data("plan") == {"version": 1, "operations": [], "unmanaged": [], "of_features": []}
    reconciled = node.data("repin")
    assert (reconciled["vms"], reconciled["operations"]) == (1, [])
    explained = node.data("status", "--explain", lab.vm.sandbox)
    last = explained["sentences"][-1]  # of drift without a cause it is a command
    assert all(sentence.endswith(".") for sentence in explained["sentences"][:-1])
    assert last.endswith((".", "'"))
    unpinned = node.data("unpin", lab.vm.sandbox)
    assert len(unpinned["operations"]) == threads
    assert node.sandbox(lab.vm.sandbox)["verdict"] == "off"
    done = node.data("repin", lab.vm.sandbox)
    assert {"what", "outcome", "got", "why"} <= set(done["operations"][0])
    written = node.data("install", "hook", "--hooks-dir", str(node.top / "more-hooks.d"))
    assert all(Path(path).exists() for path in written["written"])
    node.wait_for_vcpus(lab.vm.pid, {0: lab.first, 1: lab.second}, lab.first)


def test_explain_says_why_in_sentences(lab: Lab) -> None:
    done = lab.node.cli("status", "--explain", lab.vm.sandbox)
    assert done.returncode == 0
    (tid,) = [tid for tid, vcpu in lab.vm.vcpus().items() if vcpu == 1]
    assert (f"Thread {tid} (CPU 1/TCG) is vCPU 1 and belongs on {lab.second}: it backs that CPU, which is "
            "exclusive to container ") in done.stdout
    for explained in ("--explain",), ():
        assert lab.node.cli("status", lab.node.prefix, *explained).returncode == 0


@pytest.mark.root
@pytest.mark.parametrize("args", [("status",), ("status", "-o", "wide"), ("status", "-o", "yaml"),
                                  ("status", "-o", "json"), ("status", "SANDBOX", "--explain"), ("verify",),
                                  ("status", "SANDBOX"), ("unpin", "--every"), ("repin",), ("plan",)])
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
            while select.select([master], [], [], 300)[0] and (part := os.read(master, 65536)):
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
    assert "\x1b[1mPOD" in seen
    assert "─" in seen
    assert "\x1b[32mpinned" in seen
    plain = lab.node.cli("status").stdout
    assert "─" not in plain
    header, row = plain.splitlines()[1:3]
    assert header.split() == ["POD", "VERDICT", "VM", "MASK", "VCPUS", "IN", "PLACE"]
    assert row.index("tests/pod") == header.index("POD")
    assert row[header.index("VERDICT"):].split()[0] == "pinned"
    assert row[header.index("MASK"):].split()[0] == union((lab.first, lab.second))
    one = lab.node.cli("status", lab.vm.sandbox).stdout.splitlines()
    assert one[0].startswith("tests/pod")
    assert f" is pinned: qemu process {lab.vm.pid}, " in one[0]
    assert one[1].split() == ["CONTAINER", "CPUS", "KIND", "VCPUS", "GUEST", "SINCE"]
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
    command = [*COMMAND, "--config", str(lab.node.config), "status", "--watch", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=lab.node.environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        outputs = 0
        while outputs < 3:
            line = process.stdout.readline()
            assert line, "it ends early"
            outputs += line.startswith("watcher pid ")
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert "Traceback" not in process.stderr.read()
        assert process.wait(120) == 130


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
        assert empty.cli("unpin", "--every").stdout == "nothing to restore: no mask set by vmpin is on record\n"
        refused(empty.cli("status", "--explain", "x"), "no VM sandbox 'x' is on this node")
