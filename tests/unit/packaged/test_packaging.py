"""The wheel: what is in it, and that vmpin works from it, far from the checkout. And what `make test` installs."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from need import lacking

from vmpin.cli.verbs import grammar
from vmpin.config.settings import SETTINGS
from vmpin.features.shell.verbs.manual_pages import pages

ROOT = Path(__file__).parents[3]

_SCENARIO = """\
topology: {online: "0-3"}
shared_pool: "0"
sandboxes:
  - {id: pod, vcpus: 2, containers: [{id: main, cpuset: "2"}, {id: side, cpuset: "0"}]}
"""


def _run(*argv: str | Path, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run with nothing of the checkout in reach."""
    clean = {key: value for key, value in os.environ.items()
             if not key.startswith(("PYTHON", "VMPIN_", "VIRTUAL_ENV", "COV_"))}
    return subprocess.run(argv, cwd=cwd, env=clean, input=stdin, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    out = tmp_path_factory.mktemp("dist")
    built = _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    assert built.returncode == 0, built.stdout + built.stderr
    (made,) = out.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `vmpin` of a new venv that the wheel was installed into."""
    place = tmp_path_factory.mktemp("installed")
    venv.create(place / "venv")
    pip = _run(sys.executable, "-m", "pip", "--python", place / "venv/bin/python", "install",
               "--disable-pip-version-check", wheel, cwd=place)
    if pip.returncode:
        lacking(f"needs a package index with vmpin's dependencies: {pip.stderr.strip().splitlines()[-1]}")
    return place / "venv/bin/vmpin"


def version(wheel: Path) -> str:
    return wheel.name.split("-")[1]


def test_a_build_says_which_commit_it_is_of(wheel: Path) -> None:
    """Before a release: `pip install --upgrade` takes the later build, and `vmpin --version` shows which one runs."""
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+(\+g[0-9a-f]+(\.d\d{8})?)?)?", version(wheel))


def test_the_wheel_holds_the_files_that_are_no_modules(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"vmpin/py.typed", f"vmpin-{version(wheel)}.dist-info/licenses/LICENSE"} <= names
    for directory in "hooks", "config", "guest", "docs":
        ours = {f"vmpin/data/{path.relative_to(ROOT)}" for path in (ROOT / directory).rglob("*")
                if path.is_file() and "__pycache__" not in path.parts}
        assert ours
        assert ours <= names


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        others = {name for name in archive.namelist() if not re.match(r"vmpin(-[^/]*\.dist-info)?/", name)}
    assert others == {f"vmpin-{version(wheel)}.data/data/share/man/man1/{page}" for page in pages(grammar(), "")}


def test_the_manual_pages_are_where_man_looks_for_them(installed: Path, tmp_path: Path) -> None:
    """Beside the program; and they are the pages that the program prints."""
    for verb in "status", "verify":
        page = installed.parents[1] / f"share/man/man1/vmpin-{verb}.1"
        assert page.read_text() == _run(installed, "help", "--man", verb, cwd=tmp_path).stdout


def test_version(wheel: Path, installed: Path, tmp_path: Path) -> None:
    ran = _run(installed, "--version", cwd=tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"vmpin {version(wheel)}\n", "")


def test_it_is_installed_as_a_plugin_of_kubectl_too(installed: Path, tmp_path: Path) -> None:
    ran = _run(installed.with_name("kubectl-vmpin"), "status", "--help", cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("usage: kubectl vmpin status ")


def test_config(installed: Path, tmp_path: Path) -> None:
    ran = _run(installed, "config", "-o", "json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert set(json.loads(ran.stdout)) == {"version", *(setting.key for setting in SETTINGS)}


def test_plan_of_a_scenario(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "node.yaml").write_text(_SCENARIO)
    ran = _run(installed, "plan", "--scenario", "node.yaml", "-o", "json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    (sandbox,) = json.loads(ran.stdout)["sandboxes"]
    assert (sandbox["verdict"], sandbox["mask"]) == ("pinned", "0,2")


def test_the_installed_hook_runs(installed: Path, tmp_path: Path) -> None:
    ran = _run(installed, "install", "hook", "--hooks-dir", "hooks.d", "--socket", "/nonexistent/vmpin/hook.sock",
               "--spool", str(tmp_path / "spool"), "-o", "json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert all(Path(path).is_file() for path in json.loads(ran.stdout)["written"])
    (registration,) = (tmp_path / "hooks.d").glob("*-createRuntime.json")
    hook = json.loads(registration.read_text())["hook"]
    assert hook["path"] == str(tmp_path / "hooks.d" / "vmpin-hook")
    assert stat.S_IMODE(os.stat(hook["path"]).st_mode) == 0o755
    ran = _run(hook["path"], *hook["args"][1:], cwd=tmp_path, stdin='{"id":"c1"}')
    assert ran.returncode == 0
    (kept,) = (tmp_path / "spool").iterdir()
    assert kept.read_text().endswith('\n{"id":"c1"}')


def test_nothing_of_the_installation_points_into_the_checkout(installed: Path) -> None:
    ran = _run(installed.with_name("python"), "-c", "import vmpin; print(vmpin.__path__[0])", cwd=installed.parent)
    assert not Path(ran.stdout.strip()).is_relative_to(ROOT)


def _needed() -> dict[str, str]:
    """What `make test` and `make test-lab` look for, with the package that brings it."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    kinds = re.findall(r"^(?:TEST|LAB|UNPACKED)_NEEDS := (.*)$", makefile, re.MULTILINE)
    assert len(kinds) == 3
    return dict(need.split("=") for need in " ".join(kinds).split())


def test_make_installs_every_tool_that_a_test_needs() -> None:
    """Where a test is content with one of several, one is enough."""
    always = {"chroot", "mount", "nsenter", "prlimit", "setpriv", "sh", "sleep", "stdbuf", "taskset", "tee",
              "timeout", "umount", "unshare", "dpkg", "dpkg-deb"}  # of coreutils, util-linux, mount, dash and dpkg
    brought = set(_needed()) | always
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "need_tool":
                names = {each.value for each in node.args if isinstance(each, ast.Constant)}
                assert not names or names & brought, f"{path.name}:{node.lineno}: {names}"


@pytest.mark.parametrize(("target", "ci", "runs"), [
    ("test", "", ["pytest tests -m 'not lab and not guest and not cluster and not release'"]),
    ("test", "true", ["pytest tests -m 'not release'"]),
    ("test-all", "", ["pytest tests -m 'not release'", "pytest tests -m release", "python -m soak"])])
def test_what_ci_leaves_out_is_run_before_a_release(target: str, ci: str, runs: list[str]) -> None:
    said = _run("make", "--dry-run", target, f"CI={ci}", cwd=ROOT).stdout
    assert [what for what in runs if what in said] == runs


@pytest.fixture
def install(tmp_path: Path) -> Path:
    """.ci/install in a directory of its own, into which it logs."""
    return Path(shutil.copytree(ROOT / ".ci", tmp_path / "checkout/.ci")) / "install"


def _as_root(tmp_path: Path, apt_get: str, uid: int = 0) -> dict[str, str]:
    """An environment with this script as apt-get."""
    for name, script in (("id", f"echo {uid}"), ("apt-get", apt_get)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


@pytest.mark.parametrize("words", [["-h"], ["--must", "--help"]])
def test_help_prints_the_usage_of_the_installer(install: Path, tmp_path: Path, words: list[str]) -> None:
    ran = subprocess.run([install, *words], env=_as_root(tmp_path, f"touch {tmp_path}/started"), capture_output=True,
                         text=True)
    lines = ran.stdout.splitlines()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert lines[0].startswith("Installs Debian packages")
    assert lines[-1].endswith("unless --must is given.")
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("words", [["--wrong"], ["--must", "-x", "no-such-package"], ["no-such-package", "--must"]])
def test_a_wrong_option_installs_nothing(install: Path, tmp_path: Path, words: list[str]) -> None:
    ran = subprocess.run([install, *words], env=_as_root(tmp_path, f"touch {tmp_path}/started"), capture_output=True,
                         text=True)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "is no option here" in ran.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("root", [True, False])
def test_what_is_missing_is_named_with_the_line_to_type(install: Path, tmp_path: Path, root: bool) -> None:
    """Nothing is installed for who is not root; a tool that is there is not named. What apt-get prints is logged."""
    environment = _as_root(tmp_path, f"echo $DEBIAN_FRONTEND apt-get $* | tee -a {tmp_path}/log", 0 if root else 1000)
    ran = subprocess.run([install, "sh=dash", "no-such-tool=spoon", "/no/such/file=fork"], cwd=install.parents[1],
                         env=environment, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "")
    if root:
        first, second = (tmp_path / "log").read_text().splitlines()
        assert first.startswith("noninteractive apt-get")
        assert first.endswith(" update")
        assert second.endswith(" install --yes --no-install-recommends spoon fork")
        assert ran.stderr == "installing 2 Debian packages: spoon fork: log in build/install.log\n"
        assert second in (install.parents[1] / "build/install.log").read_text()
    else:
        assert "apt-get install --yes --no-install-recommends spoon fork" in ran.stderr
        assert not (tmp_path / "log").exists()


def test_an_installation_that_fails_shows_its_last_lines_and_its_log(install: Path, tmp_path: Path) -> None:
    environment = _as_root(tmp_path, "case $* in *install*) seq 40; echo E: no space; exit 100 ;; esac; seq 50 90")
    ran = subprocess.run([install, "no-such-tool=spoon"], cwd=tmp_path, env=environment, capture_output=True,
                         text=True)
    assert (ran.returncode, ran.stdout) == (100, "")
    progress, *last, command, log = ran.stderr.splitlines()
    assert progress == "installing a Debian package: spoon: log in checkout/build/install.log"
    assert last == [*map(str, range(22, 41)), "E: no space"]
    assert command.startswith("failed with exit code 100: apt-get ")
    assert log == "these are the last lines of checkout/build/install.log"


def test_what_would_start_a_server_is_only_unpacked(install: Path, tmp_path: Path) -> None:
    """And not fetched again where it is."""
    environment = _as_root(tmp_path, f"""echo $* >>{tmp_path}/log
case "$*" in *download*) cd {tmp_path} && dpkg-deb --build package "$OLDPWD/spoon_1_all.deb" ;; esac""")
    tool = tmp_path / "package/usr/bin/no-such-tool"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    (tmp_path / "package/DEBIAN").mkdir()
    (tmp_path / "package/DEBIAN/control").write_text(
        "Package: spoon\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n")
    for _ in range(2):
        ran = subprocess.run([install, "--unpack", "out", "no-such-tool=spoon"], cwd=tmp_path, env=environment,
                             capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
    assert os.access(tmp_path / "out/usr/bin/no-such-tool", os.X_OK)
    assert not list((tmp_path / "out").glob("*.deb"))
    assert (tmp_path / "log").read_text().count("download") == 1
    assert "install " not in (tmp_path / "log").read_text()
