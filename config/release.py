"""Everything that is published of one commit, into one directory: `make release`.

    python config/release.py -o build/release [--only wheel --only deb]

makes, of version V: the wheel and the source (vmpin-V-*.whl, vmpin-V.tar.gz), a package for nodes with Debian and one
for nodes with rpm (config/packages.py), the two container images (config/image.py), the chart, the bill of materials
(CycloneDX), the hashes of what a node installs from a package index (requirements.txt), the changelog's part about it,
and SHA256SUMS over all of them. One commit and the same Debian mirror give the same bytes: all times are that of the
commit.

Nothing is signed here: docs/release.md has the commands for the owner of the key."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import image
import packages

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "config/helm/vmpin"
SUMS = "SHA256SUMS"


@dataclass(frozen=True)
class Build:
    """:ivar output: the directory of what is made. :ivar wheel: in it. :ivar version: the wheel's (PEP 440)."""

    output: Path
    wheel: Path
    version: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("build/release"), metavar="DIR",
                        help="emptied first, if it holds an earlier release (default: build/release)")
    parser.add_argument("--only", action="append", choices=sorted(PARTS), metavar="PART",
                        help=f"only this part, repeatable: {', '.join(sorted(PARTS))}")
    args = parser.parse_args()
    wanted = args.only or list(PARTS)
    if {"images"} & set(wanted) and os.geteuid() != 0:
        parser.error("the images need root (debootstrap); without root give the other parts with --only")
    os.environ["SOURCE_DATE_EPOCH"] = str(image.source_time())
    emptied(args.output)
    build = wheel_and_source(args.output.resolve())
    for part in wanted:
        print(f"{part} ...", flush=True)
        PARTS[part](build)
    files = sorted(path for path in build.output.iterdir() if path.name != SUMS)
    (build.output / SUMS).write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files))
    for path in files:
        print(f"{path.stat().st_size / 1e6:8.1f} MB  {path.name}")
    print(f"{build.output / SUMS}: check with sha256sum -c; docs/release.md has how to sign and publish")
    return 0


def emptied(output: Path) -> None:
    """Make the directory, without an earlier release. :raises SystemExit: where it holds other files."""
    output.mkdir(parents=True, exist_ok=True)
    names = {path.name for path in output.iterdir()}
    if names and SUMS not in names and not all(name.startswith("vmpin") for name in names):
        sys.exit(f"{output} holds files that are not of a release: give another directory with -o")
    for name in names:
        (output / name).unlink()


def wheel_and_source(output: Path) -> Build:
    ran = subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(output), str(ROOT)],
                         capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"cannot build the wheel:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    (wheel,) = output.glob("*.whl")
    return Build(output, wheel, wheel.name.split("-")[1])


def chart_version(version: str) -> str:
    """As semantic versioning has it: 0.1.0.dev3+gabc is 0.1.0-dev.3+gabc."""
    return re.sub(r"\.dev(\d+)", r"-dev.\1", version)


def chart(build: Build) -> None:
    """As `helm package --version --app-version` makes it; its images are those of this release."""
    version = chart_version(build.version)
    stamped = re.sub(r"^version: .*$", f"version: {version}", (CHART / "Chart.yaml").read_text(), flags=re.MULTILINE)
    stamped = re.sub(r"^appVersion: .*$", f'appVersion: "{image.tag(build.version)}"', stamped, flags=re.MULTILINE)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
            data = stamped.encode() if path.name == "Chart.yaml" else path.read_bytes()
            entry = tarfile.TarInfo(f"vmpin/{path.relative_to(CHART)}")
            entry.size, entry.mtime, entry.mode = len(data), image.source_time(), 0o644
            archive.addfile(entry, io.BytesIO(data))
    (build.output / f"vmpin-{version}.tgz").write_bytes(gzip.compress(raw.getvalue(), 9, mtime=0))


def materials(build: Build) -> None:
    """The bill of materials of a node: vmpin, and each package of the lock file with its hashes."""
    path = build.output / f"vmpin-{build.version}.cdx.json"
    with tempfile.TemporaryDirectory(prefix="vmpin-sbom-") as top:
        project = Path(top, "pyproject.toml")
        project.write_text(f'[project]\nname = "vmpin"\nversion = "{build.version}"\n'
                           'license = {text = "Apache-2.0"}\n')
        ran = subprocess.run(
            [sys.executable, "-m", "cyclonedx_py", "requirements", "--output-reproducible", "--of", "JSON",
             "--sv", "1.5", "--mc-type", "application", "--pyproject", str(project), "-o", str(path),
             str(image.LOCK)], capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"cannot make the bill of materials:\n{ran.stderr[-2000:]}")


def changes_of(version: str, changelog: str) -> str:
    """The changelog's section of a version; for a build before a release, the first section, which is of the next one.
    :raises SystemExit: where a release has none, or one without its day."""
    sections = re.split(r"^(?=## )", changelog, flags=re.MULTILINE)[1:]
    if not re.fullmatch(r"[0-9.]+", version):
        return sections[0]
    section = next((text for text in sections if text.startswith(f"## {version} ")), "")
    if not re.match(r"## \S+ \(\d{4}-\d{2}-\d{2}\)\n", section):
        sys.exit(f"CHANGELOG.md has no section '## {version} (YYYY-MM-DD)': docs/release.md")
    return section


def changes(build: Build) -> None:
    text = changes_of(build.version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    (build.output / f"vmpin-{build.version}-changes.md").write_text(text, encoding="utf-8")


def lock(build: Build) -> None:
    shutil.copyfile(image.LOCK, build.output / f"vmpin-{build.version}-requirements.txt")


def images(build: Build) -> None:
    image.make(build.wheel, build.output)


def deb(build: Build) -> None:
    packages.deb(build.wheel, build.version, build.output)


def rpm(build: Build) -> None:
    packages.rpm(build.wheel, build.version, build.output)


#: Each adds its files to the directory, which has the wheel and the source.
PARTS: Mapping[str, Callable[[Build], None]] = {
    "changes": changes, "chart": chart, "lock": lock, "sbom": materials, "deb": deb, "rpm": rpm, "images": images}


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
