"""The packages for nodes: vmpin and all its Python packages below /opt/vmpin, for one version of the system's Python.

A part of `make release` (config/release.py). Nothing in them starts by itself: `vmpin install service --now` or
`systemctl enable --now vmpin` does. Their removal runs `vmpin uninstall`, which gives the masks back first. An upgrade
restarts a watcher that runs; the masks stay meanwhile."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import image

ROOT = Path(__file__).resolve().parents[1]
#: The C library of the oldest system that has this Python: RHEL 9 (2.34), Debian 12 (2.36).
GLIBC = 34
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
HOME = Path("opt/vmpin")
SUMMARY = "keeps Kata and other VM sandboxes on the CPUs that the kubelet gave their containers"
#: -I and -S: neither the environment nor another package of the system decides what is imported.
LAUNCHER = f"""\
#!/usr/bin/python{PYTHON} -IS
import sys

sys.path.insert(0, "/{HOME}/lib")
from vmpin.cli.__main__ import main

sys.exit(main())
"""
#: Steps that both kinds of package take. systemctl fails where systemd is not the init: an image.
INSTALLED = """\
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || :
    systemctl try-restart vmpin.service || :
fi
"""
#: `vmpin uninstall` does nothing where it finds a unit that was changed by hand: that stays, but its program goes.
REMOVING = """\
/opt/vmpin/bin/vmpin uninstall || {
    if [ -d /run/systemd/system ]; then systemctl disable --now vmpin.service || :; fi
    /opt/vmpin/bin/vmpin unpin --all || :
}
"""
REMOVED = "if [ -d /run/systemd/system ]; then systemctl daemon-reload || :; fi\n"


def package_version(version: str) -> str:
    """The same order for dpkg and rpm: 0.1.0.dev3+gabc is 0.1.0~dev3+gabc, before 0.1.0."""
    return re.sub(r"\.(dev\d+)", r"~\1", version)


def deb(wheel: Path, version: str, output: Path) -> Path:
    """Make vmpin_VERSION_ARCHITECTURE.deb. :raises SystemExit: without dpkg-deb."""
    need("dpkg-deb", "dpkg")
    architecture = image.run("dpkg", "--print-architecture").strip()
    path = output / f"vmpin_{package_version(version)}_{architecture}.deb"
    with tempfile.TemporaryDirectory(prefix="vmpin-deb-") as top:
        tree = Path(top, "tree")
        stage(tree, wheel)
        size = sum(file.lstat().st_size for file in tree.rglob("*") if not file.is_dir()) // 1024
        scripts = {"postinst": f'if [ "$1" = configure ]; then\n{INSTALLED}fi\n',
                   "prerm": f'if [ "$1" = remove ]; then\n{REMOVING}fi\n',
                   # dpkg removes the directory of base-files with the last package that has it.
                   "postrm": f"[ -d /opt ] || mkdir -m 755 /opt\n{REMOVED}"}
        control = tree / "DEBIAN"
        control.mkdir()
        (control / "control").write_text(
            f"Package: vmpin\nVersion: {package_version(version)}\nArchitecture: {architecture}\n"
            f"Maintainer: the vmpin developers <vmpin@localhost>\nInstalled-Size: {size}\n"
            f"Depends: python{PYTHON}, libc6 (>= 2.{GLIBC})\nSection: admin\nPriority: optional\n"
            f"Description: {SUMMARY}\n")
        for name, text in scripts.items():
            (control / name).write_text(f"#!/bin/sh\nset -e\n{text}")
            (control / name).chmod(0o755)
        same_times(tree)
        image.run("dpkg-deb", "--root-owner-group", "-Zzstd", "--build", str(tree), str(path))
    return path


def rpm(wheel: Path, version: str, output: Path) -> Path:
    """Make vmpin-VERSION-1.ARCHITECTURE.rpm. :raises SystemExit: without rpmbuild."""
    need("rpmbuild", "rpm")
    machine = os.uname().machine
    with tempfile.TemporaryDirectory(prefix="vmpin-rpm-") as top:
        tree, spec = Path(top, "tree"), Path(top, "vmpin.spec")
        stage(tree, wheel)
        same_times(tree)
        # A removal leaves every directory that is not listed.
        own = (tree / HOME, *(path for path in (tree / HOME).rglob("*") if path.is_dir()))
        files = "\n".join((*(f"%dir /{path.relative_to(tree)}" for path in sorted(own)), *(
            f"/{path.relative_to(tree)}" for path in sorted(tree.rglob("*")) if not path.is_dir())))
        spec.write_text(
            f"Name: vmpin\nVersion: {package_version(version)}\nRelease: 1\nSummary: {SUMMARY}\nLicense: Apache-2.0\n"
            f"Requires: /usr/bin/python{PYTHON}\nAutoReqProv: no\n%description\n{SUMMARY}.\n"
            f"%install\ncp -a {tree}/. %{{buildroot}}/\n%files\n{files}\n"
            f"%post\n{INSTALLED}%preun\nif [ \"$1\" = 0 ]; then\n{REMOVING}fi\n%postun\n{REMOVED}")
        defines = {"_topdir": f"{top}/rpmbuild", "_buildhost": "localhost", "use_source_date_epoch_as_buildtime": "1",
                   "clamp_mtime_to_source_date_epoch": "1", "__os_install_post": "%{nil}", "_build_id_links": "none",
                   "_binary_payload": "w6.xzdio", "debug_package": "%{nil}", "source_date_epoch_from_changelog": "0"}
        image.run("rpmbuild", "-bb", f"--target={machine}-linux", *(
            word for name, value in defines.items() for word in ("--define", f"{name} {value}")), str(spec))
        (made,) = Path(top, "rpmbuild/RPMS").rglob("*.rpm")
        return Path(shutil.move(made, output / made.name))


def stage(tree: Path, wheel: Path) -> None:
    """What both packages hold, below `tree`."""
    lib, programs = tree / HOME / "lib", tree / HOME / "bin"
    image.pip(lib, PYTHON, GLIBC, "--require-hashes", "--requirement", str(image.LOCK))
    image.pip(lib, PYTHON, GLIBC, "--no-deps", str(wheel))
    programs.mkdir()
    (tree / "usr/bin").mkdir(parents=True)
    for name in "vmpin", "kubectl-vmpin":
        (programs / name).write_text(LAUNCHER)
        (programs / name).chmod(0o755)
        (tree / "usr/bin" / name).symlink_to(f"/{HOME}/bin/{name}")
    shutil.move(lib / "share", tree / "usr/share")
    unit = tree / "usr/lib/systemd/system/vmpin.service"
    unit.parent.mkdir(parents=True)
    shipped = (ROOT / "config/vmpin.service").read_text()
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart=/{HOME}/bin/vmpin", shipped, flags=re.MULTILINE))
    completion = tree / "usr/share/bash-completion/completions/vmpin"
    completion.parent.mkdir(parents=True)
    completion.write_text(subprocess.run([sys.executable, "-m", "vmpin.cli", "completion", "bash"], cwd=ROOT,
                                         capture_output=True, text=True, check=True).stdout)
    for cache in lib.rglob("__pycache__"):
        shutil.rmtree(cache)
    subprocess.run([sys.executable, "-m", "compileall", "-q", "-j1", "--invalidation-mode=unchecked-hash",
                    "-s", str(tree), "-p", "/", str(lib)], env=os.environ | {"PYTHONHASHSEED": "0"}, check=True)


def same_times(tree: Path) -> None:
    """And the same rights, whatever the umask."""
    now = image.source_time()
    for path in (tree, *tree.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (now, now), follow_symlinks=False)


def need(tool: str, package: str) -> None:
    if shutil.which(tool) is None:
        sys.exit(f"{tool} is missing: install the package {package}, or leave this part out with --only")
