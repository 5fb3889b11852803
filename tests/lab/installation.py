"""Two builds of this tree, and the node in which an operator installs them (operate.py): Debian 12 with systemd.

/lab/older and /lab/newer hold each what `make release` makes for nodes, /lab/wheels the packages of the lock file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from lab.errors import LabError
from lab.node import REPOSITORY, repository_files

#: An overlay of the node's own: that of the build machine may be unable to remove a file of a lower layer.
_INIT = """\
#!/bin/sh
mount -t proc proc /proc
modprobe overlay
mount -t tmpfs -o mode=755,size=75% tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/root
umount /proc
exec switch_root /mnt/root /lib/systemd/systemd
"""
_SERVICE = """\
[Unit]
After=multi-user.target
[Service]
ExecStart=/lab/run
# The second: for systemctl, which waits 25 seconds for an answer; every instruction is emulated.
Environment=HOME=/root SYSTEMD_BUS_TIMEOUT=600
StandardOutput=file:/dev/ttyS0
StandardError=file:/dev/ttyS0
"""
#: The console is the test's, and nothing is to run of itself.
_MASKED = ("serial-getty@ttyS0.service", "podman-restart.service", "podman-auto-update.service",
           "podman-auto-update.timer", "systemd-tmpfiles-clean.timer", "apt-daily.timer", "apt-daily-upgrade.timer",
           "dpkg-db-backup.timer", "e2scrub_all.timer")
_RUN = """\
#!/bin/sh
mkdir -p /tmp/results
mount -t virtiofs results /tmp/results
read -r seconds _ </proc/uptime
echo "init: up after $seconds s"
python3 -B /lab/operate.py {way}
status=$?
journalctl --no-pager >/tmp/results/journal
echo "$status" >/tmp/results/status
sync
echo o >/proc/sysrq-trigger
"""


def builds(work: Path) -> None:
    """Build this tree and one more commit of it, into the directories `older` and `newer` of `work`."""
    tree = work / "tree"
    for name in repository_files():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, tree / name, follow_symlinks=False)
    git = ["git", "-C", str(tree), "-c", "user.name=lab", "-c", "user.email=lab@localhost", "-c",
           "commit.gpgsign=false"]
    _run(["git", "init", "-q", str(tree)])
    _run([*git, "add", "--all", "--force"])
    release = [sys.executable, str(tree / "config/release.py"), "--only", "deb", "--only", "lock", "--output"]
    for name in "older", "newer":
        _run([*git, "commit", "-q", "--allow-empty", "-m", name])
        _run([*release, str(work / name)])


def wheels(lock: Path, target: Path) -> None:
    """The packages of a lock file, as wheels."""
    _run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:",
          "--require-hashes", "--dest", str(target), "--requirement", str(lock)])


def write_layer(layer: Path, way: str, made: Path) -> None:
    """The topmost layer of the node's root. :param way: operate.py's.
    :param made: the directory of the builds and wheels."""
    (layer / "lab").mkdir(parents=True, mode=0o755)
    for name, text in ("init", _INIT), ("run", _RUN.format(way=way)):
        (layer / "lab" / name).write_text(text)
        (layer / "lab" / name).chmod(0o755)
    for path in REPOSITORY / "tests/lab/operate.py", REPOSITORY / "tests/kata_files.py":
        shutil.copy(path, layer / "lab" / path.name)
    for name in "older", "newer", "wheels":
        shutil.copytree(made / name, layer / "lab" / name)
    units = layer / "etc/systemd/system"
    (units / "multi-user.target.wants").mkdir(parents=True)
    (units / "lab.service").write_text(_SERVICE)
    (units / "multi-user.target.wants/lab.service").symlink_to("/etc/systemd/system/lab.service")
    for unit in _MASKED:
        (units / unit).symlink_to(os.devnull)
    modules = layer / "etc/modules-load.d/lab.conf"
    modules.parent.mkdir()
    modules.write_text("kvm-amd\nvirtiofs\n")


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"{' '.join(argv)}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
