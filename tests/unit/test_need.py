"""What a test needs and the machine has not is a skip with the reason, and a failure in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from need import need_tool, need_unshare


@pytest.mark.parametrize("ci", ["", "true"])
def test_what_cannot_be_had_is_named(monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    monkeypatch.setenv("CI", ci)
    outcome = pytest.fail.Exception if ci else pytest.skip.Exception
    missing = "no-such-program"  # no constant: test_packaging would want its package
    with pytest.raises(outcome, match=f"needs {missing}"):
        need_tool(missing)
    with pytest.raises(outcome, match=r"needs .*unshare --no-such-namespace: .*no-such-namespace"):
        need_unshare("--no-such-namespace")


def test_what_works_is_put_before_a_command() -> None:
    assert need_unshare("--help")[1:] == ["--help"]


def test_a_run_ends_with_what_was_not_tried(tmp_path: Path) -> None:
    tests = tmp_path / "test_few.py"
    tests.write_text("""import pytest
from need import lacking

@pytest.mark.parametrize("number", range(2))
def test_first(number): lacking("needs spoons")

@pytest.mark.skip(reason="is not for Mondays")
def test_second(): pass

@pytest.mark.lab
def test_third(): raise AssertionError
""")
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-m", "pytest", "-c", root / "pyproject.toml", "-p", "not_tried", "-m",
                          "not lab and not release", "-n", "1", "-p", "no:cacheprovider", tests],
                         env=os.environ | {"CI": "", "PYTEST_ADDOPTS": ""}, capture_output=True, text=True,
                         cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    _, _, end = ran.stdout.partition("= not tried =")
    first, second, lab, release, last = end.splitlines()[1:]
    assert (first, second) == ("    2 skipped: needs spoons", "    1 skipped: is not for Mondays")
    assert lab.startswith("  all marked lab: boots whole nodes")
    assert release.startswith("  all marked release: ")
    assert "3 skipped" in last
