"""Each feature can be taken out: without its folder, its tests, its page and its line in vmpin/features/__init__.py
the core works, and nothing of the product names it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait

from vmpin.feature import Feature, features

ROOT = Path(__file__).parents[2]
#: Of a checkout, what a copy needs to be run, and to be tested besides.
PARTS = ("vmpin", "guest", "hooks", "config", "docs")
TEST_PARTS = ("tests", "pyproject.toml", "README.md", "Makefile", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md",
              "LICENSE", "hatch_build.py", ".ci")
#: Tests of whole documents, screens and packages, which show what all features together add.
WHOLE = ("packaged", "config/test_config_file.py", "cli/test_hints.py", "cli/test_schemas.py",
         "cli/test_screens.py", "cli/test_pictures.py", "test_architecture.py", "test_docstrings.py", "test_floors.py",
         "test_loaded_modules.py", "test_outside_numbers.py")
SCENARIO = """\
topology: {online: "0-7", nodes: {0: "0-7"}}
shared_pool: "0-1"
sandboxes: [{id: shop, vcpus: 2, containers: [{id: web, cpuset: "2", exclusive: true}]}]
"""


#: Help leaves out the verbs of a feature that the configuration switches off; this one cannot be used.
EVERY_VERB = ("--set", "no.such=key", "--help")


class WithoutFeature:
    """A copy of the project without one feature, and its commands on a node without VMs."""

    def __init__(self, feature: Feature, directory: Path) -> None:
        self.feature, self.root, self._directory = feature, directory / "project", directory
        self._copy(*PARTS)
        names = self.root / "vmpin" / "features" / "__init__.py"
        text, count = re.subn(rf'^    "{feature.name}",\n', "", names.read_text(), flags=re.MULTILINE)
        assert count == 1
        names.write_text(text)
        nothing = {name: directory / name for name in ("run", "kata_go", "kata_rs", "kubelet", "nri", "cgroup")}
        self.flags = [*(f"--set=paths.{name}={path}" for name, path in nothing.items()), "--set=node.shared_pool=0",
                      "--set=watch.births=false", "--set=watch.only=none-of-this-machine"]
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("VMPIN_")}
        self.environment["PYTHONPATH"] = str(self.root)

    def _copy(self, *parts: str) -> None:
        for part in parts:
            source, target = ROOT / part, self.root / part
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns(".pytest_cache"))
            elif source.exists():
                target.parent.mkdir(exist_ok=True)
                shutil.copy2(source, target)
            shutil.rmtree(target / "features" / self.feature.name, ignore_errors=True)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "vmpin.cli.main", *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*words), cwd=self._directory, env=self.environment, capture_output=True,
                              text=True, timeout=600, check=False, stdin=subprocess.DEVNULL)

    def tests(self, *names: str) -> subprocess.CompletedProcess[str]:
        self._copy(*TEST_PARTS)
        return subprocess.run([sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *names],
                              cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=3600,
                              check=False, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module", params=features(), ids=lambda feature: feature.name)
def without(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithoutFeature]:
    copy = WithoutFeature(request.param, tmp_path_factory.mktemp(request.param.name))
    yield copy
    shutil.rmtree(copy.root)


def test_nothing_else_in_the_product_names_its_modules(without: WithoutFeature) -> None:
    name = re.compile(rf"\bfeatures[./]{without.feature.name}\b")
    assert [f"{path.relative_to(without.root)}:{number}" for path in (without.root / "vmpin").rglob("*.py")
            for number, line in enumerate(path.read_text().splitlines(), 1) if name.search(line)] == []


def test_the_help_lacks_its_verbs_and_the_configuration_its_sections(without: WithoutFeature) -> None:
    assert without.feature.verbs.keys() <= set(_verbs(_ok(subprocess.run(
        without.command(*EVERY_VERB), env={**without.environment, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=600, check=False))))
    assert set(_verbs(_ok(without.run(*EVERY_VERB)))).isdisjoint(without.feature.verbs)
    for section in without.feature.sections:
        file = without.root / "vmpin.yaml"
        file.write_text(f"{section}: {{a: 1}}\n")
        refused = without.run("--config", str(file), "config")
        assert refused.returncode == 2
        assert f"unknown section '{section}'" in refused.stderr


def test_status_verify_and_plan_work(without: WithoutFeature) -> None:
    scenario = without.root / "node.yaml"
    scenario.write_text(SCENARIO)
    if "--scenario" in _ok(without.run("plan", "--help")):
        assert "shop" in _ok(without.run("plan", "--scenario", str(scenario)))
    _ok(without.run(*without.flags, "status", "--direct"))
    verify = without.run(*without.flags, "verify")
    assert verify.returncode in (0, 1, 3), verify.stderr
    assert "Traceback" not in verify.stderr
    nodes = without.run(*without.flags, "verify", "--all-nodes", "--kubeconfig", str(without.root / "none"))
    assert nodes.returncode == 2
    assert "unexpected" not in nodes.stderr
    if "doctor" in _verbs(_ok(without.run(*EVERY_VERB))):
        doctor = without.run(*without.flags, "doctor")
        assert doctor.returncode in (0, 1), doctor.stderr
        assert "Traceback" not in doctor.stderr


def test_a_watcher_starts_answers_and_ends(without: WithoutFeature) -> None:
    watcher = subprocess.Popen(without.command(*without.flags, "watch"), env=without.environment,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait(lambda: json.loads(_ok(without.run(*without.flags, "status", "-o", "json")))["watcher"] == watcher.pid,
             "the watcher does not answer")
        watcher.send_signal(signal.SIGTERM)
        _, log = watcher.communicate(timeout=600)
    finally:
        watcher.kill()
    assert watcher.returncode == 0, log
    assert "ERROR" not in log


@pytest.mark.release
def test_all_of_the_cores_unit_tests_pass(without: WithoutFeature) -> None:
    done = without.tests("tests/unit", *(f"--ignore=tests/unit/{name}" for name in WHOLE))
    assert done.returncode == 0, done.stdout[-4000:]


def _ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def _verbs(page: str) -> list[str]:
    """The commands that a page of help lists."""
    return re.findall(r"^ {2,4}([a-z-]+) {2,}", page, re.MULTILINE)
