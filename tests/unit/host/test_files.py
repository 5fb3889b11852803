"""Other programs' files, below a root or not: every reader takes regular files alone, and never waits."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from need import need_root, need_unshare
from trees import make_tree

from vmpin.authorities.kubelet_authority import KubeletCheckpoint
from vmpin.config import yaml_file
from vmpin.cpuset import CpuSet
from vmpin.domain.model import SandboxId, ThreadId
from vmpin.errors import ConfigError, SourceError, StateFileError
from vmpin.features.common.kept_database import KeptDatabase
from vmpin.host.files import MAX_BYTES, Files, open_regular, read_regular
from vmpin.pinning.original_masks import OriginalMasks
from vmpin.reconcile import state_file
from vmpin.reconcile.state_format import SavedState
from vmpin.runtime.kata import KataState
from vmpin.runtime.oci import read_bundle
from vmpin.sources.spool import Spool


def test_a_file_that_is_filled_after_its_size_was_read_takes_few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kata writes its files in place; those of /proc have no size at all."""
    reads, read = 0, os.read

    def counted(fd: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        return read(fd, size)

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", counted)
        content, info = read_regular("/proc/self/status", 1 << 20)
    assert (info.st_size, content[:5], reads) == (0, b"Name:", 2)


def test_the_beginning_of_a_file_with_a_broken_block_is_empty() -> None:
    with pytest.raises(OSError, match="Input/output error"):
        read_regular("/proc/self/mem", 16)
    assert Files().beginning("/proc/self/mem", 16) == b""


def test_a_file_is_read_and_a_missing_one_is_none(tmp_path: Path) -> None:
    files = Files(make_tree(tmp_path, "etc/a.conf = x\n"))
    assert files.read("/etc/a.conf") == b"x\n"
    assert files.text("/etc/a.conf") == "x\n"
    assert files.read("/etc/b.conf") is None
    assert files.read("/etc/a.conf/below") is None
    assert (files.exists("/etc/a.conf"), files.exists("/etc/b.conf")) == (True, False)


@pytest.mark.parametrize(("link", "target"), [
    ("etc/link", "/opt/real.conf"), ("etc/link", "../opt/real.conf"), ("etc/link", "../../../../opt/real.conf"),
    ("etc/link", "/../../opt/./real.conf"), ("run", "/opt")])
def test_links_are_followed_as_the_node_would_and_not_out_of_the_root(tmp_path: Path, link: str, target: str) -> None:
    """A link to /opt means the node's, and not that of the container this runs in."""
    files = Files(make_tree(tmp_path, "etc/\nopt/real.conf = x\n"))
    (tmp_path / link).symlink_to(target)
    asked = "/run/real.conf" if link == "run" else f"/{link}"
    assert files.real(asked) == "/opt/real.conf"
    assert files.read(asked) == b"x\n"


def test_links_in_a_circle_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("/b")
    (tmp_path / "b").symlink_to("/a")
    files = Files(tmp_path)
    with pytest.raises(SourceError, match="/a"):
        files.read("/a")
    assert not files.exists("/a")


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dir").mkdir()
    (tmp_path / "large").write_bytes(b"x" * (MAX_BYTES + 1))
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    files = Files(tmp_path)
    found: list[str] = []

    def ask() -> None:
        for name, call in (("fifo", files.read), ("dir", files.read), ("large", files.read), ("bytes", files.text)):
            try:
                call(f"/{name}")
            except SourceError as err:
                found.append(str(err))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(120)  # a FIFO that is waited for would hang here
    assert [text.partition(" ")[0] for text in found] == ["/fifo:", "/dir:", "/large:", "/bytes:"]
    assert "no regular file" in found[0]


def test_a_name_that_is_none_is_missing(tmp_path: Path) -> None:
    files = Files(tmp_path)
    assert files.names("/a\0b") == []
    assert not files.exists("/a\0b")
    with pytest.raises(SourceError):
        files.read("/a\0b")


def test_patterns_find_files_below_links_too(tmp_path: Path) -> None:
    files = Files(make_tree(tmp_path, """
        opt/kata/b/x.toml = 1
        opt/kata/a/x.toml = 1
        opt/kata/a/x.txt = 1
    """))
    (tmp_path / "etc").symlink_to("/opt/kata")
    assert files.glob("/opt/kata/*/x.toml") == ["/opt/kata/a/x.toml", "/opt/kata/b/x.toml"]
    assert files.glob("/etc/*/x.toml") == ["/etc/a/x.toml", "/etc/b/x.toml"]
    assert files.glob("/none/*") == []
    assert files.names("/opt/kata/a") == ["x.toml", "x.txt"]


def test_without_a_root_it_is_the_machine(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").symlink_to("a")
    assert Files().real(tmp_path / "b") == os.path.realpath(tmp_path / "a")
    assert Files("/").read(tmp_path / "b") == b"x"


def test_a_root_behind_a_link_of_proc_is_that_processs_own() -> None:
    """`/proc/PID/root` reads as "/", and leads into another mount namespace all the same."""
    need_root()
    there = tempfile.gettempdir()
    script = f"mount -t tmpfs vmpin {there} && echo there > {there}/a && echo . && read x"
    with subprocess.Popen([*need_unshare("--mount"), "sh", "-c", script], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b".\n"
        assert Files(f"/proc/{other.pid}/root").text(f"{there}/a") == "there\n"
        other.communicate(b"\n")


BOOT = "boot"
PERSIST = {"State": "stopped", "Config": {"ContainerConfigs": [{"ID": "c1"}]}}
CHECKPOINT = {"policyName": "static", "defaultCpuSet": "0-1", "entries": {"uid": {"app": "2"}}}


def made(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def fifo(path: Path) -> None:
    os.mkfifo(path)


def linked(path: Path) -> None:
    """A link to what stood there."""
    real = path.with_name("elsewhere")
    if path.exists():
        path.rename(real)
    path.symlink_to(real)


def device(path: Path) -> None:
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # /dev/zero


def put(path: Path, kind: Callable[[Path], None]) -> None:
    if kind is not linked:
        path.unlink(missing_ok=True)
    try:
        kind(path)
    except PermissionError:
        pytest.skip("no right to make devices")


KINDS = pytest.mark.parametrize("kind", [fifo, linked, device])


@KINDS
def test_the_helper_refuses_it(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    path = tmp_path / "file"
    made(path, b"content")
    assert read_regular(path, 7)[0] == b"content"
    with pytest.raises(OSError, match="is larger than 6 bytes") as caught:
        read_regular(path, 6)
    assert caught.value.errno == errno.EFBIG
    put(path, kind)
    fds = len(os.listdir("/proc/self/fd"))
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_APPEND):
        with pytest.raises(OSError) as caught:
            open_regular(path, flags)
        assert caught.value.errno in (errno.EINVAL, errno.ELOOP, errno.ENXIO)
    assert len(os.listdir("/proc/self/fd")) == fds
    if kind is linked:
        assert read_regular(path, 7, follow=True)[0] == b"content"
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path, 7)


def test_a_link_on_the_way_is_followed(tmp_path: Path) -> None:
    """/var/run is one on most nodes, and the kubelet's directory on some."""
    made(tmp_path / "real" / "file", b"content")
    (tmp_path / "link").symlink_to("real")
    assert read_regular(tmp_path / "link/file", 100)[0] == b"content"


@KINDS
def test_the_state_file(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    path = tmp_path / "state.json"
    kept = SavedState(originals={SandboxId("a"): OriginalMasks()})
    state_file.save(path, BOOT, kept)
    put(path, kind)
    found, trouble = state_file.load(path, BOOT)
    assert found == SavedState()
    assert f"{path}: cannot be read: " in trouble
    # It is replaced, wherever a link leads; and so is what lies where the new one is written.
    put(tmp_path / ".state.json.new", kind)
    state_file.save(path, BOOT, kept)
    assert path.is_file()
    assert not path.is_symlink()
    assert state_file.load(path, BOOT)[1] == ""


@KINDS
def test_the_notes_of_masks(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    path = tmp_path / "originals.notes"
    state_file.note(path, BOOT, SandboxId("a"), ThreadId(7, 8), CpuSet([1]))
    assert state_file.with_notes(path, BOOT, SavedState()).originals
    put(path, kind)
    assert state_file.with_notes(path, BOOT, SavedState()) == SavedState()
    with pytest.raises(StateFileError):
        state_file.note(path, BOOT, SandboxId("a"), ThreadId(7, 8), CpuSet([1]))


@KINDS
def test_a_kept_database(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    path = tmp_path / "proof"
    put(path, kind)
    database = KeptDatabase(path, BOOT, "CREATE TABLE IF NOT EXISTS a (b)", 1, 1 << 20, "books", lambda: True)
    assert database.read(lambda connection: connection.execute("SELECT b FROM a").fetchone(), None).result() is None
    database.close()
    assert path.is_file()


@KINDS
def test_katas_files(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    complaints: list[str] = []
    state = KataState(tmp_path / "vc", tmp_path / "kata", complaints.append)
    sandbox, container = tmp_path / "vc/sbs/pod/persist.json", tmp_path / "vc/sbs/pod/c1/persist.json"
    rust = tmp_path / "kata/other/state.json"
    for path in (sandbox, container, rust):
        made(path, PERSIST)
    (found, other) = state.sandboxes().values()
    assert ([each.state.value for each in found.containers or ()], other.runtime) == (["stopped"], "kata-rs")
    put(container, kind)
    assert [each.state.value for each in state.sandboxes()[SandboxId("pod")].containers or ()] == ["running"]
    put(sandbox, kind)
    put(rust, kind)
    assert state.sandboxes() == {}
    assert {line.split(": ")[0] for line in complaints} == {str(sandbox), str(rust)}
    assert state.listed == {"pod", "other"}


@KINDS
def test_the_kubelets_checkpoint(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    warnings: list[str] = []
    (tmp_path / "real").mkdir()
    (tmp_path / "kubelet").symlink_to("real")
    path = tmp_path / "kubelet/cpu_manager_state"
    made(path, CHECKPOINT)
    state = KubeletCheckpoint(tmp_path / "kubelet", warnings.append)
    before = state.read()
    assert before is not None
    put(path, kind)
    assert state.read() is before
    assert len(warnings) == 1


@KINDS
def test_a_spooled_message(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    spool = Spool(tmp_path / "spool")
    spool.prepare()
    name = spool.keep(b"message", 1)
    assert name is not None
    put(spool.path / name, kind)
    assert spool.waiting(set(), tidy=True) == []
    assert not (spool.path / name).is_symlink()
    assert not (spool.path / name).exists()


@KINDS
def test_a_bundle(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    made(tmp_path / "config.json", {"linux": {}})
    read_bundle(str(tmp_path))
    put(tmp_path / "config.json", kind)
    with pytest.raises(SourceError):
        read_bundle(str(tmp_path))


@KINDS
def test_another_programs_configuration(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    made(tmp_path / "config.toml", b"x")
    put(tmp_path / "config.toml", kind)
    files = Files(tmp_path)
    if kind is linked:  # followed as the node would follow it, so it may lead out of the root nowhere
        (tmp_path / "elsewhere").rename(tmp_path / "there")
        (tmp_path / "config.toml").unlink()
        (tmp_path / "config.toml").symlink_to("/there")
        assert files.read("/config.toml") == b"x"
        return
    with pytest.raises(SourceError):
        files.read("/config.toml")


@KINDS
def test_vmpins_own_configuration(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    """Read again at SIGHUP, when nothing may wait. A link is an operator's."""
    path = tmp_path / "vmpin.yaml"
    made(path, b"policy: {vcpus: auto}")
    put(path, kind)
    if kind is linked:
        assert yaml_file.load(path) == {"policy": {"vcpus": "auto"}}
        return
    with pytest.raises(ConfigError, match="cannot be read: is no regular file"):
        yaml_file.load(path)
    path.unlink()
    path.symlink_to(os.devnull)
    assert yaml_file.load(path) is None
    assert yaml_file.load(Path(os.devnull)) is None


def test_files_below_a_directory_are_those_of_gos_walk(tmp_path: Path) -> None:
    """A mounted ConfigMap has its files in a directory beside a link to that directory."""
    make_tree(tmp_path, "d/..2026/9.conf = x\nd/a/2.conf = x\nd/a/b/1 = x\nd/c = x\nd/e/\n")
    (tmp_path / "d/..data").symlink_to("..2026")
    (tmp_path / "d/9.conf").symlink_to("..data/9.conf")
    (tmp_path / "link").symlink_to("/d")
    names = ["..2026/9.conf", "..data", "9.conf", "a/2.conf", "a/b/1", "c"]
    assert list(Files(tmp_path).below("/d")) == [f"/d/{name}" for name in names]
    assert list(Files(tmp_path).below("/link/")) == [f"/link/{name}" for name in names]
    assert list(Files(tmp_path).below("/link")) == ["/link"]
    assert list(Files(tmp_path).below("/gone")) == []
    assert list(Files(tmp_path).below(f"/{'x' * 300}/d")) == []  # lstat fails, as below a root that may not be entered
