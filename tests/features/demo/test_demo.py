"""`vmpin demo`, as a person runs it: it succeeds, and leaves nothing behind however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from glob import glob
from pathlib import Path

import pytest
from documents import checked
from machine_wide import alone_with
from need import lacking, need_root, need_tool, need_unshare

from vmpin.errors import VmpinError
from vmpin.features.demo import needs

pytestmark = pytest.mark.root

DEMO = [sys.executable, "-m", "vmpin.cli.main", "demo"]


@pytest.fixture
def corner() -> Iterator[Path]:
    """Where the demo's files come to lie; afterwards nothing of it may be anywhere. Its path is short, as that of a
    socket may have 107 bytes."""
    need_root()
    for tool in ("qemu-system-x86_64", "crun", "busybox"):
        need_tool(tool)
    try:
        needs.tools()
    except VmpinError as err:
        lacking(str(err))
    with alone_with("crun"):
        yield from _left_as_found()


def _left_as_found() -> Iterator[Path]:
    runtime_files = {path for root in ("/run/crun", "/run/vmpin", "/run/vc", "/run/kata")
                     for path in Path(root).glob("*")}
    cgroups = set(glob("/sys/fs/cgroup/**/demo-*", recursive=True))
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        place = Path(name)
        yield place
        assert list(place.iterdir()) == []
    mark = os.fsencode(place)
    for process in Path("/proc").glob("[1-9]*"):
        try:
            assert mark not in (process / "cmdline").read_bytes(), process
        except (FileNotFoundError, ProcessLookupError):
            continue
    deadline = time.monotonic() + 120  # another demo may run just now
    while left := set(glob("/sys/fs/cgroup/**/demo-*", recursive=True)) - cgroups:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
    assert {path for root in ("/run/crun", "/run/vmpin", "/run/vc", "/run/kata")
            for path in Path(root).glob("*")} <= runtime_files


def environment(corner: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(corner)}


def test_it_shows_each_step_and_leaves_nothing(corner: Path) -> None:
    # Among the machine's mounts, those of others come and go.
    wrap = [*need_unshare("-m", "--propagation", "private"), "sh", "-c",
            'before=$(cat /proc/mounts); "$@" || exit; [ "$before" = "$(cat /proc/mounts)" ] || exit 99', "sh"]
    done = subprocess.run([*wrap, *DEMO], env=environment(corner), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    for number in range(1, 8):
        assert f"\n{number}/7 " in done.stdout
    assert "Every thread was where it should be, at every step." in done.stdout
    assert "pinned" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.release
def test_it_uses_tcg_where_kvm_is_there_and_does_not_work(corner: Path) -> None:
    wrap = [*need_unshare("-m", "--propagation", "private"), "sh", "-c",
            'touch "$TMPDIR/kvm"; [ -e /dev/kvm ] && mount --bind /dev/null /dev/kvm; rm "$TMPDIR/kvm"; exec "$@"',
            "sh"]
    done = subprocess.run([*wrap, *DEMO], env=environment(corner), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "by TCG: " in done.stdout


@pytest.mark.parametrize(("step", "number"), [
    ("3/7", signal.SIGTERM), *(pytest.param(step, number, marks=pytest.mark.release) for step, number in (
        ("1/7", signal.SIGINT), ("4/7", signal.SIGINT)))])
def test_it_cleans_up_when_it_is_ended(corner: Path, step: str, number: signal.Signals) -> None:
    env = {**environment(corner), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(DEMO, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        for line in demo.stdout:
            if line.startswith(step):
                break
        time.sleep(0.1)
        demo.send_signal(number)
        demo.stdout.read()
        assert "Traceback" not in demo.stderr.read()
        assert demo.wait(300) == 128 + number


def test_it_cleans_up_when_its_reader_ends(corner: Path) -> None:
    done = subprocess.run(["sh", "-c", '"$@" | head -3; :', "sh", *DEMO], env=environment(corner),
                          capture_output=True, text=True, timeout=300)
    assert "1/7" in done.stdout
    assert "Traceback" not in done.stderr


def test_missing_packages_are_named(corner: Path, tmp_path: Path) -> None:
    assert needs.missing(str(tmp_path)) == ["qemu-system-x86", "crun", "busybox-static"]
    with pytest.raises(VmpinError, match="the demo needs qemu-system-x86, crun, busybox-static") as caught:
        needs.tools(str(tmp_path))
    assert caught.value.hint == "apt-get install qemu-system-x86 crun busybox-static"


def test_nothing_is_printed_when_nothing_is_missing(corner: Path) -> None:
    done = subprocess.run([*DEMO, "--needs"], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_two_cpus_are_needed(corner: Path, tmp_path: Path) -> None:
    online = tmp_path / "devices/system/cpu/online"
    online.parent.mkdir(parents=True)
    online.write_text("0\n")
    with pytest.raises(VmpinError, match=r"two CPUs, a shared and an exclusive one; available: 0$"):
        needs.tools(sys_root=str(tmp_path))


def test_a_busybox_with_a_loader_is_not_static() -> None:
    assert not needs.is_static(need_tool("unshare"))
    assert not needs.is_static("/proc/self/status")
    assert not needs.is_static("/nonexistent")


def test_the_story_comes_as_data_too(corner: Path) -> None:
    done = subprocess.run([*DEMO, "-o", "json"], capture_output=True, text=True, timeout=300, env=environment(corner))
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    checked("demo", shown)
    assert len(shown["steps"]) == 7
    assert any("vCPU 2 on CPU" in line for line in shown["steps"][2]["said"])
    assert "7/7" in done.stderr
