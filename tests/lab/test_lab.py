"""The node's tests, as seen from the build machine: a test for each node of boots.py.

A few minutes a boot. Each is one test here; its cases are listed as they pass, and a failure has the texts of all that
failed. By hand rather `python -m lab run`, which takes other layouts and single tests (docs/testing.md).
"""

from __future__ import annotations

import contextlib
import io
import os
import platform
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from need import lacking, need_root, need_tool

from lab import cache, node
from lab.boots import BEFORE_A_RELEASE, IN_CI, Background, Boot, Nodes
from lab.errors import LabError
from lab.kernel import Built
from lab.node import REPOSITORY, repository_files
from lab.results import FEW, Case, cases, once_more
from lab.variant import Cgroup, Kernel, Topology, Variant


@pytest.fixture
def machine() -> None:
    """What building and booting the node takes."""
    if platform.machine() != "x86_64":
        pytest.skip("the node is an x86_64 machine")
    need_root()
    need_tool("debootstrap")
    need_tool(*node.VIRTIOFSD)
    need_tool("git")
    subprocess.run([need_tool("modprobe"), "-q", "overlay"], check=False)
    if b"overlay" not in Path("/proc/filesystems").read_bytes():
        lacking("needs overlayfs in the kernel")


@contextlib.contextmanager
def lab_run(*arguments: str, mark: str = "", **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """`lab run`, which ends with the `with`, or with this process; `mark` is in the environment of all it starts."""
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "TERM", "--", sys.executable, "-m", "lab", "run", *arguments],
        stdin=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": str(REPOSITORY / "tests"), "LAB_MARK": mark}, **more)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(120)
        finally:
            process.kill()


@pytest.mark.lab
@pytest.mark.root
@pytest.mark.timeout(3600)  # more than BOOTS boots and TIMEOUT
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("boot", [*(pytest.param(boot, id=str(boot)) for boot in IN_CI), *(
    pytest.param(boot, id=str(boot), marks=pytest.mark.release) for boot in BEFORE_A_RELEASE)])
def test_all_pass_in_the_node(boot: Boot, nodes: Nodes, capfd: pytest.CaptureFixture[str]) -> None:
    """It has been started with the session, or by the time the nodes before it are through."""
    with capfd.disabled():  # it takes minutes: show how far it is, where pytest runs in one process
        print()
        code = nodes.wait(boot, lambda text: print(text, end="", flush=True))
    assert code in (0, 1), f"the lab itself failed; see above and {boot.results}/console.log"
    found = cases(boot.results / "junit.xml")
    failed = [case for case in found if case.outcome == "failed"]
    assert not failed, "\n\n".join(f"{case.name}\n{case.text}" for case in failed)
    assert code == 0
    # In the node nothing is lacking that a test may be skipped for.
    assert [case.name for case in found if case.outcome == "skipped"] == []


@pytest.mark.release
@pytest.mark.lab
@pytest.mark.root
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("ended_by", "code"), [
    (None, 2), (signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)],
    ids=["its deadline", "SIGTERM", "SIGINT", "SIGHUP"])
def test_a_node_that_is_ended_leaves_nothing_running(ended_by: signal.Signals | None, code: int,
                                                     tmp_path: Path) -> None:
    """Not by its deadline either: no node is done after five seconds."""
    mark, results = str(tmp_path), tmp_path / "results"
    with (tmp_path / "said").open("w+b") as said, lab_run(
            *(["--timeout", "5"] if ended_by is None else []), "--results", str(results), mark=mark, stdout=said,
            stderr=said) as process:
        while not (emulators := [line for line in processes_with(mark) if " -name vmpin-lab " in line]):
            assert process.poll() is None, (tmp_path / "said").read_text()
            time.sleep(0.05)
        if ended_by is not None:
            process.send_signal(ended_by)
        assert process.wait(120) == code, (tmp_path / "said").read_text()
    assert ("the node was not done after 5 s" in (tmp_path / "said").read_text()) == (ended_by is None)
    assert not (results / "status").exists()
    deadline = time.monotonic() + 120  # the kernel ends what was just being started
    while (left := processes_with(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    (place,) = set(re.findall(r"/tmp/vmpin-lab-\w+", emulators[0]))
    assert not Path(place).exists()


def processes_with(mark: str) -> list[str]:
    """The command lines of the processes that have a mark in their environment."""
    found = []
    for path in Path("/proc").glob("[1-9]*"):
        with contextlib.suppress(OSError):
            if f"LAB_MARK={mark}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


class ScriptedBoot(Boot):
    """A boot that is a shell script instead, by its name."""

    def argv(self) -> list[str]:
        return ["setpriv", "--pdeathsig", "TERM", "--", "sh", "-c", self.arguments[0]]


def test_nodes_in_the_background_come_one_after_the_other_and_say_how_they_ended(tmp_path: Path) -> None:
    boots = [ScriptedBoot(Variant(), "-a", [f"echo first; sleep 0.1; touch {tmp_path}/done; exit 1"]),
             ScriptedBoot(Variant(), "-b", [f"test -e {tmp_path}/done && echo second"])]
    background, said = Background(boots, tmp_path), io.StringIO()
    try:
        assert [background.wait(boot, said.write) for boot in boots] == [1, 0]
        assert said.getvalue() == "first\nsecond\n"
        assert background.wait(Boot(Variant(), "-never begun"), said.write) == 2
    finally:
        background.end()


def test_nodes_of_another_session_in_this_checkout_wait_for_its_end(tmp_path: Path) -> None:
    """It has yet to read their results, and theirs have the same place."""
    boot, lock = ScriptedBoot(Variant(), "", ["echo here"]), tmp_path / "lock"
    for name in "first", "second":
        (tmp_path / name).mkdir()
    with contextlib.ExitStack() as stack:
        first = Background([boot], tmp_path / "first", lock)
        stack.callback(first.end)
        assert first.wait(boot, str) == 0
        second = Background([boot], tmp_path / "second", lock)
        stack.callback(second.end)
        time.sleep(0.5)
        assert not second.log(boot).exists()
        first.end()
        assert second.wait(boot, str) == 0


def test_nodes_in_the_background_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_MARK", str(tmp_path))
    boot = ScriptedBoot(Variant(), "", ["echo here; while :; do sleep 1; done"])
    background = Background([boot], tmp_path)
    try:
        while not (log := tmp_path / f"{boot}.log").exists() or "here" not in log.read_text():
            time.sleep(0.02)
    finally:
        background.end()
    assert background.wait(boot, str) == 2
    while processes_with(str(tmp_path)):  # until the last of them has ended
        time.sleep(0.02)


def test_the_counters_frequency_is_the_same_however_long_it_is_measured() -> None:
    short, long = node.host_tsc_khz(0.05), node.host_tsc_khz(0.2)
    assert short == pytest.approx(long, rel=0.01)  # from there on the kernel measures it itself


@pytest.mark.parametrize(("script", "in_time"), [
    ("echo here; exec sleep 600", False), ("printf 'here\\ninit: up after 9 s\\n'; sleep 2.5", True)],
    ids=["not up", "up"])
def test_a_node_is_followed_until_it_is_off_or_until_it_should_be_up(script: str, in_time: bool) -> None:
    assert _followed(script, 60, 1.5) == (in_time, True)


def test_a_node_is_followed_until_its_deadline() -> None:
    assert _followed("echo here; exec sleep 600", 1.5, 60) == (False, True)


@pytest.mark.parametrize(("consoles", "boots"), [
    ([b"init: the clock of CPU 7 stands still", b"init: up after 5 s"], 2), ([b"init: up after 5 s"], 1),
    ([b""] * 3, 3)],
    ids=["a CPU's clock", "up", "never up"])
def test_a_node_that_does_not_come_up_is_started_again_but_none_that_was_up(
        consoles: list[bytes], boots: int, tmp_path: Path) -> None:
    """Powered off at once, as one is whose init has found a CPU without a clock."""
    started = []

    def boot(variant: Variant, root: Path, kernel: Built, place: Path, number: int, results: Path,
             deadline: float) -> bool:
        started.append(number)
        (results / "console.log").write_bytes(consoles[number - 1])
        (results / "qemu.log").touch()
        return True

    with pytest.raises(LabError, match="ended without saying how the tests went"):
        node.run_tests(Variant(Kernel.V6_1), tmp_path, Built(tmp_path, None, (), ""), tmp_path / "results", [],
                       boot_once=boot)
    assert started == list(range(1, boots + 1))


def _followed(script: str, deadline: float, boot_deadline: float) -> tuple[bool, bool]:
    """What `follow` returns, and whether the console has "here"."""
    console = io.BytesIO()
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            select.select([process.stdout], [], [])  # it has begun
            in_time = node.follow(process, console, deadline, boot_deadline)
        finally:
            process.kill()
    return in_time, b"here" in console.getvalue()


def test_only_a_directory_of_a_run_before_is_emptied(tmp_path: Path) -> None:
    results = tmp_path / "a/results"
    node.empty(results)
    node.empty(results)
    kept = results / "notes"
    kept.touch()
    with pytest.raises(LabError, match="is not empty and has no console"):
        node.empty(results)
    assert kept.exists()
    (results / "console.log").touch()
    node.empty(results)
    assert list(results.iterdir()) == []


def test_the_node_that_was_asked_for_is_not_another_by_an_environment_variable(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_tool("git")
    for name, value in (("VMPIN_LAB_KERNEL", "6.1"), ("VMPIN_LAB_SEED", "8")):
        monkeypatch.setenv(name, value)
    node.write_job(tmp_path / "job", Variant(Kernel.V6_12), "", {"VMPIN_LAB_SOAK_STEPS": "5"})
    printed = subprocess.run(["sh", "-c", '. "$1"; echo $VMPIN_LAB_KERNEL $VMPIN_LAB_SEED '
                           "$VMPIN_LAB_SOAK_STEPS", "sh", tmp_path / "job/lab/run"], capture_output=True, text=True,
                          check=True, env={}).stdout
    assert printed == "6.12 8 5\n"


class Recipes:
    """A cache of its own; `made` are the recipes in the order in which they were made."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.time = 0

    @contextlib.contextmanager
    def entry(self, recipe: str, fresh: bool = False) -> Iterator[Path]:
        def make(path: Path, log: Path) -> None:
            (path / "what").write_text(recipe)
            self.made.append(recipe)
            if recipe == "bad":
                raise LabError("no")

        with cache.entry("pot", recipe, make, fresh) as path:
            self.time += 1
            os.utime(path, (self.time, self.time))  # the clock of a file system may stand still meanwhile
            assert (path / "what").read_text() == recipe
            yield path


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipes:
    monkeypatch.setenv("VMPIN_LAB_CACHE", str(tmp_path))
    return Recipes()


def test_a_recipe_is_made_once_and_a_changed_one_again(recipes: Recipes) -> None:
    for recipe, fresh in (("a", False), ("a", False), ("b", False), ("a", False), ("a", True), ("a", False)):
        with recipes.entry(recipe, fresh):
            pass
    assert recipes.made == ["a", "b", "a"]


def test_what_could_not_be_made_is_tried_again(recipes: Recipes, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(LabError), recipes.entry("bad"):
            pass
        assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    assert recipes.made == ["bad", "bad"]


def test_the_two_used_last_are_kept_and_what_is_in_use(recipes: Recipes, tmp_path: Path) -> None:
    def kept() -> set[str]:
        return {path.read_text() for path in tmp_path.glob("pot-*/what")}

    with recipes.entry("a"):
        for recipe in "b", "c", "b", "d":
            with recipes.entry(recipe):
                pass
        assert kept() == {"a", "b", "d"}
        cache.clean()
        assert kept() == {"a"}
    cache.clean()
    assert kept() == set()


def test_junit_results_are_read_as_cases(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    file.write_text("""<?xml version="1.0"?><testsuites><testsuite tests="3">
        <testcase classname="tests.lab.node_tests.test_node" name="test_a" time="1.5" />
        <testcase classname="tests.lab.node_tests.test_node" name="test_b" time="0"><failure message="no">why</failure>
        </testcase>
        <testcase classname="x" name="test_c"><skipped message="not here" /></testcase></testsuite></testsuites>""")
    assert cases(file) == [Case("test_node::test_a", 1.5, "passed"), Case("test_node::test_b", 0.0, "failed", "why"),
                           Case("x::test_c", 0.0, "skipped", "not here")]


@pytest.mark.parametrize(("texts", "again"), [
    (["E  no"] * FEW, [f"test_a::test_{number}" for number in range(FEW)]), (["E  no"] * (FEW + 1), []), ([], [])],
                         ids=["few", "too many", "none failed"])
def test_a_few_failed_tests_are_made_once_more(texts: list[str], again: list[str], tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    failures = "".join(f'<testcase classname="tests.lab.node_tests.test_a" name="test_{number}">'
                       f'<failure>{text}</failure></testcase>' for number, text in enumerate(texts))
    file.write_text(f'<testsuite>{failures}<testcase classname="x" name="test_c" /></testsuite>')
    assert once_more(file) == [f"tests/lab/node_tests/{name.replace('::', '.py::')}" for name in again]
    done = subprocess.run([sys.executable, "-m", "lab.results", str(file)], env=os.environ | {
        "PYTHONPATH": str(REPOSITORY / "tests")}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0 if again else 1, once_more(file))


def test_the_files_under_test_are_those_of_git() -> None:
    need_tool("git")
    if not (REPOSITORY / ".git").exists():
        pytest.skip("is no git repository")
    names = repository_files()
    assert "pyproject.toml" in names
    assert "tests/lab/init" in names
    assert not any(name.startswith((".venv/", "build/")) for name in names)


def test_a_layout_that_a_kernel_lacks_is_refused() -> None:
    for cgroup in (Cgroup.V1, Cgroup.HYBRID):
        assert Variant(Kernel.V6_1, cgroup, Topology.FULL)
        with pytest.raises(ValueError, match="has no cpusets of cgroup v1"):
            Variant(Kernel.V6_12, cgroup, Topology.FULL)
