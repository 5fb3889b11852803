"""Where `vmpin demo` cannot work it says what is missing, before anything is installed or started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from need import need_root, need_tool, need_unshare
from test_demo import DEMO

from vmpin.errors import VmpinError
from vmpin.features.demo import needs

pytestmark = pytest.mark.root

NEEDS = [*DEMO, "--needs"]


def refusal(*command: str | Path) -> str:
    """What the command prints where it refuses; nothing of it is data."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (1, ""), done
    return done.stderr


def in_namespaces(script: str, *arguments: str | Path) -> str:
    return refusal(*need_unshare("-mpf", "--propagation", "private", "--mount-proc"), "sh", "-euc", script, "sh",
                   *arguments)


CHROOT = """
    mount -t tmpfs none "$1"
    root=$1/root
    mkdir -p "$root/proc" "$root/sys" "$root/tmp"
    [ -z "$2" ] || mount -t proc proc "$root/proc"
    for each in bin sbin lib lib64 usr dev etc; do
        if [ -L "/$each" ]; then cp -P "/$each" "$root/$each"
        elif [ -d "/$each" ]; then mkdir "$root/$each"; mount --bind "/$each" "$root/$each"; fi
    done
    for each in "$3" "$4" "$5"; do
        [ -d "$root/$each" ] || { mkdir -p "$root/$each"; mount --bind "$each" "$root/$each"; }
    done
    shift 5
    cd /
    exec chroot "$root" "$@"
"""


@pytest.mark.parametrize(("proc", "texts"), [
    ("proc", ["needs a / that is a mount point: in this chroot it is a plain directory",
              "; and /sys: nothing is mounted there\n", "`mount --bind DIRECTORY DIRECTORY` before chroot"]),
    ("", ["this pid namespace's own /proc: nothing is mounted there\n  mount -t proc proc /proc"])])
def test_a_chroot_in_a_plain_directory_is_named_with_the_way_out(tmp_path: Path, proc: str, texts: list[str]) -> None:
    """The directories of a system are mounted into it, but it is none itself."""
    need_root()
    need_tool("chroot")
    printed = in_namespaces(CHROOT, tmp_path, proc, Path(__file__).parents[3], sys.prefix, sys.base_prefix, *NEEDS)
    assert [text for text in texts if text not in printed] == [], printed


def test_another_pid_namespaces_proc_is_named() -> None:
    assert "this pid namespace's own /proc: it is of another pid namespace\n  mount -t proc proc /proc" in refusal(
        *need_unshare("-pf"), *NEEDS)


def test_root_without_the_right_to_mount_is_named() -> None:
    printed = refusal(need_tool("setpriv"), "--bounding-set=-sys_admin", *NEEDS)
    assert "the demo needs mount namespaces: " in printed
    assert "Operation not permitted" in printed
    assert "a privileged container" in printed


def test_read_only_cgroups_are_named() -> None:
    printed = in_namespaces('for each in $(grep -o " /sys/fs/cgroup[^ ]*" /proc/mounts); do '
                         'mount -o remount,ro,bind "$each"; done; exec "$@"', *NEEDS)
    assert "the demo needs cgroups that can be written: /sys/fs/cgroup" in printed
    assert "Read-only file system" in printed


@pytest.mark.parametrize(("controllers", "text"), [
    (None, "cgroups: none are mounted on"), ("cpu memory", "the cgroup controller cpuset: .* has cpu, memory$"),
    ("", "the cgroup controller cpuset: .* has none$")])
def test_missing_cgroups_and_controllers_are_named(tmp_path: Path, controllers: str | None, text: str) -> None:
    need_root()
    cgroups, online = tmp_path / "fs/cgroup", tmp_path / "devices/system/cpu/online"
    for directory in cgroups, online.parent:
        directory.mkdir(parents=True)
    online.write_text("0-1\n")
    if controllers is not None:
        (cgroups / "cgroup.procs").touch()
        (cgroups / "cgroup.controllers").write_text(controllers)
    with pytest.raises(VmpinError, match=text):
        needs.check_place(str(tmp_path))


def test_another_user_is_told_to_be_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    with pytest.raises(VmpinError, match=r"^the demo needs root: it makes containers and pins threads$") as caught:
        needs.check_place()
    assert caught.value.hint == "run the same command as root"
