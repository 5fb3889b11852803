"""Programs of the node by name (host/daemons)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from trees import make_tree
from waiting import wait

from vmpin.domain.facts import Daemon
from vmpin.host import daemons
from vmpin.host.procfs import Procfs


def proc(tmp_path: Path, **processes: str) -> Procfs:
    """A /proc of command lines, by pid as p1."""
    for name, line in processes.items():
        directory = tmp_path / name[1:]
        directory.mkdir(parents=True)
        (directory / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in line.split("|")))
        program = line.partition("|")[0].rpartition("/")[2]
        (directory / "stat").write_text(f"{name[1:]} ({program[:15]}) S 1 " + "0 " * 50)
    return Procfs(tmp_path)


def test_programs_are_known_by_their_first_argument_or_their_script(tmp_path: Path) -> None:
    found = daemons.programs(proc(
        tmp_path, p20="/usr/bin/kubelet|--config=/c", p3="irqbalance", p4="/usr/bin/python3|-Es|/usr/sbin/tuned|-l",
        p5="/usr/bin/python3.11|-m|kubelet", p6="/usr/local/bin/k3s server", p7="bash|/usr/bin/kubelet", p8="",
        p9="/opt/nri-resource-policy-balloons|--host"))
    assert [(program.pid, program.name) for program in found] == [
        (3, "irqbalance"), (4, "tuned"), (5, "kubelet"), (6, "k3s"), (9, "nri-resource-policy-balloons"),
        (20, "kubelet")]
    assert found[-1].argv == ["/usr/bin/kubelet", "--config=/c"]
    assert found[3].argv == ["/usr/local/bin/k3s", "server"], "a title"
    assert daemons.daemons(found) == (Daemon("irqbalance", "irqbalance", 3), Daemon("tuned", "tuned", 4),
                                      Daemon("balloons", "nri-resource-policy-balloons", 9))


@pytest.mark.parametrize(("line", "name"), [
    ("/usr/bin/kubelet1.28|--config=/var/lib/kubelet/config.yaml", "kubelet"),  # openSUSE, by its kubelet.sh
    ("/usr/libexec/platform-python|-Es|/usr/sbin/tuned|-l|-P", "tuned"),  # RHEL 8
    ("/nix/store/1-python3/bin/python3.13|-Es|/nix/store/2-tuned/bin/.tuned-wrapped|-P", "tuned"),  # NixOS
    ("/nix/store/3-irqbalance/bin/.irqbalance-wrapped", "irqbalance"),
    ("/opt/nri/plugins/10-nri-resource-policy-balloons", "nri-resource-policy-balloons"),
    ("/usr/bin/kubelet1", ""), ("/usr/bin/kubelet-1.28", ""), ("tuned-wrapper", ""), ("/usr/bin/10-", ""),
    ("/usr/bin/platform-python|-m|pip", ""), ("-wrapped", "")])
def test_distributions_put_something_around_a_programs_name(tmp_path: Path, line: str, name: str) -> None:
    found = daemons.programs(proc(tmp_path, p7=line))
    assert [program.name for program in found] == ([name] if name else [])


def test_what_a_container_calls_a_kubelet_is_none(tmp_path: Path) -> None:
    """A daemon that works on the node from a pod of its own is found there all the same."""
    found = proc(tmp_path, p3="kubelet|--config=/etc/shadow", p4="/usr/bin/tuned", p5="irqbalance", p6="containerd")
    for pid, inside in ((3, "\t1"), (4, "\t1"), (5, "\t1"), (6, "")):
        (tmp_path / str(pid) / "status").write_text(f"Name:\tx\nNSpid:\t{pid}{inside}\n")
    assert [(program.pid, program.name) for program in daemons.programs(found)] == [(4, "tuned"), (6, "containerd")]


@pytest.mark.parametrize(("line", "names"), [
    ("/srv/java|-jar", daemons.DAEMONS), ("tuned", daemons.CONFIGURED), ("python3|x.py", daemons.CONFIGURED),
    ("python3|x.py", {*daemons.DAEMONS} - {"tuned", "cmk.py"})])
def test_a_command_line_that_may_never_be_read_is_left_alone(
        tmp_path: Path, line: str, names: Collection[str]) -> None:
    """A thread that maps a file of a dead NFS server keeps a read of it waiting; a directory raises here."""
    found = proc(tmp_path, p3=line, p6="containerd")
    (tmp_path / "3/status").write_text("Name:\tx\nNSpid:\t3\t1\n")
    (tmp_path / "3/cmdline").unlink()
    (tmp_path / "3/cmdline").mkdir()
    assert [program.name for program in daemons.programs(found, (*names, "containerd"))] == ["containerd"]


def contained(root: Path, *pids: int) -> None:
    """Put processes of a tree into pid namespaces of their own."""
    for pid in pids:
        (root / f"{pid}/status").write_text(f"Name:\tx\nNSpid:\t{pid}\t1\n")


@contextlib.contextmanager
def hanging(fifos: Collection[Path]) -> Iterator[None]:
    """Have reads of these files wait, as of FIFOs without a writer, until the end."""
    for fifo in fifos:
        fifo.unlink()
        os.mkfifo(fifo)
    before = {*threading.enumerate()}
    try:
        yield
    finally:
        while {*threading.enumerate()} - before:
            for fifo in fifos:
                with contextlib.suppress(OSError):  # no reader is waiting
                    os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))


def searched(proc: Procfs, *names: str) -> list[tuple[int, str]]:
    """The programs of a search that has to end."""
    seen: list[list[tuple[int, str]]] = []
    searching = threading.Thread(target=lambda: seen.append(
        [(program.pid, program.name) for program in daemons.programs(proc, names or daemons.DAEMONS)]))
    searching.start()
    searching.join(120)
    return seen[0]


def test_a_containers_daemon_is_known_whose_command_line_is_never_read(tmp_path: Path) -> None:
    """By its executable, or by its thread's name, which is cut: no read is begun."""
    long = "nri-resource-policy-balloons"
    node = proc(tmp_path, **{f"p{pid}": "koordlet" for pid in range(10, 16)}, p20=long, p21=long, p22="main",
                 p23="koordlets")
    (tmp_path / "20/exe").symlink_to(f"/bin/{long}")
    (tmp_path / "22/exe").symlink_to("/opt/katalyst-agent (deleted)")
    pids = [*range(10, 16), 20, 21, 22, 23]
    contained(tmp_path, *pids)
    names = [name for name in daemons.DAEMONS if name not in {"tuned", "cmk.py"}]
    before = {*threading.enumerate()}
    with hanging([tmp_path / f"{pid}/cmdline" for pid in pids]):
        assert searched(node, *names) == [*((pid, "koordlet") for pid in range(10, 16)), (20, long),
                                           (21, "nri-resource-policy"), (22, "katalyst-agent")]
        assert {*threading.enumerate()} == before


def test_a_containers_script_that_answers_is_known_whatever_others_hang(
        tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A read that hangs has one thread, however often a search is made, and counts when it answers."""
    script = "/usr/bin/python3|/cmk/cmk.py|isolate"
    pids = [*range(10, 18)]
    node = proc(tmp_path, p3="/usr/bin/tuned", p30=script, **{f"p{pid}": script for pid in pids})
    contained(tmp_path, 3, 30, *pids)
    answers = (tmp_path / "30/cmdline").read_bytes()
    before = {*threading.enumerate()}
    with hanging([tmp_path / f"{pid}/cmdline" for pid in (3, *pids)]):
        # A read may take a second on a busy machine.
        wait(lambda: searched(node) == [(3, "tuned"), (30, "cmk.py")], "the script that answers is not known")
        assert caplog.text.count(f"{tmp_path}/3/cmdline, {tmp_path}/10/cmdline") == 1
        assert {thread.name for thread in {*threading.enumerate()} - before} == {
            f"{tmp_path}/{pid}/cmdline" for pid in (3, *pids)}
        searched(node)
        assert [thread.name for thread in threading.enumerate()].count(f"{tmp_path}/10/cmdline") == 1
        assert caplog.text.count("/10/cmdline") == 1
    (tmp_path / "12/cmdline").unlink()
    (tmp_path / "12/cmdline").write_bytes(answers)
    with hanging([tmp_path / f"{pid}/cmdline" for pid in (3, *pids) if pid != 12]):
        wait(lambda: searched(node) == [(3, "tuned"), (12, "cmk.py"), (30, "cmk.py")], "a late answer does not count")


def test_a_process_that_may_not_be_read_hides_no_other(tmp_path: Path) -> None:
    class Denying(Procfs):
        def beginning(self, pid: int | str) -> bytes:
            if pid == 3:
                raise PermissionError
            return super().beginning(pid)

    proc(tmp_path, p3="kubelet", p4="crio")
    assert [program.name for program in daemons.programs(Denying(tmp_path))] == ["crio"]


def test_an_unprivileged_user_has_neither_a_kubelet_nor_a_runtime(tmp_path: Path) -> None:
    found = proc(tmp_path, p3="kubelet|--config=/tmp/x", p4="crio", p5="crio|--config=/tmp/x", p6="irqbalance")
    for pid, uids in ((3, "1000\t0\t0\t0"), (4, "0\t0\t0\t0"), (5, "1000\t1000\t1000\t1000")):
        (tmp_path / str(pid) / "status").write_text(f"Name:\tx\nUid:\t{uids}\nNSpid:\t{pid}\n")
    assert [(program.pid, program.name) for program in daemons.programs(found)] == [(4, "crio"), (6, "irqbalance")]


def test_of_the_environment_only_the_names_of_files_are_kept(tmp_path: Path) -> None:
    found = proc(tmp_path, p3="/usr/local/bin/k3s server", p4="crio", p5="kubelet|--config=/c", p6="containerd")
    for pid in (3, 4, 5, 6):
        (tmp_path / str(pid) / "environ").write_bytes(
            b"K3S_TOKEN=hush\0K3S_CONFIG_FILE=/srv/k.yaml\0CONTAINER_CONFIG=/srv/c\0PATH=/bin\0CONTAINER_CONFIG_DIR=\0")
    assert [program.environment for program in daemons.programs(found)] == [
        {"K3S_CONFIG_FILE": "/srv/k.yaml"}, {"CONTAINER_CONFIG": "/srv/c"}, {}, {"PATH": "/bin"}]


def test_a_real_process_is_found_by_its_name() -> None:
    with subprocess.Popen(["irqbalance", "600"], executable="/bin/sleep") as process:
        try:
            # A program that was just executed has no command line for a moment.
            wait(lambda: process.pid in [program.pid for program in daemons.programs(Procfs(), ["irqbalance"])],
                 "the program is not found")
        finally:
            process.kill()
    assert daemons.programs(Procfs(), [f"{Path(sys.executable).name}-not"]) == []


@pytest.mark.parametrize(("line", "value"), [
    ("k --config=/a", "/a"), ("k --config /a", "/a"), ("k -config /a", "/a"), ("k --config /a --config=/b", "/b"),
    ("k --configs=/a", ""), ("k --config", ""), ("k", "")])
def test_a_flag_of_gos_is_read(line: str, value: str) -> None:
    assert daemons.flag(line.split(), "config", "c") == value


@pytest.mark.parametrize(("argv0", "kind"), [
    ("/usr/local/bin/weka-cpuset", "nri-policy"), ("/cpusets-controller", "cpu-pooler"), ("/dracpu", "dra-driver-cpu"),
    ("/katalyst/bin/katalyst-agent", "katalyst"), ("/koordlet", "koordinator"),
    ("/opt/nri/plugins/10-dracpu", "dra-driver-cpu"), ("/bin/nri-resource-policy-template", "nri-policy"),
    ("/opt/nri/plugins/90-nri-resource-policy-balloons", "balloons"), ("/cpusetter", "cpu-pooler"),
    ("/ctlplane", "ctlplane"), ("/bin/mixedcpu", "mixed-cpus"), ("/bin/mixedcpus", "mixed-cpus"),
    ("/opt/nri/plugins/99-mixedcpu", "mixed-cpus"),
    ("/usr/sbin/intel_lpmd", "lpmd"), ("/usr/local/bin/nomad|agent|-config=/etc/nomad.d", "nomad"),
    ("/usr/sbin/slurmd|-D|-s", "slurm"), ("/usr/sbin/virtchd|--timeout|120", "libvirt"),
    ("/usr/bin/lxd|--group|lxd|--logfile=/var/log/lxd/lxd.log", "lxd"),
    ("incusd|--group|incus-admin|--logfile|/var/log/incus/incusd.log", "lxd"),
    ("/usr/bin/python3|/cmk/cmk.py|isolate|--pool=infra|/cmk/cmk.py|--|reconcile", "cmk")])
def test_programs_that_give_out_cpus_are_known_however_they_are_started(
        tmp_path: Path, argv0: str, kind: str) -> None:
    """By the node, by a pod, or by the runtime, which puts a plugin's index before its name."""
    (found,) = daemons.daemons(daemons.programs(proc(tmp_path, p7=f"{argv0}|--v=4")))
    assert (found.kind, found.pid) == (kind, 7)


def test_the_unit_of_a_process_is_the_last_of_its_cgroup(tmp_path: Path) -> None:
    proc = Procfs(make_tree(tmp_path, """
        7/cgroup = 12:cpuset:/\\n1:name=systemd:/system.slice/vmpin.service\\n0::/system.slice/vmpin.service
        8/cgroup = 0::/user.slice/session-1.scope
    """))
    assert [daemons.unit(proc, pid) for pid in (7, 8, 9)] == ["vmpin.service", "", ""]
