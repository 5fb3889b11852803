"""The container images, as OCI archives, of Debian's packages and the wheel: `make image`, as root.

    python config/image.py --wheel dist/vmpin-*.whl -o build

writes build/vmpin-TAG.oci.tar (the watcher) and build/vmpin-TAG-kubernetes.oci.tar (with the client of the API
server, for the reporter), TAG being the version with a dash in place of its +. They share the first two layers. The
packages of Python are those of the lock files beside this file. Neither a registry nor a container engine is needed:
debootstrap makes the base from this machine's Debian mirror.

The same packages give the same bytes: names are sorted, times are those of the commit, and files that record the time
or place of the build are removed. Standard library only; config/helm describes how the images are run."""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SUITE = "trixie"
#: Of that suite.
PYTHON = "3.13"
GLIBC = 41
#: The repository, as the node's engine names it.
NAME = "docker.io/library/vmpin"
#: What `make lock` writes: each package of Python with its version and hashes.
LOCK, LOCK_KUBERNETES = (Path(__file__).with_name(f"requirements{suffix}.txt") for suffix in ("", "-kubernetes"))
PACKAGES = Path("usr/local/lib") / f"python{PYTHON}" / "dist-packages"
#: Of the reporter, which needs no rights; as in the chart's values.
REPORTER = 64750
#: Files that no program of the image reads, or that differ between builds. The list of packages stays, for scanners.
UNUSED = ("dev/*", "proc/*", "sys/*", "run/*", "tmp/*", "boot/*", "var/cache/*/*", "var/log/*", "var/lib/apt/*",
          "var/lib/dpkg/*-old", "var/lib/dpkg/info/*.md5sums", "usr/share/doc/*", "usr/share/man/*",
          "usr/share/locale/*", "usr/share/info/*", "usr/share/lintian", "usr/share/bug", "usr/share/doc-base",
          "usr/share/zoneinfo/*", "usr/lib/*/perl-base", "usr/bin/perl*", "usr/bin/apt*", "usr/lib/apt", "etc/apt",
          "usr/lib/*/libapt-*", "usr/share/perl*", "etc/hostname", "etc/resolv.conf", "etc/machine-id", "etc/*-",
          "etc/.pwd.lock", "etc/ld.so.cache", "var/lib/systemd", "**/__pycache__")
#: Lines of a RECORD. The scripts have the path of the Python that built them, and so has their hash.
_REMOVED = re.compile(r"(?:\.\./)*bin/|[^,]*/direct_url\.json,")
LAUNCHER = """\
#!/usr/bin/python3 -I
import sys

from vmpin.cli.main import main

sys.exit(main())
"""


@dataclass(frozen=True)
class Layer:
    """A compressed tar file. :ivar diff_id: digest of what is in it. :ivar size: bytes of the files in it."""

    blob: bytes
    diff_id: str
    size: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, default=Path("build"), metavar="DIR")
    parser.add_argument("--name", default=NAME, help="repository, as the node's engine names it")
    parser.add_argument("--mirror", default="", help="of Debian; the machine's own by default")
    args = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("needs root: debootstrap makes other users' files")
    if re.match(r"vmpin-[^-]+-", args.wheel.name) is None:
        parser.error(f"{args.wheel} is no wheel of vmpin")
    make(args.wheel.resolve(), args.output, args.name, args.mirror)
    return 0


def tag(version: str) -> str:
    """The version as a tag of an image, which has no +."""
    return version.replace("+", "-")


def make(wheel: Path, output: Path, name: str = NAME, mirror: str = "") -> None:
    """Write both images. :param mirror: of Debian; "" for the machine's own."""
    version = tag(wheel.name.split("-")[1])
    with tempfile.TemporaryDirectory(prefix="vmpin-image-") as top:
        layers = build(Path(top), wheel, mirror or machine_mirror(), source_time())
    output.mkdir(parents=True, exist_ok=True)
    images: tuple[tuple[str, list[Layer], dict[str, object]], ...] = (
        (version, layers[:2], {"Cmd": ["watch"]}),
        (f"{version}-kubernetes", layers, {"Cmd": ["reporter"], "User": f"{REPORTER}:{REPORTER}"}))
    for label, some, extra in images:
        path = output / f"vmpin-{label}.oci.tar"
        write_archive(path, f"{name}:{label}", some, extra, source_time())
        print(f"{path}: {sum(each.size for each in some) / 1e6:.0f} MB unpacked")


def source_time() -> int:
    """Seconds since 1970: SOURCE_DATE_EPOCH, or the time of the commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    asked = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=Path(__file__).parent, capture_output=True,
                           text=True, check=False)
    return int(asked.stdout) if asked.returncode == 0 else 0


def machine_mirror() -> str:
    """The mirror from which this machine takes its own Debian; "" for debootstrap's own."""
    try:
        found = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages",
                                "Origin: Debian", "Component: main"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return next((line for line in found.stdout.split() if not line.rstrip("/").endswith("security")), "")


def build(top: Path, wheel: Path, mirror: str, now: int) -> list[Layer]:
    """Debian, vmpin, and what the extra `kubernetes` adds to it."""
    root = top / "root"
    run("debootstrap", "--variant=minbase", "--include=python3", SUITE, str(root), *([mirror] if mirror else []))
    trim(root)
    before = names(root)
    more = top / "more"
    pip(root / PACKAGES, PYTHON, GLIBC, "--require-hashes", "--requirement", str(LOCK))
    pip(root / PACKAGES, PYTHON, GLIBC, "--no-deps", str(wheel))
    # The extra's layer replaces no file of the other: both lock files have the same versions of what both need.
    pip(more, PYTHON, GLIBC, "--require-hashes", "--requirement", str(LOCK_KUBERNETES))
    launcher = root / "usr/local/bin/vmpin"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    compile_all(root, "/usr/lib/python3", f"/usr/lib/python{PYTHON}", f"/{PACKAGES}")
    compiled = [name for name in names(root) - before if name.split("/")[0] == "usr" and name.startswith("usr/lib/")]
    between = names(root)
    for name in sorted(names(more)):
        source, target = more / name, root / PACKAGES / name
        if source.is_dir():
            target.mkdir(exist_ok=True)
        elif not target.exists():
            shutil.copy2(source, target)
    compile_all(root, f"/{PACKAGES}")
    base = before | set(compiled)
    return [layer(root, base, now), layer(root, between - base, now), layer(root, names(root) - between, now)]


def trim(root: Path) -> None:
    for pattern in UNUSED:
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    # The day of the build, as that of the last change of each password.
    shadow = root / "etc/shadow"
    shadow.write_text(re.sub(r"^([^:]*:[^:]*):\d+:", r"\1::", shadow.read_text(), flags=re.MULTILINE))


def pip(target: Path, python: str, glibc: int, *wanted: str) -> None:
    """Install into a directory, for that Python and C library (2.GLIBC) and not for this machine's."""
    machine = os.uname().machine
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(glibc, 4, -1)]
    run(sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile", "--only-binary=:all:",
        "--implementation=cp", f"--python-version={python}", *(f"--platform={each}" for each in platforms),
        f"--platform=manylinux2014_{machine}", f"--platform=linux_{machine}", "--target", str(target), *wanted)
    shutil.rmtree(target / "bin", ignore_errors=True)
    for url in target.glob("*.dist-info/direct_url.json"):  # where the wheel lay
        url.unlink()
    for record in target.glob("*.dist-info/RECORD"):
        lines = record.read_text().splitlines(keepends=True)
        record.write_text("".join(line for line in lines if not _REMOVED.match(line)))


def compile_all(root: Path, *directories: str) -> None:
    """The root file system is read-only: without this each start compiles. By their source's hash and not its time,
    and unchecked; with one order of sets."""
    run("chroot", str(root), f"/usr/bin/python{PYTHON}", "-m", "compileall", "-q", "-j1",
        "--invalidation-mode=unchecked-hash", *directories, environment={"PYTHONHASHSEED": "0"})


def names(root: Path) -> set[str]:
    """Every file and directory below, relative."""
    found = set()
    for directory, below, files in os.walk(root):
        found |= {str(Path(directory, name).relative_to(root)) for name in (*below, *files)}
    return found


def layer(root: Path, wanted: Iterable[str], now: int) -> Layer:
    """Those files, sorted, all of the same time, and nothing of who made them but the numbers."""
    raw = io.BytesIO()
    size = 0
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted(wanted):
            entry = archive.gettarinfo(str(root / name), name)
            entry.mtime, entry.uname, entry.gname = now, "", ""
            size += entry.size
            if entry.isreg():
                with (root / name).open("rb") as file:
                    archive.addfile(entry, file)
            else:
                archive.addfile(entry)
    return Layer(gzip.compress(raw.getvalue(), 6, mtime=0), digest(raw.getvalue()), size)


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def write_archive(path: Path, reference: str, layers: list[Layer], extra: dict[str, object], now: int) -> None:
    """An image layout with one image (opencontainers/image-spec, image-layout.md), as a tar file."""
    media = "application/vnd.oci.image"
    architecture = run("dpkg", "--print-architecture").strip()
    made = run("date", "--utc", f"--date=@{now}", "+%Y-%m-%dT%H:%M:%SZ").strip()
    command: dict[str, object] = {
        "Env": ["PATH=/usr/local/bin:/usr/bin:/usr/sbin", "LC_ALL=C.UTF-8"], "Entrypoint": ["/usr/local/bin/vmpin"],
        "WorkingDir": "/", "Labels": {"org.opencontainers.image.title": "vmpin",
                                      "org.opencontainers.image.version": reference.rpartition(":")[2],
                                      "org.opencontainers.image.licenses": "Apache-2.0"}}
    config = plain({
        "created": made, "architecture": architecture, "os": "linux", "config": command | extra,
        "rootfs": {"type": "layers", "diff_ids": [each.diff_id for each in layers]},
        "history": [{"created": made, "created_by": "config/image.py"} for _ in layers]})
    manifest = plain({
        "schemaVersion": 2, "mediaType": f"{media}.manifest.v1+json",
        "config": descriptor(f"{media}.config.v1+json", config),
        "layers": [descriptor(f"{media}.layer.v1.tar+gzip", each.blob) for each in layers]})
    index = plain({"schemaVersion": 2, "mediaType": f"{media}.index.v1+json", "manifests": [
        descriptor(f"{media}.manifest.v1+json", manifest) | {
            "platform": {"architecture": architecture, "os": "linux"},
            "annotations": {"org.opencontainers.image.ref.name": reference, "io.containerd.image.name": reference}}]})
    files = {"oci-layout": plain({"imageLayoutVersion": "1.0.0"}), "index.json": index}
    for blob in (config, manifest, *(each.blob for each in layers)):
        files[f"blobs/{digest(blob).replace(':', '/')}"] = blob
    partial = path.with_name(f"{path.name}.partial")
    with tarfile.open(partial, "w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(data), now, 0o644
            archive.addfile(entry, io.BytesIO(data))
    partial.replace(path)


def plain(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, indent=1).encode()


def descriptor(media: str, data: bytes) -> dict[str, object]:
    return {"mediaType": media, "digest": digest(data), "size": len(data)}


def run(*argv: str, environment: dict[str, str] | None = None) -> str:
    """Run a step; it and what it mounts end with this process. :raises SystemExit: with the end of its output."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    done = subprocess.run(["setpriv", "--pdeathsig", "KILL", "--", "unshare", "--mount", "--propagation", "private",
                           "--pid", "--fork", "--kill-child", "--mount-proc", "--", *argv],
                          env=os.environ | {"PATH": path, "LC_ALL": "C.UTF-8"} | (environment or {}),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        end = (done.stdout + done.stderr).splitlines()[-25:]
        sys.exit("\n".join([f"{argv[0]} failed with {done.returncode}:", *end]))
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
