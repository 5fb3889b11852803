"""The node's tests, as seen from the build machine: a boot for each node of RUNS.

A few minutes a boot. Each is one test here; its cases are listed as they pass, and a failure has the texts of all that
failed. By hand rather `python -m lab run`, which takes other layouts and single tests (docs/testing.md).
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from need import lacking, need_root, need_tool

from lab.node import REPOSITORY, repository_files
from lab.results import Case, cases
from lab.variant import Cgroup, Kernel, Topology, Variant


@pytest.fixture
def machine() -> None:
    """What building and booting the node takes."""
    if platform.machine() != "x86_64":
        pytest.skip("the node is an x86_64 machine")
    need_root()
    need_tool("debootstrap")
    need_tool("qemu-system-x86_64")
    need_tool("modprobe")
    need_tool("git")
    if b"overlay" not in Path("/proc/filesystems").read_bytes():
        lacking("needs overlayfs in the kernel")


def lab_run(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "lab", "run", *arguments], text=True, stdin=subprocess.DEVNULL,
                          env=os.environ | {"PYTHONPATH": str(REPOSITORY / "tests")}, check=False, **more)


#: Both kernels with everything; the older cgroups with what concerns them; few CPUs with all that can be run on them.
RUNS = ((Variant(Kernel.V6_12), ()), (Variant(Kernel.V6_1), ()),
        (Variant(Kernel.V6_1, Cgroup.V1), ("test_node.py", "test_vms.py", "test_changes.py")),
        (Variant(Kernel.V6_1, Cgroup.HYBRID, Topology.NOSMT), ()))


@pytest.mark.lab
@pytest.mark.root
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("variant", "files"), RUNS, ids=[str(variant) for variant, _ in RUNS])
def test_all_pass_in_the_node(variant: Variant, files: Sequence[str], capfd: pytest.CaptureFixture[str]) -> None:
    results = REPOSITORY / "build/lab" / str(variant)
    with capfd.disabled():  # it takes minutes: show how far it is
        print()
        done = lab_run("--kernel", variant.kernel, "--cgroup", variant.cgroup, "--topology", variant.topology,
                       "--results", str(results), "--", *(f"tests/lab/node_tests/{file}" for file in files))
    assert done.returncode in (0, 1), f"the lab itself failed; see above and {results}/console.log"
    found = cases(results / "junit.xml")
    failed = [case for case in found if case.outcome == "failed"]
    assert not failed, "\n\n".join(f"{case.name}\n{case.text}" for case in failed)
    assert done.returncode == 0
    # In the node nothing is lacking that a test may be skipped for.
    assert [case.name for case in found if case.outcome == "skipped"] == []


@pytest.mark.lab
@pytest.mark.root
@pytest.mark.usefixtures("machine")
def test_a_node_that_hangs_is_ended_with_its_console_kept(tmp_path: Path) -> None:
    """No node is done after two seconds."""
    done = lab_run("--timeout", "2", "--results", str(tmp_path / "results"), capture_output=True)
    assert done.returncode == 2, done.stderr
    assert "the node was not done after 2 s" in done.stderr
    assert (tmp_path / "results/console.log").exists()
    assert not (tmp_path / "results/status").exists()
    assert processes_with(str(tmp_path)) == []


def processes_with(word: str) -> list[str]:
    """The command lines that have a word in them."""
    found = []
    for path in Path("/proc").glob("[1-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if word in line]


def test_junit_results_are_read_as_cases(tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    file.write_text("""<?xml version="1.0"?><testsuites><testsuite tests="3">
        <testcase classname="tests.lab.node_tests.test_node" name="test_a" time="1.5" />
        <testcase classname="tests.lab.node_tests.test_node" name="test_b" time="0"><failure message="no">why</failure>
        </testcase>
        <testcase classname="x" name="test_c"><skipped message="not here" /></testcase></testsuite></testsuites>""")
    assert cases(file) == [Case("test_node::test_a", 1.5, "passed"), Case("test_node::test_b", 0.0, "failed", "why"),
                           Case("x::test_c", 0.0, "skipped", "not here")]


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
