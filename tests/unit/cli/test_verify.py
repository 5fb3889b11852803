"""`vmpin verify`: what each exit code stands for."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from need import need_root
from vmm_trees import process

from vmpin.cli.verify import refuse_blind
from vmpin.config import loading as config
from vmpin.domain.terminal import ENDED, REMOTE


def thread(wanted: str | None = "1", actual: str = "1") -> dict[str, Any]:
    return {"tid": 7, "role": "vcpu", "name": "CPU 0/KVM", "vcpu": 0, "wanted": wanted, "actual": actual,
            "ok": wanted in (None, actual), "cgroup": None}


def sandbox(name: str, *threads: dict[str, Any], verdict: str = "pinned",
            rivals: Sequence[int] = ()) -> dict[str, Any]:
    return {"id": name, "pod": None, "vmm": None, "verdict": verdict, "threads": list(threads), "rivals": list(rivals),
            "reasons": ["its VMM does not run"]}


def collision(*sandboxes: str) -> dict[str, Any]:
    return {"cpu": 3, "sandboxes": list(sandboxes), "what": "exclusive to x, but 1 thread of y may run there"}


def status(*sandboxes: dict[str, Any], collisions: tuple[dict[str, Any], ...] = (),
           unknown: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    node = {"collisions": list(collisions), "unknown_owners": list(unknown)}
    return {"version": 1, "watcher": 5, "node": node, "sandboxes": list(sandboxes)}


#: A pod with an exclusive CPU of which no container is known.
LOST = {"pod": "u-1", "cpus": "1", "here": False,
        "what": "the kubelet gives CPU 1 to pod u-1, of which no container is known (that pod is not on this node)"}


#: A thread that no placement is for.
LEFT = thread(None, "0-1")


def of(namespace: str, entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "pod": {"namespace": namespace, "name": f"pod-{entry['id']}", "uid": ""}}


TWO = status(of("web", sandbox("a", thread())), of("db", sandbox("b", thread("1", "0-1"))))


@contextmanager
def watcher(run: Path, answer: bytes) -> Iterator[None]:
    """Answers every request so, on the control socket; b"" hangs up."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run / "vmpin.sock"))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def verify(run: Path, *args: str, **settings: str) -> subprocess.CompletedProcess[str]:
    paths = {f"paths.{name}": str(run / name) for name in ("kata_go", "kata_rs", "kubelet", "nri")}
    given = {**paths, "paths.run": str(run), "watch.only": "none-of-this-machine's", **{
        key.replace("__", "."): value for key, value in settings.items()}}
    words = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    return subprocess.run([sys.executable, "-m", "vmpin.cli.main", *words, "verify", *args], capture_output=True,
                          text=True)


GOOD = "all 2 threads of 1 VM are on their CPUs"


@pytest.mark.parametrize(("document", "args", "code", "text"), [
    (status(sandbox("a", thread(), thread())), [], 0, GOOD),
    (status(sandbox("a", thread(), thread(None, "0-1"))), [], 0, f"{GOOD} (1 of them are left alone)"),
    (status(), [], 0, "no VM sandbox runs on this node: nothing was compared"),
    (status(sandbox("a")), [], 3, "none of 1 VM has a running VMM that vmpin recognizes: nothing was compared"),
    (status({**sandbox("a", verdict="off"), "reasons": [REMOTE]}), [], 0, "none of 1 VM has a running VMM: no"),
    (status({**sandbox("a", verdict="off"), "reasons": [ENDED]}), [], 0,
     "none of 1 VM has a running VMM (1 sandbox has ended, not removed by the runtime yet): nothing was compared"),
    (status({**sandbox("a", verdict="off"), "reasons": [ENDED]}, sandbox("b", verdict="off")), [], 3,
     "none of 2 VMs has a running VMM that vmpin recognizes: nothing was compared (its VMM does not run)"),
    (status(sandbox("a"), collisions=(collision("a", "b"),)), [], 1, "none of 1 VM has a running VMM: nothing was"),
    (status(sandbox("a"), sandbox("b", thread())), [], 0, "all 1 thread of 2 VMs are on their CPUs"),
    (status(sandbox("a", thread(), rivals=[7, 8])), [], 1, "CONTESTED: processes 7, 8 all name a as their VM"),
    (status(sandbox("a", LEFT, verdict="off")), [], 0, "are left alone (unpinned, or off by policy): nothing was"),
    (status(sandbox("a", LEFT, verdict="unmanaged")), [], 3, "no thread of 1 VM has a mask to be compared with"),
    (status(sandbox("a", LEFT, verdict="waiting")), ["a"], 3, "no thread of 1 VM has a mask to be compared with"),
    (status(sandbox("a", LEFT, verdict="unmanaged"), sandbox("b", LEFT, verdict="off")), [], 3, "no thread of 2 VMs"),
    (status(sandbox("a", verdict="off"), sandbox("b", LEFT, verdict="off")), [], 3, "no thread of 2 VMs has a mask"),
    (status(sandbox("a", LEFT, verdict="unmanaged"), sandbox("b", thread())), [], 0, "a is unmanaged: its threads"),
    (status(sandbox("a", LEFT, verdict="unmanaged"), collisions=(collision("a", "b"),)), [], 1,
     "all 1 thread of 1 VM are left alone (unpinned, unmanaged, not placed yet, or off by policy): nothing was"),
    (status(sandbox("a", LEFT, verdict="unmanaged"), unknown=(LOST,)), [], 1, "UNKNOWN OWNER: "),
    (status(sandbox("a", thread(), thread("1", "0-1"))), [], 1, "1 of 2 threads misplaced"),
    (status(sandbox("a", thread(), thread("0-1", "1") | {"cgroup": "1"})), [], 1,
     "1 of 2 threads: fewer CPUs than decided, or other ones"),
    (status(sandbox("a", thread(), thread()), collisions=(collision("a", "b"),)), [], 1, "COLLISION on CPU 3: "),
    (status(sandbox("a", thread(), thread()), unknown=(LOST,)), [], 1, f"UNKNOWN OWNER: {LOST['what']}"),
    (status(sandbox("a", thread(), thread()), unknown=(LOST,)), ["a"], 0, "all 2 threads of 1 VM"),
    (status(sandbox("a", thread()), unknown=(LOST, LOST | {"pod": "u-2"})), ["u-1"], 1,
     f"UNKNOWN OWNER: {LOST['what']}"),
    (status(unknown=(LOST,), collisions=(collision("u-1", "b"),)), ["u-1"], 1, "COLLISION on CPU 3:"),
    (status(sandbox("a", thread()), unknown=(LOST,)), ["u-2"], 2, "no VM sandbox 'u-2' is on this node"),
    (status(sandbox("a", thread(), thread()), collisions=(collision("a", "b"),)), ["a"], 1, "COLLISION on CPU 3: "),
    (status(sandbox("a", thread(), thread()), collisions=(collision("c", "b"),)), ["a"], 0, GOOD),
    (status(sandbox("a", thread())), ["b"], 2, "no VM sandbox 'b' is on this node"),
    (TWO, ["-n", "web"], 0, "all 1 thread of 1 VM are on their CPUs"),
    (TWO, ["-n", "db"], 1, "1 of 1 thread misplaced"),
    (TWO, ["-n", "x"], 0, "no VM sandbox of namespace 'x' runs on this node: nothing was compared"),
    (status(of("web", sandbox("a", thread())), sandbox("b", thread()), collisions=(collision("b", "c"),),
            unknown=(LOST,)), ["-n", "web"], 0, "all 1 thread of 1 VM are on their CPUs"),
    (status(of("web", sandbox("a", thread())), sandbox("b", thread()), collisions=(collision("b", "a"),)),
     ["-n", "web"], 1, "COLLISION on CPU 3: "),
])
def test_what_was_looked_at(tmp_path: Path, document: dict[str, Any], args: list[str], code: int, text: str) -> None:
    with watcher(tmp_path, json.dumps(document).encode() + b"\n"):
        done = verify(tmp_path, *args)
        assert (done.returncode, text in done.stdout + done.stderr) == (code, True), done
        assert done.stdout.count("UNKNOWN OWNER") <= 1
        if code < 2:
            done = verify(tmp_path, *args, "-o", "json")
            assert (done.returncode, json.loads(done.stdout)["ok"]) == (code, code == 0)


@pytest.mark.parametrize(("document", "args", "only", "unknown", "text"), [
    (status(), [], "*", [77, 78], "2 processes run a VM that vmpin does not know: 77 (x), 78 (x)\n"),
    (status({**sandbox("a", thread()), "vmm": {"type": "qemu", "pid": 78}}), [], "*", [77],
     "1 process runs a VM that vmpin does not know: 77 (x)\n"),
    (status(sandbox("a", thread())), ["a"], "*", [], "are on their CPUs\n"),
    (TWO, ["-n", "web"], "*", [], "are on their CPUs\n"), (status(), [], "a*", [], "nothing was compared\n")])
def test_vms_that_vmpin_does_not_know_are_named(tmp_path: Path, document: dict[str, Any], args: list[str], only: str,
                                                unknown: list[int], text: str) -> None:
    """They may be sandboxes of a runtime that no source is for, or VMs of the operator's own: no finding."""
    for pid in (77, 78):
        process(tmp_path / "proc", pid, ["/opt/vmm"], fds=("/dev/kvm", "anon_inode:kvm-vm"))
    with watcher(tmp_path, json.dumps(document).encode() + b"\n"):
        done = verify(tmp_path, *args, paths__proc=str(tmp_path / "proc"), watch__only=only)
        assert (done.returncode, done.stdout.endswith(text), done.stderr) == (0, True, ""), done
        done = verify(tmp_path, *args, "-o", "json", paths__proc=str(tmp_path / "proc"), watch__only=only)
        assert [vm["pid"] for vm in json.loads(done.stdout)["unknown_vms"]] == unknown


@pytest.mark.parametrize("args", [[], ["-o", "json"], ["a"]])
def test_a_watcher_that_gives_no_answer_is_no_drift(tmp_path: Path, args: list[str]) -> None:
    with watcher(tmp_path, b""):
        done = verify(tmp_path, *args)
    assert (done.returncode, done.stdout) == (3, "")
    assert "hung up without an answer" in done.stderr


def test_where_other_processes_are_hidden_nothing_is_called_good(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    done = verify(tmp_path, paths__proc=str(proc))
    assert (done.returncode, done.stdout) == (3, "")
    assert f"other programs' processes cannot be seen in {proc}" in done.stderr


@pytest.mark.root
@pytest.mark.parametrize("closed", ["state.json", "kata_go", ""])
def test_what_the_user_may_not_read_is_not_taken_for_nothing(closed: str) -> None:
    need_root()
    with TemporaryDirectory(dir="/tmp") as name:  # pytest closes what is above its own to others, at every start
        _read_as_another_user(Path(name), closed)


def _read_as_another_user(place: Path, closed: str) -> None:
    if closed == "kata_go":
        (place / closed).mkdir(mode=0o700)
    elif closed:
        (place / closed).touch(mode=0o600)
    place.chmod(0o755)
    given = config.load(None, {}, {"paths.run": str(place), "paths.kata_go": str(place / "kata_go"),
                                   "paths.kata_rs": str(place / "kata_rs")})
    importlib.import_module("vmpin.host.procfs")  # the child may not read Python's own files
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        text = "seen"
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            refuse_blind(given)
        except Exception as err:
            text = str(err)
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    assert text == (f"no watcher answers, and {place / closed} cannot be read: permission denied" if closed
                    else "seen")
