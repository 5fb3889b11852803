"""What `make release` makes: the names of one version, the lock files, the chart, and the package of Debian."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml
from need import lacking, need_tool
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "config"))
import image  # noqa: E402
import packages  # noqa: E402
import release  # noqa: E402


@pytest.mark.parametrize(("version", "chart", "package", "tag"), [
    ("0.1.0.dev12+gabc1234", "0.1.0-dev.12+gabc1234", "0.1.0~dev12+gabc1234", "0.1.0.dev12-gabc1234"),
    ("0.1.0", "0.1.0", "0.1.0", "0.1.0")])
def test_a_version_has_the_form_of_each_format(version: str, chart: str, package: str, tag: str) -> None:
    assert release.chart_version(version) == chart
    assert packages.package_version(version) == package
    assert image.tag(version) == tag
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", image.tag(version)), "distribution/reference"


def test_dpkg_has_the_builds_in_the_order_of_their_commits() -> None:
    dpkg = need_tool("dpkg")
    builds = ("0.1.0.dev9+gfff", "0.1.0.dev10+gaaa", "0.1.0", "0.1.1.dev1")
    versions = [packages.package_version(build) for build in builds]
    for older, newer in itertools.pairwise(versions):
        assert subprocess.run([dpkg, "--compare-versions", older, "lt", newer], check=False).returncode == 0


@pytest.mark.parametrize(("code", "called"), [
    (0, ["uninstall"]), (2, ["uninstall", "systemctl disable --now vmpin.service", "unpin --all"])])
def test_a_removed_package_leaves_no_masks_whatever_uninstall_finds(tmp_path: Path, code: int,
                                                                    called: list[str]) -> None:
    """A unit that was changed by hand stops `vmpin uninstall` before anything is done."""
    program, tool, log = tmp_path / "vmpin", tmp_path / "systemctl", tmp_path / "log"
    program.write_text(f"#!/bin/sh\necho \"$*\" >>{log}\nexit {code}\n")
    tool.write_text(f"#!/bin/sh\necho \"systemctl $*\" >>{log}\nexit 1\n")
    for file in program, tool:
        file.chmod(0o755)
    script = packages.REMOVING.replace("/opt/vmpin/bin/vmpin", str(program)).replace("/run/systemd/system", "/")
    subprocess.run(["sh", "-ec", script], check=True, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert log.read_text().splitlines() == called


def locked(path: Path) -> dict[str, tuple[Version, int]]:
    """Each package of a lock file: its version, and the number of its hashes."""
    texts = re.split(r"\n(?=\S)", path.read_text())
    lines = [(Requirement(text.partition(" \\")[0].strip()), text.count("--hash=sha256:")) for text in texts if text]
    return {canonicalize_name(line.name): (Version(str(line.specifier).removeprefix("==")), hashes)
            for line, hashes in lines}


@pytest.mark.parametrize("path", [image.LOCK, image.LOCK_KUBERNETES], ids=lambda path: path.stem)
def test_a_lock_file_has_every_dependency_with_its_hashes(path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["kubernetes"] if path == image.LOCK_KUBERNETES else []
    packages_of = locked(path)
    assert all(hashes for _, hashes in packages_of.values())
    for text in (*project["dependencies"], *extra):
        wanted = Requirement(text)
        assert packages_of[canonicalize_name(wanted.name)][0] in wanted.specifier


def test_both_lock_files_agree() -> None:
    """The second layer of the reporter's image replaces no file of the first."""
    node, reporter = locked(image.LOCK), locked(image.LOCK_KUBERNETES)
    assert node.items() <= reporter.items()


def test_a_lock_file_names_no_index() -> None:
    for path in image.LOCK, image.LOCK_KUBERNETES:
        assert "://" not in path.read_text()
        assert "index" not in path.read_text()


def test_the_chart_is_of_the_version_and_of_its_images(tmp_path: Path) -> None:
    need_tool("git")
    build = release.Build(tmp_path, tmp_path / "none.whl", "0.1.0.dev12+gabc1234")
    release.chart(build)
    raw = gzip.decompress((tmp_path / "vmpin-0.1.0-dev.12+gabc1234.tgz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        names, stamped = archive.getnames(), archive.extractfile("vmpin/Chart.yaml")
        assert stamped is not None
        chart = yaml.safe_load(stamped.read())
    assert (chart["version"], chart["appVersion"]) == ("0.1.0-dev.12+gabc1234", "0.1.0.dev12-gabc1234")
    assert set(names) == {f"vmpin/{path.relative_to(release.CHART)}" for path in release.CHART.rglob("*")
                          if path.is_file()}
    before = (tmp_path / "vmpin-0.1.0-dev.12+gabc1234.tgz").read_bytes()
    release.chart(build)
    assert (tmp_path / "vmpin-0.1.0-dev.12+gabc1234.tgz").read_bytes() == before


CHANGELOG = "# Changelog\n\n## 0.2.0 (unreleased)\n\n- new\n\n## 0.1.0 (2026-11-30)\n\n- first\n"


@pytest.mark.parametrize(("version", "text"), [
    ("0.1.0", "## 0.1.0 (2026-11-30)\n\n- first\n"), ("0.1.1.dev3+gabc", "## 0.2.0 (unreleased)\n\n- new\n\n")])
def test_a_build_has_its_part_of_the_changelog(version: str, text: str) -> None:
    assert release.changes_of(version, CHANGELOG) == text


@pytest.mark.parametrize("version", ["0.2.0", "0.3.0"])
def test_a_release_without_a_dated_section_is_not_built(version: str) -> None:
    with pytest.raises(SystemExit, match="CHANGELOG"):
        release.changes_of(version, CHANGELOG)


def test_the_changelog_begins_with_the_version_that_comes_next() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert re.fullmatch(r"\d+\.\d+\.\d+ \((unreleased|\d{4}-\d{2}-\d{2})\)", headings[0])
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d{2}-\d{2}\)", heading) for heading in headings[1:])


def test_another_directory_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(SystemExit, match="not of a release"):
        release.emptied(tmp_path)
    assert (tmp_path / "mine").exists()


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release without what takes root or rpm."""
    need_tool("dpkg-deb")
    need_tool("git")
    pytest.importorskip("build")
    out = tmp_path_factory.mktemp("release") / "out"
    built = subprocess.run([sys.executable, ROOT / "config/release.py", "-o", out, "--only", "deb", "--only", "lock"],
                           capture_output=True, text=True, timeout=1200)
    if "No matching distribution" in built.stderr + built.stdout:
        lacking("needs a package index with vmpin's dependencies")
    assert built.returncode == 0, built.stdout + built.stderr
    return out


@pytest.mark.root
def test_the_package_of_debian_runs_from_its_own_files(released: Path, tmp_path: Path) -> None:
    """Unpacked below another root, without its scripts; nothing of this environment is imported."""
    (package,) = released.glob("*.deb")
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path], check=True)
    for link in "vmpin", "kubectl-vmpin":
        assert os.readlink(tmp_path / "usr/bin" / link) == f"/opt/vmpin/bin/{link}"
    unit = (tmp_path / "usr/lib/systemd/system/vmpin.service").read_text()
    assert "\nExecStart=/opt/vmpin/bin/vmpin watch\n" in unit
    launcher = tmp_path / "opt/vmpin/bin/vmpin"
    launcher.write_text(launcher.read_text().replace("/opt/vmpin", f"{tmp_path}/opt/vmpin"))
    ran = subprocess.run([sys.executable, "-IS", launcher, "--version"], capture_output=True, text=True, env={},
                         timeout=120)
    assert ran.returncode == 0, ran.stderr
    (wheel,) = released.glob("*.whl")
    assert ran.stdout == f"vmpin {wheel.name.split('-')[1]}\n"
    assert {path.suffix for path in (tmp_path / "etc").rglob("*")} == set(), "nothing in /etc"
    scripts = [line for record in (tmp_path / "opt/vmpin/lib").glob("*.dist-info/RECORD")
               for line in record.read_text().splitlines() if "bin/" in line.partition(",")[0]]
    assert scripts == [], "their hashes are those of the path of the Python that built them"


@pytest.mark.root
def test_the_sums_are_of_every_file(released: Path) -> None:
    sums = dict(line.split("  ")[::-1] for line in (released / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {path.name for path in released.iterdir()} - {"SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256((released / name).read_bytes()).hexdigest() == digest


@pytest.mark.release
def test_two_builds_of_a_commit_are_the_same_bytes(released: Path, tmp_path: Path) -> None:
    again = subprocess.run([sys.executable, ROOT / "config/release.py", "-o", tmp_path / "out", "--only", "deb",
                            "--only", "lock"], capture_output=True, text=True, timeout=1200)
    assert again.returncode == 0, again.stdout + again.stderr
    assert (tmp_path / "out/SHA256SUMS").read_text() == (released / "SHA256SUMS").read_text()


@pytest.mark.release
@pytest.mark.root
def test_a_removed_rpm_leaves_nothing(released: Path, tmp_path: Path) -> None:
    """In a root of its own, without its scripts: they are those of the other package."""
    rpm = [need_tool("rpm"), f"--root={tmp_path}/root", "--noscripts"]
    need_tool("rpmbuild")
    (wheel,) = released.glob("*.whl")
    package = packages.rpm(wheel, wheel.name.split("-")[1], tmp_path)
    (tmp_path / "root").mkdir()
    for words in ("--install", "--nodeps", str(package)), ("--erase", "vmpin"):
        subprocess.run([*rpm, *words], check=True)
        there = (tmp_path / "root/opt/vmpin/bin/vmpin").exists()
        assert there is (words[0] == "--install")
    assert not (tmp_path / "root/opt/vmpin").exists()
    assert [path for path in (tmp_path / "root/usr").rglob("*") if not path.is_dir() and "rpm" not in str(path)] == []
